//! What the names of a call mean before it is made.

use bytes::Bytes;
use tracing::warn;

use super::PartitionWriter;
use super::plan::AlikePlaces;
use crate::domain::{Entry, Flags, RouteName};
use crate::store::call::keys::Keys;
use crate::store::call::names::{name_key, parse_place};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::scripts;
use crate::store::model::bundle::BundleId;
use crate::store::query::find::{MessagePlace, read_place};
use crate::store::{Bundle, StoreError, WriteOp, decode_outline};

impl PartitionWriter {
    /// The bundles that the names of these operations mean right now, only to declare their keys.
    pub(super) async fn bundles_of(&self, ops: &[&WriteOp]) -> Result<Vec<BundleId>, StoreError> {
        let names = names_of(ops);
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let places = self.places(&names).await?;
        let mut ids: Vec<BundleId> = places
            .into_iter()
            .flatten()
            .map(|place| place.bundle)
            .collect();
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    /// The places of messages that wait or are in flight under names of these operations and were given back as often. Reads
    /// nothing where no message was given back.
    pub(super) async fn alike(&self, ops: &[&WriteOp]) -> Result<AlikePlaces, StoreError> {
        let counted = ops.iter().flat_map(|op| match op {
            WriteOp::Store { route, bundle, .. } => given_back(route, bundle),
            _ => Vec::new(),
        });
        let (names, counts): (Vec<String>, Vec<u32>) = counted.unzip();
        let mut alike = AlikePlaces::new();
        if names.is_empty() {
            return Ok(alike);
        }
        let places = self.places(&names).await?;
        for ((name, count), place) in names.into_iter().zip(counts).zip(places) {
            let Some(place) = place.filter(|place| place.listed) else {
                continue;
            };
            let link = self.calls.link();
            let reading = read_place(link, &self.keys, self.partition, &name, &place).await?;
            let outline = reading.and_then(|reading| {
                let outline = decode_outline(&reading.blob?).ok()?;
                outline
                    .bundle
                    .entries
                    .get(reading.index)
                    .map(Entry::given_back)
            });
            if outline == Some(count) {
                alike.insert(name, place.text());
            }
        }
        Ok(alike)
    }

    /// The places of these names. A `~` id without an entry names its place itself.
    async fn places(&self, names: &[String]) -> Result<Vec<Option<MessagePlace>>, StoreError> {
        let listed = self.listed(names).await?;
        let mut places = Vec::with_capacity(names.len());
        for (name, listed) in names.iter().zip(listed) {
            let listed = listed.map(|listed| String::from_utf8_lossy(&listed).into_owned());
            places.push(MessagePlace::of(self.partition, name, listed.as_deref()));
        }
        Ok(places)
    }

    /// Frees those of these names whose entry is no place. Another program wrote it, and no call can be applied under
    /// such a name.
    pub(super) async fn free_malformed(&self, names: &[String]) -> Result<(), StoreError> {
        let listed = self.listed(names).await?;
        let mut args: Vec<ScriptArg> = Vec::new();
        for (name, entry) in names.iter().zip(listed) {
            let Some(entry) = entry else { continue };
            if std::str::from_utf8(&entry).is_ok_and(|entry| parse_place(entry).is_some()) {
                continue;
            }
            warn!(
                partition = self.partition.0,
                name, "the entry of a name is no place; freeing the name"
            );
            args.extend([name.as_str().into(), ScriptArg::Blob(entry)]);
        }
        if args.is_empty() {
            return Ok(());
        }
        let call = ScriptCall {
            script: &scripts::FREE_FIELDS,
            op: "free_names",
            keys: vec![self.keys.of(self.partition, "names")],
            args,
            blobs: Vec::new(),
        };
        self.calls.run_unnumbered(self.partition, &call).await?;
        Ok(())
    }

    /// The entries of these names in `names`.
    async fn listed(&self, names: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let connected = self.calls.link().to(Keys::slot(self.partition)).await?;
        let mut connection = connected.connection.clone();
        let mut hmget = redis::cmd("HMGET");
        hmget.arg(self.keys.of(self.partition, "names")).arg(names);
        hmget
            .query_async(&mut connection)
            .await
            .map_err(|error| self.calls.link().judge(&connected, &error))
    }
}

/// The names of a bundle's messages that consumers have given back, and how often.
fn given_back(route: &RouteName, bundle: &Bundle) -> Vec<(String, u32)> {
    let named = bundle.entries.iter().filter(|e| e.flags.has(Flags::NAMED));
    let counted = named.filter(|entry| entry.given_back() > 0);
    counted
        .filter_map(|entry| Some((name_key(route, entry.id.as_ref()?), entry.given_back())))
        .collect()
}

/// The fields of `names` that these operations speak of.
pub(super) fn names_of(ops: &[&WriteOp]) -> Vec<String> {
    let mut names = Vec::new();
    for op in ops {
        match op {
            WriteOp::Store { route, bundle, .. } => {
                let ids = bundle.entries.iter().filter_map(Entry::listed_id);
                names.extend(ids.map(|id| name_key(route, id)));
            }
            WriteOp::Cancel { route, id, .. } => names.push(name_key(route, id)),
            WriteOp::Reschedule { .. } | WriteOp::Replace { .. } | WriteOp::DeadLetter(_) => {}
        }
    }
    names
}

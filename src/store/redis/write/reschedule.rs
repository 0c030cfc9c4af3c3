//! Moving a pending message to another moment: it is read first, for it leaves its bundle for one of its own.

use std::sync::Arc;

use redis::Value;
use tracing::error;

use super::{LOOKS, PartitionWriter, name_key, never_settles};
use crate::domain::{RouteName, Text, UnixMs};
use crate::store::bundle::BundleId;
use crate::store::redis::lane::{Arg, Call, Turn};
use crate::store::redis::reply::{shape, text};
use crate::store::redis::scripts;
use crate::store::{Bundle, StoreError, WriteResult, decode, encode, slice_of};

impl PartitionWriter {
    pub(super) async fn reschedule(
        &self,
        turn: &mut Turn<'_>,
        route: &RouteName,
        id: &Text,
        due: UnixMs,
        fallback: &Bundle,
    ) -> Result<WriteResult, StoreError> {
        let name = name_key(route, id);
        let remembers = self.memory.has(route.as_str());
        for _ in 0..LOOKS {
            let place = self.places(std::slice::from_ref(&name)).await?.pop().flatten();
            let found = match &place {
                Some((old, index)) => self.read_pending(old, *index).await?,
                None => Pending::No,
            };
            let (script, mode, mut entry) = match found {
                Pending::Yes(moved) => (&scripts::MOVE, "m", moved),
                Pending::No => (&scripts::RESCHEDULE, "n", fallback.clone()),
                Pending::Unreadable(why) => {
                    error!(%route, %id, error = why, "a message cannot be moved: its bundle cannot be read");
                    return Ok(WriteResult::TooLate);
                }
            };
            move_to(&mut entry, due);
            let fresh = BundleId::new(route, slice_of(due), &self.ids.unique(), 1);
            let mut keys = self.keys.fixed_of(self.partition, remembers);
            keys.push(self.keys.blob(self.partition, &fresh));
            keys.push(self.keys.due(self.partition, fresh.shelf()));
            let mut saw = String::new();
            if let Some((old, index)) = &place {
                keys.push(self.keys.blob(self.partition, old));
                keys.push(self.keys.due(self.partition, old.shelf()));
                saw = format!("{old} {index}");
            }
            let args: Vec<Arg> = vec![
                name.clone().into(),
                saw.into(),
                mode.into(),
                fresh.as_str().into(),
                due.0.into(),
                Arg::Blob(encode(&entry)),
            ];
            let script = script.of(remembers);
            let call = Call { script, op: "reschedule", keys, args, blobs: Vec::new() };
            let answer = text(&turn.run(self.partition, call).await?)?;
            let result = match answer.as_str() {
                "CHANGED" => continue,
                "r" => WriteResult::Rescheduled,
                "s" => WriteResult::Stored,
                "l" => return Ok(WriteResult::TooLate),
                _ => return Err(shape("the answer to a reschedule")),
            };
            self.wake.stored(self.partition, due);
            return Ok(result);
        }
        Err(never_settles())
    }

    /// One message of a bundle that is in its due zset now, as a bundle of one (the script judges for good).
    async fn read_pending(&self, id: &BundleId, index: u32) -> Result<Pending, StoreError> {
        let connected = self.lane.link().get().await?;
        let mut connection = connected.connection.clone();
        let p = self.partition;
        let mut pipe = redis::pipe();
        pipe.cmd("ZSCORE").arg(self.keys.due(p, id.shelf())).arg(id.as_str());
        pipe.cmd("HMGET").arg(self.keys.of(p, "gone")).arg(id.as_str());
        pipe.cmd("HMGET").arg(self.keys.of(p, "done")).arg(id.as_str());
        pipe.cmd("GET").arg(self.keys.blob(p, id));
        let (score, gone, done, blob): (Option<String>, Value, Value, Option<Vec<u8>>) = pipe
            .query_async(&mut connection)
            .await
            .map_err(|error| self.lane.link().judge(&connected, &error))?;
        if score.is_none() || is_set(&gone, index) || is_set(&done, index) {
            return Ok(Pending::No);
        }
        let Some(blob) = blob else { return Ok(Pending::Unreadable("its blob is not there".to_owned())) };
        let bundle = match decode(&blob.into()) {
            Ok(bundle) => bundle,
            Err(why) => return Ok(Pending::Unreadable(why.to_string())),
        };
        Ok(match bundle.entries.get(index as usize) {
            Some(entry) => {
                Pending::Yes(Bundle { target: bundle.target.clone(), entries: Arc::new(vec![entry.clone()]) })
            }
            None => Pending::Unreadable("its name points behind the end of its bundle".to_owned()),
        })
    }
}

/// What a look at a name's message showed.
enum Pending {
    /// It is due some time: this is it.
    Yes(Bundle),
    /// It is not (any more).
    No,
    /// It is, and cannot be read; the claim will find out and keep it for a person.
    Unreadable(String),
}

fn move_to(bundle: &mut Bundle, due: UnixMs) {
    for entry in Arc::make_mut(&mut bundle.entries) {
        entry.due = due;
        entry.asked = None;
    }
}

fn is_set(map: &Value, index: u32) -> bool {
    let Value::Array(items) = map else { return false };
    match items.first() {
        Some(Value::BulkString(bits)) => bits.get(index as usize) == Some(&b'1'),
        _ => false,
    }
}

//! Turns operations into one call of the script: keys in their order, arguments in theirs, blobs beside them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::PartitionWriter;
use super::growing::{Growth, GrowthPlan, alone};
use crate::domain::{Entry, OnDuplicate, Partition, RouteName, UnixMs};
use crate::store::call::names::{dead_blob, dead_id, name_key, queues_of};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::scripts::{self, ScriptVariant};
use crate::store::model::bundle::BundleId;
use crate::store::model::codec::{encode_like, example_element};
use crate::store::query::find::MessagePlace;
use crate::store::{Bundle, DeadId, DeadLetter, WriteOp, encode};

/// A call, and the due times that it will have stored.
pub(super) struct WritePlan {
    pub(super) call: ScriptCall,
    pub(super) dues: Vec<UnixMs>,
    /// The ids of the dead letters, in order.
    pub(super) dead_ids: Vec<DeadId>,
}

impl WritePlan {
    pub(super) fn new(
        writer: &PartitionWriter,
        ops: &[&WriteOp],
        meant: &[BundleId],
        alike: &AlikePlaces,
        growth: &GrowthPlan,
    ) -> Self {
        let (new, standing): (Vec<&Growth>, Vec<&Growth>) =
            growth.growths.iter().partition(|grown| grown.is_new);
        let mut parts = CallParts::of(writer);
        for grown in &new {
            parts.begin_growing(grown);
        }
        let own_bundles = ops
            .iter()
            .enumerate()
            .filter(|(at, op)| matches!(op, WriteOp::Store { .. }) && !growth.has_places(*at));
        let growth_places = growth.places_in_call(new.len() + own_bundles.count());
        for (at, op) in ops.iter().enumerate() {
            match op {
                WriteOp::Store {
                    route,
                    on_duplicate,
                    bundle,
                } => {
                    let own = parts.remembers(route);
                    let policy = |entry: &Entry, name: &str| {
                        policy(*on_duplicate, own, entry, alike.get(name))
                    };
                    if growth.has_places(at) {
                        let places = growth.places[at].iter().map(|&(grown, index)| {
                            let example = growth.growths[grown].example.as_ref();
                            (growth_places[grown], index, example)
                        });
                        parts.grow(route, bundle, places, policy);
                    } else {
                        parts.store(route, bundle, policy);
                    }
                }
                WriteOp::Cancel { route, id, .. } => {
                    let own = parts.remembers(route);
                    let name = name_key(route, id);
                    cancel_op(&mut parts.script_ops, writer.partition, &name, own);
                }
                WriteOp::DeadLetter(dead_letter) => parts.bury(dead_letter),
                WriteOp::Reschedule { .. } | WriteOp::Replace { .. } => {
                    unreachable!("what reads first goes alone")
                }
            }
        }
        parts.finish(&standing, meant, !growth.growths.is_empty())
    }
}

/// The parts of a call, to which its operations are added one by one.
struct CallParts<'a> {
    writer: &'a PartitionWriter,
    with: ScriptVariant,
    /// The least and the greatest sequence number of the bundles of ordered routes.
    sequences: Option<(u64, u64)>,
    due_sets: DueSetPlaces,
    /// Arguments and keys of the bundles that the call makes, and their number.
    fresh: Vec<ScriptArg>,
    fresh_keys: Vec<String>,
    bundles: usize,
    script_ops: ScriptOps,
    blobs: Vec<(String, Bytes)>,
    dead_ids: Vec<DeadId>,
    dues: Vec<UnixMs>,
}

impl<'a> CallParts<'a> {
    fn of(writer: &'a PartitionWriter) -> Self {
        Self {
            writer,
            with: ScriptVariant::default(),
            sequences: None,
            due_sets: DueSetPlaces::default(),
            fresh: Vec::new(),
            fresh_keys: Vec::new(),
            bundles: 0,
            script_ops: ScriptOps::default(),
            blobs: Vec::new(),
            dead_ids: Vec::new(),
            dues: Vec::new(),
        }
    }

    /// Reports whether the route remembers the names of delivered messages. The script then has what looks for them.
    fn remembers(&mut self, route: &RouteName) -> bool {
        let own = self.writer.delivered_names.remembers(route.as_str());
        self.with.remembers |= own;
        own
    }

    fn blob_key(&self, id: &BundleId) -> String {
        self.writer.keys.blob(self.writer.partition, id)
    }

    /// Makes a growing bundle.
    fn begin_growing(&mut self, grown: &Growth) {
        self.bundles += 1;
        let example = grown.example.as_deref().map(example_element);
        self.fresh.extend::<[ScriptArg; 5]>([
            grown.id.as_str().into(),
            self.due_sets.place(grown.id.due_set()).into(),
            grown.due.0.into(),
            grown.added.into(),
            ScriptArg::Blob(example.unwrap_or_default()),
        ]);
        self.fresh_keys.push(self.blob_key(&grown.id));
    }

    /// Puts messages into growing bundles: each has its bundle's place in the call, its own in the bundle, and the message
    /// that the bundle's others are written like.
    fn grow<'b>(
        &mut self,
        route: &RouteName,
        bundle: &Bundle,
        places: impl Iterator<Item = (usize, usize, Option<&'b Bytes>)>,
        policy: impl Fn(&Entry, &str) -> String,
    ) {
        for (entry, (grown, index, example)) in bundle.entries.iter().zip(places) {
            let alone = alone(bundle, entry);
            let message = match example {
                Some(example) => encode_like(&alone, example),
                None => encode(&alone),
            };
            let name = name_key(route, &entry.id.clone().unwrap_or_default());
            let policy = policy(entry, &name);
            self.script_ops.push([
                "A".into(),
                grown.into(),
                index.into(),
                name.into(),
                policy.into(),
                ScriptArg::Blob(message),
            ]);
        }
    }

    /// Stores messages in a bundle of their own.
    fn store(
        &mut self,
        route: &RouteName,
        bundle: &Bundle,
        policy: impl Fn(&Entry, &str) -> String,
    ) {
        let first = bundle.first_due();
        let id = fresh_id(self.writer, route, bundle, &mut self.sequences);
        let blob = encode(bundle);
        self.bundles += 1;
        self.fresh.extend::<[ScriptArg; 4]>([
            id.as_str().into(),
            self.due_sets.place(id.due_set()).into(),
            first.0.into(),
            blob.len().into(),
        ]);
        let key = self.blob_key(&id);
        self.fresh_keys.push(key.clone());
        self.blobs.push((key, blob));
        store_ops(
            &mut self.script_ops,
            self.bundles,
            route,
            policy,
            &bundle.entries,
        );
        self.dues.push(first);
    }

    fn bury(&mut self, dead_letter: &DeadLetter) {
        let writer = self.writer;
        let id = dead_id(dead_letter, writer.partition, &writer.ids);
        self.blobs
            .push((writer.keys.dead(&id), dead_blob(dead_letter)));
        self.dead_ids.push(id);
    }

    /// The call. Behind what it makes come the bundles that stand already: those that grow, and those that its names are
    /// meant to be in.
    fn finish(mut self, standing: &[&Growth], meant: &[BundleId], grows: bool) -> WritePlan {
        let (p, keys) = (self.writer.partition, &self.writer.keys);
        let mut behind: Vec<ScriptArg> = Vec::with_capacity(meant.len() * 3);
        for grown in standing {
            behind.extend::<[ScriptArg; 4]>([
                grown.id.as_str().into(),
                self.due_sets.place(grown.id.due_set()).into(),
                grown.base.into(),
                grown.added.into(),
            ]);
        }
        let meant: Vec<&BundleId> = meant
            .iter()
            .filter(|id| standing.iter().all(|grown| grown.id != **id))
            .collect();
        for id in &meant {
            behind.extend::<[ScriptArg; 3]>([
                id.as_str().into(),
                self.due_sets.place(id.due_set()).into(),
                "".into(),
            ]);
        }
        self.with.ordered = self.sequences.is_some();
        let due_sets = self.due_sets.0;
        let (queues, places) = queues_of(&self.dead_ids);
        let mut all_keys = keys.fixed_of(p, self.with);
        all_keys.extend(due_sets.iter().map(|due_set| keys.due(p, due_set)));
        all_keys.extend(self.fresh_keys);
        all_keys.extend(standing.iter().map(|grown| keys.blob(p, &grown.id)));
        all_keys.extend(meant.iter().map(|id| keys.blob(p, id)));
        all_keys.extend(self.dead_ids.iter().map(|id| keys.dead(id)));
        all_keys.extend(queues.iter().map(|queue| keys.queue(p, queue)));
        let mut args: Vec<ScriptArg> = vec![
            due_sets.len().into(),
            self.bundles.into(),
            (standing.len() + meant.len()).into(),
            self.dead_ids.len().into(),
            queues.len().into(),
        ];
        if let Some((lowest, highest)) = self.sequences {
            args.extend::<[ScriptArg; 2]>([lowest.into(), highest.into()]);
        }
        args.extend(due_sets.into_iter().map(ScriptArg::Text));
        args.extend(self.fresh);
        args.extend(behind);
        for (id, place) in self.dead_ids.iter().zip(places) {
            args.extend::<[ScriptArg; 2]>([id.as_str().into(), place.into()]);
        }
        args.extend(queues.into_iter().map(ScriptArg::Text));
        args.extend(self.script_ops.finish());
        let (script, op) = if self.blobs.is_empty() && !grows {
            (&scripts::CANCEL, "cancel")
        } else {
            (&scripts::WRITE, "store")
        };
        WritePlan {
            call: ScriptCall {
                script: script.of(self.with),
                op,
                keys: all_keys,
                args,
                blobs: self.blobs,
            },
            dues: self.dues,
            dead_ids: self.dead_ids,
        }
    }
}

/// The due sets of a call, each once.
#[derive(Default)]
struct DueSetPlaces(Vec<String>);

impl DueSetPlaces {
    /// The place of a due set among those of the call, from 1.
    fn place(&mut self, due_set: &str) -> usize {
        let at = self
            .0
            .iter()
            .position(|known| known == due_set)
            .unwrap_or_else(|| {
                self.0.push(due_set.to_owned());
                self.0.len() - 1
            });
        at + 1
    }
}

/// A new bundle's id. On an ordered route its sequence numbers are added to the range.
fn fresh_id(
    writer: &PartitionWriter,
    route: &RouteName,
    bundle: &Bundle,
    sequences: &mut Option<(u64, u64)>,
) -> BundleId {
    let count = bundle.entries.len();
    let id = writer
        .order
        .id(&writer.ids, route, bundle.first_due(), count, None);
    if writer.order.has(route.as_str()) {
        let (lowest, _) = sequences.unwrap_or((id.sequence(), 0));
        *sequences = Some((lowest, id.sequence() + count as u64 - 1));
    }
    id
}

/// Adds a cancel. A `~` id brings the place that it names, because it has an entry in `names` only if its
/// message has left that place.
fn cancel_op(ops: &mut ScriptOps, p: Partition, name: &str, remembers: bool) {
    match MessagePlace::of(p, name, None) {
        Some(place) => {
            let bundle = place.bundle.as_str();
            let index = place.index;
            ops.push(["P".into(), name.into(), bundle.into(), index.into()]);
        }
        None => ops.push([if remembers { "D" } else { "C" }.into(), name.into()]),
    }
}

/// The places of messages that were given back as often as one of this call with their name.
pub(super) type AlikePlaces = BTreeMap<String, String>;

/// The policy for a name that is taken, and how often the message was given back.
fn policy(policy: OnDuplicate, remembers: bool, entry: &Entry, alike: Option<&String>) -> String {
    let letter = match (policy, remembers) {
        (OnDuplicate::Keep, false) => "k",
        (OnDuplicate::Keep, true) => "K",
        (OnDuplicate::Replace, false) => "r",
        (OnDuplicate::Replace, true) => "R",
    };
    match (entry.given_back(), alike) {
        (0, _) => letter.to_owned(),
        (count, None) => format!("{letter}{count}"),
        (count, Some(place)) => format!("{letter}{count} {place}"),
    }
}

/// The script's operations, in order. Operations without a name only have a place in the order: they are
/// counted.
#[derive(Default)]
struct ScriptOps {
    args: Vec<ScriptArg>,
    nameless: usize,
}

impl ScriptOps {
    fn push<const N: usize>(&mut self, op: [ScriptArg; N]) {
        if self.nameless > 0 {
            let nameless = std::mem::take(&mut self.nameless);
            self.args
                .extend::<[ScriptArg; 2]>(["B".into(), nameless.into()]);
        }
        self.args.extend(op);
    }

    fn finish(mut self) -> Vec<ScriptArg> {
        self.push([]);
        self.args
    }
}

fn store_ops(
    ops: &mut ScriptOps,
    bundle: usize,
    route: &RouteName,
    policy: impl Fn(&Entry, &str) -> String,
    entries: &[Entry],
) {
    // A message that was on its way past the store has a `~` id, and is to be found by it.
    if entries.iter().all(|entry| entry.listed_id().is_none()) {
        ops.nameless += 1;
        return;
    }
    for (index, entry) in entries.iter().enumerate() {
        let Some(id) = entry.listed_id() else {
            ops.nameless += 1;
            continue;
        };
        let name = name_key(route, id);
        let policy = policy(entry, &name);
        ops.push([
            "N".into(),
            bundle.into(),
            index.into(),
            name.into(),
            policy.into(),
        ]);
    }
}

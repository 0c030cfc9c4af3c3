//! Turns operations into one call of the script: keys in their order, arguments in theirs, blobs beside them.

use std::collections::BTreeMap;

use super::PartitionWriter;
use super::growing::{Growth, GrowthPlan, alone};
use crate::domain::{Entry, Flags, OnDuplicate, Partition, RouteName, UnixMs};
use crate::store::call::names::{dead_blob, dead_id, name_key, queues_of};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::scripts::{self, ScriptVariant};
use crate::store::model::bundle::BundleId;
use crate::store::model::codec::{encode_like, example_element};
use crate::store::query::find::MessagePlace;
use crate::store::{Bundle, DeadId, WriteOp, encode};

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
        let p = writer.partition;
        let keys = &writer.keys;
        let mut with = ScriptVariant::default();
        let mut sequences: Option<(u64, u64)> = None;
        let mut due_sets = DueSetPlaces::default();
        let mut fresh = Vec::new();
        let mut fresh_keys = Vec::new();
        let mut dead_ids = Vec::new();
        let mut script_ops = ScriptOps::default();
        let mut blobs = Vec::new();
        let mut dues = Vec::new();
        let mut bundles = 0usize;
        let (new, standing): (Vec<&Growth>, Vec<&Growth>) =
            growth.growths.iter().partition(|grown| grown.is_new);
        for grown in new {
            bundles += 1;
            let example = grown.example.as_deref().map(example_element);
            fresh.extend::<[ScriptArg; 5]>([
                grown.id.as_str().into(),
                due_sets.place(grown.id.due_set()).into(),
                grown.due.0.into(),
                grown.added.into(),
                ScriptArg::Blob(example.unwrap_or_default()),
            ]);
            fresh_keys.push(keys.blob(p, &grown.id));
        }
        let own_bundles = ops
            .iter()
            .enumerate()
            .filter(|(at, op)| matches!(op, WriteOp::Store { .. }) && !growth.has_places(*at));
        let new_bundles = bundles + own_bundles.count();
        let growth_places = growth.places_in_call(new_bundles);
        for (at, op) in ops.iter().enumerate() {
            match op {
                WriteOp::Store {
                    route,
                    on_duplicate,
                    bundle,
                } if growth.has_places(at) => {
                    let own = writer.delivered_names.remembers(route.as_str());
                    with.remembers |= own;
                    for (entry, (grown, index)) in bundle.entries.iter().zip(&growth.places[at]) {
                        let alone = alone(bundle, entry);
                        let message = match &growth.growths[*grown].example {
                            Some(example) => encode_like(&alone, example),
                            None => encode(&alone),
                        };
                        let name = name_key(route, &entry.id.clone().unwrap_or_default());
                        let alike = alike.get(&name);
                        script_ops.push([
                            "A".into(),
                            growth_places[*grown].into(),
                            (*index).into(),
                            name.into(),
                            policy(*on_duplicate, own, entry, alike).into(),
                            ScriptArg::Blob(message),
                        ]);
                    }
                }
                WriteOp::Store {
                    route,
                    on_duplicate,
                    bundle,
                } => {
                    let first = bundle.first_due();
                    let id = fresh_id(writer, route, bundle, &mut sequences);
                    let blob = encode(bundle);
                    bundles += 1;
                    fresh.extend::<[ScriptArg; 4]>([
                        id.as_str().into(),
                        due_sets.place(id.due_set()).into(),
                        first.0.into(),
                        blob.len().into(),
                    ]);
                    fresh_keys.push(keys.blob(p, &id));
                    blobs.push((keys.blob(p, &id), blob));
                    let own = writer.delivered_names.remembers(route.as_str());
                    with.remembers |= own;
                    let policy = |entry: &Entry, name: &str| {
                        policy(*on_duplicate, own, entry, alike.get(name))
                    };
                    store_ops(&mut script_ops, bundles, route, policy, &bundle.entries);
                    dues.push(first);
                }
                WriteOp::Cancel { route, id, .. } => {
                    let own = writer.delivered_names.remembers(route.as_str());
                    with.remembers |= own;
                    cancel_op(&mut script_ops, p, &name_key(route, id), own);
                }
                WriteOp::DeadLetter(dead_letter) => {
                    let id = dead_id(dead_letter, p, &writer.ids);
                    blobs.push((keys.dead(&id), dead_blob(dead_letter)));
                    dead_ids.push(id);
                }
                WriteOp::Reschedule { .. } | WriteOp::Replace { .. } => {
                    unreachable!("what reads first goes alone")
                }
            }
        }
        let mut behind: Vec<ScriptArg> = Vec::with_capacity(meant.len() * 3);
        for grown in &standing {
            behind.extend::<[ScriptArg; 4]>([
                grown.id.as_str().into(),
                due_sets.place(grown.id.due_set()).into(),
                grown.base.into(),
                grown.added.into(),
            ]);
        }
        let is_standing = |id: &&BundleId| standing.iter().any(|grown| grown.id == **id);
        let meant: Vec<&BundleId> = meant.iter().filter(|id| !is_standing(id)).collect();
        for id in &meant {
            behind.extend::<[ScriptArg; 3]>([
                id.as_str().into(),
                due_sets.place(id.due_set()).into(),
                "".into(),
            ]);
        }
        with.ordered = sequences.is_some();
        let mut all_keys = keys.fixed_of(p, with);
        all_keys.extend(due_sets.0.iter().map(|due_set| keys.due(p, due_set)));
        all_keys.extend(fresh_keys);
        all_keys.extend(standing.iter().map(|grown| keys.blob(p, &grown.id)));
        all_keys.extend(meant.iter().map(|id| keys.blob(p, id)));
        let (queues, places) = queues_of(&dead_ids);
        all_keys.extend(dead_ids.iter().map(|id| keys.dead(id)));
        all_keys.extend(queues.iter().map(|queue| keys.queue(p, queue)));
        let mut args: Vec<ScriptArg> = vec![
            due_sets.0.len().into(),
            bundles.into(),
            (standing.len() + meant.len()).into(),
            dead_ids.len().into(),
            queues.len().into(),
        ];
        if let Some((lowest, highest)) = sequences {
            args.extend::<[ScriptArg; 2]>([lowest.into(), highest.into()]);
        }
        let dead_args = dead_ids
            .iter()
            .zip(places)
            .flat_map(|(id, place)| [id.as_str().into(), place.into()]);
        let dead_args: Vec<ScriptArg> = dead_args
            .chain(queues.into_iter().map(ScriptArg::Text))
            .collect();
        args.extend(due_sets.0.into_iter().map(ScriptArg::Text));
        args.extend(
            fresh
                .into_iter()
                .chain(behind)
                .chain(dead_args)
                .chain(script_ops.finish()),
        );
        let (script, op) = if blobs.is_empty() && growth.growths.is_empty() {
            (&scripts::CANCEL, "cancel")
        } else {
            (&scripts::WRITE, "store")
        };
        let script = script.of(with);
        Self {
            call: ScriptCall {
                script,
                op,
                keys: all_keys,
                args,
                blobs,
            },
            dues,
            dead_ids,
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
    let named = entries.iter().any(|e| e.flags.has(Flags::NAMED));
    if !named {
        ops.nameless += 1;
        return;
    }
    for (index, entry) in entries.iter().enumerate() {
        let Some(id) = entry.id.as_ref().filter(|_| entry.flags.has(Flags::NAMED)) else {
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

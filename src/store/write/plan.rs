//! Turns operations into one call of the script: keys in their order, arguments in theirs, blobs beside them.

use super::{PartitionWriter, dead_blob, dead_id, name_key, queues};
use crate::domain::{Entry, Flags, OnDuplicate, Partition, RouteName, UnixMs};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::scripts::{self, ScriptVariant};
use crate::store::model::bundle::BundleId;
use crate::store::query::find::MessagePlace;
use crate::store::{Bundle, WriteOp, encode};

/// A call, and the due times that it will have stored.
pub(super) struct WritePlan {
    pub(super) call: ScriptCall,
    pub(super) dues: Vec<UnixMs>,
}

impl WritePlan {
    pub(super) fn new(writer: &PartitionWriter, ops: &[&WriteOp], meant: &[BundleId]) -> Self {
        let (p, keys) = (writer.partition, &writer.keys);
        let mut with = ScriptVariant::default();
        let mut stamps: Option<(u64, u64)> = None;
        let mut due_sets: Vec<String> = Vec::new();
        let mut place = |due_set: &str| {
            let at = due_sets.iter().position(|s| s == due_set).unwrap_or_else(|| {
                due_sets.push(due_set.to_owned());
                due_sets.len() - 1
            });
            at + 1
        };
        let (mut fresh, mut fresh_keys, mut buried, mut script_ops) =
            (Vec::new(), Vec::new(), Vec::new(), ScriptOps::default());
        let (mut blobs, mut dues, mut bundles) = (Vec::new(), Vec::new(), 0usize);
        for op in ops {
            match op {
                WriteOp::Store { route, on_duplicate, bundle } => {
                    let first = bundle.first_due();
                    let id = fresh_id(writer, route, bundle, &mut stamps);
                    let blob = encode(bundle);
                    bundles += 1;
                    fresh.extend::<[ScriptArg; 4]>([
                        id.as_str().into(),
                        place(id.due_set()).into(),
                        first.0.into(),
                        blob.len().into(),
                    ]);
                    fresh_keys.push(keys.blob(p, &id));
                    blobs.push((keys.blob(p, &id), blob));
                    let own = writer.delivered_names.has(route.as_str());
                    with.remembers |= own;
                    let policy = policy(*on_duplicate, own);
                    store_ops(&mut script_ops, bundles, route, policy, &bundle.entries);
                    dues.push(first);
                }
                WriteOp::Cancel { route, id, .. } => {
                    let own = writer.delivered_names.has(route.as_str());
                    with.remembers |= own;
                    cancel_op(&mut script_ops, p, &name_key(route, id), own);
                }
                WriteOp::DeadLetter(letter) => {
                    let id = dead_id(letter, p, &writer.ids);
                    blobs.push((keys.dead(&id), dead_blob(letter)));
                    buried.push(id);
                }
                WriteOp::Reschedule { .. } => unreachable!("a reschedule goes alone"),
            }
        }
        let mut behind: Vec<ScriptArg> = Vec::with_capacity(meant.len() * 2);
        for id in meant {
            behind.extend::<[ScriptArg; 2]>([id.as_str().into(), place(id.due_set()).into()]);
        }
        with.ordered = stamps.is_some();
        let mut all_keys = keys.fixed_of(p, with);
        all_keys.extend(due_sets.iter().map(|due_set| keys.due(p, due_set)));
        all_keys.extend(fresh_keys);
        all_keys.extend(meant.iter().map(|id| keys.blob(p, id)));
        let (queues, places) = queues(&buried);
        all_keys.extend(buried.iter().map(|id| keys.dead(id)));
        all_keys.extend(queues.iter().map(|queue| keys.queue(p, queue)));
        let mut args: Vec<ScriptArg> = vec![
            due_sets.len().into(),
            bundles.into(),
            meant.len().into(),
            buried.len().into(),
            queues.len().into(),
        ];
        if let Some((lowest, highest)) = stamps {
            args.extend::<[ScriptArg; 2]>([lowest.into(), highest.into()]);
        }
        let bury = buried.iter().zip(places).flat_map(|(id, place)| [id.as_str().into(), place.into()]);
        let bury: Vec<ScriptArg> = bury.chain(queues.into_iter().map(ScriptArg::Text)).collect();
        args.extend(due_sets.into_iter().map(ScriptArg::Text));
        args.extend(fresh.into_iter().chain(behind).chain(bury).chain(script_ops.finish()));
        let (script, op) =
            if blobs.is_empty() { (&scripts::CANCEL, "cancel") } else { (&scripts::WRITE, "store") };
        let script = script.of(with);
        Self { call: ScriptCall { script, op, keys: all_keys, args, blobs }, dues }
    }
}

/// A new bundle's id. On an ordered route its sequence numbers are added to the range.
fn fresh_id(
    writer: &PartitionWriter,
    route: &RouteName,
    bundle: &Bundle,
    stamps: &mut Option<(u64, u64)>,
) -> BundleId {
    let count = bundle.entries.len();
    let id = writer.order.id(&writer.ids, route, bundle.first_due(), count, None);
    if writer.order.has(route.as_str()) {
        let (lowest, _) = stamps.unwrap_or((id.sequence(), 0));
        *stamps = Some((lowest, id.sequence() + count as u64 - 1));
    }
    id
}

/// Adds a cancel. A `~` id brings the place that it names, because it has an entry in `names` only if its
/// message has left that place.
fn cancel_op(ops: &mut ScriptOps, p: Partition, name: &str, remembers: bool) {
    match MessagePlace::of(p, name, None) {
        Some(place) => {
            let (bundle, index) = (place.bundle.as_str(), place.index);
            ops.push(["P".into(), name.into(), bundle.into(), index.into()]);
        }
        None => ops.push([if remembers { "D" } else { "C" }.into(), name.into()]),
    }
}

fn policy(policy: OnDuplicate, remembers: bool) -> &'static str {
    match (policy, remembers) {
        (OnDuplicate::Keep, false) => "k",
        (OnDuplicate::Keep, true) => "K",
        (OnDuplicate::Replace, false) => "r",
        (OnDuplicate::Replace, true) => "R",
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
            self.args.extend::<[ScriptArg; 2]>(["B".into(), nameless.into()]);
        }
        self.args.extend(op);
    }

    fn finish(mut self) -> Vec<ScriptArg> {
        self.push([]);
        self.args
    }
}

fn store_ops(ops: &mut ScriptOps, bundle: usize, route: &RouteName, policy: &str, entries: &[Entry]) {
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
        ops.push(["N".into(), bundle.into(), index.into(), name.into(), policy.into()]);
    }
}

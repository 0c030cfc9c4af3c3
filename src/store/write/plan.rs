//! From operations to one call of the script: keys in their order, arguments in theirs, blobs beside them.

use super::{PartitionWriter, dead_blob, dead_id, graves, name_key};
use crate::domain::{Entry, Flags, OnDuplicate, Partition, RouteName, UnixMs};
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::scripts::{self, With};
use crate::store::model::bundle::BundleId;
use crate::store::query::find::Place;
use crate::store::{Bundle, WriteOp, encode};

/// A call and what it will have stored.
pub(super) struct Plan {
    pub(super) call: Call,
    pub(super) dues: Vec<UnixMs>,
}

impl Plan {
    pub(super) fn new(writer: &PartitionWriter, ops: &[&WriteOp], meant: &[BundleId]) -> Self {
        let (p, keys) = (writer.partition, &writer.keys);
        let mut with = With::default();
        let mut stamps: Option<(u64, u64)> = None;
        let mut shelves: Vec<String> = Vec::new();
        let mut place = |shelf: &str| {
            let at = shelves.iter().position(|s| s == shelf).unwrap_or_else(|| {
                shelves.push(shelf.to_owned());
                shelves.len() - 1
            });
            at + 1
        };
        let (mut fresh, mut fresh_keys, mut buried, mut script_ops) =
            (Vec::new(), Vec::new(), Vec::new(), Ops::default());
        let (mut blobs, mut dues, mut bundles) = (Vec::new(), Vec::new(), 0usize);
        for op in ops {
            match op {
                WriteOp::Store { route, on_duplicate, bundle } => {
                    let first = bundle.first_due();
                    let id = fresh_id(writer, route, bundle, &mut stamps);
                    let blob = encode(bundle);
                    bundles += 1;
                    fresh.extend::<[Arg; 4]>([
                        id.as_str().into(),
                        place(id.shelf()).into(),
                        first.0.into(),
                        blob.len().into(),
                    ]);
                    fresh_keys.push(keys.blob(p, &id));
                    blobs.push((keys.blob(p, &id), blob));
                    let own = writer.memory.has(route.as_str());
                    with.remembers |= own;
                    let policy = policy(*on_duplicate, own);
                    store_ops(&mut script_ops, bundles, route, policy, &bundle.entries);
                    dues.push(first);
                }
                WriteOp::Cancel { route, id, .. } => {
                    let own = writer.memory.has(route.as_str());
                    with.remembers |= own;
                    cancel_op(&mut script_ops, p, &name_key(route, id), own);
                }
                WriteOp::Bury(letter) => {
                    let id = dead_id(letter, p, &writer.ids);
                    blobs.push((keys.dead(&id), dead_blob(letter)));
                    buried.push(id);
                }
                WriteOp::Reschedule { .. } => unreachable!("a reschedule goes alone"),
            }
        }
        let mut behind: Vec<Arg> = Vec::with_capacity(meant.len() * 2);
        for id in meant {
            behind.extend::<[Arg; 2]>([id.as_str().into(), place(id.shelf()).into()]);
        }
        with.ordered = stamps.is_some();
        let mut all_keys = keys.fixed_of(p, with);
        all_keys.extend(shelves.iter().map(|shelf| keys.due(p, shelf)));
        all_keys.extend(fresh_keys);
        all_keys.extend(meant.iter().map(|id| keys.blob(p, id)));
        let (graves, places) = graves(&buried);
        all_keys.extend(buried.iter().map(|id| keys.dead(id)));
        all_keys.extend(graves.iter().map(|grave| keys.grave(p, grave)));
        let mut args: Vec<Arg> = vec![
            shelves.len().into(),
            bundles.into(),
            meant.len().into(),
            buried.len().into(),
            graves.len().into(),
        ];
        if let Some((lowest, highest)) = stamps {
            args.extend::<[Arg; 2]>([lowest.into(), highest.into()]);
        }
        let bury = buried.iter().zip(places).flat_map(|(id, place)| [id.as_str().into(), place.into()]);
        let bury: Vec<Arg> = bury.chain(graves.into_iter().map(Arg::Text)).collect();
        args.extend(shelves.into_iter().map(Arg::Text));
        args.extend(fresh.into_iter().chain(behind).chain(bury).chain(script_ops.finish()));
        let (script, op) =
            if blobs.is_empty() { (&scripts::CANCEL, "cancel") } else { (&scripts::WRITE, "store") };
        let script = script.of(with);
        Self { call: Call { script, op, keys: all_keys, args, blobs }, dues }
    }
}

/// The id of a new bundle; on an ordered route its stamps are noted.
fn fresh_id(
    writer: &PartitionWriter,
    route: &RouteName,
    bundle: &Bundle,
    stamps: &mut Option<(u64, u64)>,
) -> BundleId {
    let count = bundle.entries.len();
    let id = writer.order.id(&writer.ids, route, bundle.first_due(), count, None);
    if writer.order.has(route.as_str()) {
        let (lowest, _) = stamps.unwrap_or((id.stamp(), 0));
        *stamps = Some((lowest, id.stamp() + count as u64 - 1));
    }
    id
}

/// A `~` id brings the place that it speaks of: it has an entry in `names` only if its message has left that.
fn cancel_op(ops: &mut Ops, p: Partition, name: &str, remembers: bool) {
    match Place::of(p, name, None) {
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

/// What the script is to do, in order. Those without a name only have their place in it: they are counted.
#[derive(Default)]
struct Ops {
    args: Vec<Arg>,
    nameless: usize,
}

impl Ops {
    fn push<const N: usize>(&mut self, op: [Arg; N]) {
        if self.nameless > 0 {
            let nameless = std::mem::take(&mut self.nameless);
            self.args.extend::<[Arg; 2]>(["B".into(), nameless.into()]);
        }
        self.args.extend(op);
    }

    fn finish(mut self) -> Vec<Arg> {
        self.push([]);
        self.args
    }
}

fn store_ops(ops: &mut Ops, bundle: usize, route: &RouteName, policy: &str, entries: &[Entry]) {
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

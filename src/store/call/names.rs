//! Texts that stand in Redis: the fields and entries of `names`, the ids of dead letters, and their queues.

use bytes::Bytes;

use crate::domain::{Partition, RouteName, Text};
use crate::store::call::ids::Ids;
use crate::store::model::bundle::BundleId;
use crate::store::{DeadId, DeadLetter, encode};

/// A name's field in `names`: `route/id`. Routes contain no slash, so no two routes share a field.
pub(in crate::store) fn name_key(route: &RouteName, id: &Text) -> String {
    format!("{route}/{id}")
}

/// The blob that is kept of a dead letter.
pub(in crate::store) fn dead_blob(dead_letter: &DeadLetter) -> Bytes {
    dead_letter
        .raw
        .clone()
        .unwrap_or_else(|| encode(&dead_letter.bundle))
}

/// A new id for a dead letter. Route and reason can be read from it without the body.
pub(in crate::store) fn dead_id(dead_letter: &DeadLetter, p: Partition, ids: &Ids) -> DeadId {
    DeadId::new(&dead_letter.route, dead_letter.reason, p, &ids.unique())
}

/// The queues of these dead letters, each once, and the place of each dead letter's queue among them, from 1.
pub(in crate::store) fn queues_of(ids: &[DeadId]) -> (Vec<String>, Vec<usize>) {
    let mut queues: Vec<String> = Vec::new();
    let places = ids.iter().map(|id| {
        let queue = id.queue();
        let at = queues.iter().position(|g| *g == queue).unwrap_or_else(|| {
            queues.push(queue);
            queues.len() - 1
        });
        at + 1
    });
    let places = places.collect();
    (queues, places)
}

/// Reads an entry of `names`, `bundle index`. `None` if it is no place: no transition writes such an entry.
pub(in crate::store) fn parse_place(place: &str) -> Option<(BundleId, u32)> {
    let (id, index) = place.rsplit_once(' ')?;
    let bundle = BundleId::parse(id)?;
    let is_number = index.bytes().all(|b| b.is_ascii_digit());
    let index: u32 = index.parse().ok().filter(|_| is_number)?;
    ((index as usize) < bundle.count()).then_some((bundle, index))
}

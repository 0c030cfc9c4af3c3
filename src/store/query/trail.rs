//! Reads a route's trail, newest first, in bounded steps: the events of one message, or the newest of all.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::debug;

use crate::domain::RouteName;
use crate::store::call::keys::Keys;
use crate::store::model::codec::read_trail;
use crate::store::{RouteTrail, Store, StoreError, TrailEvent, TrailReading};

/// Most events that are answered, the newest.
const MAX_EVENTS: usize = 20;
/// Elements of the first step, and of any.
const FIRST_STEP: usize = 16;
const MAX_STEP: usize = 1024;
/// Bytes that a step aims at. One element has 64 KiB or so at most.
const STEP_BYTES: usize = 512 << 10;
/// Longest time of a look. The answer says how far back it went.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);
/// Spaces before the blob of an element, see `trail.lua`.
const ELEMENT_NUMBERS: usize = 4;

impl Store {
    /// The trail of a message by its name or its `~` id, with what this process has not written yet. `None`: the route has
    /// no trail. What is not in it may have happened all the same.
    pub async fn trail_of(
        &self,
        route: &RouteName,
        id: &str,
    ) -> Result<Option<TrailReading>, StoreError> {
        let Some(trail) = self.trail(route) else {
            return Ok(None);
        };
        let mut unwritten = TrailReading::default();
        trail
            .unwritten()
            .iter()
            .for_each(|blob| read_events(blob, id, &mut unwritten));
        let mut reading = TrailReading::default();
        self.walk_trail(trail, route, |blob| {
            read_events(blob, id, &mut reading);
            reading.events.len() < MAX_EVENTS
        })
        .await?;
        add_unwritten(&mut reading, unwritten);
        // Blobs of several replicas overlap in time.
        reading.events.sort_by_key(|event| event.at);
        let surplus = reading.events.len().saturating_sub(MAX_EVENTS);
        reading.events.drain(..surplus);
        Ok(Some(reading))
    }

    /// The newest events of a route, of any message, newest first, with what this process has not written yet. `None`: the
    /// route has no trail.
    pub async fn lately(
        &self,
        route: &RouteName,
        limit: usize,
    ) -> Result<Option<Vec<(String, TrailEvent)>>, StoreError> {
        let Some(trail) = self.trail(route) else {
            return Ok(None);
        };
        let mut unwritten = Vec::new();
        for blob in trail.unwritten() {
            read_all_events(&blob, &mut unwritten);
        }
        let mut events = Vec::new();
        self.walk_trail(trail, route, |blob| {
            read_all_events(blob, &mut events);
            events.len() < limit
        })
        .await?;
        // Blobs of several replicas overlap in time.
        keep_newest(&mut events, limit);
        // A blob has thousands of events: only those that may be shown are compared.
        keep_newest(&mut unwritten, limit);
        unwritten.retain(|event| !events.contains(event));
        events.append(&mut unwritten);
        keep_newest(&mut events, limit);
        Ok(Some(events))
    }

    /// Reads the blobs of a trail, newest first, in bounded steps and for a bounded time, until `visit` has enough.
    async fn walk_trail(
        &self,
        trail: &Arc<RouteTrail>,
        route: &RouteName,
        mut visit: impl FnMut(&Bytes) -> bool,
    ) -> Result<(), StoreError> {
        let p = self.home_of(route, "");
        let key = self.0.keys.trail(p, route);
        let deadline = Instant::now() + LOOK_TIMEOUT;
        // Elements that come meanwhile push those that were read away from the end, so some are read twice.
        let mut oldest_read: Option<u64> = None;
        let mut skipped = 0;
        let mut step = FIRST_STEP;
        while Instant::now() < deadline {
            let mut range = redis::cmd("LRANGE");
            range
                .arg(&key)
                .arg(-((skipped + step) as i64))
                .arg(-(skipped as i64) - 1);
            let answer = self
                .trips::<Vec<Vec<u8>>>(vec![(Keys::slot(p), range)], 1)
                .await;
            let elements = match self.mend_trail(p, trail, answer).await {
                Ok(answer) => answer.into_iter().next().unwrap_or_default(),
                // The key was moved out of the way: there is no trail.
                Err(StoreError::Damaged(_)) => break,
                Err(why) => return Err(why),
            };
            let count = elements.len();
            let bytes: usize = elements.iter().map(Vec::len).sum();
            for element in elements.into_iter().rev() {
                let Some((before, blob)) = parts(element) else {
                    continue;
                };
                if oldest_read.is_some_and(|read| before >= read) {
                    continue;
                }
                oldest_read = Some(before);
                if !visit(&blob) {
                    return Ok(());
                }
            }
            if count < step {
                break;
            }
            skipped += count;
            step = (count * STEP_BYTES / bytes.max(1)).clamp(1, MAX_STEP);
        }
        Ok(())
    }
}

/// The number of events before an element, and its blob. `None` if it is not one of ours.
fn parts(element: Vec<u8>) -> Option<(u64, Bytes)> {
    let mut spaces = element
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b' ');
    let (end, _) = spaces.nth(ELEMENT_NUMBERS - 1)?;
    let before = std::str::from_utf8(element[..end].split(|byte| *byte == b' ').next()?)
        .ok()?
        .parse()
        .ok()?;
    Some((before, Bytes::from(element).slice(end + 1..)))
}

/// Adds the events of a message in one blob.
fn read_events(blob: &Bytes, id: &str, reading: &mut TrailReading) {
    let TrailReading { events, since } = reading;
    let read = read_trail(blob, |own, event| {
        *since = Some(since.map_or(event.at, |since| since.min(event.at)));
        if own == id.as_bytes() {
            events.push(event);
        }
    });
    if let Err(why) = read {
        debug!(error = %why, "a part of the trail cannot be read");
    }
}

/// Keeps the newest of these events, newest first.
fn keep_newest(events: &mut Vec<(String, TrailEvent)>, limit: usize) {
    events.sort_by_key(|(_, event)| std::cmp::Reverse(event.at));
    events.truncate(limit);
}

/// Adds all events in one blob, with the ids of their messages.
fn read_all_events(blob: &Bytes, events: &mut Vec<(String, TrailEvent)>) {
    let visit = |id: &[u8], event: TrailEvent| {
        events.push((String::from_utf8_lossy(id).into_owned(), event));
    };
    if let Err(why) = read_trail(blob, visit) {
        debug!(error = %why, "a part of the trail cannot be read");
    }
}

/// Adds events that were not written when they were read, but for those that have been written since.
fn add_unwritten(reading: &mut TrailReading, unwritten: TrailReading) {
    let written = reading.events.clone();
    reading.events.extend(
        unwritten
            .events
            .into_iter()
            .filter(|event| !written.contains(event)),
    );
    reading.since = [reading.since, unwritten.since].into_iter().flatten().min();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::TrailWord;
    use crate::domain::UnixMs;
    use crate::store::model::codec::{NewTrailEvent, TrailPack};

    #[test]
    fn what_is_written_meanwhile_is_told_once_and_what_happened_twice_twice() {
        let reading = |times: &[i64]| {
            let mut pack = TrailPack::default();
            for at in times {
                pack.put(&NewTrailEvent::new(
                    TrailWord::Deduplicated,
                    "order-7",
                    UnixMs(*at),
                ));
            }
            let mut reading = TrailReading::default();
            read_events(&pack.encode(), "order-7", &mut reading);
            reading
        };
        for (written, unwritten, all) in [
            (&[][..], &[5, 5][..], &[5, 5][..]),
            (&[3, 3, 5], &[5], &[3, 3, 5]),
            (&[3], &[5, 7], &[3, 5, 7]),
            (&[5, 7], &[], &[5, 7]),
        ] {
            let mut whole = reading(written);
            add_unwritten(&mut whole, reading(unwritten));
            let times: Vec<i64> = whole.events.iter().map(|event| event.at.0).collect();
            assert_eq!(
                (&times[..], whole.since),
                (all, all.first().map(|at| UnixMs(*at)))
            );
        }
    }

    #[test]
    fn an_element_is_its_numbers_and_a_blob() {
        let of = |text: &str| parts(text.as_bytes().to_vec());
        assert_eq!(
            of("7 900 1700000000000 3 PT \x01"),
            Some((7, Bytes::from_static(b"PT \x01")))
        );
        assert_eq!(of("0 0 0 0 "), Some((0, Bytes::new())));
        for strange in [
            "",
            "7",
            "7 900 17 3",
            "x 900 17 3 PT",
            "-7 900 17 3 PT",
            " 7 900 17 3",
        ] {
            assert_eq!(of(strange), None, "{strange:?}");
        }
    }
}

//! What all replicas did lately: one small hash for each day, with numbers for every ten minutes of it.

use std::collections::BTreeMap;

use crate::domain::UnixMs;
use crate::store::call::keys::Keys;
use crate::store::{Store, StoreError};

/// Length of a slot, ms.
pub const ACTIVITY_SLOT_MS: i64 = 600_000;
const DAY_MS: i64 = 86_400_000;
/// How long a day's hash is kept after its last change, ms.
const KEPT_MS: i64 = 2 * DAY_MS;

/// The number of a moment's day.
pub(super) fn day_of(at: UnixMs) -> i64 {
    at.0.div_euclid(DAY_MS)
}

/// Numbers by what they count.
pub type ActivitySlot = BTreeMap<String, u64>;

impl Store {
    /// Adds these numbers to the present slot.
    pub async fn add_activity(&self, counts: &[(&str, u64)]) -> Result<(), StoreError> {
        let now = self.clock().now();
        let key = self.0.keys.activity(day_of(now));
        let slot = now.0.rem_euclid(DAY_MS) / ACTIVITY_SLOT_MS;
        let mut pipe = redis::pipe();
        for (name, count) in counts {
            let field = format!("{slot}:{name}");
            pipe.cmd("HINCRBY").arg(&key).arg(field).arg(*count);
        }
        pipe.cmd("PEXPIRE").arg(&key).arg(KEPT_MS);
        let added = self.0.browse.pipe::<redis::Value>(Keys::members(), &pipe);
        self.mended(added.await).await.map(drop)
    }

    /// The slots of the last 24 hours in which a replica did something, with the moments at which they begin, oldest first.
    pub async fn activity(&self) -> Result<Vec<(UnixMs, ActivitySlot)>, StoreError> {
        let now = self.clock().now();
        let today = day_of(now);
        let first = (now.0 - DAY_MS).div_euclid(ACTIVITY_SLOT_MS) + 1;
        let days = [today - 1, today];
        let commands = days.map(|day| {
            let mut command = redis::cmd("HGETALL");
            command.arg(self.0.keys.activity(day));
            (Keys::members(), command)
        });
        let read: Vec<Vec<(String, u64)>> = self
            .mended(self.trips(commands.into(), days.len()).await)
            .await?;
        let mut slots: BTreeMap<i64, ActivitySlot> = BTreeMap::new();
        for (day, fields) in days.into_iter().zip(read) {
            for (field, count) in fields {
                let Some((slot, name)) = field.split_once(':') else {
                    continue;
                };
                let Ok(slot) = slot.parse::<i64>() else {
                    continue;
                };
                let slot = day * (DAY_MS / ACTIVITY_SLOT_MS) + slot;
                if slot >= first {
                    slots
                        .entry(slot)
                        .or_default()
                        .insert(name.to_owned(), count);
                }
            }
        }
        let slots = slots.into_iter();
        Ok(slots
            .map(|(slot, counts)| (UnixMs(slot * ACTIVITY_SLOT_MS), counts))
            .collect())
    }
}

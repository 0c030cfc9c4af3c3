//! Keys outside of the partitions that have a wrong type. They are moved out of the way at their first use, as
//! they are, for a person to inspect. No scrub reads them, and features that depend on them would wait for
//! ever.

use redis::cluster_routing::Slot;
use tracing::error;

use super::activity;
use crate::domain::UnixMs;
use crate::store::call::keys::Keys;
use crate::store::call::scripts;
use crate::store::connection::link::StoreLink;
use crate::store::{Store, StoreError};

/// Moves shared keys of a wrong type out of the way, and logs their names.
pub(in crate::store) async fn quarantine_shared(
    side: &StoreLink,
    keys: &Keys,
    now: UnixMs,
) -> Result<(), StoreError> {
    for (name, key, slot, kind) in keys.shared() {
        quarantine(side, keys, now, (name, &key, slot, kind)).await?;
    }
    let today = activity::day_of(now);
    for day in [today - 1, today] {
        let key = keys.activity(day);
        quarantine(side, keys, now, ("activity", &key, Keys::members(), "hash")).await?;
    }
    let mut callers = redis::pipe();
    callers.cmd("HKEYS").arg(keys.audit_callers());
    let (callers,): (Vec<String>,) = side.pipe(Keys::audit(), &callers).await?;
    for caller in callers {
        let key = keys.audit_of(&caller);
        quarantine(side, keys, now, ("audit", &key, Keys::audit(), "stream")).await?;
    }
    Ok(())
}

/// Moves a key out of the way unless it has its type.
async fn quarantine(
    side: &StoreLink,
    keys: &Keys,
    now: UnixMs,
    (name, key, slot, kind): (&'static str, &str, Slot, &'static str),
) -> Result<(), StoreError> {
    let connected = side.reach(slot).await?;
    let mut connection = connected.connection.clone();
    let quarantined = keys.quarantined(name, key, now);
    let mut call = scripts::QUARANTINE.prepare_invoke();
    let moved: i64 = call
        .key(key)
        .key(&quarantined)
        .arg(kind)
        .invoke_async(&mut connection)
        .await
        .map_err(|why| side.judge(&connected, &why))?;
    if moved == 1 {
        error!(
            key,
            quarantine = quarantined,
            "a key of a wrong type was quarantined; its content is lost"
        );
    }
    Ok(())
}

impl Store {
    /// Passes an answer on. An answer that speaks of damage has the shared keys checked first, so that the next
    /// call finds them right.
    pub(in crate::store) async fn mended<T>(
        &self,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Err(StoreError::Damaged(_)) = &answer {
            quarantine_shared(&self.0.side, &self.0.keys, self.0.clock.now()).await?;
        }
        answer
    }
}

//! What systemd is told where the unit says `Type=notify`: that the service runs, that it lives, and that it stops. Where
//! nothing asks for it, nothing is sent.

use std::time::Duration;

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tracing::warn;

use crate::lifecycle::{Shutdown, tick};

/// Time that a stop may take beyond its drain.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// Says that the service runs: its configuration is right and its API listens. Redis and the brokers may be away; that is
/// for `/readyz` to say.
pub(super) fn say_started() {
    tell(&[NotifyState::Ready]);
}

/// Says that the service stops, and that this may take as long as its drain: then `shutdown_timeout` holds, whatever the
/// unit says.
pub(super) fn say_stopping(drain: Duration) {
    let within = u32::try_from((drain + STOP_MARGIN).as_micros()).unwrap_or(u32::MAX);
    tell(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(within),
    ]);
}

/// Says twice in each `WatchdogSec` that the service lives, as long as the runtime turns that this is spawned on. The stages
/// of a drain before the last one are part of the life.
pub(super) async fn say_alive(shutdown: Shutdown) {
    let Some(limit) = watchdog_enabled() else {
        return;
    };
    loop {
        tell(&[NotifyState::Watchdog]);
        tokio::select! {
            () = shutdown.draining() => return,
            () = tick(limit / 2) => {}
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        warn!(%error, "the service manager cannot be told of the service's state");
    }
}

//! Planted clocks, for tests of clocks that are wrong or step.

use std::time::Duration;

use crate::{domain, mutants, store};

/// Time between two reads of the planted wall clock.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Makes the clocks wrong as the environment says, for as long as the process lives.
pub(super) fn plant() {
    if let Some(key) = mutants::redis_clock() {
        store::follow_clock(&key);
    }
    let Some(file) = mutants::wall_clock() else {
        return;
    };
    // The thread is no task: it ends with the process, and nobody waits for it.
    std::thread::spawn(move || {
        loop {
            let shift = std::fs::read_to_string(&file)
                .ok()
                .and_then(|text| text.trim().parse().ok());
            domain::clock::shift_wall(shift.unwrap_or(0));
            std::thread::sleep(READ_INTERVAL);
        }
    });
}

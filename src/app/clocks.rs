//! Planted clocks: for tests of what happens when one is wrong, or steps.

use std::time::Duration;

use crate::{domain, mutants, store};

/// How soon a step of the wall clock is there.
const LOOK: Duration = Duration::from_millis(20);

/// Has the clocks be wrong as the environment says; what is planted is followed for as long as the process lives.
pub(super) fn plant() {
    if let Some(key) = mutants::redis_clock() {
        store::follow_clock(&key);
    }
    let Some(file) = mutants::wall_clock() else { return };
    // No task: it ends with the process, and nobody waits for it.
    std::thread::spawn(move || {
        loop {
            let said = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
            domain::clock::shift_wall(said.unwrap_or(0));
            std::thread::sleep(LOOK);
        }
    });
}

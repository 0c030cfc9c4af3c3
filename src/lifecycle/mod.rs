//! The life of the process: named tasks, an orderly end, and whether it is willing to take work.

pub mod readiness;
pub mod signals;
mod tasks;
mod ticks;

pub use readiness::{Part, Readiness};
pub use tasks::{Shutdown, Stage, Tasks};
pub use ticks::{tick, until_tick};

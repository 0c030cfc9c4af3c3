//! Tasks of the process, their shutdown in stages, and readiness.

pub mod readiness;
pub mod signals;
mod tasks;
mod ticks;

pub use readiness::{Readiness, ReadinessPart};
pub use tasks::{Shutdown, Stage, Tasks};
pub use ticks::{tick, until_tick};

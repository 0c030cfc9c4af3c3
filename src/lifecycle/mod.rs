//! Tasks of the process, and their shutdown in stages.

pub mod signals;
mod tasks;
mod ticks;

pub use tasks::{Shutdown, Stage, Tasks};
pub use ticks::{tick, until_tick};

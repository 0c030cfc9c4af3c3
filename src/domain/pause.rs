//! Routes that are paused by hand.

use std::fmt;
use std::sync::Arc;

use super::{Actor, UnixMs, moment};

/// Parts of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteParts {
    /// The reading of its topic or queue.
    pub ingress: bool,
    /// The claiming and publishing of its messages.
    pub publishing: bool,
}

/// A pause, as whoever made it left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Since when, by Redis's clock; `None` if that cannot be read.
    pub since: Option<UnixMs>,
    /// Who made it, and why.
    pub by: Actor,
}

/// The parts of a route that are paused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutePause {
    /// Its topic or queue is not read.
    pub ingress: Option<Arc<Pause>>,
    /// Its messages are not claimed or published.
    pub publishing: Option<Arc<Pause>>,
}

impl RoutePause {
    /// The parts that are paused.
    pub fn parts(&self) -> RouteParts {
        RouteParts {
            ingress: self.ingress.is_some(),
            publishing: self.publishing.is_some(),
        }
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("paused by hand")?;
        if let Some(since) = self.since.and_then(moment::render) {
            write!(f, " since {since}")?;
        }
        write!(f, " by {}", self.by.name)?;
        match &self.by.because {
            Some(because) => write!(f, ": {because}"),
            None => Ok(()),
        }
    }
}

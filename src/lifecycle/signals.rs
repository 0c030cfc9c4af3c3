//! SIGTERM and SIGINT: the first drains, the second ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The two signals that end the process.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts listening; from here on the signals no longer kill by themselves.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one and returns the exit code it stands for (143, 130).
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.term.recv() => 143,
            _ = self.interrupt.recv() => 130,
        }
    }
}

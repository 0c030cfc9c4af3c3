//! SIGTERM and SIGINT: the first drains, the second ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listener for SIGTERM and SIGINT, the two signals that end the process.
#[derive(Debug)]
pub struct ShutdownSignals {
    term: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    /// Starts to listen. From now on the signals no longer kill the process by themselves.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal. Returns its exit code: 143 for SIGTERM, 130 for SIGINT.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.term.recv() => 143,
            _ = self.interrupt.recv() => 130,
        }
    }
}

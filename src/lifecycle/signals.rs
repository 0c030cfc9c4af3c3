//! SIGTERM and SIGINT: the first drains, the second ends at once. SIGHUP does so only where a terminal hangs up.

use std::io::IsTerminal;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::warn;

/// Listener for the signals that end the process.
#[derive(Debug)]
pub struct ShutdownSignals {
    term: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// A person watches the process in a terminal.
    is_watched: bool,
}

/// A signal that ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownSignal {
    /// Its name.
    pub name: &'static str,
    /// The exit code of a process that it ends at once.
    pub exit_code: u8,
}

impl ShutdownSignals {
    /// Starts to listen. From now on the signals no longer kill the process by themselves.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            // A terminal that has hung up is none any more.
            is_watched: std::io::stderr().is_terminal(),
        })
    }

    /// Waits for the next signal that ends the process. Elsewhere than in a terminal a SIGHUP is a request to read the
    /// configuration again, which only a restart does: the log says so, and nothing ends.
    pub async fn next(&mut self) -> ShutdownSignal {
        loop {
            let (name, exit_code) = tokio::select! {
                _ = self.term.recv() => ("SIGTERM", 143),
                _ = self.interrupt.recv() => ("SIGINT", 130),
                _ = self.hangup.recv() => ("SIGHUP", 129),
            };
            if name != "SIGHUP" || self.is_watched {
                return ShutdownSignal { name, exit_code };
            }
            warn!(
                "SIGHUP: a changed configuration is read at the next start; tokens and certificates are read again without it"
            );
        }
    }
}

//! Audit of the commands that hold the store themselves: `import`, `replay` and `bench`.

use std::time::Duration;

use anyhow::Context;

use crate::domain::Because;
use crate::store::Store;

/// Longest wait for the store.
const STORE_DEADLINE: Duration = Duration::from_secs(10);

/// A command that changes the store, in the audit log: its begin and its end.
pub(crate) struct CommandAudit {
    store: Store,
    command: &'static str,
    subject: String,
    because: String,
}

impl CommandAudit {
    /// Adds the first entry, before the command changes anything.
    pub(crate) async fn begin(
        store: &Store,
        command: &'static str,
        subject: String,
        because: Option<&Because>,
    ) -> anyhow::Result<Self> {
        let audit = Self {
            store: store.clone(),
            command,
            subject,
            because: because.map_or_else(String::new, ToString::to_string),
        };
        audit.add("begun").await?;
        Ok(audit)
    }

    /// Adds the last entry: what came of the command.
    pub(crate) async fn end(self, result: &str) -> anyhow::Result<()> {
        self.add(result).await
    }

    async fn add(&self, result: &str) -> anyhow::Result<()> {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let user = rustix::process::getuid().as_raw();
        let who = format!("command line at {host}, user {user}");
        let fields = [
            ("who", who.as_str()),
            ("call", self.command),
            ("because", &self.because),
            ("subject", &self.subject),
            ("result", result),
        ];
        // Hosts come and go: all of them share the entries of one caller.
        let added = self.store.append_to_audit_log("command line", &fields);
        let added = tokio::time::timeout(STORE_DEADLINE, added).await;
        added
            .context("the store did not take an audit entry in time")?
            .context("the store took no audit entry")
    }
}

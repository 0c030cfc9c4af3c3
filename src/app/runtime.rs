//! Runtime of a command: logging, the TLS provider, planted clocks, and the asynchronous runtime.

use crate::config::Config;
use crate::telemetry;

/// Runs a command to its end on a runtime of its own. Fails before the command begins if logging, TLS or the runtime
/// cannot be set up.
pub(crate) fn run_to_end<T>(
    log: &telemetry::Config,
    command: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    telemetry::init(log)?;
    install_tls_provider()?;
    #[cfg(feature = "mutants")]
    super::clocks::plant();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(command);
    // A client library may still be inside a blocking call: its thread ends with the process.
    runtime.shutdown_background();
    result
}

/// Logging of a command that a person waits for: text, filtered by the configuration, or else by `filter`.
pub(crate) fn log_as_text(config: &Config, filter: Option<&str>) -> telemetry::Config {
    let filter = config.log.filter.clone().or(filter.map(str::to_owned));
    telemetry::Config {
        format: telemetry::LogFormat::Text,
        filter,
    }
}

/// Installs the TLS provider. The client libraries choose none, and would panic at the first handshake.
fn install_tls_provider() -> anyhow::Result<()> {
    let installed = rustls::crypto::ring::default_provider().install_default();
    installed.map_err(|_| anyhow::anyhow!("another TLS provider is installed already"))
}

//! Logs through `tracing`, to stderr: text for people, JSON for machines.
//!
//! Fields may hold text of brokers, headers and clients. Control characters, such as line ends and terminal escapes,
//! are written escaped: one event is one line, and no message can forge one. JSON escapes the characters below U+0020.
//! Text lines also escape the other characters that control what is shown, or show nothing.

use std::fmt::{self, Write};
use std::io::IsTerminal;

use tracing::field::Field;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use super::config::{Config, LogFormat};
use crate::domain::unsafe_text::EscapedWriter;

/// The filter unless another is configured: own events from `info` up, and of the client libraries only errors, as
/// Postdate logs their other events itself. lapin is off: it calls each closed channel an error, such as the one on
/// which a missing queue was looked for. The code that used the channel logs what that means.
pub const DEFAULT_FILTER: &str =
    "warn,postdate=info,lapin=off,rdkafka=error,librdkafka=error,hyper=error";

/// Error of the set-up of logging.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not a tracing filter: a configuration error.
    #[error("the log filter `{filter}` is not valid: {why}")]
    Filter {
        /// The filter as configured.
        filter: String,
        /// The problem, in words.
        why: String,
    },
    /// Logging was set up before.
    #[error("logging was set up twice: {0}")]
    Twice(String),
}

/// Sends all events of the process, and those of the `log` crate, to stderr. Call it once.
pub fn init(config: &Config) -> Result<(), LogError> {
    let terminal = std::io::stderr().is_terminal();
    subscriber(config, terminal, std::io::stderr)?
        .try_init()
        .map_err(|e| LogError::Twice(e.to_string()))
}

fn subscriber<W>(
    config: &Config,
    terminal: bool,
    writer: W,
) -> Result<impl Subscriber + Send + Sync, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = config.filter.as_deref().unwrap_or(DEFAULT_FILTER);
    let filter = EnvFilter::try_new(filter).map_err(|e| LogError::Filter {
        filter: filter.to_owned(),
        why: e.to_string(),
    })?;
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    // On a terminal the layer colours by itself, unless NO_COLOR is set.
    let layer = if terminal {
        layer
    } else {
        layer.with_ansi(false)
    };
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match (config.format, terminal) {
        (LogFormat::Text, _) | (LogFormat::Auto, true) => layer
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            .boxed(),
        (LogFormat::Json, _) | (LogFormat::Auto, false) => layer.json().flatten_event(true).boxed(),
    };
    // The filter applies to all layers. A filter of this layer alone would lose the next event of a thread after it
    // has refused a record of the `log` crate, such as a line of rdkafka.
    Ok(Registry::default()
        .with(layer)
        .with(filter)
        .with(FilterFn::new(may_be_logged)))
}

/// Reports whether an event may be logged, whatever the filter says. Below `debug` client libraries write what they
/// send: lapin the login with its password, in decimal bytes, and bodies.
fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::DEBUG || metadata.target().starts_with("postdate")
}

/// Writes one field of a text line, escaped: the message without its name, any other as `name=value`.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(EscapedWriter(writer), "{value:?}"),
        // Fields that the `log` crate adds; the line has target and level already.
        name if name.starts_with("log.") => Ok(()),
        name => {
            write!(writer, "{}=", name.trim_start_matches("r#"))?;
            write!(EscapedWriter(writer), "{value:?}")
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Captures log lines in a test.

    use std::io;
    use std::sync::{Arc, Once};

    use parking_lot::Mutex;
    use tracing::subscriber::DefaultGuard;

    use super::{Config, LogFormat, Registry, subscriber};

    /// Captured lines, shared.
    #[derive(Clone, Default)]
    pub(crate) struct CapturedLines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for CapturedLines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl CapturedLines {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).expect("UTF-8")
        }
    }

    /// Enables every call site of the process. While there is only one subscriber, `tracing` asks that of the thread
    /// that reaches a call site first, and remembers a "nobody listens" for all threads.
    pub(crate) fn enable_all_call_sites() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing::subscriber::set_global_default(Registry::default()).expect("set once");
        });
    }

    /// Captures what this thread logs, every level of every library, until the guard is dropped.
    pub(crate) fn capture() -> (CapturedLines, DefaultGuard) {
        enable_all_call_sites();
        let lines = CapturedLines::default();
        let config = Config {
            format: LogFormat::Text,
            filter: Some("trace".to_owned()),
        };
        let writer = lines.clone();
        let subscriber =
            subscriber(&config, false, move || writer.clone()).expect("filter is valid");
        (lines, tracing::subscriber::set_default(subscriber))
    }
}

#[cfg(test)]
mod tests {
    use tracing::{debug, info, subscriber::with_default, trace, warn};

    use super::testing::{CapturedLines, enable_all_call_sites};
    use super::*;
    use crate::domain::unsafe_text::is_unsafe;

    const NASTY: &str = "a\nINFO forged\r\u{1b}[2J\u{9b}2J\u{7f}\u{202e}z";

    fn logged(
        format: LogFormat,
        filter: Option<&str>,
        terminal: bool,
        what: impl FnOnce(),
    ) -> String {
        enable_all_call_sites();
        let lines = CapturedLines::default();
        let config = Config {
            format,
            filter: filter.map(str::to_owned),
        };
        let writer = lines.clone();
        let subscriber =
            subscriber(&config, terminal, move || writer.clone()).expect("filter is valid");
        with_default(subscriber, what);
        lines.text()
    }

    #[test]
    fn a_text_line_stays_one_line_and_holds_no_control_character() {
        let text = logged(LogFormat::Text, None, false, || {
            warn!(error = %NASTY, quoted = NASTY, debugged = ?NASTY, count = 3, "refused {NASTY}");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.ends_with('\n'));
        assert!(!text.trim_end_matches('\n').contains(is_unsafe), "{text:?}");
        assert!(
            text.contains(
                r"refused a\u000aINFO forged\u000d\u001b[2J\u009b2J\u007f\u202ez error=a\u000aINFO"
            ),
            "{text}"
        );
        assert!(text.contains("count=3"), "{text}");
    }

    #[test]
    fn a_json_line_stays_one_line_and_reads_back() {
        let text = logged(
            LogFormat::Json,
            None,
            true,
            || info!(error = %NASTY, "refused"),
        );
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
        assert_eq!(
            (&line["message"], &line["error"]),
            (&"refused".into(), &NASTY.into())
        );
        assert_eq!(line["level"], "INFO");
    }

    #[test]
    fn auto_is_text_on_a_terminal_else_json() {
        let on_terminal = logged(LogFormat::Auto, None, true, || info!("up"));
        assert!(!on_terminal.starts_with('{'), "{on_terminal}");
        let elsewhere = logged(LogFormat::Auto, None, false, || info!("up"));
        assert!(elsewhere.starts_with('{'), "{elsewhere}");
        assert!(
            !logged(LogFormat::Text, None, false, || info!("up")).contains('\u{1b}'),
            "colours in a file"
        );
    }

    #[test]
    fn the_default_filter_keeps_the_client_libraries_quiet() {
        let text = logged(LogFormat::Text, None, false, || {
            info!("ours");
            debug!("ours in detail");
            warn!(target: "lapin::io_loop", "theirs");
            warn!(target: "librdkafka", "theirs");
            info!(target: "redis", "theirs");
        });
        assert!(text.contains("ours") && text.lines().count() == 1, "{text}");
        let text = logged(LogFormat::Text, Some("lapin=debug"), false, || {
            warn!("ours");
            debug!(target: "lapin::io_loop", "theirs");
        });
        assert!(
            text.contains("theirs") && text.lines().count() == 1,
            "{text}"
        );
    }

    #[test]
    fn no_filter_shows_the_client_libraries_below_debug() {
        for filter in [
            "trace",
            "lapin=trace,rdkafka=trace,postdate=trace",
            "lapin::io_loop=trace,postdate=trace",
        ] {
            let text = logged(LogFormat::Text, Some(filter), false, || {
                trace!(target: "lapin::io_loop", "a password");
                trace!(target: "rdkafka::client", "a password");
                debug!(target: "lapin::io_loop", "detail");
                trace!(target: "postdate::egress", "ours");
            });
            assert!(!text.contains("password"), "{filter}: {text}");
            assert!(
                text.contains("ours") && text.contains("detail"),
                "{filter}: {text}"
            );
        }
    }

    #[test]
    fn a_wrong_filter_is_refused_with_its_text() {
        let config = Config {
            format: LogFormat::Text,
            filter: Some("postdate=loud".to_owned()),
        };
        let error = subscriber(&config, false, std::io::sink)
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("`postdate=loud`"), "{error}");
    }
}

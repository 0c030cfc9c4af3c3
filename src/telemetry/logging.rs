//! Logs through `tracing`, to stderr: text for people, JSON for machines.
//!
//! What a broker, a header or a client wrote may stand in a field, so control characters (line ends and
//! terminal escapes above all) are written escaped: one event is one line, and no message can forge one.
//! In JSON these are the ones below U+0020, as JSON has it; in text also U+007F to U+009F and those that
//! turn the direction of writing.

use std::fmt::{self, Write};
use std::io::IsTerminal;

use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use super::config::{Config, Format};

/// The filter unless another is configured: our own words from `info` up; the client libraries report
/// through our own rooms, so of theirs only what is surely wrong. lapin calls each closed channel an error,
/// a queue that is looked for again and not there too: whoever used the channel says what it means.
pub const DEFAULT_FILTER: &str = "warn,postdate=info,lapin=off,rdkafka=error,librdkafka=error,hyper=error";

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not a tracing filter: a configuration error.
    #[error("the log filter `{filter}` is not valid: {why}")]
    Filter {
        /// As configured.
        filter: String,
        /// What is wrong with it.
        why: String,
    },
    /// Logging was set up before.
    #[error("logging was set up twice: {0}")]
    Twice(String),
}

/// Sends all events of the process, those of the `log` crate too, to stderr. To be called once.
pub fn init(config: &Config) -> Result<(), LogError> {
    let terminal = std::io::stderr().is_terminal();
    subscriber(config, terminal, std::io::stderr)?.try_init().map_err(|e| LogError::Twice(e.to_string()))
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
    let filter = EnvFilter::try_new(filter)
        .map_err(|e| LogError::Filter { filter: filter.to_owned(), why: e.to_string() })?;
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    // On a terminal the layer colours by itself, unless NO_COLOR is set.
    let layer = if terminal { layer } else { layer.with_ansi(false) };
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match (config.format, terminal) {
        (Format::Text, _) | (Format::Auto, true) => {
            layer.fmt_fields(format::debug_fn(write_field).delimited(" ")).boxed()
        }
        (Format::Json, _) | (Format::Auto, false) => layer.json().flatten_event(true).boxed(),
    };
    // The filter is one of all layers, not this layer's own: such a one forgets the thread's next event after
    // a record of the `log` crate that it did not want (a disabled line of rdkafka's, say).
    Ok(Registry::default().with(layer).with(filter))
}

/// One field of a text line: the message bare, any other as `name=value`, escaped.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(Escaped(writer), "{value:?}"),
        // Added to what came through the `log` crate; target and level stand in the line already.
        name if name.starts_with("log.") => Ok(()),
        name => {
            write!(writer, "{}=", name.trim_start_matches("r#"))?;
            write!(Escaped(writer), "{value:?}")
        }
    }
}

/// Passes text on with every character escaped that could end the line, move the cursor or turn the
/// direction of writing.
struct Escaped<'a, W>(&'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut clean = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| is_unsafe(*c)) {
            self.0.write_str(&text[clean..at])?;
            write!(self.0, "{}", c.escape_default())?;
            clean = at + c.len_utf8();
        }
        self.0.write_str(&text[clean..])
    }
}

fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
pub(crate) mod testing {
    //! Reading in a test what was logged.

    use std::io;
    use std::sync::{Arc, Once};

    use parking_lot::Mutex;
    use tracing::subscriber::DefaultGuard;

    use super::{Config, Format, Registry, subscriber};

    /// What was logged, shared.
    #[derive(Clone, Default)]
    pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).expect("UTF-8")
        }
    }

    /// Makes every call site of the process enabled, whichever thread meets it first: while only one
    /// subscriber exists, `tracing` asks the meeting thread's own, and remembers a "nobody listens".
    pub(crate) fn enable_all_call_sites() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Registry::default()).expect("set once"));
    }

    /// Captures what this thread logs, every level of every library, until the guard is dropped.
    pub(crate) fn capture() -> (Lines, DefaultGuard) {
        enable_all_call_sites();
        let lines = Lines::default();
        let config = Config { format: Format::Text, filter: Some("trace".to_owned()) };
        let writer = lines.clone();
        let subscriber = subscriber(&config, false, move || writer.clone()).expect("filter is valid");
        (lines, tracing::subscriber::set_default(subscriber))
    }
}

#[cfg(test)]
mod tests {
    use tracing::{debug, info, subscriber::with_default, warn};

    use super::testing::{Lines, enable_all_call_sites};
    use super::*;

    const NASTY: &str = "a\nINFO forged\r\u{1b}[2J\u{9b}2J\u{7f}\u{202e}z";

    fn logged(format: Format, filter: Option<&str>, terminal: bool, what: impl FnOnce()) -> String {
        enable_all_call_sites();
        let lines = Lines::default();
        let config = Config { format, filter: filter.map(str::to_owned) };
        let writer = lines.clone();
        let subscriber = subscriber(&config, terminal, move || writer.clone()).expect("filter is valid");
        with_default(subscriber, what);
        lines.text()
    }

    #[test]
    fn a_text_line_stays_one_line_and_holds_no_control_character() {
        let text = logged(Format::Text, None, false, || {
            warn!(error = %NASTY, quoted = NASTY, debugged = ?NASTY, count = 3, "refused {NASTY}");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.ends_with('\n'));
        assert!(!text.trim_end_matches('\n').contains(is_unsafe), "{text:?}");
        assert!(
            text.contains(r"refused a\nINFO forged\r\u{1b}[2J\u{9b}2J\u{7f}\u{202e}z error=a\nINFO"),
            "{text}"
        );
        assert!(text.contains("count=3"), "{text}");
    }

    #[test]
    fn a_json_line_stays_one_line_and_reads_back() {
        let text = logged(Format::Json, None, true, || info!(error = %NASTY, "refused"));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
        assert_eq!((&line["message"], &line["error"]), (&"refused".into(), &NASTY.into()));
        assert_eq!(line["level"], "INFO");
    }

    #[test]
    fn auto_is_text_on_a_terminal_else_json() {
        let on_terminal = logged(Format::Auto, None, true, || info!("up"));
        assert!(!on_terminal.starts_with('{'), "{on_terminal}");
        let elsewhere = logged(Format::Auto, None, false, || info!("up"));
        assert!(elsewhere.starts_with('{'), "{elsewhere}");
        assert!(!logged(Format::Text, None, false, || info!("up")).contains('\u{1b}'), "colours in a file");
    }

    #[test]
    fn the_default_filter_keeps_the_client_libraries_quiet() {
        let text = logged(Format::Text, None, false, || {
            info!("ours");
            debug!("ours in detail");
            warn!(target: "lapin::io_loop", "theirs");
            warn!(target: "librdkafka", "theirs");
            info!(target: "redis", "theirs");
        });
        assert!(text.contains("ours") && text.lines().count() == 1, "{text}");
        let text = logged(Format::Text, Some("lapin=debug"), false, || {
            warn!("ours");
            debug!(target: "lapin::io_loop", "theirs");
        });
        assert!(text.contains("theirs") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn a_wrong_filter_is_refused_with_its_text() {
        let config = Config { format: Format::Text, filter: Some("postdate=loud".to_owned()) };
        let error = subscriber(&config, false, std::io::sink).err().expect("refused").to_string();
        assert!(error.contains("`postdate=loud`"), "{error}");
    }
}

//! Progress of a long command on standard error: a bar on a terminal. Elsewhere a command that may run for hours, as a job
//! whose log somebody reads, prints a line now and then, and the others are quiet.

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use super::output;
use crate::domain::Clock;

/// Time between two lines of progress where there is no terminal, ms.
const LINE_INTERVAL_MS: i64 = 10_000;
/// Line of a stage whose end is known.
const BAR_TEMPLATE: &str = "{prefix:18} [{bar:30}] {percent:>3} %, {eta} left{msg}";
/// Line of a stage whose end nobody knows.
const COUNT_TEMPLATE: &str = "{spinner} {prefix:18} {pos}{msg}";
/// Characters of a bar: what is done, and the rest.
const BAR_CHARACTERS: &str = "#.";
/// Note on a stage that waits.
const PAUSE_NOTE: &str = "waits: the route's ingress is paused";

/// Reports the progress of a command's stages, one after the other.
pub(super) struct ProgressReporter {
    clock: Clock,
    /// Prints lines where there is no terminal.
    has_lines: bool,
    stage: Mutex<Option<ReportedStage>>,
}

/// The stage that was reported last.
struct ReportedStage {
    name: &'static str,
    /// Draws nothing where standard error is no terminal.
    bar: ProgressBar,
    /// The time of the last line, where there is no terminal.
    line_ms: Option<i64>,
    has_note: bool,
}

/// Progress of a stage.
pub(super) struct StageProgress {
    /// Items that are done.
    done: u64,
    /// All items; `None` if nobody knows.
    of: Option<u64>,
    /// Words beside the numbers; empty if there is nothing to say.
    note: String,
}

impl ProgressReporter {
    /// A bar, or lines where there is no terminal.
    pub(super) fn with_lines() -> Self {
        Self {
            has_lines: true,
            ..Self::bar_only()
        }
    }

    /// A bar, or nothing where there is no terminal.
    pub(super) fn bar_only() -> Self {
        Self {
            clock: Clock::start(),
            has_lines: false,
            stage: Mutex::default(),
        }
    }

    /// Reports a stage. Its end is reported once, and a note as soon as it comes.
    pub(super) fn report(&self, name: &'static str, progress: &StageProgress) {
        let mut stage = self.stage.lock();
        let stage = match &mut *stage {
            Some(stage) if stage.name == name => stage,
            other => {
                if let Some(before) = other.take() {
                    before.bar.abandon();
                }
                other.insert(ReportedStage::begin(name, progress))
            }
        };
        if stage.bar.is_finished() {
            return;
        }
        stage.draw(progress);
        if self.has_lines && stage.bar.is_hidden() {
            stage.print(progress, self.clock.wall().0);
        }
        if progress.of.is_some_and(|of| progress.done >= of) {
            stage.bar.finish();
        }
    }

    /// Ends the line of an open bar, before other text.
    pub(super) fn end_line(&self) {
        if let Some(stage) = self.stage.lock().take() {
            stage.bar.abandon();
        }
    }
}

impl ReportedStage {
    fn begin(name: &'static str, progress: &StageProgress) -> Self {
        let (bar, template) = match progress.of {
            Some(of) => (ProgressBar::new(of), BAR_TEMPLATE),
            None => (ProgressBar::no_length(), COUNT_TEMPLATE),
        };
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars(BAR_CHARACTERS));
        bar.set_prefix(name);
        Self {
            name,
            bar,
            line_ms: None,
            has_note: false,
        }
    }

    fn draw(&self, progress: &StageProgress) {
        if let Some(of) = progress.of {
            self.bar.set_length(of);
        }
        let gap = if progress.note.is_empty() { "" } else { "  " };
        self.bar.set_message(format!("{gap}{}", progress.note));
        self.bar.set_position(progress.done);
    }

    /// Prints a line, unless the last one is too recent and there is no news.
    fn print(&mut self, progress: &StageProgress, now_ms: i64) {
        let is_done = progress.of.is_some_and(|of| progress.done >= of);
        let has_note = !progress.note.is_empty();
        let is_news = is_done || (has_note && !self.has_note);
        self.has_note = has_note;
        if is_news
            || self
                .line_ms
                .is_none_or(|last| now_ms - last >= LINE_INTERVAL_MS)
        {
            output::err(progress.line(self.name));
            self.line_ms = Some(now_ms);
        }
    }
}

impl StageProgress {
    /// So many of so many items.
    pub(super) fn of(done: u64, of: u64) -> Self {
        Self {
            done,
            of: Some(of),
            note: String::new(),
        }
    }

    /// So many items of an unknown number.
    pub(super) fn count(done: u64) -> Self {
        Self {
            done,
            of: None,
            note: String::new(),
        }
    }

    /// The same with words beside the numbers.
    pub(super) fn with_note(self, note: String) -> Self {
        Self { note, ..self }
    }

    /// The same with the note on a route whose ingress is paused, if it is.
    pub(super) fn waiting(self, waits: bool) -> Self {
        if waits {
            self.with_note(PAUSE_NOTE.to_owned())
        } else {
            self
        }
    }

    fn line(&self, stage: &str) -> String {
        let done = self.done;
        let numbers = self.of.map_or_else(
            || format!("{stage}: {done}"),
            |of| {
                format!(
                    "{stage}: {done} of {of} ({} %)",
                    (done.min(of) * 100).checked_div(of).unwrap_or(100)
                )
            },
        );
        if self.note.is_empty() {
            numbers
        } else {
            format!("{numbers}  ({})", self.note)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_can_be_read() {
        for template in [BAR_TEMPLATE, COUNT_TEMPLATE] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn a_line_says_how_far_a_stage_is_and_what_it_waits_for() {
        let line = |progress: StageProgress| progress.line("storing");
        assert_eq!(
            line(StageProgress::of(50, 200)),
            "storing: 50 of 200 (25 %)"
        );
        assert_eq!(line(StageProgress::of(3, 2)), "storing: 3 of 2 (100 %)");
        assert_eq!(line(StageProgress::of(0, 0)), "storing: 0 of 0 (100 %)");
        assert_eq!(line(StageProgress::count(7)), "storing: 7");
        let waits = StageProgress::of(1, 2).waiting(true);
        assert_eq!(
            line(waits),
            "storing: 1 of 2 (50 %)  (waits: the route's ingress is paused)"
        );
        assert_eq!(
            line(StageProgress::of(1, 2).waiting(false)),
            "storing: 1 of 2 (50 %)"
        );
    }

    #[test]
    fn a_line_comes_now_and_then_and_for_news() {
        let mut stage = ReportedStage::begin("storing", &StageProgress::of(0, 9));
        let mut last = |progress: StageProgress, now_ms: i64| {
            stage.print(&progress, now_ms);
            stage.line_ms
        };
        assert_eq!(last(StageProgress::of(0, 9), 5), Some(5), "the first");
        assert_eq!(
            last(StageProgress::of(1, 9), 5 + LINE_INTERVAL_MS - 1),
            Some(5),
            "too soon"
        );
        assert_eq!(
            last(StageProgress::of(2, 9).waiting(true), 100),
            Some(100),
            "it waits"
        );
        assert_eq!(
            last(StageProgress::of(2, 9).waiting(true), 200),
            Some(100),
            "it is known to wait"
        );
        assert_eq!(
            last(StageProgress::of(3, 9), 100 + LINE_INTERVAL_MS),
            Some(100 + LINE_INTERVAL_MS),
            "late"
        );
        assert_eq!(
            last(StageProgress::of(9, 9), 10_200),
            Some(10_200),
            "the end"
        );
    }
}

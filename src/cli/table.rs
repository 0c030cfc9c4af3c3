//! Tables and moments for people.

use anstyle::Style;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, presets};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::output::{self, HEADER_STYLE, SafeText};
use crate::domain::duration;

/// Spaces between two columns.
const COLUMN_GAP: u16 = 2;

/// Columns that are never cut, so that their cells can be copied.
const WHOLE_COLUMNS: [&str; 2] = ["ID", "DEAD ID"];

/// Renders a table with these column names and rows of cells. Columns of numbers are aligned to the right. On a terminal
/// cells are cut where a line would be wider than the terminal, the widest first, but for ids. A cell is one line: its
/// line ends are escaped.
pub(super) fn table(names: &[&str], rows: &[Vec<String>]) -> SafeText {
    styled_table(names, rows, &[])
}

/// The same, with a style for each row; rows without one are plain.
pub(super) fn styled_table(names: &[&str], rows: &[Vec<String>], styles: &[Style]) -> SafeText {
    laid_out(names, rows, styles, output::width())
}

/// Reports whether the column at this place has a number in each row.
fn is_of_numbers(rows: &[Vec<String>], at: usize) -> bool {
    !rows.is_empty()
        && rows
            .iter()
            .all(|row| row.get(at).is_some_and(|c| c.parse::<i64>().is_ok()))
}

fn laid_out(
    names: &[&str],
    rows: &[Vec<String>],
    styles: &[Style],
    width: Option<u16>,
) -> SafeText {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_truncation_indicator("…");
    let mut header = Row::from(names.to_vec());
    header.max_height(1);
    table.set_header(header);
    for cells in rows {
        let mut row = Row::from(
            cells
                .iter()
                .map(|cell| SafeText::from(cell.as_str()).as_str().to_owned()),
        );
        row.max_height(1);
        table.add_row(row);
    }
    let last = names.len().saturating_sub(1);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at == last { 0 } else { COLUMN_GAP }));
        if WHOLE_COLUMNS.contains(&names[at]) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        if is_of_numbers(rows, at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if let Some(width) = width {
        table
            .set_width(width)
            .set_content_arrangement(ContentArrangement::Dynamic);
    }
    // A row is one line, so that the lines are the header and the rows.
    let styles = std::iter::once(HEADER_STYLE)
        .chain(styles.iter().copied())
        .chain(std::iter::repeat(Style::new()));
    let lines = table
        .lines()
        .zip(styles)
        .map(|(line, style)| SafeText::from(line.trim_end()).styled(style));
    SafeText::joined(lines, "\n")
}

/// A moment in this machine's time zone, with its distance from now.
pub(super) fn moment(ms: i64, now_ms: i64) -> String {
    let local = Timestamp::from_millisecond(ms).map_or_else(
        |_| ms.to_string(),
        |t| {
            t.to_zoned(TimeZone::system())
                .strftime("%Y-%m-%d %H:%M:%S %Z")
                .to_string()
        },
    );
    format!("{local} ({})", distance(ms - now_ms))
}

/// A day, ms.
const DAY_MS: i64 = 86_400_000;

/// A moment for lists, in this machine's time zone: the time of day, or the date of another day; with its distance from now
/// within a day.
pub(super) fn listed_moment(ms: i64, now_ms: i64) -> String {
    let local = |ms: i64| {
        Some(
            Timestamp::from_millisecond(ms)
                .ok()?
                .to_zoned(TimeZone::system()),
        )
    };
    let Some(at) = local(ms) else {
        return ms.to_string();
    };
    let is_today = local(now_ms).is_some_and(|now| now.date() == at.date());
    let format = if is_today {
        "%H:%M:%S"
    } else {
        "%Y-%m-%d %H:%M"
    };
    let shown = at.strftime(format);
    if is_today || (ms - now_ms).abs() < DAY_MS {
        format!("{shown} ({})", distance(ms - now_ms))
    } else {
        shown.to_string()
    }
}

/// The name of a column of listed moments, with this machine's time zone as it is now: `DUE (CET)`.
pub(super) fn moment_title(title: &str) -> String {
    let zone = Timestamp::now().to_zoned(TimeZone::system());
    format!("{title} ({})", zone.strftime("%Z"))
}

/// A moment in this machine's time zone, to the millisecond.
pub(super) fn precise_moment(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(
        |_| ms.to_string(),
        |t| {
            t.to_zoned(TimeZone::system())
                .strftime("%Y-%m-%d %H:%M:%S%.3f %Z")
                .to_string()
        },
    )
}

/// The distance of a moment: `in 2 h 5 min`, `3 s ago`.
fn distance(ms: i64) -> String {
    let whole_s = ms / 1_000 * 1_000;
    match whole_s {
        0 => "now".to_owned(),
        1.. => format!("in {}", duration::words(whole_s)),
        _ => format!("{} ago", duration::words(whole_s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_in_two_units() {
        let texts = [
            0, 999, -999, 1000, -61_000, 3_600_000, 7_500_000, 90_061_000,
        ]
        .map(distance);
        assert_eq!(
            texts,
            [
                "now",
                "now",
                "now",
                "in 1 s",
                "1 min 1 s ago",
                "in 1 h",
                "in 2 h 5 min",
                "in 1 d 1 h"
            ]
        );
    }

    #[test]
    fn a_listed_moment_says_how_far_it_is_whatever_the_hour() {
        // Within each hour of a day, so that some of them are across midnight in any zone.
        for hour in 0..24 {
            let now = 1_795_737_600_000 + hour * 3_600_000;
            for (ahead, distance) in [(3_600_000, "(in 1 h)"), (-3_600_000, "(1 h ago)")] {
                let shown = listed_moment(now + ahead, now);
                assert!(shown.ends_with(distance), "{shown}");
            }
            assert!(!listed_moment(now + 2 * DAY_MS, now).contains('('));
        }
    }

    #[test]
    fn each_row_is_a_line_with_its_own_style_at_any_width() {
        let row = |name: &str| vec![name.to_owned(), "in a cell of many words".to_owned()];
        let rows = [row("orders"), row("a-route-with-a-long-name"), row("c")];
        let styles = [Style::new(), output::FAILURE_STYLE, Style::new()];
        for width in 12..=120 {
            let shown = laid_out(&["ROUTE NAME", "WHAT IT SAYS"], &rows, &styles, Some(width));
            let lines: Vec<&str> = shown.as_str().lines().collect();
            assert_eq!(lines.len(), 4, "{width}: {lines:#?}");
            let styled: Vec<bool> = lines.iter().map(|l| l.starts_with('\u{1b}')).collect();
            assert_eq!(styled, [true, false, true, false], "{width}: {lines:#?}");
        }
    }

    #[test]
    fn columns_stand_in_line() {
        let rows = [
            vec!["a".to_owned(), "7".to_owned()],
            vec!["long".to_owned(), "1000".to_owned()],
        ];
        let plain = |text: &SafeText| anstream::adapter::strip_str(text.as_str()).to_string();
        let shown = table(&["ROUTE", "N"], &rows);
        assert_eq!(plain(&shown), "ROUTE     N\na         7\nlong   1000");
        let red = styled_table(
            &["ROUTE", "N"],
            &rows,
            &[Style::new(), output::FAILURE_STYLE],
        );
        assert_eq!(plain(&red), plain(&shown));
        let lines: Vec<&str> = red.as_str().lines().collect();
        assert_eq!(lines[1], "a         7");
        assert_ne!(lines[2], "long   1000", "the second row has a style");
    }
}

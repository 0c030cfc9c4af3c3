//! Tables and moments for people.

use anstyle::Style;
use comfy_table::{CellAlignment, ContentArrangement, Row, Table, presets};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::output::{self, HEADER_STYLE, SafeText};

/// Spaces between two columns.
const COLUMN_GAP: u16 = 2;

/// Renders a table with these column names and rows of cells. Columns of numbers are aligned to the right. On a terminal
/// no line is wider than the terminal: cells are cut, the widest first. A cell is one line: its line ends are escaped.
pub(super) fn table(names: &[&str], rows: &[Vec<String>]) -> SafeText {
    styled_table(names, rows, &[])
}

/// The same, with a style for each row; rows without one are plain.
pub(super) fn styled_table(names: &[&str], rows: &[Vec<String>], styles: &[Style]) -> SafeText {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_truncation_indicator("…");
    table.set_header(names.to_vec());
    for cells in rows {
        let mut row = Row::from(
            cells
                .iter()
                .map(|cell| SafeText::from(cell.as_str()).as_str().to_owned()),
        );
        row.max_height(1);
        table.add_row(row);
    }
    let is_number = |at: usize| {
        !rows.is_empty()
            && rows
                .iter()
                .all(|row| row.get(at).is_some_and(|c| c.parse::<i64>().is_ok()))
    };
    let last = names.len().saturating_sub(1);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at == last { 0 } else { COLUMN_GAP }));
        if is_number(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if let Some(width) = output::width() {
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
                .strftime("%Y-%m-%d %H:%M:%S")
                .to_string()
        },
    );
    format!("{local} ({})", distance(ms - now_ms))
}

/// A moment in this machine's time zone, to the millisecond.
pub(super) fn precise_moment(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(
        |_| ms.to_string(),
        |t| {
            t.to_zoned(TimeZone::system())
                .strftime("%Y-%m-%d %H:%M:%S%.3f")
                .to_string()
        },
    )
}

/// The distance of a moment in its two largest units: `in 2h 5m`, `3s ago`.
fn distance(ms: i64) -> String {
    let mut rest = ms.unsigned_abs() / 1000;
    let parts = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)].map(|(unit, length)| {
        let count = rest / length;
        rest %= length;
        (count, unit)
    });
    let parts: Vec<String> = parts
        .iter()
        .skip_while(|(n, _)| *n == 0)
        .take(2)
        .filter(|(n, _)| *n > 0)
        .map(|(n, u)| format!("{n}{u}"))
        .collect();
    match (parts.is_empty(), ms < 0) {
        (true, _) => "now".to_owned(),
        (false, true) => format!("{} ago", parts.join(" ")),
        (false, false) => format!("in {}", parts.join(" ")),
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
                "in 1s",
                "1m 1s ago",
                "in 1h",
                "in 2h 5m",
                "in 1d 1h"
            ]
        );
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

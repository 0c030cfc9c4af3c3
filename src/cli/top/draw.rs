//! The drawing of `postdate top`. It only reads the state.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState, Wrap};

use super::state::{MessageRow, RateSample, RouteRow, Snapshot, TopState};
use crate::cli::status::{lateness, replica_needs_attention};
use crate::cli::table::moment;

/// Most replicas that the overview shows.
const MAX_REPLICAS: usize = 3;
/// Rows of the overview that show messages, with their header.
const MESSAGE_ROWS: u16 = 6;
/// Most lines of a route's troubles.
const MAX_TROUBLE_LINES: u16 = 3;
/// Columns of the routes' table beside the name and the rates, and the spaces between all of them.
const ROUTE_COLUMNS: [u16; 6] = [7, 6, 6, 7, 6, 6];
/// Columns of the line of rates in the routes' table.
const MIN_RATE_COLUMNS: u16 = 10;
/// Columns of the cell that says what is paused.
const PAUSED_COLUMNS: u16 = 10;
/// Bars of a line of rates, lowest first.
const BAR_SYMBOLS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

const WARNING_STYLE: Style = Style::new().fg(Color::Yellow);
const FAILURE_STYLE: Style = Style::new().fg(Color::Red);
const HEADER_STYLE: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN_STYLE: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws the state as it is at this moment.
pub(super) fn draw(frame: &mut Frame<'_>, state: &TopState, now_ms: i64) {
    let notice = notice(state, now_ms);
    let notice_height = u16::from(notice.is_some());
    let [title, notice_area, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(notice_height),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(
        Line::styled(format!("postdate top  {}", state.url), HEADER_STYLE),
        title,
    );
    if let Some(notice) = notice {
        let style = FAILURE_STYLE.add_modifier(Modifier::BOLD);
        frame.render_widget(
            Line::styled(cut(&notice, notice_area.width), style),
            notice_area,
        );
    }
    let hint = match (&state.snapshot, &state.opened) {
        (Some(snapshot), Some(opened)) => {
            if let Some(route) = snapshot.routes.iter().find(|route| route.name == *opened) {
                draw_route(frame, body, state, snapshot, route, now_ms);
            }
            "Esc back  q quit"
        }
        (Some(snapshot), None) => {
            draw_overview(frame, body, state, snapshot, now_ms);
            "↑↓ choose  Enter show the route  q quit"
        }
        (None, _) => "q quit",
    };
    frame.render_widget(Line::raw(hint), keys);
}

/// Says since when the shown answers are stale, and why.
fn notice(state: &TopState, now_ms: i64) -> Option<String> {
    let why = state
        .failure
        .as_deref()
        .unwrap_or("the API does not answer");
    match (&state.snapshot, state.stale_since(now_ms)) {
        (None, _) if state.failure.is_none() => Some("waiting for the API".to_owned()),
        (None, _) => Some(why.to_owned()),
        (Some(_), Some(since)) => Some(format!("STALE since {}: {why}", moment(since, now_ms))),
        (Some(_), None) => None,
    }
}

fn draw_overview(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &TopState,
    snapshot: &Snapshot,
    now_ms: i64,
) {
    let replicas = snapshot.replicas.len().min(MAX_REPLICAS) as u16;
    let [replica_area, _, due, _, routes, _, next] = Layout::vertical([
        Constraint::Length(1 + replicas),
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
        Constraint::Length(MESSAGE_ROWS),
    ])
    .areas(area);
    draw_replicas(frame, replica_area, snapshot);
    draw_due(frame, due, snapshot);
    draw_routes(frame, routes, state, snapshot);
    draw_messages(frame, next, snapshot, None, now_ms);
}

fn draw_replicas(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    // Replicas that need attention come first: there may be more than fit.
    let mut replicas: Vec<_> = snapshot.replicas.iter().collect();
    replicas.sort_by_key(|replica| !replica_needs_attention(&replica.state));
    let name_width = area.width.saturating_sub(10 + 10 + 10 + 6);
    let rows = replicas.iter().take(MAX_REPLICAS).map(|replica| {
        let style = match replica.state.as_str() {
            "dead" => FAILURE_STYLE,
            state if replica_needs_attention(state) => WARNING_STYLE,
            _ => Style::new(),
        };
        let cells = [
            Cell::from(cut(&replica.name, name_width)),
            Cell::from(replica.version.clone()),
            Cell::from(replica.state.clone()),
            right(compact(replica.partitions as f64)),
        ];
        Row::new(cells).style(style)
    });
    let count = match replicas.len() {
        more if more > MAX_REPLICAS => format!("REPLICA ({MAX_REPLICAS} of {more})"),
        _ => "REPLICA".to_owned(),
    };
    let header = [
        Cell::from(count),
        "VERSION".into(),
        "STATE".into(),
        right("PARTITIONS".to_owned()),
    ];
    let widths = [name_width, 10, 10, 10].map(Constraint::Length);
    frame.render_widget(
        Table::new(rows, widths)
            .column_spacing(2)
            .header(Row::new(header).style(HEADER_STYLE)),
        area,
    );
}

fn draw_due(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let due = &snapshot.due;
    let [words, bars] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let in_minute: u64 = due.minute.iter().sum();
    let sentence = format!(
        "DUE  {} and not claimed, {} in a minute, {} in an hour, {} in a day",
        due.overdue, in_minute, due.in_hour, due.in_day
    );
    frame.render_widget(
        Line::styled(cut(&sentence, words.width), HEADER_STYLE),
        words,
    );
    let [label, bars] =
        Layout::horizontal([Constraint::Length(13), Constraint::Min(0)]).areas(bars);
    frame.render_widget(Line::raw("next minute"), label);
    frame.render_widget(Sparkline::default().data(&due.minute), bars);
}

fn draw_routes(frame: &mut Frame<'_>, area: Rect, state: &TopState, snapshot: &Snapshot) {
    if snapshot.routes.is_empty() {
        frame.render_widget(Line::raw("no route is configured there"), area);
        return;
    }
    let fixed = ROUTE_COLUMNS.iter().sum::<u16>() + PAUSED_COLUMNS + 8;
    let free = area.width.saturating_sub(fixed);
    let longest = snapshot
        .routes
        .iter()
        .map(|route| route.name.len() as u16)
        .max()
        .unwrap_or(0);
    let name_width = longest.max(5).min(free.saturating_sub(MIN_RATE_COLUMNS));
    let rate_width = free.saturating_sub(name_width);
    let rows = snapshot.routes.iter().map(|route| {
        let last = state.rates(&route.name).next_back();
        let rate =
            |of: fn(&RateSample) -> f64| last.map_or("-".to_owned(), |sample| compact(of(sample)));
        let cells = [
            Cell::from(cut(&route.name, name_width)),
            right(compact(route.pending as f64)),
            right(compact(route.in_flight as f64)),
            right(compact(route.dead as f64)),
            right(lateness(route.overdue_s)),
            right(rate(|sample| sample.read)),
            right(rate(|sample| sample.published)),
            Cell::from(bars(
                state.rates(&route.name).map(|sample| sample.published),
                rate_width,
            )),
            Cell::from(cut(
                if route.paused.is_empty() {
                    "-"
                } else {
                    &route.paused
                },
                PAUSED_COLUMNS,
            )),
        ];
        let is_well = route.paused.is_empty() && route.troubles.is_empty() && route.overdue_s < 1.0;
        Row::new(cells).style(if is_well { Style::new() } else { WARNING_STYLE })
    });
    let numbers = ["PENDING", "FLIGHT", "DEAD", "OVERDUE", "IN/S", "OUT/S"]
        .map(|name| right(name.to_owned()));
    let header = std::iter::once(Cell::from("ROUTE"))
        .chain(numbers)
        .chain(["OUT".into(), "PAUSED".into()]);
    let widths = std::iter::once(name_width)
        .chain(ROUTE_COLUMNS)
        .chain([rate_width, PAUSED_COLUMNS])
        .map(Constraint::Length);
    let table = Table::new(rows, widths)
        .column_spacing(1)
        .header(Row::new(header).style(HEADER_STYLE));
    let mut chosen = TableState::default().with_selected(state.chosen);
    frame.render_stateful_widget(table.row_highlight_style(CHOSEN_STYLE), area, &mut chosen);
}

/// Draws the messages that fall due next: of one route, or of all.
fn draw_messages(
    frame: &mut Frame<'_>,
    area: Rect,
    snapshot: &Snapshot,
    route: Option<&str>,
    now_ms: i64,
) {
    // The messages of another choice may still be shown: they are left out until the next answer.
    let is_current = snapshot.next_of.as_deref() == route;
    if is_current && let Some(why) = &snapshot.next_failure {
        let lines = vec![
            Line::styled("DUE NEXT", HEADER_STYLE),
            Line::styled(why.as_str(), FAILURE_STYLE),
        ];
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
        return;
    }
    let messages: &[MessageRow] = if is_current { &snapshot.next } else { &[] };
    let rest = area.width.saturating_sub(34 + 7 + 6);
    let [route_width, id_width, error_width] = match route {
        None => [rest / 3, rest / 3, rest - 2 * (rest / 3)],
        Some(_) => [0, rest / 2, rest - rest / 2],
    };
    let rows = messages.iter().map(|message| {
        Row::new([
            Cell::from(moment(message.due_ms, now_ms)),
            Cell::from(cut(&message.route, route_width)),
            Cell::from(cut(&message.id, id_width)),
            right(message.attempt.clone()),
            Cell::from(cut(&message.last_error, error_width)),
        ])
    });
    let header = [
        Cell::from("DUE NEXT"),
        if route.is_none() {
            "ROUTE".into()
        } else {
            "".into()
        },
        "ID".into(),
        right("ATTEMPT".to_owned()),
        "LAST ERROR".into(),
    ];
    let widths = [34, route_width, id_width, 7, error_width].map(Constraint::Length);
    frame.render_widget(
        Table::new(rows, widths)
            .column_spacing(1)
            .header(Row::new(header).style(HEADER_STYLE)),
        area,
    );
}

fn draw_route(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &TopState,
    snapshot: &Snapshot,
    route: &RouteRow,
    now_ms: i64,
) {
    let trouble_lines = (route.troubles.len() as u16).min(MAX_TROUBLE_LINES);
    let [facts, troubles, _, rates, _, next] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(trouble_lines),
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(1),
        Constraint::Min(0),
    ])
    .areas(area);
    let paused = if route.paused.is_empty() {
        "nothing"
    } else {
        &route.paused
    };
    let counts = format!(
        "pending {}, in flight {}, dead {}, overdue {}, paused: {paused}",
        route.pending,
        route.in_flight,
        route.dead,
        lateness(route.overdue_s)
    );
    let lines = [
        Line::styled(
            cut(&format!("ROUTE {}", route.name), facts.width),
            HEADER_STYLE,
        ),
        Line::raw(cut(&format!("from {}", route.from), facts.width)),
        Line::raw(cut(&format!("to   {}", route.to), facts.width)),
        Line::raw(cut(&counts, facts.width)),
    ];
    frame.render_widget(Paragraph::new(lines.to_vec()), facts);
    let said = Paragraph::new(route.troubles.join("\n"))
        .style(WARNING_STYLE)
        .wrap(Wrap { trim: true });
    frame.render_widget(said, troubles);
    draw_rates(frame, rates, state, &route.name);
    draw_messages(frame, next, snapshot, Some(&route.name), now_ms);
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, state: &TopState, route: &str) {
    let [words, read, published] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(2),
    ])
    .areas(area);
    frame.render_widget(
        Line::styled("MESSAGES A SECOND, over all replicas", HEADER_STYLE),
        words,
    );
    draw_rate(
        frame,
        read,
        "in",
        state.rates(route).map(|sample| sample.read),
    );
    draw_rate(
        frame,
        published,
        "out",
        state.rates(route).map(|sample| sample.published),
    );
}

/// Draws the last rate as a number, and all of them as bars.
fn draw_rate(frame: &mut Frame<'_>, area: Rect, name: &str, rates: impl Iterator<Item = f64>) {
    let [label, chart] =
        Layout::horizontal([Constraint::Length(13), Constraint::Min(0)]).areas(area);
    let rates: Vec<f64> = rates.collect();
    let last = rates.last().map_or("-".to_owned(), |rate| compact(*rate));
    frame.render_widget(Line::raw(format!("{name:<3} {last:>8}")), label);
    // A bar needs a whole number: tenths keep slow routes visible.
    let bars: Vec<u64> = rates.iter().map(|rate| (rate * 10.0) as u64).collect();
    let from = bars.len().saturating_sub(chart.width as usize);
    frame.render_widget(Sparkline::default().data(&bars[from..]), chart);
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::raw(text).right_aligned())
}

/// A text that is at most so many characters wide; a mark tells that it was cut.
fn cut(text: &str, width: u16) -> String {
    let width = width as usize;
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain("…".chars().take(width))
        .collect()
}

/// A number of at most five characters: `9999`, `12.3k`, `450k`, `10.0M`.
fn compact(number: f64) -> String {
    if number > 0.0 && number < 10.0 && number.fract() != 0.0 {
        return format!("{number:.1}");
    }
    let (scaled, unit) = match number {
        n if n < 9_999.5 => return format!("{n:.0}"),
        n if n < 999_500.0 => (n / 1e3, "k"),
        n if n < 999_500_000.0 => (n / 1e6, "M"),
        n => (n / 1e9, "G"),
    };
    if scaled < 99.95 {
        format!("{scaled:.1}{unit}")
    } else {
        format!("{scaled:.0}{unit}")
    }
}

/// The last of these numbers as bars, so many at most. The largest of them is a whole bar.
fn bars(numbers: impl DoubleEndedIterator<Item = f64>, width: u16) -> String {
    let mut numbers: Vec<f64> = numbers.rev().take(width as usize).collect();
    numbers.reverse();
    let largest = numbers.iter().copied().fold(0.0, f64::max);
    let mut bars = String::new();
    for number in numbers {
        let height = (number / largest * 7.0).round() as usize;
        bars.push(if largest > 0.0 {
            BAR_SYMBOLS[height.min(7)]
        } else {
            BAR_SYMBOLS[0]
        });
    }
    bars
}

#[cfg(test)]
mod tests;

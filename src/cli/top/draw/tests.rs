use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::cli::top::state::{DueCounts, RateSample, ReplicaRow, UserKey};

/// The moment of the last answers.
const NOW_MS: i64 = 1_800_000_000_000;

fn route(name: &str, pending: i64) -> RouteRow {
    RouteRow {
        name: name.to_owned(),
        from: format!("kafka main, topic {name}.delayed, group postdate"),
        to: format!("kafka main, topic {name}"),
        pending,
        ..RouteRow::default()
    }
}

/// A state after two answers, a second apart, of these routes.
fn state(routes: &[RouteRow]) -> TopState {
    let mut state = TopState::new("http://127.0.0.1:8025".to_owned());
    for (at, published) in [10.0, 20.0].into_iter().enumerate() {
        let rate = RateSample {
            read: 40.0,
            published,
        };
        let routes = routes.iter().map(|route| RouteRow {
            rate,
            ..route.clone()
        });
        state.take(Ok(Snapshot {
            at_ms: NOW_MS - 1_000 + 1_000 * at as i64,
            replicas: vec![ReplicaRow {
                name: "relay-1:8025".to_owned(),
                version: "0.1.0".to_owned(),
                state: "ready".to_owned(),
                partitions: 64,
            }],
            routes: routes.collect(),
            due: DueCounts {
                overdue: 2,
                minute: (0..60).collect(),
                in_hour: 4_000,
                in_day: 90_000,
            },
            next_of: None,
            next: vec![MessageRow {
                due_ms: NOW_MS + 2_000,
                route: "orders".to_owned(),
                id: "order-7".to_owned(),
                attempt: "1".to_owned(),
                last_error: "-".to_owned(),
            }],
            next_failure: None,
        }));
    }
    state
}

/// The lines of a drawing.
fn drawn(state: &TopState, width: u16, height: u16, now_ms: i64) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal
        .draw(|frame| draw(frame, state, now_ms))
        .expect("drawn");
    let buffer = terminal.backend().buffer();
    let line = |y| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
            .trim_end()
            .to_owned()
    };
    (0..height).map(line).collect()
}

fn position(lines: &[String], part: &str) -> usize {
    lines
        .iter()
        .position(|line| line.contains(part))
        .unwrap_or_else(|| panic!("{part} in\n{}", lines.join("\n")))
}

#[test]
fn the_overview_fits_into_80_by_24() {
    let mut mail = route("mail", 12_345);
    mail.paused = "publishing".to_owned();
    mail.overdue_s = 75.0;
    let lines = drawn(&state(&[mail, route("orders", 7)]), 80, 24, NOW_MS);
    assert_eq!(lines[0], "postdate top  http://127.0.0.1:8025");
    assert!(
        lines[1].starts_with("REPLICA ") && lines[1].ends_with("PARTITIONS"),
        "{}",
        lines[1]
    );
    assert_eq!(
        lines[4],
        "DUE  2 and not claimed, 1770 in a minute, 4000 in an hour, 90000 in a day"
    );
    let header = position(&lines, "PENDING");
    assert_eq!(
        lines[header],
        "ROUTE  PENDING FLIGHT   DEAD OVERDUE   IN/S  OUT/S OUT                PAUSED"
    );
    assert_eq!(
        lines[header + 1],
        "mail     12.3k      0      0    75 s     40     20 ▅█                 publishing"
    );
    assert_eq!(
        lines[header + 2],
        "orders       7      0      0       -     40     20 ▅█                 -"
    );
    let next = position(&lines, "DUE NEXT");
    assert!(
        lines[next + 1].contains("(in 2 s)") && lines[next + 1].contains("order-7"),
        "{}",
        lines[next + 1]
    );
    assert_eq!(lines[23], "↑↓ choose  Enter show the route  q quit");
}

#[test]
fn long_names_are_cut_and_a_wide_terminal_shows_them() {
    let name = "a-route-with-a-name-of-sixty-four-characters-which-is-the-most-0";
    let state = state(&[route(name, 3)]);
    let narrow = drawn(&state, 80, 24, NOW_MS);
    let row = &narrow[position(&narrow, "a-route")];
    assert!(
        row.starts_with("a-route-with-…") && row.contains("▅█"),
        "{row}"
    );
    let wide = drawn(&state, 200, 50, NOW_MS);
    let row = &wide[position(&wide, name)];
    assert!(row.contains("▅█"), "{row}");
}

#[test]
fn of_many_routes_the_chosen_one_is_in_sight() {
    let routes: Vec<_> = (0..100)
        .map(|n| route(&format!("route-{n:02}"), n))
        .collect();
    let mut state = state(&routes);
    assert!(
        drawn(&state, 80, 24, NOW_MS)
            .iter()
            .any(|line| line.starts_with("route-00"))
    );
    for _ in 0..60 {
        state.press(UserKey::Down);
    }
    let lines = drawn(&state, 80, 24, NOW_MS);
    position(&lines, "route-60");
    assert!(
        !lines.iter().any(|line| line.starts_with("route-00")),
        "{lines:?}"
    );
}

#[test]
fn no_routes_and_no_answer_are_said() {
    position(
        &drawn(&state(&[]), 80, 24, NOW_MS),
        "no route is configured there",
    );
    let mut new = TopState::new("http://127.0.0.1:8025".to_owned());
    position(&drawn(&new, 80, 24, NOW_MS), "waiting for the API");
    new.take(Err("http://127.0.0.1:8025 cannot be reached".to_owned()));
    position(&drawn(&new, 80, 24, NOW_MS), "cannot be reached");
}

#[test]
fn stale_answers_stay_and_say_since_when() {
    let mut state = state(&[route("orders", 7)]);
    state.take(Err("http://127.0.0.1:8025 cannot be reached".to_owned()));
    let lines = drawn(&state, 80, 24, NOW_MS + 12_000);
    assert!(
        lines[1].starts_with("STALE since ") && lines[1].contains("(12 s ago): http"),
        "{}",
        lines[1]
    );
    position(&lines, "orders       7");
}

#[test]
fn messages_that_cannot_be_read_leave_the_overview_and_say_why() {
    let mut state = state(&[route("orders", 7)]);
    let snapshot = state.snapshot.as_mut().expect("answers");
    snapshot.next.clear();
    snapshot.next_failure = Some("Redis cannot be reached right now (503)".to_owned());
    let lines = drawn(&state, 80, 24, NOW_MS);
    position(&lines, "orders       7");
    let next = position(&lines, "DUE NEXT");
    assert_eq!(lines[next + 1], "Redis cannot be reached right now (503)");
}

#[test]
fn a_route_has_a_view_of_its_own() {
    let mut orders = route("orders", 7);
    orders.troubles = vec!["target orders: kafka cannot be reached".to_owned()];
    let mut state = state(&[route("mail", 1), orders]);
    state.press(UserKey::Down);
    state.press(UserKey::Open);
    let lines = drawn(&state, 80, 24, NOW_MS);
    assert_eq!(lines[1], "ROUTE orders");
    assert_eq!(
        lines[2],
        "from kafka main, topic orders.delayed, group postdate"
    );
    assert_eq!(lines[3], "to   kafka main, topic orders");
    assert_eq!(
        lines[4],
        "pending 7, in flight 0, dead 0, overdue -, paused: nothing"
    );
    assert_eq!(lines[5], "target orders: kafka cannot be reached");
    assert!(
        lines[position(&lines, "out ")].starts_with("out       20"),
        "{lines:?}"
    );
    assert!(
        !lines.iter().any(|line| line.contains("order-7")),
        "the messages are of all routes: {lines:?}"
    );
    assert_eq!(lines[23], "Esc back  q quit");
}

#[test]
fn a_tiny_terminal_breaks_nothing() {
    let state = state(&[route("orders", 7)]);
    for (width, height) in [(1, 1), (5, 3), (20, 10), (79, 8)] {
        assert_eq!(drawn(&state, width, height, NOW_MS).len(), height as usize);
    }
}

#[test]
fn numbers_are_short() {
    let shown = [
        0.0,
        0.25,
        9.0,
        40.0,
        9_999.0,
        12_345.0,
        450_000.0,
        10_000_000.0,
        2e12,
    ]
    .map(compact);
    assert_eq!(
        shown,
        [
            "0", "0.2", "9", "40", "9999", "12.3k", "450k", "10.0M", "2000G"
        ]
    );
    assert_eq!(bars([0.0, 5.0, 10.0].into_iter(), 2), "▅█");
    assert_eq!(bars([0.0, 0.0].into_iter(), 9), "▁▁");
    assert_eq!(cut("orders", 4), "ord…");
    assert_eq!(cut("orders", 0), "");
}

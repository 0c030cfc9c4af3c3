//! The base of a delay, and the limit of a due time.

use super::*;

#[track_caller]
fn due_of(message: &Message, produced: Option<i64>, route: &Route) -> i64 {
    let (admission, _) = admit(
        message.clone(),
        None,
        produced.map(UnixMs),
        route,
        ARRIVAL.into(),
    );
    match admission {
        Admission::Delayed { asked, .. } => asked.due.since(ARRIVAL),
        other => panic!("{other:?} is not delayed"),
    }
}

#[test]
fn a_delay_counts_from_when_it_was_produced_unless_that_is_unknown_impossible_or_in_the_future() {
    let now = ARRIVAL.0;
    let cases = [
        (None, 5000),
        (Some(-1), 5000),
        (Some(now), 5000),
        (Some(now - 1000), 4000),
        (Some(now + 1), 5000),
        (Some(i64::MAX), 5000),
        (Some(now - 5000), 0),
        (Some(now - 60_000), -55_000),
        // No record was produced before 1973: these are seconds, or nothing.
        (Some(i64::MIN), 5000),
        (Some(0), 5000),
        (Some(999), 5000),
        (Some(now / 1000), 5000),
        (Some(100_000_000_000 - 1), 5000),
        (Some(100_000_000_000), 100_000_005_000 - now),
    ];
    for (produced, expected) in cases {
        for message in both(&[("x-delay", "5s")]) {
            assert_eq!(
                due_of(&message, produced, &route()),
                expected,
                "{produced:?}"
            );
        }
    }
    let mut from_arrival = route();
    from_arrival.policy.delay_from = DelayFrom::Arrival;
    for message in both(&[("x-delay", "5s")]) {
        assert_eq!(due_of(&message, Some(now - 1000), &from_arrival), 5000);
    }
    // A due time is absolute, whenever the message was produced.
    for message in both(&[("x-deliver-at", "2026-11-21T10:00:05Z")]) {
        assert_eq!(due_of(&message, Some(now - 1000), &route()), 5000);
    }
}

#[test]
fn what_has_nothing_to_wait_for_is_due_by_any_clock_and_nothing_else_is_due_before_its_time() {
    let arrival = Arrival {
        earliest: ARRIVAL.plus(-500),
        latest: ARRIVAL,
    };
    let due_of = |message: &Message, produced: Option<i64>| {
        let produced = produced.map(UnixMs);
        match admit(message.clone(), None, produced, &route(), arrival) {
            (Admission::Delayed { asked, .. }, _) => asked.due.since(ARRIVAL),
            (other, _) => panic!("{other:?} is not delayed"),
        }
    };
    for message in both(&[("x-delay", "0")]) {
        assert_eq!(due_of(&message, None), -500);
        assert_eq!(due_of(&message, Some(ARRIVAL.0 - 100)), -100);
    }
    // Both are due at the very time that may be the one of their arrival, and that may not have come.
    for message in both(&[("x-delay", "5s")]) {
        assert_eq!(due_of(&message, Some(ARRIVAL.0 - 5000)), 0);
    }
    for message in both(&[("x-deliver-at", "2026-11-21T10:00:00Z")]) {
        assert_eq!(due_of(&message, None), 0);
    }
}

#[test]
fn the_longest_delay_is_measured_from_arrival_and_inclusive() {
    for message in both(&[("x-delay", "30d")]) {
        assert_eq!(due_of(&message, None, &route()), MAX_DELAY);
    }
    for message in both(&[("x-deliver-at", "1797847200000")]) {
        assert_eq!(due_of(&message, None, &route()), MAX_DELAY);
    }
    // The message was produced a second ago, so a second less is left.
    for message in both(&[("x-delay", "2592001000")]) {
        assert_eq!(
            due_of(&message, Some(ARRIVAL.0 - 1000), &route()),
            MAX_DELAY
        );
        assert_invalid(&message, &route(), InvalidReason::TooFar);
    }
}

#[test]
fn what_is_past_is_due_at_once_and_never_before_1970() {
    for (text, due) in [
        ("2026-11-21T09:59:59Z", ARRIVAL.0 - 1000),
        ("100000000000", 100_000_000_000),
        ("0001-01-01T00:00:00Z", 0),
    ] {
        for message in both(&[("x-deliver-at", text)]) {
            assert_eq!(due_of(&message, None, &route()), due - ARRIVAL.0, "{text}");
        }
    }
    for message in both(&[("x-delay", "0")]) {
        assert_eq!(due_of(&message, None, &route()), 0);
    }
}

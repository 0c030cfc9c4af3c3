//! Admission on routes with other header names, or with other targets.

use super::*;

fn exchange(exchange: &str, routing_key: RoutingKey) -> Arc<Target> {
    Arc::new(Target::Rabbitmq {
        connection: "main".into(),
        exchange: exchange.into(),
        routing_key,
    })
}

#[test]
fn a_route_can_rename_the_headers() {
    let mut route = route();
    route.policy.headers = HeaderNames {
        delay: "delay-ms".into(),
        deliver_at: "at".into(),
        id: "job".into(),
        op: "do".into(),
        target: "to".into(),
        expires: "until".into(),
    };
    for message in both(&[
        ("Delay-MS", "5"),
        ("x-delay", "abc"),
        ("Job", "7"),
        ("To", "orders.retry"),
        ("x-delay-id", "x"),
    ]) {
        let expected = Admission::Delayed {
            asked: asked_time(5, RequestedTime::Delay(5)),
            id: Some("7".into()),
            target: topic("orders.retry"),
        };
        // `x-delay` is an ordinary header on this route. Postdate still sets `x-delay-id` when it publishes.
        let rest = without(&message, &["Delay-MS", "Job", "To", "x-delay-id"]);
        assert_eq!(admit_now(&message, &route), (expected, rest));
    }
    for message in both(&[("x-delay", "abc"), ("x-delay-op", "cancel")]) {
        assert!(matches!(
            admit_now(&message, &route).0,
            Admission::PassThrough { .. }
        ));
    }
}

#[test]
fn targets_on_rabbitmq_are_exchange_and_routing_key() {
    let mut route = route();
    route.to = exchange("mail", RoutingKey::Preserve);
    let allowed = [
        exchange("mail", RoutingKey::Fixed("a/b".into())),
        exchange("", RoutingKey::Fixed("queue".into())),
        exchange("late", RoutingKey::Fixed(String::new())),
    ];
    route.allow_targets = allowed.to_vec();
    let cases = [
        ("mail/", &route.to),
        ("mail/a/b", &allowed[0]),
        ("/queue", &allowed[1]),
        ("late/", &allowed[2]),
    ];
    for (name, target) in cases {
        for message in both(&[("x-delay-target", name)]) {
            match admit_now(&message, &route).0 {
                Admission::PassThrough { target: chosen } => {
                    assert!(Arc::ptr_eq(&chosen, target), "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    for name in [
        "mail",
        "queue",
        "/",
        "/other",
        "mail/a",
        "mail/a/b/c",
        "Mail/a/b",
        "late",
        "amq.direct/x",
    ] {
        for message in both(&[("x-delay-target", name)]) {
            assert_invalid(&message, &route, InvalidReason::ForbiddenTarget);
        }
    }
}

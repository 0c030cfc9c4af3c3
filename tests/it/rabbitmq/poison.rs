//! Deliveries that the client library cannot decode, or not without a very deep stack. Each is one bad message of
//! its route, and nothing else notices.

use postdate::health::PartState;
use postdate::ingress::Missing;

use super::{DeliverySink, RabbitmqFixture, body, resolve};
use crate::support::{QueueKind, Rabbitmq, names};

/// A poison: properties and routing key as terms of Erlang, since no client of ours could send them, and what is
/// said of it.
struct Poison {
    properties: String,
    routing_key: &'static str,
    reason: &'static str,
}

/// An array in an array, or a table in a table, so many deep.
fn nested(is_array: bool, depth: usize) -> String {
    let around = if is_array {
        "{array, [V]}"
    } else {
        "{table, [{<<\"n\">>, element(1, V), element(2, V)}]}"
    };
    format!(
        "[{{headers, [(fun() -> {{T, C}} = lists:foldl(fun(_, V) -> {around} end, {{void, undefined}}, \
         lists:seq(1, {depth})), {{<<\"h\">>, T, C}} end)()]}}]"
    )
}

fn poisons() -> Vec<Poison> {
    let with = |properties: &str, reason| Poison {
        properties: properties.to_owned(),
        routing_key: "k",
        reason,
    };
    let mut poisons = vec![
        with(
            "[{headers, [{<<255,254>>, longstr, <<\"x\">>}]}]",
            "a header's name is not UTF-8",
        ),
        with(
            "[{headers, [{<<\"a\">>, table, [{<<255>>, longstr, <<\"x\">>}]}]}]",
            "a header's name is not UTF-8",
        ),
        with(
            "[{content_type, <<\"a\", 255>>}]",
            "its content_type is not UTF-8",
        ),
        with("[{cluster_id, <<255>>}]", "its cluster_id is not UTF-8"),
        with(
            "[{headers, [{<<\"x-postdate-unreadable\">>, longstr, <<\"x\">>}]}]",
            "it has a header x-postdate-unreadable already",
        ),
        with(
            "[{headers, [{<<\"h\">>, longstr, binary:copy(<<\"x\">>, 3000000)}]}]",
            "its properties are 3000",
        ),
        Poison {
            properties: "[]".to_owned(),
            routing_key: "k\", 255, \"",
            reason: "its routing key is not UTF-8",
        },
    ];
    for is_array in [true, false] {
        for depth in [129, 1_500, 20_000] {
            poisons.push(with(
                &nested(is_array, depth),
                "its headers nest deeper than 128",
            ));
        }
    }
    poisons
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_decoded_is_one_bad_message_of_its_route() {
    let server = Rabbitmq::start().await;
    let queues = [names::unique("q"), names::unique("q")];
    let exchange = names::unique("x");
    server
        .declare_exchange(&exchange, lapin::ExchangeKind::Topic)
        .await;
    server.declare_queue(&queues[0], QueueKind::Classic).await;
    server.declare_queue(&queues[1], QueueKind::Quorum).await;
    for queue in &queues {
        server.bind(queue, &exchange, "#").await;
    }
    let publish = |properties: &str, key: &str, body: &str| {
        format!(
            "rabbit_basic:publish(rabbit_misc:r(<<\"/\">>, exchange, <<\"{exchange}\">>), <<\"{key}\">>, \
             {properties}, <<\"{body}\">>)"
        )
    };
    let poisons = poisons();
    let mut publishes = vec![publish(&nested(true, 128), "k", "deepest")];
    for (n, poison) in poisons.iter().enumerate() {
        publishes.push(publish(
            &poison.properties,
            poison.routing_key,
            &format!("poison {n}"),
        ));
        publishes.push(publish("[]", "k", &format!("good {n}")));
    }
    server
        .ctl(&["eval", &format!("{}.", publishes.join(", "))])
        .await;

    let fixture = RabbitmqFixture::new(&server);
    let sink = DeliverySink::default();
    let _registry = fixture.consume(&queues.each_ref().map(String::as_str), 100, &sink);
    let deliveries = sink.catch(2 * (2 * poisons.len() + 1)).await;
    for delivery in &deliveries {
        let body = body(delivery);
        let reason = match &delivery.missing {
            Some(Missing::Headers(reason)) => Some(reason.to_string()),
            _ => None,
        };
        match body.strip_prefix("poison ") {
            Some(n) => {
                let expected = poisons[n.parse::<usize>().expect("a number")].reason;
                assert!(
                    reason
                        .as_ref()
                        .is_some_and(|reason| reason.contains(expected)),
                    "{body}: {reason:?}"
                );
                assert!(delivery.message.headers.is_empty(), "{body}");
            }
            None => assert_eq!(reason, None, "{body}"),
        }
        assert_eq!(
            delivery.message.headers.len(),
            usize::from(body == "deepest"),
            "{body}"
        );
    }
    resolve(deliveries);
    assert_eq!(
        fixture.health.parts(),
        [("rabbitmq:main".to_owned(), PartState::Up)]
    );
    fixture.drain().await;
    for queue in &queues {
        assert_eq!(server.queue_len(queue).await, 0, "all are acknowledged");
    }
}

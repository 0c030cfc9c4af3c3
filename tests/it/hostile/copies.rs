//! `CC` and `BCC`: further routing keys that RabbitMQ publishes to with the rights of whoever publishes.

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldArray, FieldTable};

use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

fn table(fields: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// How the messages of a route find their further routing keys, and how many copies of each kind come.
#[derive(Default)]
struct Case {
    policy: &'static str,
    /// The planted fault of the relay.
    mutant: Option<&'static str>,
    copied: u32,
}

/// Sends what passes, what is delayed, what is invalid and passes all the same, and what names the source itself, each
/// with `CC` and with the `BCC` that RabbitMQ lets through: it removes the first of two.
async fn play(case: &Case) {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let [fanout, source, target, other] =
        ["fanout", "source", "target", "other"].map(names::unique);
    for queue in [&source, &target, &other] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    rabbitmq
        .declare_exchange(&fanout, lapin::ExchangeKind::Fanout)
        .await;
    rabbitmq.bind(&source, &fanout, "").await;
    let config = Config::new(&redis).rabbitmq("main", rabbitmq).route(
        "one",
        &format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#),
        &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#),
        &format!("on_invalid = \"pass_through\"\n{}", case.policy),
    );
    let environment: Vec<_> = case
        .mutant
        .map(|mutant| ("POSTDATE_MUTANT", mutant))
        .into_iter()
        .collect();
    let relay = Relay::start_with(&config, &environment).await;
    let connection = rabbitmq.connect().await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    let keys = AMQPValue::FieldArray(FieldArray::from(vec![text(&other)]));
    let delays = [None, Some("100ms"), Some("never")];
    for delay in delays {
        let mut fields = vec![("CC", keys.clone())];
        fields.extend(delay.map(|delay| ("x-delay", text(delay))));
        let properties = BasicProperties::default().with_headers(table(&fields));
        // To a fanout exchange `CC` names keys that nobody is bound by: the broker copies nothing here.
        channel
            .basic_publish(
                fanout.as_str().into(),
                "".into(),
                BasicPublishOptions::default(),
                b"m",
                properties,
            )
            .await
            .expect("published");
    }
    eventually("each has arrived", async || {
        match rabbitmq.queue_len(&target).await {
            3 => Ok(()),
            others => Err(others),
        }
    })
    .await;
    eventually(
        &format!("{} copies", case.copied),
        async || match rabbitmq.queue_len(&other).await {
            copied if copied == case.copied => Ok(()),
            others => Err(others),
        },
    )
    .await;
    drop(relay);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_a_message_adds_a_target() {
    play(&Case::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_with_copies_has_them() {
    play(&Case {
        policy: "copies = true",
        copied: 3,
        ..Case::default()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_lets_copies_through_is_caught() {
    play(&Case {
        mutant: Some("copies_pass"),
        copied: 3,
        ..Case::default()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_to_the_source_makes_no_loop() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let [source, target] = ["source", "target"].map(names::unique);
    for queue in [&source, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let config = Config::new(&redis).rabbitmq("main", rabbitmq).route(
        "one",
        &format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#),
        &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#),
        "",
    );
    let relay = Relay::start(&config).await;
    let connection = rabbitmq.connect().await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    let publish = async |fields: &[(&str, AMQPValue)], body: &[u8]| {
        let properties = BasicProperties::default().with_headers(table(fields));
        let options = BasicPublishOptions::default();
        channel
            .basic_publish("".into(), source.as_str().into(), options, body, properties)
            .await
            .expect("published");
    };
    let arrived = async |expected: u32| {
        eventually("all have arrived", async || {
            match rabbitmq.queue_len(&target).await {
                there if there >= expected => Ok(()),
                fewer => Err(fewer),
            }
        })
        .await;
    };
    let keys = AMQPValue::FieldArray(FieldArray::from(vec![text(&source)]));
    publish(&[("CC", keys)], b"round").await;
    arrived(1).await;
    // What goes round is back in the source before these, and comes out before them.
    for more in 2..=4 {
        publish(&[], b"more").await;
        arrived(more).await;
    }
    assert_eq!(rabbitmq.queue_len(&target).await, 4);
    drop(relay);
}

// [test]
//! Sends delayed messages through Kafka with rdkafka: what `docs/producers.md` shows.
#![allow(
    clippy::disallowed_methods,
    reason = "reads clocks and the environment as its users do"
)]

// [/test]
use std::env;
use std::error::Error;
use std::time::{Duration, SystemTime};

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

/// Returns when Kafka has the record on all its replicas.
async fn send(
    producer: &FutureProducer,
    key: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> Result<(), Box<dyn Error>> {
    let headers = headers
        .iter()
        .fold(OwnedHeaders::new(), |all, &(key, value)| {
            all.insert(Header {
                key,
                value: Some(value),
            })
        });
    let record = FutureRecord::to("orders.delayed")
        .key(key)
        .payload(body)
        .headers(headers);
    producer
        .send(record, Duration::from_secs(30))
        .await
        .map_err(|(error, _)| error)?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let brokers = env::var("KAFKA_BROKERS")?;
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("acks", "all")
        .set("message.timeout.ms", "30000");
    let producer: FutureProducer = config.create()?;

    send(&producer, "order-6", "in two seconds", &[("x-delay", "2s")]).await?;
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let moment = (since_1970 + Duration::from_secs(2))
        .as_millis()
        .to_string();
    send(
        &producer,
        "order-9",
        "at a moment",
        &[("x-deliver-at", &moment), ("x-delay-expires", "30s")],
    )
    .await?;

    // With a name: the same key keeps a command behind its message. A Duration prints itself as x-delay reads it.
    let delay = format!("{:?}", Duration::from_secs(3));
    send(
        &producer,
        "order-7",
        "never",
        &[("x-delay", &delay), ("x-delay-id", "order-7")],
    )
    .await?;
    send(
        &producer,
        "order-7",
        "",
        &[("x-delay-op", "cancel"), ("x-delay-id", "order-7")],
    )
    .await?;

    send(
        &producer,
        "order-8",
        "sooner",
        &[("x-delay", "1h"), ("x-delay-id", "order-8")],
    )
    .await?;
    let reschedule = [
        ("x-delay-op", "reschedule"),
        ("x-delay-id", "order-8"),
        ("x-delay", "3s"),
    ];
    send(&producer, "order-8", "", &reschedule).await?;

    let named = [("x-delay", "1h"), ("x-delay-id", "order-11")];
    send(&producer, "order-11", "the old text", &named).await?;
    let replace = [
        ("x-delay-op", "replace"),
        ("x-delay-id", "order-11"),
        ("x-delay", "3s"),
    ];
    send(&producer, "order-11", "the new text", &replace).await?;
    // [test]
    send(
        &producer,
        "order-10",
        "not a delay",
        &[("x-delay", "2 seconds")],
    )
    .await?;
    // [/test]
    Ok(())
}

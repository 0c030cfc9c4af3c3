//! TLS with Redis, RabbitMQ, Kafka, and callers of the API.

mod admin;
mod fixture;
mod sentences;

use crate::support::{Redis, Relay, Run, Tls, When, eventually};
use fixture::{Ends, TlsFixture};

/// With the authority and a certificate of its own for all three, a relay is ready, and messages go through.
#[tokio::test]
async fn messages_go_through_servers_that_want_certificates() {
    let fixture = TlsFixture::shared().await;
    let objects = fixture.objects().await;
    let run = Run::new();
    run.collect_kafka(&fixture.kafka, &objects.topic, 1);
    let mut relay = Relay::start(&fixture.good().config(&objects)).await;
    let label = format!("kafka:{}", objects.topic);
    let messages = (0..20)
        .map(|n| run.message(&label, When::Delay(100 * n)))
        .collect();
    run.send_rabbitmq(&fixture.rabbitmq, "", Some(&objects.queue), messages)
        .await;
    run.drain(&relay).await;
    run.report().assert_accounted(0);
    assert_eq!(relay.terminate().await.code(), Some(0));
}

/// A relay that cannot reach its brokers says why in its log, and goes on trying.
#[tokio::test]
async fn a_relay_says_why_it_waits_for_its_brokers() {
    let fixture = TlsFixture::shared().await;
    let objects = fixture.objects().await;
    let other = Tls::new();
    // The store is reached without TLS, so that the relay gets as far as its brokers.
    let redis = Redis::shared().await.url();
    let ends = Ends {
        redis,
        ca: Some(other.authority()),
        ..fixture.good()
    };
    let relay = Relay::spawn(&ends.config(&objects), &[]);
    relay.unobserved("it never becomes ready");
    let authority = "its certificate is not from an authority that is trusted here";
    for (line, key) in [
        ("rabbitmq is away", "rabbitmq.main.tls.ca"),
        (
            "kafka cannot be reached, waiting",
            "kafka.main.properties.ssl.ca.location",
        ),
    ] {
        eventually(&format!("it says: {line}"), async || {
            let log = relay.log();
            let found = log
                .lines()
                .any(|l| l.contains(line) && l.contains(authority) && l.contains(key));
            if found { Ok(()) } else { Err(log) }
        })
        .await;
    }
}

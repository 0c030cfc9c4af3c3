//! *Send one like it*: what is not copied, the page tells.

use std::time::Duration;

use anyhow::ensure;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::{Value, json};

use super::{ConsoleFixture, WRITE, browser_at, call, page_at};
use crate::support::browser::{self, Browser, WIDE};
use crate::support::{Config, Kafka, Redis, Relay, eventually};

/// A key that is no text, and the same as base64.
const KEY: &[u8] = &[0x9f, 0x92];
const KEY_AS_BASE64: &str = "n5I=";

/// What a field of the form holds.
async fn held(browser: &Browser, field: &str) -> Value {
    let script = "return document.querySelector(`main [name=${arguments[0]}]`)?.value ?? null";
    browser.run(script, json!([field])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_the_api_cuts_is_not_copied() {
    if !browser::available("console: copies of large bodies") {
        return;
    }
    let fixture = ConsoleFixture::start().await;
    let body = "x".repeat(300_000);
    for (id, delay) in [("large", "1h"), ("large-invalid", "soon")] {
        let headers = [("x-delay", delay), ("x-delay-id", id), ("customer", "Ada")];
        fixture
            .publish(&fixture.orders, &headers, body.as_bytes())
            .await;
    }
    let message = |id: &str| format!("/api/v1/routes/orders/messages/{id}");
    eventually("the message waits", async || {
        call(&fixture.relay, "GET", &message("large"), "").await
    })
    .await;
    let browser = fixture.browser(WIDE, WRITE).await;
    browser.open(&fixture.page("messages/orders/large")).await;
    browser.press("Send one like it …").await;
    browser
        .sees("The body of the original is too large to be copied here (300,000 bytes)")
        .await;
    assert_eq!(held(&browser, "body").await, "");
    assert_eq!(held(&browser, "headers").await, "customer: Ada");
    browser.fill("Id", "like-large").await;
    browser.fill("Delay", "1h").await;
    browser.press("Follow it to its end").await;
    let send = browser.find("main button[type=submit]").await;
    browser.click(&send).await;
    browser
        .sees("confirmed by the broker in the route's ingress")
        .await;
    let sent = eventually("the other one waits", async || {
        call(&fixture.relay, "GET", &message("like-large"), "").await
    })
    .await;
    assert_eq!(sent["size"], 0, "{sent}");

    // The API shows a dead letter's body whole.
    browser.open(&fixture.page("dead")).await;
    browser.press("large-invalid").await;
    browser.press("Send one like it …").await;
    browser
        .sees("The body of the original, 300,000 bytes, is sent as it is.")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_no_text_is_shown_as_base64_and_not_copied() {
    if !browser::available("console: keys that are no text") {
        return;
    }
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let from = kafka.unique_topic("from", 1).await;
    let to = kafka.unique_topic("to", 1).await;
    let config = Config::new(redis).kafka("main", kafka).route(
        "orders",
        &format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}"),
        &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
        "",
    );
    let tokens = format!("[\"{WRITE}\"]");
    let relay = Relay::start_with(
        &config,
        &[("POSTDATE_ADMIN__WRITE_TOKENS", tokens.as_str())],
    )
    .await;
    let producer: FutureProducer = kafka.client().create().expect("a producer");
    for (id, delay) in [("valid", "1h"), ("invalid", "soon")] {
        let header = |key, value| Header {
            key,
            value: Some(value),
        };
        let headers = OwnedHeaders::new()
            .insert(header("x-delay-id", id))
            .insert(header("x-delay", delay));
        let record = FutureRecord::to(&from)
            .key(KEY)
            .payload("body")
            .headers(headers);
        let sent = producer.send(record, Duration::from_secs(30)).await;
        sent.expect("produced");
    }
    for list in ["/api/v1/messages", "/api/v1/dead"] {
        eventually("each is where it belongs", async || {
            let page = call(&relay, "GET", list, "").await?;
            ensure!(page["items"].as_array().map(Vec::len) == Some(1), "{page}");
            anyhow::Ok(())
        })
        .await;
    }

    let browser = browser_at(&relay, WIDE, WRITE).await;
    let shown = format!("{KEY_AS_BASE64} base64");
    browser.open(&page_at(&relay, "messages")).await;
    browser.sees(&shown).await;
    for (list, id, title) in [
        ("messages", "valid", "Message valid"),
        ("dead", "invalid", "Dead letter invalid"),
    ] {
        browser.open(&page_at(&relay, list)).await;
        browser.press(id).await;
        browser.sees(title).await;
        browser.sees(&shown).await;
        browser.press("Send one like it …").await;
        browser
            .sees("The key of the original cannot be written here")
            .await;
        assert_eq!(held(&browser, "key").await, "");
        assert_eq!(held(&browser, "body").await, "body");
    }
}

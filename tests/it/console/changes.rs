//! What two people do at once, or one person twice.

use anyhow::ensure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{ConsoleFixture, WRITE, call};
use crate::support::browser::{self, Browser, WIDE};
use crate::support::eventually;

/// Script that holds back the calls whose address has a text, until `window.release()`. `window.held` counts them.
const HOLD_SCRIPT: &str = "
    const [text] = arguments;
    const { fetch } = window;
    const released = new Promise((resolve) => { window.release = resolve; });
    window.held = 0;
    window.fetch = async (url, options) => {
        if (url.includes(text)) {
            window.held += 1;
            await released;
        }
        return fetch(url, options);
    };";
/// Script that clicks a button of the page twice, and returns how many calls are held back then.
const CLICK_TWICE_SCRIPT: &str = "
    const [name] = arguments;
    const button = [...document.querySelectorAll('main button')].find((one) => one.textContent === name);
    button.click();
    button.click();
    return window.held;";

/// Waits until a button of the page is disabled.
async fn is_disabled(browser: &Browser, name: &str) {
    let script = "
        const [name] = arguments;
        return [...document.querySelectorAll('main button:disabled')].some((one) => one.textContent === name);";
    eventually("the button is disabled", async || {
        let found = browser.run(script, json!([name])).await;
        ensure!(found == true, "{name}");
        anyhow::Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_are_asked_for_twice_are_listed_once() {
    if !browser::available("console: the next dead letters") {
        return;
    }
    let fixture = ConsoleFixture::start().await;
    // Beside the three that are there.
    for n in 0..1_000 {
        let id = format!("further-{n}");
        let headers = [("x-delay", "soon"), ("x-delay-id", &*id)];
        fixture.publish(&fixture.orders, &headers, b"body").await;
    }
    eventually("they are dead", async || {
        let route = call(&fixture.relay, "GET", "/api/v1/routes/orders", "").await?;
        ensure!(route["dead"] == 1_003, "{}", route["dead"]);
        anyhow::Ok(())
    })
    .await;
    let browser = fixture.browser(WIDE, WRITE).await;
    browser.open(&fixture.page("dead")).await;
    browser
        .sees("of the 1,000 loaded, the newest; there are more")
        .await;
    browser.run(HOLD_SCRIPT, json!(["cursor="])).await;
    let next = "Load the next 1,000";
    let held = browser.run(CLICK_TWICE_SCRIPT, json!([next])).await;
    assert_eq!(held, 1, "a second click asks for nothing");
    is_disabled(&browser, next).await;
    browser.run("window.release()", json!([])).await;
    browser.sees("all 1,003 dead letters").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_click_sends_nothing_and_a_stop_does_not_say_that_nothing_is_sent() {
    if !browser::available("console: sending twice, and stops") {
        return;
    }
    let fixture = ConsoleFixture::start().await;
    let browser = fixture.browser(WIDE, WRITE).await;
    browser.open(&fixture.page("send?route=orders")).await;
    browser.sees("Nothing is sent yet.").await;
    browser.fill("Id", "followed").await;
    browser.fill("Delay", "10m").await;
    browser
        .run(HOLD_SCRIPT, json!(["routes/orders/messages"]))
        .await;
    let held = browser.run(CLICK_TWICE_SCRIPT, json!(["Send"])).await;
    assert_eq!(held, 1, "a second click sends nothing");
    is_disabled(&browser, "Send").await;
    browser.run("window.release()", json!([])).await;

    browser
        .sees("sent, and followed until its target confirms it")
        .await;
    eventually("the message waits", async || {
        let path = "/api/v1/routes/orders/messages/followed";
        call(&fixture.relay, "GET", path, "").await
    })
    .await;
    browser.press("Stop following").await;
    browser
        .sees("It may have been sent; it is no longer followed.")
        .await;
    // What was never sent is not said to be.
    browser.fill("Headers", "no colon").await;
    let send = browser.find("main button[type=submit]").await;
    browser.click(&send).await;
    browser.sees("one a line").await;
    browser.sees_no("It may have been sent").await;
}

/// Replaces the body of the message `order-5`, as somebody else.
async fn replace(fixture: &ConsoleFixture, body: &str) {
    let path = "/api/v1/routes/orders/messages/order-5";
    let request = json!({ "body": body }).to_string();
    let replaced = call(&fixture.relay, "PUT", path, &request).await;
    assert_eq!(replaced.expect("an answer")["result"], "replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_somebody_else_has_replaced_is_not_shown_any_more_nor_overwritten() {
    if !browser::available("console: a body that is replaced meanwhile") {
        return;
    }
    let fixture = ConsoleFixture::start().await;
    let browser = fixture.browser(WIDE, WRITE).await;
    let edited = async || -> Value {
        browser.find("dialog textarea").await;
        let script = "return document.querySelector('dialog textarea').value";
        browser.run(script, json!([])).await
    };
    let changed = "The message has changed since its body was shown.";
    browser.open(&fixture.page("messages/orders/order-5")).await;
    browser.press("Show the body (13 B)").await;
    browser.sees("\"total\": 12").await;

    replace(&fixture, "{\"total\": 13}").await;
    browser.sees(changed).await;
    browser.sees_no("\"total\": 12").await;
    // No edit begins with what was shown before.
    browser.press("Replace the body …").await;
    assert_eq!(edited().await, "");
    browser.press("Back").await;
    browser.press("Show the body (13 B)").await;
    browser.sees("\"total\": 13").await;
    browser.sees_no(changed).await;

    // An edit is under way while the body changes once more.
    browser.press("Replace the body …").await;
    assert_eq!(edited().await, "{\"total\": 13}");
    replace(&fixture, "{\"total\": 14}").await;
    browser.sees(changed).await;
    let submit = browser.find("dialog button[type=submit]").await;
    browser.click(&submit).await;
    browser.sees("moved, replaced or tried since").await;
    let path = "/api/v1/routes/orders/messages/order-5/body";
    let kept = call(&fixture.relay, "GET", path, "").await;
    let kept = kept.expect("an answer");
    assert_eq!(kept["base64"], STANDARD.encode("{\"total\": 14}"), "{kept}");

    // The present one may be replaced.
    browser.press("Show the body (13 B)").await;
    browser.sees("\"total\": 14").await;
    browser.press("Replace the body …").await;
    assert_eq!(edited().await, "{\"total\": 14}");
    let submit = browser.find("dialog button[type=submit]").await;
    browser.click(&submit).await;
    browser.sees("It has its new body").await;
    browser.press("Audit").await;
    browser.sees("replaced order-5 of orders").await;
}

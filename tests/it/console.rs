//! The console in a real browser, against a relay at work: every page and every action, by mouse and by keyboard, with what
//! hostile producers may write.

mod changes;
mod copies;
mod words;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use serde_json::{Value, json};

use crate::support::browser::{self, Browser, NARROW, Screen, WIDE};
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

const READ: &str = "a-read-token-of-the-tests";
const WRITE: &str = "a-write-token-of-the-tests";
/// Key Tab of WebDriver.
const TAB: char = '\u{e004}';
/// Key Enter.
const ENTER: char = '\u{e007}';
/// Texts that become markup, script or another order of letters wherever a page is careless.
const HOSTILE: [&str; 6] = [
    "<script>window.broken = 1</script>",
    "\"><img src=x onerror=\"window.broken = 1\">",
    "'-(window.broken=1)-'",
    "javascript:window.broken=1",
    "{{constructor.constructor('window.broken=1')()}}",
    "\u{202e}gnp.exe\u{200b}\u{7}\u{1b}[2J",
];

/// Script that returns the texts of all buttons of the page.
const BUTTONS_SCRIPT: &str =
    "return [...document.querySelectorAll('main button')].map((button) => button.textContent)";

/// A relay at work, with something on every page.
struct ConsoleFixture {
    relay: Relay,
    orders: String,
    channel: Channel,
}

impl ConsoleFixture {
    async fn start() -> Self {
        Self::start_with(["orders", "broken", "target", "nowhere"].map(names::unique)).await
    }

    /// The same with these queues: those that the two routes read, and their targets, the second of which is missing.
    async fn start_with([orders, broken, target, nowhere]: [String; 4]) -> Self {
        let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
        for queue in [&orders, &broken, &target] {
            rabbitmq.declare_queue(queue, QueueKind::Classic).await;
        }
        let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
        let to = |key: &str| {
            let key = serde_json::to_string(key).expect("JSON");
            format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = {key} }}"#)
        };
        let retry = "retry = { initial = \"1h\", max = \"1h\" }";
        let config = Config::new(redis).rabbitmq("main", rabbitmq);
        let config = config
            .route("orders", &from(&orders), &to(&target), "")
            .route("broken", &from(&broken), &to(&nowhere), retry);
        let tokens = [
            ("POSTDATE_ADMIN__READ_TOKENS", format!("[\"{READ}\"]")),
            ("POSTDATE_ADMIN__WRITE_TOKENS", format!("[\"{WRITE}\"]")),
        ];
        let tokens: Vec<_> = tokens
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let relay = Relay::start_with(&config, &tokens).await;
        let channel = open_channel(rabbitmq).await;
        let fixture = Self {
            relay,
            orders,
            channel,
        };
        for n in 0..20 {
            let id = format!("order-{n}");
            let delay = format!("{}m", 10 + n);
            let headers = [
                ("x-delay", &*delay),
                ("x-delay-id", &*id),
                ("customer", "Ada"),
            ];
            fixture
                .publish(&fixture.orders, &headers, b"{\"total\": 12}")
                .await;
        }
        fixture
            .publish(
                &broken,
                &[("x-delay", "1ms"), ("x-delay-id", "refused-1")],
                b"body",
            )
            .await;
        for n in 0..3 {
            let id = format!("invalid-{n}");
            fixture
                .publish(
                    &fixture.orders,
                    &[("x-delay", "soon"), ("x-delay-id", &id)],
                    b"body",
                )
                .await;
        }
        eventually("all of it is where it belongs", async || {
            let counts = async |path: &str| {
                let (_, text) = fixture.relay.request("GET", path, Some(READ), "").await?;
                let page: Value = serde_json::from_str(&text)?;
                anyhow::Ok(page["items"].as_array().map_or(0, Vec::len))
            };
            let found = [
                counts("/api/v1/messages?route=orders").await?,
                counts("/api/v1/retries").await?,
                counts("/api/v1/dead").await?,
            ];
            if found == [20, 1, 3] {
                Ok(())
            } else {
                Err(anyhow!("{found:?}"))
            }
        })
        .await;
        fixture
    }

    async fn publish(&self, queue: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), AMQPValue::LongString((*value).into()));
        }
        let properties = BasicProperties::default().with_headers(table);
        let sent = self.channel.basic_publish(
            "".into(),
            queue.into(),
            BasicPublishOptions::default(),
            body,
            properties,
        );
        assert!(
            sent.await
                .expect("published")
                .await
                .expect("confirmed")
                .is_ack()
        );
    }

    /// The address of a page.
    fn page(&self, page: &str) -> String {
        page_at(&self.relay, page)
    }

    /// A browser whose user has pasted this token.
    async fn browser(&self, screen: Screen, token: &str) -> Browser {
        browser_at(&self.relay, screen, token).await
    }
}

/// The address of a page of this relay.
fn page_at(relay: &Relay, page: &str) -> String {
    format!("{}/#/{page}", relay.url())
}

/// A browser at the console of this relay, whose user has pasted this token.
async fn browser_at(relay: &Relay, screen: Screen, token: &str) -> Browser {
    let browser = Browser::start(screen).await;
    browser.open(&page_at(relay, "")).await;
    browser.fill("Token", token).await;
    browser.press("Log in").await;
    browser.sees("Routes").await;
    browser
}

/// The JSON that the API answers to whoever may write; an error if it is none of success.
async fn call(relay: &Relay, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
    let (status, text) = relay.request(method, path, Some(WRITE), body).await?;
    ensure!(
        (200..300).contains(&status),
        "{method} {path}: {status} {text}"
    );
    Ok(serde_json::from_str(&text)?)
}

async fn open_channel(rabbitmq: &Rabbitmq) -> Channel {
    let channel = rabbitmq
        .connect()
        .await
        .expect("connected")
        .create_channel()
        .await
        .expect("a channel");
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    channel
}

/// Purges the route of the open page, which wants its name.
async fn purge(browser: &Browser) {
    browser.press("Purge …").await;
    let purge = browser.find("dialog button[type=submit]").await;
    browser.fill("Name of the route", "order").await;
    browser.click(&purge).await;
    browser.sees("Purge orders?").await;
    browser.fill("Name of the route", "orders").await;
    browser.click(&purge).await;
    browser.sees("17 messages purged").await;
    browser.sees("Nothing waits.").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_shows_what_is_there_and_every_action_does_what_it_says() {
    if !browser::available("console: pages and actions") {
        return;
    }
    let fixture = ConsoleFixture::start().await;
    let browser = Browser::start(WIDE).await;
    browser.open(&fixture.page("")).await;
    browser.fill("Token", "wrong").await;
    browser.press("Log in").await;
    browser.sees("This token is not valid").await;
    browser.fill("Token", WRITE).await;
    browser.press("Log in").await;

    // The overview: the route, its count, and on top what is not well.
    browser.sees("Needs attention").await;
    browser.sees("orders").await;
    browser.sees("20").await;
    browser.sees("live").await;

    // A message: found by its id, moved, published at once; another one cancelled.
    browser.press("Messages").await;
    browser.sees("Waiting, by due time").await;
    browser.sees("order-0").await;
    browser.type_keys(&format!("/order-7{ENTER}")).await;
    browser.sees("Message order-7").await;
    browser.sees("Ada").await;
    browser.press("Show the body (13 B)").await;
    browser.sees("\"total\": 12").await;
    browser.press("Reschedule …").await;
    browser.press("Reschedule").await;
    browser.sees("It has its new due time").await;
    browser.press("Publish now").await;
    let publish = browser.find("dialog button.primary").await;
    browser.click(&publish).await;
    browser.sees("It is due now").await;
    // What is gone is told by its trail.
    browser.sees("Trail").await;
    browser.sees("delivered").await;
    browser.open(&fixture.page("messages/orders/order-8")).await;
    browser.press("Cancel message …").await;
    browser.press("Cancel message").await;
    browser
        .sees("It is cancelled and will not be published")
        .await;

    // Messages that are chosen from the list: moved by an hour, cancelled. And another one like one of them.
    browser.press("Messages").await;
    browser.press("Select order-9").await;
    browser.press("Select order-10").await;
    browser.sees("2 selected").await;
    browser.press("Move …").await;
    browser.press("Move 2 messages").await;
    browser.sees("2 messages moved").await;
    browser.sees("in 1 h").await;
    browser.press("Select order-11").await;
    browser.press("Cancel messages …").await;
    browser.press("Cancel 1 message").await;
    browser.sees("1 message cancelled").await;
    browser.sees_no("order-11").await;
    browser.open(&fixture.page("messages/orders/order-9")).await;
    browser.press("Send one like it …").await;
    eventually("the form is as the message is", async || {
        let fields = "return ['headers', 'body'].map((name) => document.querySelector(`textarea[name=${name}]`)?.value)";
        let fields = browser.run(fields, json!([])).await;
        ensure!(fields == json!(["customer: Ada", "{\"total\": 12}"]), "{fields}");
        anyhow::Ok(())
    })
    .await;

    // What failed, and dead letters.
    browser.press("Retries").await;
    browser.sees("refused-1").await;
    browser.sees("unroutable").await;
    browser.open(&fixture.page("dead")).await;
    browser.sees("bad_delay").await;
    browser.sees("invalid-0").await;
    browser.press("Select invalid-0").await;
    browser.press("Drop …").await;
    let drop = browser.find("dialog button[type=submit]").await;
    browser.click(&drop).await;
    browser.sees_no("invalid-0").await;

    // A test message, watched to its end.
    browser.open(&fixture.page("send?route=orders")).await;
    browser.fill("Id", "sent-by-hand").await;
    browser.fill("Body", "hello").await;
    browser.fill("Delay", "1s").await;
    let send = browser.find("main button[type=submit]").await;
    browser.click(&send).await;
    browser.sees("published, and confirmed by its target").await;

    // A pause, on the route's own page, and who did all that.
    browser.open(&fixture.page("routes/orders")).await;
    browser.press("Pause publishing").await;
    let pause = browser.find("dialog button[type=submit]").await;
    browser.fill("Why", "the supplier is down").await;
    browser.click(&pause).await;
    browser.sees("paused by hand").await;
    browser.sees("the supplier is down").await;
    browser.press("Resume publishing").await;
    let resume = browser.find("dialog button[type=submit]").await;
    browser.click(&resume).await;
    browser.sees_no("paused by hand").await;

    purge(&browser).await;
    browser.press("Audit").await;
    for told in [
        "cancelled order-8 of orders",
        "asked for the body of order-7",
        "paused orders",
        "the supplier is down",
        "purged orders",
    ] {
        browser.sees(told).await;
    }
    browser.press("Forget token").await;
    browser.sees("Log in").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_token_sees_everything_but_bodies_and_no_button_that_would_fail() {
    if !browser::available("console: a read token") {
        return;
    }
    let fixture = ConsoleFixture::start().await;
    let browser = fixture.browser(WIDE, READ).await;
    let allowed = BTreeSet::from([
        "Minute", "Hour", "Day", "Month", "Filter", "Copy id", "Text", "JSON", "Hex",
    ]);
    for (page, shows) in [
        ("", "orders"),
        ("routes/orders", "orders"),
        ("messages", "order-0"),
        (
            "messages/orders/order-3",
            "Bodies are shown to write tokens only",
        ),
        ("retries", "refused-1"),
        ("dead", "invalid-0"),
        ("audit", "Audit"),
    ] {
        browser.open(&fixture.page(page)).await;
        browser.sees(shows).await;
        let buttons = browser.run(BUTTONS_SCRIPT, json!([])).await;
        let buttons: Vec<&str> = buttons
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        for button in buttons {
            let acts = [
                "Cancel",
                "Reschedule",
                "Publish",
                "Pause",
                "Resume",
                "Purge",
                "Skip",
                "Redrive",
                "Drop",
                "Try",
                "Send",
            ];
            assert!(
                allowed.contains(button) || !acts.iter().any(|act| button.starts_with(act)),
                "{page}: {button}"
            );
        }
        let navigation = browser
            .run("return document.querySelector('nav').innerText", json!([]))
            .await;
        assert!(
            !navigation.as_str().expect("text").contains("Send"),
            "{navigation}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_accessible_and_can_be_used_by_keyboard_alone() {
    if !browser::available("console: accessibility") {
        return;
    }
    let fixture = ConsoleFixture::start().await;
    let browser = Browser::start(WIDE).await;
    browser.open(&fixture.page("")).await;
    // The field of the token has the focus.
    browser.find("input:focus").await;
    browser.type_keys(&format!("{WRITE}{ENTER}")).await;
    browser.sees("Routes").await;
    // The skip link, the brand, the overview, the messages.
    browser
        .run("document.activeElement.blur()", json!([]))
        .await;
    let mut reached = BTreeSet::new();
    while !reached.contains("Messages") {
        browser.type_keys(&TAB.to_string()).await;
        let focused = browser
            .run("return document.activeElement.textContent", json!([]))
            .await;
        reached.insert(focused.as_str().unwrap_or_default().to_owned());
        assert!(
            reached.len() < 60,
            "the navigation is not reached: {reached:?}"
        );
    }
    browser.type_keys(&ENTER.to_string()).await;
    browser.sees("Waiting, by due time").await;
    let heading = browser
        .run("return document.activeElement.tagName", json!([]))
        .await;
    assert_eq!(heading, "H1", "the focus goes to the page that was opened");

    let Some(axe) = browser::axe_script("console: accessibility") else {
        return;
    };
    for dark in [false, true] {
        for screen in [WIDE, NARROW] {
            browser.show_as(Screen { dark, ..screen }).await;
            for (page, shows) in PAGES {
                browser.open(&fixture.page(page)).await;
                browser.sees(shows).await;
                let violations = browser.violations(&axe).await;
                assert!(
                    violations.is_empty(),
                    "{page:?} {screen:?} dark {dark}: {violations:#?}"
                );
                let wider = browser
                    .run(
                        "return document.documentElement.scrollWidth - document.documentElement.clientWidth",
                        json!([]),
                    )
                    .await;
                assert_eq!(wider, 0, "{page:?} is wider than its screen: {screen:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_message_or_a_trouble_says_is_never_markup() {
    if !browser::available("console: hostile texts") {
        return;
    }
    // The target that is missing has a hostile name too: a trouble tells it.
    let mut queues = ["orders", "broken", "target", "nowhere"].map(names::unique);
    queues[3].push_str("\u{202e}<img src=x onerror=window.broken=1>");
    let fixture = ConsoleFixture::start_with(queues).await;
    for (n, text) in HOSTILE.iter().enumerate() {
        let headers = [
            ("x-delay", "1h"),
            ("x-delay-id", text),
            (&*format!("{text}{n}"), text),
        ];
        fixture
            .publish(&fixture.orders, &headers, text.as_bytes())
            .await;
        let invalid = format!("{text} invalid");
        fixture
            .publish(
                &fixture.orders,
                &[("x-delay", text), ("x-delay-id", &invalid)],
                text.as_bytes(),
            )
            .await;
    }
    let long = "W\u{301}".repeat(85);
    fixture
        .publish(
            &fixture.orders,
            &[("x-delay", "1h"), ("x-delay-id", &long)],
            &[0, 159, 146, 150],
        )
        .await;
    let browser = fixture.browser(NARROW, WRITE).await;
    let fine = async |page: &str| {
        let broken = browser.run("return window.broken ?? null", json!([])).await;
        assert_eq!(broken, Value::Null, "{page}: a text was run");
        let foreign = "return document.querySelectorAll('main script, main img[src=x], main [onerror]').length";
        assert_eq!(
            browser.run(foreign, json!([])).await,
            0,
            "{page}: a text became an element"
        );
        let order = browser.text().await;
        assert!(
            !order.contains(['\u{202e}', '\u{1b}', '\u{7}']),
            "{page}: {order:?}"
        );
        let wider =
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(
            browser.run(wider, json!([])).await,
            0,
            "{page}: an id breaks the layout"
        );
    };
    for (page, shows) in [
        ("messages", "<script>"),
        ("dead", "<script>"),
        ("audit", "Audit"),
        ("", "orders"),
    ] {
        browser.open(&fixture.page(page)).await;
        browser.sees(shows).await;
        fine(page).await;
    }
    for id in HOSTILE.iter().copied().chain([&*long]) {
        let mut encoded = String::new();
        for byte in id.bytes() {
            write!(encoded, "%{byte:02X}").expect("a String");
        }
        browser
            .open(&fixture.page(&format!("messages/orders/{encoded}")))
            .await;
        browser.sees("Details").await;
        fine(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_whose_replica_has_gone_says_since_when_it_is_stale_and_goes_on_by_itself() {
    if !browser::available("console: a replica that goes") {
        return;
    }
    let mut fixture = ConsoleFixture::start().await;
    let browser = fixture.browser(WIDE, READ).await;
    browser.sees("live").await;
    fixture
        .relay
        .unobserved("it is killed, and nobody serves its routes");
    fixture.relay.kill9().await;
    browser.sees("stale since").await;
    fixture.relay.restart().await;
    browser.sees_no("stale since").await;
    browser.sees("orders").await;
}

/// Pages and a text of each.
const PAGES: [(&str, &str); 10] = [
    ("", "Needs attention"),
    ("routes/orders", "Messages a second"),
    ("messages", "on this page"),
    ("messages/orders/order-3", "Ada"),
    ("retries", "refused-1"),
    ("lately?route=orders", "What became of messages"),
    ("dead", "invalid-0"),
    ("send", "Body"),
    ("audit", "Audit"),
    ("nothing", "There is no page at this address"),
];

/// Screenshots of every page, for the documents: written into the folder that `POSTDATE_SCREENSHOTS` names.
#[tokio::test(flavor = "multi_thread")]
async fn screenshots() {
    let Some(folder) = std::env::var_os("POSTDATE_SCREENSHOTS").map(PathBuf::from) else {
        return;
    };
    assert!(browser::available("console: screenshots"), "no browser");
    std::fs::create_dir_all(&folder).expect("a folder");
    let queues = ["orders.delayed", "invoices.delayed", "orders", "invoices"];
    let fixture = ConsoleFixture::start_with(queues.map(str::to_owned)).await;
    for n in 0..400_u64 {
        let delay = format!("{}ms", 1000 + n * 137 % 50_000);
        fixture
            .publish(&fixture.orders, &[("x-delay", &delay)], b"{\"total\": 12}")
            .await;
    }
    let browser = fixture.browser(WIDE, WRITE).await;
    // The sparklines get something to show.
    tokio::time::sleep(Duration::from_secs(30)).await;
    for (width, screen) in [("wide", WIDE), ("narrow", NARROW)] {
        for (colours, dark) in [("light", false), ("dark", true)] {
            browser.show_as(Screen { dark, ..screen }).await;
            for (page, shows) in PAGES {
                browser.open(&fixture.page(page)).await;
                browser.sees(shows).await;
                browser.sees_no("Asking").await;
                let name = match page.split(['/', '?']).next() {
                    Some("") | None => "overview",
                    Some("routes") => "route",
                    Some("messages") if page.contains('/') => "message",
                    Some(name) => name,
                };
                if name == "nothing" {
                    continue;
                }
                let file = folder.join(format!("{name}-{width}-{colours}.png"));
                std::fs::write(file, browser.screenshot().await).expect("a picture");
            }
        }
    }
}

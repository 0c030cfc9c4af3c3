//! Passwords, tokens and bodies, in whatever form a library may write them, are nowhere that people look.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};

use crate::support::relay::binary;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names, ports};

const REDIS_PASSWORD: &str = "canary-Redis-41c7";
const AMQP_PASSWORD: &str = "canary-Amqp-93fe";
const TOKEN: &str = "canary-Token-5d02-of-32-characters";
const BODY: &str = "canary-Body-e8b6";
const COLLECTOR: &str = "canary-Collector-77aa";
/// Context of a trace that is recorded.
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The forms in which a text may be written: itself, bytes in decimal, in hex, in base64 at each of the three
/// alignments within a longer text.
fn forms(secret: &str) -> Vec<String> {
    let list = |separator: &str| {
        secret
            .bytes()
            .map(|b| b.to_string())
            .collect::<Vec<_>>()
            .join(separator)
    };
    let hex = secret
        .bytes()
        .map(|b| format!("{b:02x}"))
        .collect::<Vec<_>>()
        .concat();
    let mut forms = vec![
        secret.to_owned(),
        list(", "),
        list(","),
        list(" "),
        hex.to_uppercase(),
        hex,
    ];
    for shift in 0..3 {
        let bytes = [&vec![b'x'; shift][..], secret.as_bytes()].concat();
        for engine in [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE] {
            let encoded = engine.encode(&bytes);
            // The first and the last group depend on what stands around them.
            forms.push(encoded[4..(bytes.len() / 3) * 4].to_owned());
        }
    }
    forms
}

fn assert_clean(what: &str, text: &str) {
    for secret in [REDIS_PASSWORD, AMQP_PASSWORD, TOKEN, BODY, COLLECTOR] {
        for form in forms(secret) {
            let found = text.find(&form).map(|at| {
                text[at.saturating_sub(200)..]
                    .chars()
                    .take(400)
                    .collect::<String>()
            });
            assert_eq!(found, None, "{what} has {secret} as {form}");
        }
    }
}

/// Publishes a message with a delay, whose trace is recorded.
async fn publish(rabbitmq: &Rabbitmq, queue: &str, delay: &str) {
    let connection = rabbitmq.connect().await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    let mut headers = lapin::types::FieldTable::default();
    for (name, value) in [("x-delay", delay), ("traceparent", TRACEPARENT)] {
        headers.insert(
            name.into(),
            lapin::types::AMQPValue::LongString(value.into()),
        );
    }
    let properties = lapin::BasicProperties::default().with_headers(headers);
    let options = lapin::options::BasicPublishOptions::default();
    let sent = channel
        .basic_publish(
            "".into(),
            queue.into(),
            options,
            BODY.as_bytes(),
            properties,
        )
        .await;
    sent.expect("published");
    connection.close(0, "done".into()).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_logs_at_any_level_nor_in_answers() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::start());
    redis
        .command::<()>(&[
            "ACL",
            "SETUSER",
            "post",
            "on",
            &format!(">{REDIS_PASSWORD}"),
            "~*",
            "&*",
            "+@all",
        ])
        .await
        .expect("a user");
    rabbitmq.ctl(&["add_user", "post", AMQP_PASSWORD]).await;
    rabbitmq
        .ctl(&["set_permissions", "post", ".*", ".*", ".*"])
        .await;
    let [source, unread, target] = ["source", "unread", "target"].map(names::unique);
    for queue in [&source, &unread, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let amqp = |password: &str| {
        rabbitmq
            .url()
            .replace("guest:guest", &format!("post:{password}"))
    };
    let route = |config: Config, name: &str, connection: &str, queue: &str| {
        let from = format!(r#"{{ rabbitmq = "{connection}", queue = "{queue}" }}"#);
        let to =
            format!(r#"{{ rabbitmq = "{connection}", exchange = "", routing_key = "{target}" }}"#);
        config.route(name, &from, &to, "")
    };
    let url = redis
        .url()
        .replace("redis://", &format!("redis://post:{REDIS_PASSWORD}@"));
    let config = Config::stored(&format!("url = \"{url}\""))
        .section(&format!(
            "[rabbitmq.main]\nurl = \"{}\"",
            amqp(AMQP_PASSWORD)
        ))
        .section(&format!(
            "[rabbitmq.wrong]\nurl = \"{}\"",
            amqp(&format!("{AMQP_PASSWORD}x"))
        ));
    let port = ports::free();
    let collector = format!(
        "endpoint = \"http://127.0.0.1:{port}/v1/traces\"\nauthorization = \"Bearer {COLLECTOR}\""
    );
    let config = config.section(&format!("[traces]\n{collector}"));
    let config = route(
        route(config, "good", "main", &source),
        "wrong",
        "wrong",
        &unread,
    );
    let tokens = format!("[\"{TOKEN}\"]");
    let environment = [
        ("POSTDATE_LOG", "trace"),
        ("POSTDATE_ADMIN__WRITE_TOKENS", tokens.as_str()),
    ];
    let relay = Relay::spawn(&config, &environment);

    eventually("both logins are told", async || {
        let log = relay.log();
        let seen = log.contains("rabbitmq is up") && log.contains("rabbitmq is away");
        if seen {
            Ok(())
        } else {
            Err(log.lines().last().unwrap_or_default().to_owned())
        }
    })
    .await;
    for delay in ["10ms", "never", "1h"] {
        publish(&rabbitmq, &source, delay).await;
    }
    eventually("all three have their end", async || {
        let metrics = relay.metrics().await.map_err(|error| error.to_string())?;
        let spans_lost = metrics.sum("postdate_spans_lost_total", &[]);
        let [published, dead, pending] = [
            "postdate_published_total",
            "postdate_dead",
            "postdate_pending",
        ]
        .map(|name| metrics.sum(name, &[("route", "good")]));
        if (published, dead, pending) == (1.0, 1.0, 1.0) && spans_lost >= 3.0 {
            Ok(())
        } else {
            Err(format!(
                "{published} {dead} {pending}, {spans_lost} spans lost"
            ))
        }
    })
    .await;

    for path in [
        "/metrics",
        "/readyz",
        "/api/v1/routes",
        "/api/v1/messages",
        "/api/v1/dead",
        "/api/v1/status",
        "/nowhere",
    ] {
        for token in [None, Some(TOKEN), Some("canary-Token-of-somebody-else")] {
            let (_, answer) = relay
                .request("GET", path, token, "")
                .await
                .expect("an answer");
            assert_clean(path, &answer);
        }
    }
    let mut command = std::process::Command::new(binary());
    command
        .args(["check", "--connect", "--print", "--config"])
        .arg(relay.config_file())
        .envs(environment);
    let check = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("no panic")
        .expect("it runs");
    assert_clean("check --print", &String::from_utf8_lossy(&check.stdout));
    assert_clean("check's errors", &String::from_utf8_lossy(&check.stderr));
    assert_clean("the log", &relay.log());
}

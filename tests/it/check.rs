//! `postdate check --connect` on real servers.

use std::path::Path;
use std::process::{Command, Output};

use lapin::ExchangeKind;

use crate::support::{Config, Kafka, QueueKind, Rabbitmq, Redis, folders, names, ports, relay};

async fn check(config: &Config) -> Output {
    let file = folders::new("check").join("postdate.toml");
    std::fs::write(&file, config.text("127.0.0.1:0")).expect("a configuration file");
    tokio::task::spawn_blocking(move || run(&file))
        .await
        .expect("no panic")
}

fn run(file: &Path) -> Output {
    let mut command = Command::new(relay::binary());
    command
        .args(["check", "--connect", "--config"])
        .arg(file)
        .env_clear();
    command.output().expect("the binary runs")
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8(bytes.to_vec())
        .expect("UTF-8")
        .lines()
        .map(str::to_owned)
        .collect()
}

async fn keys(redis: &Redis, prefix: &str) -> Vec<String> {
    let mut connection = redis.connection().await.expect("connected");
    redis::cmd("KEYS")
        .arg(format!("{prefix}*"))
        .query_async(&mut connection)
        .await
        .expect("an answer")
}

#[tokio::test]
async fn of_several_hosts_each_is_tried_and_one_is_enough() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let [from, to] = [names::unique("from"), names::unique("to")];
    for queue in [&from, &to] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let nobody = ports::free();
    let of = |urls: &str| {
        Config::new(&redis)
            .section(&format!("[rabbitmq.main]\nurls = [{urls}]"))
            .route(
                "mail",
                &format!("{{ rabbitmq = \"main\", queue = \"{from}\" }}"),
                &format!("{{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{to}\" }}"),
                "",
            )
    };
    let away = format!("amqp://guest:guest@127.0.0.1:{nobody}/%2f");
    let there = rabbitmq.url();
    let output = check(&of(&format!("{away:?}, {there:?}"))).await;
    let told = lines(&output.stdout).join("\n");
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("rabbitmq main: 1 of 2 hosts are there"),
        "{told}"
    );
    assert!(
        told.contains(&format!("amqp://***@127.0.0.1:{nobody}/%2f cannot be used")),
        "{told}"
    );
    let output = check(&of(&format!("{away:?}, {away:?}"))).await;
    assert!(!output.status.success(), "{:?}", lines(&output.stdout));
}

#[tokio::test]
async fn all_is_well_and_nothing_is_written() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::start(), Kafka::shared(), Rabbitmq::shared());
    let from = kafka.unique_topic("from", 3).await;
    let to = kafka.unique_topic("to", 1).await;
    let queue = names::unique("from");
    let direct = names::unique("to");
    rabbitmq.declare_queue(&queue, QueueKind::Quorum).await;
    rabbitmq.declare_queue(&direct, QueueKind::Classic).await;
    let exchange = names::unique("exchange");
    rabbitmq
        .declare_exchange(&exchange, ExchangeKind::Topic)
        .await;
    let config = Config::new(&redis)
        .kafka("main", kafka)
        .rabbitmq("main", rabbitmq)
        .route(
            "orders",
            &format!("{{ kafka = \"main\", topic = \"{from}\", group = \"postdate\" }}"),
            &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
            "",
        )
        .route(
            "mail",
            &format!("{{ rabbitmq = \"main\", queue = \"{queue}\" }}"),
            &format!(
                "{{ rabbitmq = \"main\", exchange = \"{exchange}\", routing_key = \"preserve\" }}"
            ),
            &format!("allow_targets = [\"/{direct}\"]"),
        );
    let output = check(&config).await;
    let found = lines(&output.stdout);
    assert_eq!(
        (output.status.code(), lines(&output.stderr)),
        (Some(0), vec![]),
        "{found:#?}"
    );
    for sentence in [
        format!("kafka main: topic {from} is there, 3 partition(s) (source of route orders)"),
        format!("kafka main: topic {to} is there, 1 partition(s) (target of route orders)"),
        "kafka main: group postdate can read (source of route orders)".to_owned(),
        format!("rabbitmq main: queue {queue} is there (source of route mail)"),
        format!("rabbitmq main: queue {direct} is there (target of route mail)"),
        format!("rabbitmq main: exchange {exchange} is there (target of route mail)"),
    ] {
        assert!(found.contains(&sentence), "{sentence}\n{found:#?}");
    }
    assert_eq!(
        keys(&redis, "").await,
        Vec::<String>::new(),
        "check writes nothing"
    );
}

#[tokio::test]
async fn everything_that_is_wrong_is_said_in_one_run() {
    let (kafka, rabbitmq) = tokio::join!(Kafka::shared(), Rabbitmq::shared());
    let there = kafka.unique_topic("there", 1).await;
    let topic = names::unique("gone");
    let queue = names::unique("gone");
    let exchange = names::unique("gone");
    let locked = rabbitmq.url().replace("guest:guest", "guest:hunter2");
    let dead = ports::free();
    let text = format!(
        "[redis]\nurl = \"redis://:hunter2@127.0.0.1:{dead}\"\n\n[kafka.main]\nbrokers = \"{}\"\n\n\
         [kafka.dead]\nbrokers = \"127.0.0.1:{dead}\"\n\n[rabbitmq.main]\nurl = \"{}\"\n\n\
         [rabbitmq.locked]\nurl = \"{locked}\"\n\n\
         [routes.orders]\nfrom = {{ kafka = \"main\", topic = \"{topic}\", group = \"g\" }}\n\
         to = {{ kafka = \"main\", topic = \"{there}\" }}\n\n\
         [routes.far]\nfrom = {{ rabbitmq = \"main\", queue = \"{queue}-3\" }}\n\
         to = {{ kafka = \"dead\", topic = \"far\" }}\n\n\
         [routes.mail]\nfrom = {{ rabbitmq = \"main\", queue = \"{queue}\" }}\n\
         to = {{ rabbitmq = \"main\", exchange = \"{exchange}\", routing_key = \"k\" }}\n\n\
         [routes.secret]\nfrom = {{ rabbitmq = \"main\", queue = \"{queue}-2\" }}\n\
         to = {{ rabbitmq = \"locked\", exchange = \"e\", routing_key = \"k\" }}\n",
        kafka.bootstrap(),
        rabbitmq.url(),
    );
    let file = folders::new("check").join("postdate.toml");
    std::fs::write(&file, text).expect("a configuration file");
    let output = tokio::task::spawn_blocking(move || run(&file))
        .await
        .expect("no panic");
    let found = lines(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{found:#?}");
    let whole = [
        format!(
            "error: kafka main: topic {topic} is missing (source of route orders); create it, Postdate does not"
        ),
        format!(
            "error: rabbitmq main: queue {queue} is missing (source of route mail); declare it, Postdate does not"
        ),
        format!(
            "error: rabbitmq main: exchange {exchange} is missing (target of route mail); declare it, Postdate does not"
        ),
    ];
    for sentence in whole {
        assert!(found.contains(&sentence), "{sentence}\n{found:#?}");
    }
    let parts = [
        (
            "error: redis: cannot be used: redis at redis://***@127.0.0.1",
            "refused",
        ),
        (
            "error: kafka dead: cannot be used (target of route far): ",
            "refuses connections",
        ),
        (
            "error: rabbitmq locked: amqp://***@127.0.0.1",
            "ACCESS_REFUSED",
        ),
    ];
    for (begin, part) in parts {
        assert!(
            found
                .iter()
                .any(|l| l.starts_with(begin) && l.contains(part)),
            "{begin} {part}\n{found:#?}"
        );
    }
    assert!(found.contains(&"8 errors".to_owned()), "{found:#?}");
    let all = format!("{found:?}{:?}", lines(&output.stdout));
    assert!(!all.contains("hunter2"), "{all}");
    assert!(
        lines(&output.stdout).iter().any(|l| l.contains(&there)),
        "what is well is said too: {all}"
    );
}

#[tokio::test]
async fn two_names_of_one_cluster_hide_no_loop_and_compressed_sources_are_warned_of() {
    let (redis, kafka) = tokio::join!(Redis::start(), Kafka::shared());
    let there = names::unique("there");
    let back = names::unique("back");
    kafka
        .create_topic_with(&there, 1, &[("compression.type", "uncompressed")])
        .await;
    kafka
        .create_topic_with(&back, 1, &[("max.message.bytes", "30000000")])
        .await;
    let source = |at: &str, topic: &str| {
        format!("{{ kafka = \"{at}\", topic = \"{topic}\", group = \"g\" }}")
    };
    let target = |at: &str, topic: &str| format!("{{ kafka = \"{at}\", topic = \"{topic}\" }}");
    let config = Config::new(&redis)
        .kafka("main", kafka)
        .section(&format!(
            "[kafka.other]\nbrokers = \"localhost:{}\"\n",
            kafka.port()
        ))
        .route("out", &source("main", &there), &target("main", &back), "")
        .route(
            "home",
            &source("other", &back),
            &target("other", &there),
            "",
        );
    let output = check(&config).await;
    let wrong = lines(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{wrong:#?}");
    for route in ["out", "home"] {
        let start = format!("error: routes.{route}.to: a loop: topic ");
        assert!(
            wrong.iter().any(|line| line.starts_with(&start)),
            "{start}\n{wrong:#?}"
        );
    }
    let found = lines(&output.stdout);
    let warnings: Vec<_> = found
        .iter()
        .filter(|line| line.starts_with("warning: kafka other: "))
        .collect();
    assert!(
        warnings[0].contains(&format!("take compressed batches ({back})")),
        "{found:#?}"
    );
    assert!(
        warnings[1].contains(&format!("topic {back} takes batches of 30000000 bytes")),
        "{found:#?}"
    );
    assert!(
        !found
            .iter()
            .any(|line| line.starts_with("warning: kafka main: ")),
        "{found:#?}"
    );
}

#[tokio::test]
async fn loops_through_bindings_are_found_where_the_management_api_may_be_asked() {
    let port = ports::free();
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::start_managed(port));
    for queue in ["intake", "other", "mail"] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    for (exchange, kind) in [
        ("fan", ExchangeKind::Fanout),
        ("topics", ExchangeKind::Topic),
        ("straight", ExchangeKind::Direct),
    ] {
        rabbitmq.declare_exchange(exchange, kind).await;
    }
    rabbitmq.bind("intake", "fan", "").await;
    rabbitmq.bind("other", "topics", "mail.#").await;
    rabbitmq.bind("mail", "straight", "mail").await;
    let routes = |management: &str| {
        let section = format!(
            "[rabbitmq.main]\nurl = \"{}\"\n{management}",
            rabbitmq.url()
        );
        let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
        let to = |exchange: &str, key: &str| {
            format!(r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{key}" }}"#)
        };
        Config::new(&redis)
            .section(&section)
            .route("round", &from("intake"), &to("fan", "any"), "")
            .route(
                "perhaps",
                &from("other"),
                &to("topics", "preserve"),
                "allow_targets = [\"straight/mail\"]",
            )
    };
    let output = check(&routes("")).await;
    assert_eq!(output.status.code(), Some(0), "{:?}", lines(&output.stderr));

    let managed = format!("management = \"http://127.0.0.1:{port}\"");
    let output = check(&routes(&managed)).await;
    let told = lines(&output.stdout);
    let loops: Vec<_> = told.iter().filter(|line| line.contains("a loop")).collect();
    let warning = "warning: routes.perhaps: a loop: its target, exchange \"topics\", may lead, for some messages, by bindings \
                   to queue \"other\", which route `perhaps` reads";
    assert_eq!(loops, [warning]);
    let error = "error: routes.round: a loop: its target, exchange \"fan\", leads by bindings to queue \"intake\", which \
                 route `round` reads";
    assert_eq!(
        (output.status.code(), lines(&output.stderr)),
        (Some(1), vec![error.to_owned()])
    );

    rabbitmq.ctl(&["set_user_tags", "guest"]).await;
    let refused = check(&routes(&managed)).await;
    let told = lines(&refused.stderr);
    assert!(
        told[0].contains("refuses the connection's user (401)") && told.len() == 1,
        "{told:?}"
    );
}

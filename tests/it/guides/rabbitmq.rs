//! Pages of `docs/migrate` whose messages go through RabbitMQ, on one server with its management API.

use anyhow::anyhow;
use lapin::options::BasicGetOptions;

use super::terminal::{TypedTerminal, page};
use crate::support::not_tested::not_tested;
use crate::support::redisson::{RedissonApplication, RedissonWork, installed};
use crate::support::run::now_ms;
use crate::support::{Rabbitmq, Redis, eventually, ports};

/// Declarations of a broker with the plugin. An exchange of the plugin's type cannot be declared without it, so one of another
/// type stands in for it there.
const PLUGIN_USER: &str = "
```sh
rabbitmqadmin declare queue name=invoices durable=true
rabbitmqadmin declare exchange name=shop type=fanout durable=true
rabbitmqadmin declare exchange name=bills type=topic durable=true
rabbitmqadmin declare binding source=shop destination_type=exchange destination=bills routing_key=
```
";
/// The same as an export tells it.
const PLUGIN_DEFINITIONS: &str = r#"{
    "exchanges": [
        { "name": "shop", "vhost": "/", "type": "fanout", "durable": true, "arguments": {} },
        { "name": "bills", "vhost": "/", "type": "x-delayed-message", "durable": true,
          "arguments": { "x-delayed-type": "topic" } } ],
    "queues": [{ "name": "invoices", "vhost": "/", "durable": true, "arguments": {} }],
    "bindings": [
        { "source": "bills", "vhost": "/", "destination": "invoices", "destination_type": "queue",
          "routing_key": "bill.#", "arguments": {} },
        { "source": "shop", "vhost": "/", "destination": "bills", "destination_type": "exchange",
          "routing_key": "", "arguments": {} } ] }"#;

/// Servers that the pages take for granted.
struct GuideServers {
    rabbitmq: Rabbitmq,
    management: u16,
    /// Postdate's store.
    redis: Redis,
}

impl GuideServers {
    async fn start() -> Self {
        let management = ports::free();
        let (rabbitmq, redis) = tokio::join!(Rabbitmq::start_managed(management), Redis::start());
        Self {
            rabbitmq,
            management,
            redis,
        }
    }

    /// A terminal whose `rabbitmqadmin` finds the server.
    fn terminal(&self, name: &str, source: Option<&Redis>) -> TypedTerminal {
        let mut replaced = vec![
            (
                "--management http://127.0.0.1:15672",
                "--definitions broker.json".to_owned(),
            ),
            (
                "http://127.0.0.1:15672\"",
                format!("http://127.0.0.1:{}\"", self.management),
            ),
            (
                "redis://127.0.0.1:6379\"",
                format!("{}\"", self.redis.url()),
            ),
            (
                "@127.0.0.1:5672/",
                format!("@127.0.0.1:{}/", self.rabbitmq.port()),
            ),
        ];
        replaced
            .extend(source.map(|source| ("redis://127.0.0.1:6380 ", format!("{} ", source.url()))));
        let terminal = TypedTerminal::new(name, &replaced);
        let found = format!(
            "[default]\nhostname = 127.0.0.1\nport = {}\n",
            self.management
        );
        terminal.write(".rabbitmqadmin.conf", &found);
        terminal
    }

    /// Waits until so many messages have arrived in a queue, takes them, and returns their bodies.
    async fn arrived(&self, queue: &str, count: usize) -> Vec<String> {
        let connection = self.rabbitmq.connect().await.expect("connected");
        let channel = connection.create_channel().await.expect("a channel");
        let mut bodies = Vec::new();
        while bodies.len() < count {
            let taken = eventually("a message has arrived", async || {
                let taken = channel
                    .basic_get(queue.into(), BasicGetOptions { no_ack: true })
                    .await?;
                taken.ok_or_else(|| anyhow!("{queue} is empty; {bodies:?} were there"))
            });
            bodies.push(String::from_utf8(taken.await.delivery.data.clone()).expect("UTF-8"));
        }
        assert_eq!(
            self.rabbitmq.queue_len(queue).await,
            0,
            "no more than {bodies:?}"
        );
        bodies
    }
}

async fn rabbitmq_plugin(servers: &GuideServers) {
    let page = page("migrate/rabbitmq-plugin.md");
    assert!(
        (1..=10).all(|step| page.contains(&format!("\n**{step}. "))),
        "ten steps"
    );
    let mut terminal = servers.terminal("plugin", None);
    terminal.play(PLUGIN_USER).await;
    terminal.write("broker.json", PLUGIN_DEFINITIONS);
    terminal.play(&page).await;
    assert_eq!(servers.arrived("invoices", 1).await, ["try"]);
    // The exchange that led to the plugin's leads to Postdate now, and nowhere else.
    let more = "
```sh
rabbitmqadmin publish exchange=shop routing_key=bill.late payload=late properties='{\"headers\": {\"x-delay\": 10000}}'
rabbitmqadmin publish exchange=shop routing_key=bill.now payload=now
rabbitmqadmin publish exchange=shop routing_key=nobody payload=nobody
rabbitmqadmin list exchanges name
```
";
    terminal.play(more).await;
    assert_eq!(servers.arrived("invoices", 2).await, ["now", "late"]);
    let (_, exchanges) = terminal.said().rsplit_once("name").expect("a table");
    assert!(
        exchanges.contains("bills.out") && !exchanges.contains("bills "),
        "{exchanges}"
    );
    terminal.end().await;
}

async fn ttl_ladders(servers: &GuideServers) {
    let mut terminal = servers.terminal("ladders", None);
    terminal.play(&page("migrate/ttl-ladders.md")).await;
    assert_eq!(
        servers.arrived("work", 1).await,
        ["two-seconds"],
        "in front of the first one"
    );
    terminal
        .play("```sh\npostdate pending --route work\n```")
        .await;
    assert!(
        terminal.said().contains("59 min"),
        "one waits: {}",
        terminal.said()
    );
    terminal.end().await;
}

async fn sorted_set(servers: &GuideServers) {
    let source = Redis::start().await;
    let soon = (now_ms() + 15_000).to_string();
    source
        .command::<u64>(&["ZADD", "delayed", &soon, "a job"])
        .await
        .expect("added");
    let mut terminal = servers.terminal("zset", Some(&source));
    terminal.play(&page("migrate/zset.md")).await;
    assert!(
        terminal.said().contains("nothing was changed; add --yes"),
        "{}",
        terminal.said()
    );
    assert_eq!(servers.arrived("jobs", 1).await, ["a job"]);
    terminal.end().await;
}

async fn redisson(servers: &GuideServers) {
    if let Err(why) = installed() {
        not_tested("docs/migrate/redisson.md", &why);
        return;
    }
    let source = Redis::start().await;
    let work = RedissonWork {
        codec: "string",
        prefix: "reminder ",
        count: 3,
        least_ms: 15_000,
        range_ms: 0,
        pause_ms: 0,
        stays: false,
    };
    let mut application = RedissonApplication::start(&source.url(), "reminders", work);
    application.has_offered_all().await;
    application.end().await;
    let mut terminal = servers.terminal("redisson", Some(&source));
    terminal.play(&page("migrate/redisson.md")).await;
    assert!(
        terminal.said().contains("nothing was changed; add --yes"),
        "{}",
        terminal.said()
    );
    let mut arrived = servers.arrived("reminders", 3).await;
    arrived.sort();
    assert_eq!(arrived, ["reminder 0", "reminder 1", "reminder 2"]);
    terminal.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_on_moving_to_postdate_with_rabbitmq_work_as_they_are_written() {
    let servers = GuideServers::start().await;
    tokio::join!(
        rabbitmq_plugin(&servers),
        ttl_ladders(&servers),
        sorted_set(&servers),
        redisson(&servers)
    );
}

/// The management API of a server that never had the plugin.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_says_what_is_missing() {
    let servers = GuideServers::start().await;
    let terminal = servers.terminal("plan", None);
    for (login, said) in [
        ("guest:guest", "nothing to plan"),
        ("guest:wrong", "refuses the connection's user (401)"),
    ] {
        let url = format!("http://{login}@127.0.0.1:{}", servers.management);
        let error = terminal
            .types(&format!("postdate plan rabbitmq-plugin --management {url}"))
            .await;
        let error = error.expect_err("nothing is there");
        assert!(error.contains(said) && !error.contains(login), "{error}");
    }
}

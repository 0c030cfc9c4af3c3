//! `deploy/docker/compose.yaml`: no container engine runs here, so the same servers are started from the same files, and a
//! message goes along each of its routes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, ensure};
use lapin::options::{BasicGetOptions, BasicPublishOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::Value;

use crate::support::process::Process;
use crate::support::relay::binary;
use crate::support::{
    Kafka, Rabbitmq, Redis, Relay, eventually, folders, names, ports, prometheus,
};

/// Time by which messages are delayed.
const DELAY: &str = "500ms";
/// Partitions that the service `topics` makes.
const PARTITIONS: usize = 3;

fn docker(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("deploy/docker")
        .join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn compose() -> Value {
    serde_saphyr::from_str(&read(&docker("compose.yaml"))).expect("YAML")
}

/// Options of redis-server, as its file has them, but for the folder.
fn redis_options() -> Vec<String> {
    let text = read(&docker("compose/redis.conf"));
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("dir "));
    let options = lines.flat_map(|line| {
        let (key, value) = line.split_once(' ').expect("key and value");
        [format!("--{key}"), value.to_owned()]
    });
    options.collect()
}

#[test]
fn every_mounted_file_is_there_and_every_image_has_a_version() {
    let compose = compose();
    let services = compose["services"].as_object().expect("services");
    for (name, service) in services {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let volume = volume.as_str().expect("short form");
            let (from, _) = volume.split_once(':').expect("source and place");
            if from.starts_with('.') {
                assert!(docker(from).exists(), "{name} mounts {from}");
            } else {
                assert!(
                    compose["volumes"]
                        .as_object()
                        .expect("volumes")
                        .contains_key(from),
                    "{name} mounts {from}"
                );
            }
        }
        let image = service["image"].as_str().expect("an image");
        let version = image.rsplit_once(':').map(|(_, version)| version);
        assert!(
            version.is_some_and(|version| version != "latest"),
            "{name}: {image}"
        );
    }
    let built = &services["postdate"]["build"];
    let context = docker(built["context"].as_str().expect("a context"));
    assert!(
        context
            .join(built["dockerfile"].as_str().expect("a Dockerfile"))
            .is_file()
    );
}

#[tokio::test]
async fn prometheus_takes_its_configuration() {
    if !prometheus::available("compose: the configuration of Prometheus") {
        return;
    }
    let rules = docker("../prometheus/alerts.yaml").display().to_string();
    let text =
        read(&docker("compose/prometheus.yml")).replace("/etc/prometheus/alerts.yaml", &rules);
    let file = folders::new("compose").join("prometheus.yml");
    std::fs::write(&file, text).expect("written");
    let printed = prometheus::promtool(&["check", "config", &file.display().to_string()]).await;
    assert!(printed.contains("SUCCESS"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_along_each_route() {
    let options = redis_options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let redis = Redis::start_with("redis-server", &options);
    let (redis, kafka, rabbitmq) = tokio::join!(redis, Kafka::shared(), Rabbitmq::start());
    rabbitmq
        .ctl(&[
            "import_definitions",
            &docker("compose/rabbitmq.json").display().to_string(),
        ])
        .await;
    let [delayed, orders] = ["delayed", "orders"].map(names::unique);
    for topic in [&delayed, &orders] {
        kafka.create_topic(topic, PARTITIONS).await;
    }
    let folder = folders::new("compose");
    let address = format!("127.0.0.1:{}", ports::free());
    let amqp = format!("amqp://postdate:postdate@127.0.0.1:{}/%2f", rabbitmq.port());
    let text = read(&docker("compose/postdate.toml"))
        .replace("redis://redis:6379/0", &redis.url())
        .replace("kafka:29092", &kafka.bootstrap())
        .replace("amqp://postdate:postdate@rabbitmq:5672/%2f", &amqp)
        .replace("0.0.0.0:8025", &address)
        .replace(
            "/etc/postdate/write-tokens",
            &docker("compose/write-tokens").display().to_string(),
        )
        .replace(
            "topic = \"delayed\"",
            &format!("topic = \"{delayed}\", group = \"{delayed}\""),
        )
        .replace("topic = \"orders\"", &format!("topic = \"{orders}\""));
    std::fs::write(folder.join("postdate.toml"), text).expect("written");
    let program = binary();
    let process = Process::start(
        "postdate",
        &folder,
        &program.display().to_string(),
        |command| {
            command.args(["run", "--config", "postdate.toml"]);
        },
    );
    let mut relay = Relay::adopt(process, &address);
    relay.ready().await;

    let producer: FutureProducer = kafka.client().create().expect("a producer");
    let headers = OwnedHeaders::new().insert(Header {
        key: "x-delay",
        value: Some(DELAY),
    });
    let record = FutureRecord::<str, str>::to(&delayed)
        .payload("an order")
        .headers(headers);
    producer
        .send(record, Duration::from_secs(30))
        .await
        .map_err(|(error, _)| error)
        .expect("taken");
    let connection = Connection::connect(&amqp, ConnectionProperties::default())
        .await
        .expect("the user of the file");
    let channel = connection.create_channel().await.expect("a channel");
    let mut headers = FieldTable::default();
    headers.insert("x-delay".into(), AMQPValue::LongString(DELAY.into()));
    let properties = BasicProperties::default().with_headers(headers);
    let sent = channel.basic_publish(
        "".into(),
        "delayed".into(),
        BasicPublishOptions::default(),
        b"a mail",
        properties,
    );
    sent.await.expect("published").await.expect("taken");

    let mut client = kafka.client();
    client
        .set("group.id", &orders)
        .set("auto.offset.reset", "earliest");
    let consumer: BaseConsumer = client.create().expect("a consumer");
    consumer.subscribe(&[&orders]).expect("subscribed");
    eventually("the order arrives", async || {
        let record = consumer
            .poll(Duration::from_millis(100))
            .ok_or_else(|| anyhow!("nothing yet"))??;
        ensure!(
            record.payload() == Some(b"an order".as_slice()),
            "{record:?}"
        );
        Ok(())
    })
    .await;
    eventually("the mail arrives", async || {
        let got = channel
            .basic_get("mails".into(), BasicGetOptions { no_ack: true })
            .await?;
        let got = got.ok_or_else(|| anyhow!("nothing yet"))?;
        ensure!(got.delivery.data == b"a mail", "{got:?}");
        Ok(())
    })
    .await;
    assert!(relay.terminate().await.success());
}

//! The servers of `support` themselves: they start, die, and come back with what they had.

use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, ExchangeKind};
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::support::{Kafka, QueueKind, Rabbitmq, Redis, names, ports};

#[test]
fn no_port_is_handed_out_twice() {
    let mut taken: Vec<_> = (0..120).map(|_| ports::free()).collect();
    taken.sort_unstable();
    let count = taken.len();
    taken.dedup();
    assert_eq!(taken.len(), count);
}

async fn keeps_its_data(mut redis: Redis) {
    let key = names::unique("key");
    let mut connection = redis.connection().await.expect("connected");
    redis::cmd("SET")
        .arg(&key)
        .arg("kept")
        .query_async::<()>(&mut connection)
        .await
        .expect("written");
    redis.kill9().await;
    assert!(
        redis.connection().await.is_err(),
        "nobody listens after a kill"
    );
    redis.restart().await;
    let mut connection = redis.connection().await.expect("connected again");
    let kept: String = redis::cmd("GET")
        .arg(&key)
        .query_async(&mut connection)
        .await
        .expect("read");
    assert_eq!(kept, "kept");
    redis.terminate().await;
}

#[tokio::test]
async fn redis_comes_back_with_its_data_after_kill_9() {
    keeps_its_data(Redis::start().await).await;
}

#[tokio::test]
async fn valkey_too_where_it_is_installed() {
    match Redis::start_valkey().await {
        Some(valkey) => keeps_its_data(valkey).await,
        None => println!("no valkey-server here"),
    }
}

#[tokio::test]
async fn a_stopped_redis_hangs_and_a_continued_one_answers() {
    let mut redis = Redis::start().await;
    let mut connection = redis.connection().await.expect("connected");
    redis.stop();
    let ping = redis::cmd("PING");
    let hangs = tokio::time::timeout(
        Duration::from_millis(200),
        ping.query_async::<()>(&mut connection),
    )
    .await;
    assert!(
        hangs.is_err(),
        "a stopped server does not answer: {hangs:?}"
    );
    redis.cont();
    ping.query_async::<()>(&mut redis.connection().await.expect("connected"))
        .await
        .expect("an answer");
}

#[tokio::test]
async fn rabbitmq_comes_back_with_its_queues_after_kill_9() {
    let mut rabbitmq = Rabbitmq::start().await;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let queue = names::unique("queue");
        let exchange = names::unique("exchange");
        rabbitmq.declare_queue(&queue, kind).await;
        rabbitmq
            .declare_exchange(&exchange, ExchangeKind::Direct)
            .await;
        rabbitmq.bind(&queue, &exchange, "key").await;
        let connection = rabbitmq.connect().await.expect("connected");
        let channel = connection.create_channel().await.expect("a channel");
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .expect("confirms");
        let persistent = BasicProperties::default().with_delivery_mode(2);
        let publish = channel.basic_publish(
            exchange.into(),
            "key".into(),
            BasicPublishOptions::default(),
            b"kept",
            persistent,
        );
        assert!(
            publish
                .await
                .expect("published")
                .await
                .expect("confirmed")
                .is_ack()
        );

        rabbitmq.kill9().await;
        assert!(
            rabbitmq.connect().await.is_err(),
            "nobody listens after a kill"
        );
        rabbitmq.restart().await;

        let connection = rabbitmq.connect().await.expect("connected again");
        let channel = connection.create_channel().await.expect("a channel");
        let got = channel
            .basic_get(queue.into(), BasicGetOptions { no_ack: true })
            .await
            .expect("an answer");
        assert_eq!(got.expect("the message").data, b"kept", "{kind:?}");
    }
    rabbitmq.terminate().await;
}

#[tokio::test]
async fn kafka_comes_back_with_its_records_after_kill_9() {
    let mut kafka = Kafka::start().await;
    let topic = kafka.unique_topic("kept", 3).await;
    let producer: FutureProducer = kafka.client().create().expect("a producer");
    let record = FutureRecord::to(&topic)
        .key("k")
        .payload("kept")
        .partition(2);
    producer
        .send(record, Duration::from_secs(10))
        .await
        .expect("acknowledged");
    drop(producer);

    kafka.kill9().await;
    kafka.restart().await;

    let consumer: StreamConsumer = kafka
        .client()
        .set("group.id", names::unique("group"))
        .set("auto.offset.reset", "earliest")
        .create()
        .expect("a consumer");
    consumer.subscribe(&[&topic]).expect("subscribed");
    let received = async {
        loop {
            match consumer.recv().await {
                Ok(message) => break message,
                // The client tells each fault of a connection, and goes on by itself.
                Err(error) => println!("{error}"),
            }
        }
    };
    let message = tokio::time::timeout(Duration::from_secs(30), received)
        .await
        .expect("within 30 s");
    assert_eq!(
        (message.partition(), message.payload()),
        (2, Some(&b"kept"[..]))
    );
}

//! Producers of the accounting harness: each message is noted before it is sent, and again with what the
//! broker said.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;

use super::accounting::{Id, Outcome};
use super::run::{Message, Run, When};
use super::{Kafka, Rabbitmq};

/// Longest wait for the confirms of one call, longer than any outage that a test plays.
const SEND_LIMIT: Duration = Duration::from_secs(180);

impl Run {
    /// Produces to a topic, all at once, and waits for what the broker says to each.
    pub async fn send_kafka(&self, kafka: &Kafka, topic: &str, messages: Vec<Message>) {
        self.send_kafka_by(&kafka_producer(kafka.client()), topic, messages)
            .await;
    }

    /// The same with a producer that the caller keeps.
    pub async fn send_kafka_by(
        &self,
        producer: &FutureProducer,
        topic: &str,
        messages: Vec<Message>,
    ) {
        let source = Arc::<str>::from(topic);
        let sent = messages.iter().map(|message| async {
            self.ledger().attempt_to(&source, message.stamp.clone());
            let (body, mut headers) = message.wire();
            match message.when {
                When::Now => {}
                When::Delay(ms) => {
                    headers.push(("x-delay".to_owned(), Some(ms.to_string().into_bytes())));
                }
                When::At(_) => {
                    headers.push((
                        "x-deliver-at".to_owned(),
                        Some(message.stamp.due_ms.to_string().into_bytes()),
                    ));
                }
            }
            let headers = headers
                .iter()
                .fold(OwnedHeaders::new(), |headers, (key, value)| {
                    headers.insert(Header {
                        key,
                        value: value.as_deref(),
                    })
                });
            let mut record = FutureRecord::to(topic)
                .payload(&body)
                .headers(headers)
                .timestamp(message.made_ms);
            record.key = message.stamp.key.as_deref();
            let outcome = match producer.send(record, Duration::from_secs(30)).await {
                Ok(_) => Outcome::Ok,
                Err((error, _)) => outcome_of(&error),
            };
            self.ledger().resolve(message.id(), outcome);
        });
        join_all(sent).await;
    }

    /// Publishes to an exchange and waits for the confirm of each. `None` publishes
    /// each with its own key, which is then what it must arrive with. Panics with the broker's log where it
    /// confirms nothing for so long that it must be in an alarm of its own, such as a full disk.
    pub async fn send_rabbitmq(
        &self,
        rabbitmq: &Rabbitmq,
        exchange: &str,
        routing_key: Option<&str>,
        messages: Vec<Message>,
    ) {
        let sent = self.send_rabbitmq_unlimited(rabbitmq, exchange, routing_key, messages);
        if tokio::time::timeout(SEND_LIMIT, sent).await.is_err() {
            rabbitmq.tell();
            panic!(
                "rabbitmq has not confirmed all within {SEND_LIMIT:?}: is its disk or its memory full?"
            );
        }
    }

    async fn send_rabbitmq_unlimited(
        &self,
        rabbitmq: &Rabbitmq,
        exchange: &str,
        routing_key: Option<&str>,
        messages: Vec<Message>,
    ) {
        let connection = rabbitmq
            .connect()
            .await
            .expect("a connection to produce with");
        let channel = connection
            .create_channel()
            .await
            .expect("a channel to produce with");
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .expect("confirms");
        let confirms = self
            .publish_rabbitmq(&channel, exchange, routing_key, messages)
            .await;
        self.confirmed_rabbitmq(confirms).await;
        // Fails if the broker is gone; what matters has been noted.
        drop(connection.close(200, "done".into()).await);
    }

    /// Publishes on a channel with confirms that the caller keeps: one task alone may, for a channel shared by
    /// tasks can resolve the wrong publish. What was published is for [`Run::confirmed_rabbitmq`].
    pub async fn publish_rabbitmq(
        &self,
        channel: &Channel,
        exchange: &str,
        routing_key: Option<&str>,
        messages: Vec<Message>,
    ) -> Vec<(Id, PublisherConfirm)> {
        let mut confirms = Vec::new();
        for message in &messages {
            let key = routing_key.or(message.stamp.key.as_deref());
            // Another exchange than the default one says nothing about the queue.
            match key.filter(|_| exchange.is_empty()) {
                Some(queue) => self
                    .ledger()
                    .attempt_to(&Arc::from(queue), message.stamp.clone()),
                None => self.ledger().attempt(message.stamp.clone()),
            }
            match publish(channel, exchange, routing_key, message).await {
                Ok(confirm) => confirms.push((message.id().clone(), confirm)),
                // Its frames may have been written: it stays unknown.
                Err(error) => println!("{} not published: {error}", message.id()),
            }
        }
        confirms
    }

    /// Waits for what the broker says to each.
    pub async fn confirmed_rabbitmq(&self, confirms: Vec<(Id, PublisherConfirm)>) {
        for (id, confirm) in confirms {
            self.confirmed(&id, &confirm.await);
        }
    }

    fn confirmed(&self, id: &Id, confirm: &lapin::Result<Confirmation>) {
        let outcome = match confirm {
            Ok(Confirmation::Ack(_)) => Outcome::Ok,
            Ok(Confirmation::Nack(_)) => Outcome::Fail,
            Ok(Confirmation::NotRequested) => panic!("confirms were selected"),
            Err(_) => Outcome::Info,
        };
        self.ledger().resolve(id, outcome);
    }
}

/// A producer as careful as a user's should be.
pub fn kafka_producer(mut config: ClientConfig) -> FutureProducer {
    // Half a minute by default, until it believes that a topic is missing.
    config.set("topic.metadata.propagation.max.ms", "5000");
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random");
    config.set("linger.ms", "1").create().expect("a producer")
}

async fn publish(
    channel: &Channel,
    exchange: &str,
    routing_key: Option<&str>,
    message: &Message,
) -> lapin::Result<PublisherConfirm> {
    let (body, headers) = message.wire();
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert(name.into(), value.map_or(AMQPValue::Void, text_or_bytes));
    }
    let when = match message.when {
        When::Now => None,
        When::Delay(ms) => Some(("x-delay", ms as i64)),
        When::At(_) => Some(("x-deliver-at", message.stamp.due_ms)),
    };
    if let Some((name, value)) = when {
        table.insert(name.into(), AMQPValue::LongLongInt(value));
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_headers(table);
    let routing_key = routing_key
        .or(message.stamp.key.as_deref())
        .expect("a routing key or a key");
    let options = BasicPublishOptions::default();
    channel
        .basic_publish(
            exchange.into(),
            routing_key.into(),
            options,
            &body,
            properties,
        )
        .await
}

fn text_or_bytes(value: Vec<u8>) -> AMQPValue {
    match String::from_utf8(value) {
        Ok(text) => AMQPValue::LongString(text.into()),
        Err(error) => AMQPValue::ByteArray(error.into_bytes().into()),
    }
}

/// Only what cannot have been written is a refusal.
fn outcome_of(error: &KafkaError) -> Outcome {
    match error.rdkafka_error_code() {
        Some(
            RDKafkaErrorCode::MessageSizeTooLarge
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::QueueFull,
        ) => Outcome::Fail,
        _ => Outcome::Info,
    }
}

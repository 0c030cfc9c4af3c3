//! Traits of a queue that decide whether a route can read from it. A source queue outlives its consumers, keeps what
//! it has not handed out, and delivers again what was not acknowledged.
//!
//! The management API tells all traits. AMQP has no question for them. A declaration with other arguments than the
//! queue has is refused, and the refusal names the first difference. The declaration here has an argument that RabbitMQ
//! accepts for no queue, so a queue that has gone meanwhile is not created by it. Whoever may not declare queues learns from a
//! refused consumer that a queue is no stream.

use std::time::Duration;

use lapin::Channel;
use lapin::options::{BasicQosOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use tracing::debug;

use super::consume::consume;
use super::lookup::{look_for_queue, short_name};
use super::management::queue_description;
use super::supervisor::{Broker, LiveConnection, within};
use super::{AmqpFault, FaultKind};
use crate::domain::duration;

/// Longest wait for the management API.
const MANAGEMENT_DEADLINE: Duration = Duration::from_secs(1);
/// The argument of a stream's consumer that says where it begins.
const STREAM_OFFSET: &str = "x-stream-offset";
/// The value of `x-expires` that no queue can have. RabbitMQ's log shows it.
const IMPOSSIBLE_EXPIRES: &str = "Postdate asks for the traits of this queue and declares nothing";

/// What is known of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueTraits {
    /// The name of the queue.
    queue: String,
    /// `None`: not known.
    pub is_stream: Option<bool>,
    is_exclusive: bool,
    /// `None`: not known.
    pub is_auto_delete: Option<bool>,
    is_transient: bool,
    expires_ms: Option<i64>,
    message_ttl_ms: Option<i64>,
    drops_oldest: bool,
    /// The delivery limit, negative for none. `None`: not known.
    pub delivery_limit: Option<i64>,
}

/// Opens a channel. A broker closes a channel on which it refuses something.
pub(super) trait Channels: Sync {
    fn open(&self) -> impl Future<Output = Result<Channel, AmqpFault>> + Send;
}

impl Channels for LiveConnection {
    async fn open(&self) -> Result<Channel, AmqpFault> {
        self.channel().await
    }
}

impl Channels for lapin::Connection {
    async fn open(&self) -> Result<Channel, AmqpFault> {
        within("opening a channel", self.create_channel()).await
    }
}

impl Broker {
    /// Looks for a queue that is to be consumed, and at its traits. `Err` if the queue is missing, or the connection is lost.
    pub async fn queue_traits(
        &self,
        live: &LiveConnection,
        queue: &str,
    ) -> Result<QueueTraits, AmqpFault> {
        let mut traits = self.traits_over(live, queue).await?;
        let may_be_tried = !traits.is_exclusive && traits.is_auto_delete != Some(true);
        if traits.is_stream.is_none()
            && may_be_tried
            && refuses_stream_consumer(live, queue).await?
        {
            traits.is_stream = Some(false);
        }
        Ok(traits)
    }

    pub(super) async fn traits_over(
        &self,
        channels: &impl Channels,
        queue: &str,
    ) -> Result<QueueTraits, AmqpFault> {
        let channel = channels.open().await?;
        match look_for_queue(&channel, queue).await {
            Ok(_) => within("channel.close", channel.close(200, "seen".into())).await?,
            Err(fault) if fault.is_about_a_locked_queue() => {
                return Ok(QueueTraits {
                    queue: queue.to_owned(),
                    is_exclusive: true,
                    ..QueueTraits::default()
                });
            }
            Err(fault) => return Err(fault),
        }
        let connection = self.connection();
        if let Some(management) = &connection.management {
            match queue_description(connection, management, queue, MANAGEMENT_DEADLINE).await {
                Ok(description) => return Ok(QueueTraits::of_description(queue, &description)),
                Err(error) => {
                    debug!(queue, error, "the management API does not describe a queue");
                }
            }
        }
        let mut traits = QueueTraits {
            queue: queue.to_owned(),
            ..QueueTraits::default()
        };
        let first = refused_declaration(channels, queue, true).await?;
        traits.is_transient = is_about(&first, "durable");
        let refusal = if traits.is_transient {
            refused_declaration(channels, queue, false).await?
        } else {
            first
        };
        traits.take_refusal(&refusal);
        Ok(traits)
    }
}

/// The text in which the broker refuses an impossible declaration of a queue.
async fn refused_declaration(
    channels: &impl Channels,
    queue: &str,
    durable: bool,
) -> Result<String, AmqpFault> {
    let channel = channels.open().await?;
    let options = QueueDeclareOptions {
        durable,
        ..QueueDeclareOptions::default()
    };
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-expires".into(),
        AMQPValue::LongString(IMPOSSIBLE_EXPIRES.into()),
    );
    let declared = channel.queue_declare(short_name(queue)?, options, arguments);
    match within("queue.declare", declared).await {
        Err(fault) if fault.kind == FaultKind::Lost => Err(fault),
        Err(fault) => Ok(fault.to_string()),
        // RabbitMQ refuses it. Another broker may accept whatever it likes: then nothing is known.
        Ok(_) => {
            within("channel.close", channel.close(200, "seen".into())).await?;
            Ok(String::new())
        }
    }
}

/// Reports whether a queue refuses the argument that a stream's consumer may have. RabbitMQ knows by it that the queue is
/// none. That it is accepted says nothing: another broker may pass over it.
async fn refuses_stream_consumer(live: &LiveConnection, queue: &str) -> Result<bool, AmqpFault> {
    let channel = live.channel().await?;
    // A stream wants a prefetch. Nothing that it hands out is read.
    live.limit_bodies(&channel, 0);
    within(
        "basic.qos",
        channel.basic_qos(1, BasicQosOptions::default()),
    )
    .await?;
    let mut arguments = FieldTable::default();
    arguments.insert(STREAM_OFFSET.into(), AMQPValue::LongString("next".into()));
    match consume(&channel, queue, "", arguments).await {
        Err(fault) if fault.kind == FaultKind::Lost => Err(fault),
        Err(fault) => Ok(fault.to_string().contains(STREAM_OFFSET)),
        Ok(_) => {
            within("channel.close", channel.close(200, "seen".into())).await?;
            Ok(false)
        }
    }
}

/// Reports whether a refusal of a declaration names a difference in this field.
fn is_about(refusal: &str, field: &str) -> bool {
    refusal.contains(&format!("inequivalent arg '{field}'"))
}

impl QueueTraits {
    /// Reads what the management API says of a queue.
    fn of_description(queue: &str, description: &Value) -> Self {
        let flag = |name: &str| description[name].as_bool().unwrap_or_default();
        let arguments = &description["arguments"];
        let policy = &description["effective_policy_definition"];
        let both = |name: &str| {
            let argument = arguments[&format!("x-{name}")].as_i64();
            argument.into_iter().chain(policy[name].as_i64())
        };
        // Where both an argument and a policy set a limit, RabbitMQ takes the smaller one.
        let smaller = |name: &str| both(name).min();
        // A negative delivery limit is none: then the other one holds.
        let limits = both("delivery-limit");
        let delivery_limit = if limits.clone().any(|limit| limit < 0) {
            limits.max()
        } else {
            limits.min()
        };
        let overflow = arguments["x-overflow"]
            .as_str()
            .or(policy["overflow"].as_str());
        let has_max = smaller("max-length")
            .or(smaller("max-length-bytes"))
            .is_some();
        let kind = description["type"].as_str();
        Self {
            queue: queue.to_owned(),
            is_stream: kind.map(|kind| kind == "stream"),
            is_exclusive: flag("exclusive"),
            is_auto_delete: Some(flag("auto_delete")),
            is_transient: description["durable"].as_bool() == Some(false),
            expires_ms: smaller("expires"),
            message_ttl_ms: smaller("message-ttl"),
            drops_oldest: has_max && overflow.is_none_or(|overflow| overflow == "drop-head"),
            delivery_limit,
        }
    }

    /// Takes the difference that a refused declaration of a durable queue that is kept, or of one that is not durable,
    /// names.
    fn take_refusal(&mut self, refusal: &str) {
        self.is_auto_delete = refusal
            .contains("inequivalent arg")
            .then(|| is_about(refusal, "auto_delete"));
        if is_about(refusal, "x-expires") {
            // A stream cannot expire, so RabbitMQ does not compare it for one.
            self.is_stream = Some(false);
            self.expires_ms = refusal
                .rsplit_once("current is ")
                .and_then(|(_, value)| first_number(value));
        } else if is_about(refusal, "x-queue-type")
            || refusal.contains("inequivalent arg 'x-stream-")
        {
            self.is_stream = Some(refusal.contains("'stream'") || refusal.contains("'x-stream-"));
        } else if is_about(refusal, "x-max-age") {
            self.is_stream = Some(true);
        }
    }

    /// The reason why the queue cannot be a source, as a sentence.
    pub fn refusal(&self) -> Option<String> {
        let queue = &self.queue;
        if self.is_stream == Some(true) {
            Some(stream_refusal(queue))
        } else if self.is_exclusive {
            Some(format!(
                "queue {queue} is exclusive: RabbitMQ lets no other connection read it, and deletes it with its own; declare it without `exclusive`"
            ))
        } else if self.is_auto_delete == Some(true) {
            Some(format!(
                "queue {queue} is auto-delete: RabbitMQ deletes it, with all that waits in it, whenever its consumer goes; declare it without `auto_delete`"
            ))
        } else {
            None
        }
    }

    /// Sentences on what the queue itself may lose, by its owner's wish.
    pub fn dangers(&self) -> Vec<String> {
        let queue = &self.queue;
        let mut dangers = Vec::new();
        if self.is_transient {
            dangers.push(format!(
                "queue {queue} is not durable: it goes with all that waits in it when RabbitMQ restarts"
            ));
        }
        if let Some(ms) = self.expires_ms {
            let span = duration::render(ms);
            dangers.push(format!(
                "queue {queue} has x-expires: RabbitMQ deletes it when Postdate does not read it for {span}"
            ));
        }
        if let Some(ms) = self.message_ttl_ms {
            let span = duration::render(ms);
            dangers.push(format!(
                "queue {queue} has x-message-ttl: it drops what waits in it for {span}, also while ingress waits"
            ));
        }
        if self.drops_oldest {
            dangers.push(format!(
                "queue {queue} has x-max-length: when it is full it drops its oldest messages, also while ingress waits"
            ));
        }
        dangers
    }
}

/// The sentence on a queue that is a stream.
pub fn stream_refusal(queue: &str) -> String {
    format!(
        "queue {queue} is a stream: RabbitMQ keeps no position for its reader, so whatever comes while Postdate does not read would be skipped; let a quorum queue take the messages"
    )
}

fn first_number(text: &str) -> Option<i64> {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(description: &Value) -> (Option<&'static str>, usize) {
        judged(&QueueTraits::of_description("q", description))
    }

    fn judged(traits: &QueueTraits) -> (Option<&'static str>, usize) {
        let words = ["stream", "exclusive", "auto-delete"];
        let refusal = traits.refusal();
        let word = refusal.map(|refusal| {
            let word = words
                .iter()
                .find(|word| refusal.contains(&format!("is {word}")));
            *word
                .or(words.iter().find(|word| refusal.contains(*word)))
                .expect("a reason")
        });
        (word, traits.dangers().len())
    }

    #[test]
    fn what_loses_messages_at_each_restart_is_refused_and_what_its_owner_bounded_is_warned_of() {
        let table = [
            (
                json!({"type": "classic", "durable": true, "arguments": []}),
                (None, 0),
            ),
            (
                json!({"type": "quorum", "durable": true, "arguments": {"x-delivery-limit": 3}}),
                (None, 0),
            ),
            (
                json!({"type": "stream", "durable": true}),
                (Some("stream"), 0),
            ),
            (
                json!({"type": "classic", "auto_delete": true, "durable": true}),
                (Some("auto-delete"), 0),
            ),
            (
                json!({"type": "classic", "exclusive": true, "durable": true}),
                (Some("exclusive"), 0),
            ),
            (json!({"type": "classic", "durable": false}), (None, 1)),
            (
                json!({"durable": true, "arguments": {"x-expires": 60_000}}),
                (None, 1),
            ),
            (
                json!({"durable": true, "effective_policy_definition": {"expires": 60_000}}),
                (None, 1),
            ),
            (
                json!({"durable": true, "arguments": {"x-message-ttl": 60_000}}),
                (None, 1),
            ),
            (
                json!({"durable": true, "arguments": {"x-max-length": 5}}),
                (None, 1),
            ),
            (
                json!({"durable": true, "arguments": {"x-max-length": 5, "x-overflow": "drop-head"}}),
                (None, 1),
            ),
            (
                json!({"durable": true, "arguments": {"x-max-length": 5, "x-overflow": "reject-publish"}}),
                (None, 0),
            ),
            (
                json!({"durable": true, "effective_policy_definition": {"max-length-bytes": 5}}),
                (None, 1),
            ),
            (
                json!({"durable": true, "arguments": {"x-max-priority": 5}}),
                (None, 0),
            ),
            (
                json!({"durable": true, "arguments": {"x-single-active-consumer": true}}),
                (None, 0),
            ),
        ];
        for (description, expected) in table {
            assert_eq!(told(&description), expected, "{description}");
        }
        let limit = |text: Value| QueueTraits::of_description("q", &text).delivery_limit;
        assert_eq!(
            limit(json!({"arguments": {"x-delivery-limit": 5}})),
            Some(5)
        );
        let both = json!({"arguments": {"x-delivery-limit": 5}, "effective_policy_definition": {"delivery-limit": 2}});
        assert_eq!(limit(both), Some(2));
        for (argument, policy, expected) in [(-1, 20, 20), (20, -1, 20), (-1, -5, -1), (0, 3, 0)] {
            let both = json!({"arguments": {"x-delivery-limit": argument}, "effective_policy_definition": {"delivery-limit": policy}});
            assert_eq!(limit(both), Some(expected), "{argument} and {policy}");
        }
        assert_eq!(limit(json!({"arguments": []})), None);
    }

    /// What RabbitMQ 3.10 answers to the impossible declaration.
    #[test]
    fn a_refused_declaration_tells_the_trait_that_differs() {
        let read = |difference: &str| {
            let mut traits = QueueTraits::default();
            let text = format!("PRECONDITION_FAILED - inequivalent arg {difference}");
            traits.take_refusal(&text);
            traits
        };
        let asks = "received the value 'Postdate asks' of type 'longstr' but current is none";
        let plain = read(&format!("'x-expires' for queue 'q' in vhost '/': {asks}"));
        assert_eq!((plain.is_stream, judged(&plain)), (Some(false), (None, 0)));
        let expires = read(
            "'x-expires' for queue 'q7' in vhost '/': received 'Postdate asks' but current is '60000'",
        );
        assert_eq!(
            (expires.expires_ms, judged(&expires)),
            (Some(60_000), (None, 1))
        );
        let stream = read(
            "'x-queue-type' for queue 'q' in vhost '/': received none but current is the value 'stream' of type 'longstr'",
        );
        assert_eq!(judged(&stream), (Some("stream"), 0));
        let deleted = read(
            "'auto_delete' for queue 'q' in vhost '/': received 'false' but current is 'true'",
        );
        assert_eq!(judged(&deleted), (Some("auto-delete"), 0));
        let bounded = read(
            "'x-max-length-bytes' for queue 'q' in vhost '/': received none but current is the value '5' of type 'signedint'",
        );
        assert_eq!((bounded.is_stream, judged(&bounded)), (None, (None, 0)));
        let mut forbidden = QueueTraits::default();
        forbidden.take_refusal("ACCESS_REFUSED - access to queue 'q' refused");
        assert_eq!(forbidden, QueueTraits::default());
    }
}

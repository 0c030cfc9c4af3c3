//! What a subscription makes of silence: its queue is empty, or the broker has lost its consumer.
//!
//! RabbitMQ cancels the consumers of a queue that is deleted, and then Postdate subscribes anew. In two cases it does not,
//! and a queue that is declared later under the same name would not be read for as long as the connection lives:
//!
//! - It deletes a quorum queue by force, because the queue's leader does not answer. Then nobody is told.
//! - RabbitMQ 3 moves a consumer to a queue that was declared again at once. That queue lends it messages, and the channel
//!   drops them.

use std::time::Duration;

use tokio::time::Instant;

use crate::broker::rabbitmq::{AmqpFault, FaultKind, look_for_queue};
use crate::ingress::Ledger;

/// Silence after which the broker is asked, and time between two questions.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two questions when the answer was that nobody reads the queue.
const DOUBT_INTERVAL: Duration = Duration::from_secs(1);
/// Time to the next question when there was no answer: whatever is asked of a queue that hangs waits with its channel.
const HANG_INTERVAL: Duration = Duration::from_secs(60);
/// Silence after which a subscription is renewed, where nothing tells the consumer of an empty queue from one whose messages
/// the channel drops.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// Waits until nothing has come on this channel for so long that its subscription is to be renewed; for ever unless it
/// `may_be_renewed`. `Err` if the queue is gone, or if messages lie in it and the broker knows of no consumer. That it knows
/// of none does not suffice: RabbitMQ says so of any queue whose leader does not answer. Asks only while the channel holds no
/// delivery. Cancel-safe: whoever receives a delivery begins anew, so nobody asks about a queue that is busy.
pub(super) async fn long_silence(
    channel: &lapin::Channel,
    queue: &str,
    ledger: &Ledger,
    may_be_renewed: impl Fn() -> bool,
) -> Result<(), AmqpFault> {
    let began = Instant::now();
    let mut next_look = LOOK_INTERVAL;
    loop {
        tokio::time::sleep(next_look).await;
        if ledger.outstanding() > 0 {
            continue;
        }
        let is_doubtful = next_look == DOUBT_INTERVAL;
        next_look = LOOK_INTERVAL;
        match look_for_queue(channel, queue).await {
            Ok(seen) if seen.messages > 0 && seen.consumers == 0 => {
                if is_doubtful {
                    return Err(AmqpFault::new(
                        FaultKind::Lost,
                        "the broker no longer knows its consumer; the queue may have been made anew",
                    ));
                }
                next_look = DOUBT_INTERVAL;
            }
            Ok(seen) => {
                let is_long = began.elapsed() >= LONGEST_SILENCE;
                if is_long && seen.consumers > 0 && may_be_renewed() {
                    return Ok(());
                }
            }
            // The queue hangs, or the channel is lost, which is noticed elsewhere.
            Err(fault) if fault.kind == FaultKind::Lost => next_look = HANG_INTERVAL,
            Err(fault) => return Err(fault),
        }
    }
}

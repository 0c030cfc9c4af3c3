//! What a subscription does when nothing comes: it does not trust that its consumer lives.
//!
//! RabbitMQ cancels the consumers of a queue that is deleted, with two exceptions. It tells nobody if it has to delete a
//! quorum queue by force, because the queue's leader does not answer. And RabbitMQ 3 may move a consumer to a quorum queue
//! that was declared under the same name at once: the new queue lends it messages, and the channel drops them. In both
//! cases the new queue would not be read for as long as the connection lives.

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::broker::rabbitmq::{AmqpFault, FaultKind, look_for_queue};
use crate::ingress::Ledger;

/// Time between two questions whether the queue has a consumer.
const LOOK_INTERVAL: Duration = Duration::from_secs(4);
/// The same if the answer was no. A quorum queue says so, too, while its leader is slow to answer.
const DOUBT_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which the subscription is renewed: the consumer of an empty queue, and one whose messages the channel
/// drops, look alike.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// Waits until nothing has come for long, so that this channel's subscription to a queue is to be renewed. `Err` if the
/// queue is gone, or the broker knows of no consumer of it. Asks only while all deliveries of the channel are released: none
/// of them is delivered again for it. Cancel-safe. The caller begins anew with each delivery.
pub(super) async fn renewal_due(
    channel: &lapin::Channel,
    queue: &str,
    ledger: &Ledger,
) -> Result<(), AmqpFault> {
    let began = Instant::now();
    let mut is_doubtful = false;
    loop {
        tokio::time::sleep(if is_doubtful {
            DOUBT_INTERVAL
        } else {
            LOOK_INTERVAL
        })
        .await;
        if ledger.outstanding() > 0 {
            continue;
        }
        if began.elapsed() >= LONGEST_SILENCE {
            debug!(queue, "nothing came for long; the subscription is renewed");
            return Ok(());
        }
        match look_for_queue(channel, queue).await {
            Ok(0) if is_doubtful => {
                let what =
                    "the broker no longer knows its consumer; the queue may have been made anew";
                return Err(AmqpFault::new(FaultKind::Lost, what));
            }
            Ok(consumers) => is_doubtful = consumers == 0,
            // No answer says nothing. Whoever reads the deliveries notices the loss of the channel.
            Err(fault) if fault.kind == FaultKind::Lost => {}
            Err(fault) => return Err(fault),
        }
    }
}

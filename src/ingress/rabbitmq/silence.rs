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
/// Silence after which RabbitMQ 3 is given another consumer: nothing tells one of an empty queue from one whose messages
/// the channel drops.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// Waits until the silence is so long that another subscription should take the place of the one on this channel. `Err` if
/// the queue is gone, or if messages lie in it and the broker knows of no consumer. That it knows of none does not suffice:
/// RabbitMQ says so of any queue whose leader does not answer. Asks only while the channel holds no delivery. Cancel-safe:
/// whoever receives a delivery begins anew, so nobody asks about a queue that is busy.
pub(super) async fn long_silence(
    channel: &lapin::Channel,
    queue: &str,
    ledger: &Ledger,
    is_rabbitmq_3: bool,
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
        match look_for_queue(channel, queue).await {
            Ok(seen) => {
                let is_unread = seen.messages > 0 && seen.consumers == 0;
                if is_unread && is_doubtful {
                    return Err(AmqpFault::new(
                        FaultKind::Lost,
                        "the broker no longer knows its consumer; the queue may have been made anew",
                    ));
                }
                is_doubtful = is_unread;
                if is_rabbitmq_3 && seen.consumers > 0 && began.elapsed() >= LONGEST_SILENCE {
                    return Ok(());
                }
            }
            // The queue hangs, or the channel is lost, which is noticed elsewhere. Whatever is asked now waits behind this.
            Err(fault) if fault.kind == FaultKind::Lost => std::future::pending().await,
            Err(fault) => return Err(fault),
        }
    }
}

//! Starts a consumer.

use futures_util::FutureExt;
use lapin::Channel;
use lapin::options::BasicConsumeOptions;
use lapin::types::{FieldTable, ShortString};
use tracing::debug;

use super::AmqpFault;
use super::lookup::short_name;
use super::supervisor::within;

/// Starts the deliveries of a queue. If nobody waits for the broker's answer any more, the channel is closed: the answer may
/// come yet, and the client library would keep such a consumer, and the channel with it, for as long as the connection
/// lives. Nobody would read what the broker lends it.
pub async fn consume(
    channel: &Channel,
    queue: &str,
    tag: &str,
    arguments: FieldTable,
) -> Result<lapin::Consumer, AmqpFault> {
    let tag = ShortString::try_new(tag).unwrap_or_default();
    let options = BasicConsumeOptions::default();
    let mut unanswered = Unanswered(Some(channel));
    let consume = channel.basic_consume(short_name(queue)?, tag, options, arguments);
    let consumer = within("basic.consume", consume).await?;
    unanswered.0 = None;
    Ok(consumer)
}

/// Closes the channel unless the answer came.
struct Unanswered<'a>(Option<&'a Channel>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let channel = self.0.filter(|channel| channel.status().connected());
        // The client library takes the close at the first poll.
        let close =
            channel.map(|channel| channel.close(200, "nobody waits for the consumer".into()));
        if let Some(Some(Err(error))) = close.map(FutureExt::now_or_never) {
            debug!(%error, "the channel of a consumer that was given up cannot be closed");
        }
    }
}

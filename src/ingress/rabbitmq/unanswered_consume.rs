//! What becomes of the channel of a consumer whose answer comes too late.

use futures_util::FutureExt;
use tracing::debug;

/// A `basic.consume` for whose answer nobody waits any more closes its channel. The answer may come yet: the client library
/// would keep such a consumer, and the channel with it, for as long as the connection lives, and nobody would read what the
/// broker lends it.
pub(super) struct UnansweredConsume<'a>(Option<&'a lapin::Channel>);

impl<'a> UnansweredConsume<'a> {
    pub(super) fn of(channel: &'a lapin::Channel) -> Self {
        Self(Some(channel))
    }

    pub(super) fn answered(&mut self) {
        self.0 = None;
    }
}

impl Drop for UnansweredConsume<'_> {
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

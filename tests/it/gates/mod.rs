//! A source that waits, and what becomes of it meanwhile: each cause of waiting x each fate x each kind of source.
//! Afterwards all is delivered, a stop was clean, and no delivery was spent on waiting: the quorum queues drop what was
//! delivered more than four times.

mod fates;
mod fixture;
mod limits;

use self::fates::Fate;
use self::fixture::{Cause, Source, WaitingFixture};
use crate::support::{Kafka, Rabbitmq, eventually};

/// Why a combination is not played.
fn left_out(cause: Cause, fate: Fate, source: Source) -> Option<&'static str> {
    if (cause, fate, source) == (Cause::TargetAway, Fate::Terminated, Source::Quorum) {
        return Some("what left the queue is with its lane, and a stop may wait for that in vain");
    }
    match (fate, source) {
        (Fate::Anew, Source::Kafka) => Some("a topic made anew is `kafka::ingress`'s"),
        (Fate::Leader, Source::Classic | Source::Quorum) => {
            Some("one node holds all of the queue: that is the fate `Broker`")
        }
        _ => None,
    }
}

fn table() -> impl Iterator<Item = (Cause, Fate, Source)> {
    let fates = Fate::ALL.into_iter();
    fates.flat_map(|fate| {
        let causes = Cause::ALL.into_iter();
        causes.flat_map(move |cause| Source::ALL.map(|source| (cause, fate, source)))
    })
}

#[test]
fn the_table_is_whole() {
    assert_eq!(table().count(), 7 * 7 * 3);
    let played = table().filter(|&(cause, fate, source)| left_out(cause, fate, source).is_none());
    assert_eq!(played.count(), 125);
}

macro_rules! play {
    ($($name:ident: $fate:ident;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            fates::play(Fate::$fate).await;
        }
    )*};
}

play! {
    what_waits_outlives_a_lost_channel_and_a_rebalance: Lost;
    what_waits_outlives_a_lost_session: Stopped;
    what_waits_outlives_a_queue_made_anew: Anew;
    what_waits_outlives_its_broker: Broker;
    what_waits_outlives_the_loss_of_its_partitions_leader: Leader;
    what_waits_outlives_clean_stops_of_the_relay: Terminated;
    what_waits_outlives_kills_of_the_relay: Killed;
}

/// A fate may explain a repeat; waiting by itself explains none.
#[tokio::test(flavor = "multi_thread")]
async fn what_only_waits_comes_once_and_its_gate_says_that_it_is_open() {
    let servers = tokio::join!(Kafka::shared(), Rabbitmq::shared());
    let mut fixture = WaitingFixture::open(Cause::GROUPS[0], |_, _| true, servers).await;
    fixture.wait(servers.0, servers.1).await;
    fixture.go_on(servers.1).await;
    fixture.delivered().await;
    fixture.run.drain(&fixture.relay).await;
    fixture.run.report().assert_accounted(0);
    eventually("every gate is open", async || {
        let closed = fixture
            .relay
            .metrics()
            .await?
            .sum("postdate_ingress_paused", &[]);
        if closed < 0.5 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{closed} are closed"))
        }
    })
    .await;
    fixture.terminate().await;
}

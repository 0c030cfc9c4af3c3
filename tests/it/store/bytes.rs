//! Large contents: over a link on which they take longer than a small call may.

use std::time::Duration;

use bytes::Bytes;
use postdate::domain::Entry;
use postdate::store::{Held, WriteResult};

use super::room::{LONG, Room, named, past, route, unnamed};
use crate::support::proxy::Mode;
use crate::support::{Proxy, Redis};

const MIB: usize = 1 << 20;

/// A message of so many bytes that no compression makes smaller.
fn large(name: &str, size: usize) -> Entry {
    let mut body = vec![0; size];
    fastrand::Rng::with_seed(7).fill(&mut body);
    let mut entry = named(name, past(), "");
    entry.message.body = Some(Bytes::from(body));
    entry
}

struct Slow {
    proxy: Proxy,
    room: Room,
}

/// A store behind a link of so many bytes a second.
async fn behind(rate: usize) -> Slow {
    let redis = Redis::shared().await;
    let proxy = Proxy::before(redis.port()).await;
    let room = Room::through(redis, &format!("redis://127.0.0.1:{}", proxy.port()), 1).await;
    proxy.set(Mode::Rate(rate as u64));
    Slow { proxy, room }
}

#[tokio::test]
async fn a_message_that_takes_longer_than_a_small_call_may_is_stored_found_and_claimed() {
    let Slow { proxy, room } = behind(5 * MIB).await;
    let connections = proxy.standing();
    let entry = large("large", 16 * MIB);
    // Probes and small calls of the same connections go on behind it.
    assert_eq!(room.keep(vec![entry.clone()]).await, [WriteResult::Stored]);
    let found = room.store.find(&route(), "large").await.expect("an answer").expect("it is there");
    assert_eq!(found.entry.message.body, entry.message.body);
    let claimed = room.claim(LONG).await.remove(0);
    let bundle = claimed.bundle.as_ref().expect("it can be read");
    assert_eq!(bundle.entries[0].message.body, entry.message.body);
    assert_eq!(room.settle(&claimed).await, Held::Done(vec![]));
    assert_eq!(proxy.standing(), connections, "no connection was given up");
    room.check().await;
}

#[tokio::test]
async fn a_claim_that_takes_longer_than_a_small_call_may_is_read_in_steps() {
    let Slow { proxy, room } = behind(64 * MIB).await;
    for n in 0..24 {
        room.keep(vec![large(&format!("n{n}"), MIB / 2)]).await;
    }
    for n in 0..10 {
        room.keep(vec![unnamed(past(), &format!("small {n}"))]).await;
    }
    proxy.set(Mode::Rate(4 * MIB as u64));
    let connections = proxy.standing();
    let request = room.request(LONG).await;
    let claimed = room.store.claim(&request).await.expect("claimed");
    assert_eq!(claimed.len(), 34);
    assert!(claimed.iter().all(|c| c.bundle.is_ok() && c.expiries == 0));
    assert_eq!(proxy.standing(), connections, "no connection was given up");
    room.check().await;
}

#[tokio::test]
async fn a_claim_says_how_large_its_bundles_are_when_opened_before_they_are_read() {
    let room = Room::shared().await;
    let mut zeros = named("zeros", past(), "");
    zeros.message.body = Some(Bytes::from(vec![0; 3 * MIB]));
    room.keep(vec![zeros]).await;
    room.keep(vec![large("random", 2 * MIB)]).await;
    room.keep(vec![unnamed(past(), "small")]).await;
    let request = room.request(LONG).await;
    let measured = room.store.claim_measured(&request).await.expect("claimed");
    let mut mebibytes: Vec<usize> = measured.iter().map(|one| one.bytes / MIB).collect();
    mebibytes.sort_unstable();
    assert_eq!(mebibytes, [0, 2, 3], "three MiB of zeros are three MiB, however few lie in the store");
    for one in &measured {
        assert_eq!(room.give_back(&one.claimed.claim, None).await, Held::Done(vec![]));
    }
    let again = room.claim(LONG).await;
    assert!(again.iter().all(|c| c.bundle.is_ok() && c.expiries == 0), "what was given back comes whole");
    tokio::time::timeout(Duration::from_secs(5), room.check()).await.expect("an answer");
}

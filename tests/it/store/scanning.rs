//! Scans of a route beside messages that change their places: what is there all the time is seen, or it is replayed into
//! the store a second time.

use postdate::domain::Entry;
use postdate::store::{
    ClaimAnswer, DeadFilter, Division, NewBundle, Remainder, SettleAnswer, Store, WriteOp,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use super::fixture::*;
use crate::support::{Redis, names};

/// A read of a scan that waits on the wire until it is let go.
struct Stop {
    read: String,
    go: oneshot::Sender<()>,
}

/// A wire to a Redis on which each read of the members of a sorted set stops, and each read of what is gone from bundles.
struct Wire {
    url: String,
    stops: mpsc::Receiver<Stop>,
}

impl Wire {
    async fn before(redis: &Redis) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let redis_port = redis.port();
        let (stop, stops) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, redis_port, stop.clone()));
            }
        });
        Self {
            url: format!("redis://127.0.0.1:{port}"),
            stops,
        }
    }
}

fn is_stopped(sent: &str) -> bool {
    sent.contains("*5\r\n$5\r\nZSCAN\r\n")
        || (sent.contains("*3\r\n$4\r\nHGET\r\n") && sent.contains(":gone\r\n"))
}

async fn carry(mut client: TcpStream, redis_port: u16, stops: mpsc::Sender<Stop>) {
    let Ok(mut redis) = TcpStream::connect(("127.0.0.1", redis_port)).await else {
        return;
    };
    let mut sent = vec![0; 1 << 16];
    let mut answered = vec![0; 1 << 16];
    loop {
        tokio::select! {
            n = client.read(&mut sent) => {
                let Ok(n @ 1..) = n else { return };
                let read = String::from_utf8_lossy(&sent[..n]).into_owned();
                if is_stopped(&read) {
                    let (go, let_go) = oneshot::channel();
                    if stops.send(Stop { read, go }).await.is_err() || let_go.await.is_err() {
                        return;
                    }
                }
                if redis.write_all(&sent[..n]).await.is_err() {
                    return;
                }
            }
            n = redis.read(&mut answered) => {
                let Ok(n @ 1..) = n else { return };
                if client.write_all(&answered[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// A store behind a wire, and the same store past it.
async fn both(partitions: u16) -> (Wire, StoreFixture, StoreFixture) {
    let redis = Redis::shared().await;
    let wire = Wire::before(redis).await;
    let prefix = names::unique("store");
    let behind = StoreFixture::of(config(&wire.url, &prefix, partitions), redis, 0).await;
    let beside = StoreFixture::of(config(&redis.url(), &prefix, partitions), redis, 0).await;
    (wire, behind, beside)
}

/// Scans, with `act` before each read that stops. Returns the bodies of the messages that were visited.
async fn scan_beside(
    store: &Store,
    wire: &mut Wire,
    mut act: impl AsyncFnMut(&str),
) -> Vec<String> {
    let mut seen = Vec::new();
    let route = route();
    {
        let visit = |_, entry: &Entry, _| seen.push(body(entry));
        let mut scan = std::pin::pin!(store.scan(&route, visit, |_, _| {}));
        loop {
            tokio::select! {
                scanned = &mut scan => {
                    scanned.expect("scanned");
                    break;
                }
                stop = wire.stops.recv() => {
                    let Stop { read, go } = stop.expect("the wire stands");
                    act(&read).await;
                    go.send(()).expect("the wire waits");
                }
            }
        }
    }
    seen
}

fn is_of_due_set(read: &str) -> bool {
    read.contains(":due:orders/") && !read.contains(":due:orders/+\r\n")
}

fn is_of_claims(read: &str) -> bool {
    read.contains(":claims\r\n")
}

/// How a claimed bundle goes back.
#[derive(Clone, Copy, Debug)]
enum Return {
    Unused,
    PutOff,
    /// Its messages are tried again: they go into a new bundle, in a due set that there was not before.
    Tried,
}

impl Return {
    async fn make(self, beside: &StoreFixture, claimed: ClaimAnswer) {
        match self {
            Self::Unused => {
                let answer = beside.give_back(&claimed.claim, None).await;
                assert_eq!(answer, SettleAnswer::Applied(vec![]));
            }
            Self::PutOff => {
                let claims = [claimed.claim];
                let put_off = beside.store.put_off(P, &claims, 5000);
                put_off.await.expect("put off");
            }
            Self::Tried => {
                let answer = beside.divide(tried_again(&claimed)).await;
                assert_eq!(answer, SettleAnswer::Applied(vec![]));
            }
        }
    }
}

/// All of a bundle goes back, to be tried again in the next time slice.
fn tried_again(claimed: &ClaimAnswer) -> Division {
    let mut again = entries(claimed).to_vec();
    for entry in &mut again {
        entry.due = entry.due.plus(1 << 20);
    }
    let count = again.len();
    let back = Remainder {
        new_bundle: NewBundle {
            route: route(),
            bundle: bundle(again),
        },
        from: (0..count as u32).collect(),
        lease_ms: None,
        expiries: 0,
        sequence: None,
    };
    Division {
        claim: claimed.claim.clone(),
        confirmed: vec![false; count],
        delivered: vec![],
        freed: vec![],
        remainders: vec![back],
        dead: vec![],
        held_keys: vec![],
    }
}

#[tokio::test]
async fn what_is_in_flight_only_while_its_due_set_is_read_is_seen() {
    for how in [Return::Unused, Return::PutOff, Return::Tried] {
        let (mut wire, behind, beside) = both(1).await;
        beside.keep(vec![unnamed(past(), "a")]).await;
        let (mut claimed, mut moves) = (None, 0);
        let act = async |read: &str| {
            if moves == 0 && is_of_due_set(read) {
                claimed = Some(beside.claim(LONG).await.remove(0));
                moves = 1;
            } else if is_of_claims(read)
                && let Some(claimed) = claimed.take()
            {
                how.make(&beside, claimed).await;
                moves = 2;
            }
        };
        let seen = scan_beside(&behind.store, &mut wire, act).await;
        assert_eq!(moves, 2, "{how:?}");
        assert_eq!(seen, ["a"], "{how:?}");
        beside.check().await;
    }
}

#[tokio::test]
async fn what_leaves_its_bundle_before_that_is_opened_is_seen() {
    let (mut wire, behind, beside) = both(1).await;
    beside.keep(vec![unnamed(past(), "a")]).await;
    let mut moved = false;
    let act = async |read: &str| {
        if !moved && read.contains(":gone\r\n") {
            let claimed = beside.claim(LONG).await.remove(0);
            Return::Tried.make(&beside, claimed).await;
            moved = true;
        }
    };
    let seen = scan_beside(&behind.store, &mut wire, act).await;
    assert!(moved);
    assert_eq!(seen, ["a"]);
}

/// Documented: what moves during each walk may be left out. The scan ends all the same, and sees what stays.
#[tokio::test]
async fn a_scan_ends_though_something_moves_during_each_of_its_walks() {
    let (mut wire, behind, beside) = both(1).await;
    beside.keep(vec![unnamed(past(), "moves")]).await;
    beside.keep(vec![unnamed(far(), "stays")]).await;
    let (mut claimed, mut walks) = (None, 0);
    let act = async |read: &str| {
        if claimed.is_none() && is_of_due_set(read) {
            claimed = Some(beside.claim(LONG).await.remove(0));
        } else if is_of_claims(read)
            && let Some(claimed) = claimed.take()
        {
            Return::Unused.make(&beside, claimed).await;
            walks += 1;
        }
    };
    let seen = scan_beside(&behind.store, &mut wire, act).await;
    assert!((2..10).contains(&walks), "{walks} walks");
    assert_eq!(seen, ["stays"]);
}

#[tokio::test]
async fn a_dead_letter_that_is_redriven_behind_the_scan_is_seen() {
    let (mut wire, behind, beside) = both(2).await;
    let dead = WriteOp::DeadLetter(dead_letter(unnamed(past(), "a")));
    beside.write(vec![dead]).await;
    let page = beside
        .store
        .dead_page(&DeadFilter::default(), None, 10)
        .await
        .expect("a page");
    let id = page.marks[0].id.clone();
    let mut redriven = false;
    let act = async |read: &str| {
        if !redriven && read.contains(":{1}:claims\r\n") {
            let content = bundle(vec![unnamed(past(), "a")]);
            let answer = beside.store.redrive(&id, &content).await;
            redriven = answer.expect("redriven");
        }
    };
    let seen = scan_beside(&behind.store, &mut wire, act).await;
    assert!(redriven);
    assert_eq!(seen, ["a"]);
}

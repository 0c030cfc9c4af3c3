//! Every key that a script touches is one of its KEYS, seen with MONITOR: on a Redis Cluster anything else fails
//! half way when its slot moves. And all of one partition's keys share one slot.

use std::collections::BTreeSet;

use postdate::store::{DeadFilter, KnownStore, ReplicaStatus, WriteOp};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::driver::{Driver, SharePlan, Step};
use super::fixture::*;
use super::ordered::one_of_each;
use crate::support::Redis;

/// The quoted words of a line of MONITOR.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut inside = false;
    let mut escaped = false;
    for c in line.chars() {
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' if inside => {
                words.push(std::mem::take(&mut word));
                inside = false;
            }
            '"' => inside = true,
            _ if inside => word.push(c),
            _ => {}
        }
    }
    words
}

/// All that happens on this Redis while the work is done.
async fn watched(redis: &Redis, work: impl Future<Output = ()>) -> Vec<String> {
    let wire = TcpStream::connect(("127.0.0.1", redis.port()))
        .await
        .expect("connected");
    let mut lines = BufReader::new(wire);
    lines
        .get_mut()
        .write_all(b"MONITOR\r\n")
        .await
        .expect("sent");
    let mut line = String::new();
    lines.read_line(&mut line).await.expect("read");
    assert_eq!(line, "+OK\r\n");
    let (seen, ()) = tokio::join!(
        async {
            let mut seen = Vec::new();
            loop {
                let mut line = Vec::new();
                lines.read_until(b'\n', &mut line).await.expect("read");
                let line = String::from_utf8_lossy(&line).into_owned();
                if line.contains("\"the end\"") {
                    return seen;
                }
                seen.push(line);
            }
        },
        async {
            work.await;
            let mut raw = redis.connection().await.expect("connected");
            redis::cmd("ECHO")
                .arg("the end")
                .query_async::<()>(&mut raw)
                .await
                .expect("said");
        }
    );
    seen
}

/// Has a dead letter without its body and a key of the wrong type scrubbed, beside a bundle that lost its place.
async fn mend(fixture: &StoreFixture) {
    fixture
        .write(vec![WriteOp::DeadLetter(dead_letter(unnamed(past(), "f")))])
        .await;
    let bodies: Vec<String> = fixture.command(&["KEYS", &fixture.key("d:*")]).await;
    fixture.command::<i64>(&["DEL", &bodies[0]]).await;
    fixture
        .command::<()>(&["SET", &fixture.key("rates"), "not ours"])
        .await;
    let report = fixture.store.scrub(P).await.expect("scrubbed");
    let found = (
        report.restored.len(),
        report.dead_lost.len(),
        report.quarantined.len(),
    );
    assert_eq!(found, (1, 1, 1));
}

#[tokio::test]
async fn interleaving_08_every_key_that_a_script_touches_is_declared() {
    use SharePlan::{Back, Confirmed, Dead, InFlight};
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    let named =
        |names: &[&'static str]| Step::Store(names.iter().map(|n| Some(*n)).collect(), false, true);
    let later = |names: &[&'static str]| {
        Step::Store(names.iter().map(|n| Some(*n)).collect(), false, false)
    };
    let claim = || Step::Claim {
        who: 0,
        expires: true,
    };
    let steps = [
        named(&["a", "b", "c"]),
        named(&["a", "d"]),
        Step::Store(vec![Some("b"), None], true, true),
        Step::Cancel("d"),
        Step::Reschedule("c", true),
        Step::Reschedule("e", false),
        Step::Replace("c", true),
        Step::Replace("e", false),
        claim(),
        Step::Cancel("a"),
        Step::Extend {
            who: 0,
            expires: true,
            first_confirmed: true,
        },
        Step::Sweep,
        Step::GiveBack {
            who: 0,
            first_confirmed: true,
        },
        claim(),
        Step::GiveBack {
            who: 0,
            first_confirmed: true,
        },
        claim(),
        Step::Divide {
            who: 0,
            shares: [Back, InFlight, Dead],
        },
        Step::Settle { who: 0 },
        Step::Sweep,
        Step::Redrive,
        claim(),
        Step::Divide {
            who: 0,
            shares: [Dead, Confirmed, Dead],
        },
        Step::DropDead,
        claim(),
        Step::Divide {
            who: 0,
            shares: [Confirmed, Confirmed, Confirmed],
        },
        later(&["a", "b"]),
        later(&["c"]),
        later(&["d", "e"]),
        Step::Cancel("d"),
        Step::Reschedule("e", false),
        Step::Replace("b", false),
        later(&["d"]),
        Step::Spread,
        Step::Cancel("c"),
    ];
    let remembering = StoreFixture::with(&redis, &redis.url(), 1, LONG as i64).await;
    let ordered = StoreFixture::ordered(&redis, 1).await;
    let rate = postdate::domain::RateLimit {
        per_second: 10,
        burst: 10,
    };
    let lines = watched(
        &redis,
        Box::pin(async {
            for fixture in [&fixture, &remembering] {
                let mut driver = Driver::new(fixture);
                for step in &steps {
                    driver.step(step).await;
                    driver.compare().await;
                }
            }
            one_of_each(&ordered).await;
            fixture
                .store
                .take_tokens(&route(), rate, 1)
                .await
                .expect("leased");
            remembering.store.forget_names(P).await.expect("trimmed");
            fixture
                .store
                .heartbeat(&ReplicaStatus::default(), &KnownStore::default())
                .await
                .expect("beaten");
            fixture
                .write(vec![WriteOp::DeadLetter(dead_letter(unnamed(past(), "d")))])
                .await;
            fixture
                .write(vec![WriteOp::DeadLetter(dead_letter(unnamed(past(), "e")))])
                .await;
            let page = fixture
                .store
                .dead_page(&DeadFilter::default(), None, 2)
                .await
                .expect("a page");
            let again = bundle(vec![unnamed(far(), "d")]);
            assert_eq!(
                fixture.store.redrive(&page.marks[0].id, &again).await,
                Ok(true)
            );
            assert_eq!(
                fixture.store.drop_dead(&[page.marks[1].id.clone()]).await,
                Ok(vec![true])
            );
            fixture
                .store
                .raise_offset("s", 1, None)
                .await
                .expect("raised");
            fixture.keep(vec![unnamed(past(), "x")]).await;
            let shelf = fixture.heads().await.remove(0).due_set;
            fixture
                .command::<i64>(&["DEL", &fixture.key(&format!("due:{shelf}"))])
                .await;
            mend(&fixture).await;
        }),
    )
    .await;

    let mut declared = BTreeSet::new();
    let mut scripts = BTreeSet::new();
    let mut touched = 0;
    for line in lines {
        let words = words(&line);
        let Some(command) = words.first().map(|w| w.to_ascii_uppercase()) else {
            continue;
        };
        if command == "EVALSHA" {
            let keys: usize = words[2].parse().expect("a number");
            declared = words[3..3 + keys].iter().cloned().collect();
            scripts.insert(words[1].clone());
            let tags: BTreeSet<_> = declared
                .iter()
                .map(|k| k.split(['{', '}']).nth(1))
                .collect();
            assert_eq!(tags.len(), 1, "one slot: {declared:?}");
        } else if line.contains("[0 lua]") && !["TIME", "INFO", "SCAN"].contains(&command.as_str())
        {
            assert!(
                declared.contains(&words[1]),
                "{line} touches what is not in {declared:?}"
            );
            touched += 1;
        }
    }
    // Of twenty-four, that which reschedules at maxmemory's cost and the one that only cancels included, eight of them
    // once more for routes that remember, and four for those whose keys leave in order.
    assert_eq!(scripts.len(), 36, "every script was seen");
    assert!(touched > 500);
}

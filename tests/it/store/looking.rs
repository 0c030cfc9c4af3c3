//! Finding, browsing, cancelling and moving as the API does it, and its race with the claim.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postdate::domain::{Entry, Text, UnixMs};
use postdate::store::{
    BrowseKey, BrowseQuery, BundleId, MessageFilter, StoreError, StoredMessage, StoredState,
    WriteOp, WriteResult, encode,
};

use super::fixture::*;
use crate::support::Redis;

use StoredState::{InFlight, Pending};

fn all() -> BrowseQuery {
    let from = UnixMs(0);
    let to = UnixMs(i64::MAX / 4);
    BrowseQuery {
        route: None,
        from,
        to,
        after: None,
        limit: 100,
        filter: MessageFilter::default(),
    }
}

/// All pages of a query, each no longer than asked for.
async fn pages(fixture: &StoreFixture, query: &BrowseQuery) -> Vec<StoredMessage> {
    let (mut found, mut after): (_, Option<BrowseKey>) = (Vec::new(), None);
    loop {
        let query = BrowseQuery {
            after: after.clone(),
            ..query.clone()
        };
        let page = fixture.store.browse(&query).await.expect("browsed");
        assert!(page.found.len() <= query.limit);
        found.extend(page.found);
        assert!(
            page.next.is_none() || page.next > after,
            "no progress at {after:?}"
        );
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

#[tokio::test]
async fn what_is_searched_for_is_found_once_whatever_the_page() {
    let redis = Redis::shared().await;
    let fixture = StoreFixture::on(redis, 8).await;
    let base = far().0;
    let mut names = BTreeSet::new();
    for n in 0..3000_i64 {
        let p = postdate::domain::Partition((n % 8) as u16);
        let kind = ["order", "invoice", "oréder"][(n % 3) as usize];
        let name = format!("{kind}-{n}");
        let mut entry = named(&name, UnixMs(base + n / 100 * 7), "x");
        entry.message.key = Some(format!("customer-{}", n % 50).into_bytes().into());
        fixture.at(p).keep(vec![entry]).await;
        names.insert((name, n % 50));
    }
    let of = |id_prefix: Option<&str>, key: Option<&str>| MessageFilter {
        id_prefix: id_prefix.map(str::to_owned),
        key: key.map(str::to_owned),
        ..MessageFilter::default()
    };
    for (filter, wanted) in [
        (of(Some("order-1"), None), ("order-1", None)),
        (of(Some("oréder-29"), None), ("oréder-29", None)),
        (of(None, Some("customer-7")), ("", Some(7))),
        (
            of(Some("invoice"), Some("customer-7")),
            ("invoice", Some(7)),
        ),
        (of(Some("Order"), None), ("Order", None)),
        (of(None, Some("customer")), ("", Some(-1))),
    ] {
        let (prefix, key) = wanted;
        let expected: BTreeSet<_> = names
            .iter()
            .filter(|(name, n)| name.starts_with(prefix) && key.is_none_or(|key| key == *n))
            .map(|(name, _)| name.clone())
            .collect();
        for limit in [1000, 7] {
            let query = BrowseQuery {
                limit,
                filter: filter.clone(),
                ..all()
            };
            let found = pages(&fixture, &query).await;
            assert!(found.is_sorted_by_key(|message| message.entry.due));
            let ids: BTreeSet<_> = found.iter().map(|message| message.id.to_string()).collect();
            assert_eq!(ids.len(), found.len(), "one came twice: {filter:?}");
            assert_eq!(ids, expected, "{filter:?}, limit {limit}");
        }
    }
    let query = BrowseQuery {
        filter: of(Some("nothing begins so"), None),
        ..all()
    };
    let page = fixture.store.browse(&query).await.expect("browsed");
    assert!(page.found.is_empty() && page.scanned > 0, "{page:?}");
}

/// As the API moves a message: an unknown one is not stored.
async fn move_to(fixture: &StoreFixture, id: &str, due: UnixMs) -> WriteResult {
    let op = WriteOp::Reschedule {
        route: route(),
        id: Text::from(id),
        due,
        fallback: None,
        of: None,
    };
    let p = fixture.store.home_of(&route(), id);
    fixture.store.write(p, vec![op]).await.expect("written")[0][0]
}

async fn cancel_at_home(fixture: &StoreFixture, id: &str) -> WriteResult {
    let op = WriteOp::Cancel {
        route: route(),
        id: Text::from(id),
        of: None,
    };
    let p = fixture.store.home_of(&route(), id);
    fixture.store.write(p, vec![op]).await.expect("written")[0][0]
}

async fn state(fixture: &StoreFixture, id: &str) -> Option<StoredState> {
    fixture
        .store
        .find(&route(), id)
        .await
        .expect("looked")
        .map(|found| found.state)
}

#[tokio::test]
async fn every_waiting_message_is_shown_once_in_due_order_whatever_the_page() {
    let redis = Redis::shared().await;
    let fixture = StoreFixture::on(redis, 8).await;
    let base = far().0 & !((1 << 20) - 1);
    let mut expected = Vec::new();
    for n in 0..400_i64 {
        let p = postdate::domain::Partition((n % 8) as u16);
        // Crowds at one moment, spans over a page's end and a slice's, and lonely ones days away.
        let due = match n % 4 {
            0 => base + 1_048_576 - 2,
            1 => base + n * 7,
            2 => base + n * 3_600_000,
            _ => base + 5,
        };
        let dues = [due, due + 3, due + 4000].map(UnixMs);
        let entries: Vec<_> = dues.iter().map(|d| unnamed(*d, "x")).collect();
        expected.extend(dues.map(|d| d.0));
        // One slice a bundle, as admission makes them.
        for entry in entries {
            fixture.at(p).keep(vec![entry]).await;
        }
    }
    for n in 0..40_i64 {
        let dues = [base + n, base + n + 2000, base + n + 4095].map(UnixMs);
        expected.extend(dues.map(|d| d.0));
        let p = postdate::domain::Partition((n % 8) as u16);
        fixture
            .at(p)
            .keep(dues.iter().map(|d| unnamed(*d, "together")).collect())
            .await;
    }
    expected.sort_unstable();
    for limit in [1000, 100, 7] {
        let found = pages(&fixture, &BrowseQuery { limit, ..all() }).await;
        let dues: Vec<i64> = found.iter().map(|f| f.entry.due.0).collect();
        assert_eq!(dues, expected, "limit {limit}");
        let ids: BTreeSet<_> = found.iter().map(|f| f.id.clone()).collect();
        assert_eq!(ids.len(), found.len(), "one came twice");
    }
    let from = UnixMs(base + 5);
    let to = UnixMs(base + 4000);
    let window = pages(
        &fixture,
        &BrowseQuery {
            from,
            to,
            limit: 50,
            ..all()
        },
    )
    .await;
    let dues: Vec<i64> = window.iter().map(|f| f.entry.due.0).collect();
    let inside: Vec<i64> = expected
        .into_iter()
        .filter(|d| (from.0..=to.0).contains(d))
        .collect();
    assert_eq!(dues, inside);
    let other = postdate::domain::RouteName::new("mail");
    assert!(
        pages(
            &fixture,
            &BrowseQuery {
                route: other,
                ..all()
            }
        )
        .await
        .is_empty()
    );
}

/// The target takes no more: bundles are put off, each to another moment, and stand behind the due times of their messages.
#[tokio::test]
async fn what_was_put_off_is_shown_once_whatever_the_page() {
    let fixture = StoreFixture::shared().await;
    for n in 0..3 {
        let entries = (0..50).map(|_| unnamed(past().plus(n), "x"));
        fixture.keep(entries.collect()).await;
    }
    let claimed = fixture.claim(LONG).await;
    assert_eq!(claimed.len(), 3);
    let due_set = fixture.key(&format!("due:{}", claimed[0].claim.id.due_set()));
    // It stands before them in their due set, long ago.
    fixture.keep(vec![unnamed(past(), "x")]).await;
    for one in claimed {
        fixture
            .store
            .put_off(P, &[one.claim], 5000)
            .await
            .expect("put off");
        fixture.clock_moves().await;
    }
    let scores: Vec<(String, f64)> = fixture
        .command(&["ZRANGE", &due_set, "0", "-1", "WITHSCORES"])
        .await;
    let moments: BTreeSet<i64> = scores.iter().map(|(_, score)| *score as i64).collect();
    assert_eq!(moments.len(), 4, "each at a moment of its own: {scores:?}");
    for limit in [1000, 100, 7] {
        let found = pages(&fixture, &BrowseQuery { limit, ..all() }).await;
        let ids: BTreeSet<_> = found.iter().map(|f| f.id.clone()).collect();
        assert_eq!((found.len(), ids.len()), (151, 151), "limit {limit}");
        assert!(found.iter().all(|f| f.entry.due < past().plus(3)));
    }
    // They are looked for by their own due times.
    let now = fixture.store.clock().now();
    for (from, to, expected) in [
        (UnixMs(0), now, 151),
        (UnixMs(0), past().plus(3), 151),
        (now, far(), 0),
    ] {
        let found = pages(&fixture, &BrowseQuery { from, to, ..all() }).await;
        assert_eq!(found.len(), expected, "{from:?} to {to:?}");
    }
}

/// Nobody has spread a growing bundle in time: its messages are overdue by then, over more than a minute.
#[tokio::test]
async fn what_is_spread_late_is_due_at_once_and_shown_once_whatever_the_page() {
    const MESSAGES: i64 = 40;
    let fixture = StoreFixture::shared().await;
    let entry = |first: UnixMs, n: i64| named(&format!("m{n}"), first.plus(n * 2000), "x");
    // A span of 131 s. Its first messages stay alone.
    let hence = fixture.store.clock().now().plus(3_600_000);
    let begin = UnixMs(hence.0 & !((1 << 17) - 1));
    for name in ["a", "b"] {
        fixture.keep(vec![named(name, begin, "x")]).await;
    }
    fixture
        .keep((0..MESSAGES).map(|n| entry(begin, n)).collect())
        .await;
    let names = fixture.check().await.names;
    let place = |n: i64| names[&format!("orders/m{n}")].split_once(' ');
    let (id, _) = place(0).expect("a place");
    let id = BundleId::parse(id).expect("an id");
    assert!(id.is_growing(), "{id}");
    // The same messages, as if their time had passed.
    let key = fixture.key(&format!("b:{id}"));
    for n in 0..MESSAGES {
        let (same, index) = place(n).expect("a place");
        assert_eq!(same, id.as_str());
        let element = encode(&bundle(vec![entry(past(), n)])).to_vec();
        let mut lset = redis::cmd("LSET");
        lset.arg(&key).arg(index).arg(&element);
        lset.exec_async(&mut fixture.raw.clone())
            .await
            .expect("set");
    }
    let is_spread = fixture.store.spread_now(P, id).await;
    assert!(is_spread.expect("spread"));
    let expected: Vec<UnixMs> = (0..MESSAGES).map(|n| entry(past(), n).due).collect();
    for limit in [1000, 10] {
        let query = BrowseQuery {
            to: begin.plus(-1),
            limit,
            ..all()
        };
        let found = pages(&fixture, &query).await;
        let dues: Vec<UnixMs> = found.iter().map(|f| f.entry.due).collect();
        assert_eq!(dues, expected, "limit {limit}");
        let ids: BTreeSet<_> = found.iter().map(|f| f.id.clone()).collect();
        assert_eq!(ids.len(), found.len(), "one came twice");
    }
    let claimed = fixture.claim(LONG).await;
    let messages: usize = claimed.iter().map(|one| live(one).len()).sum();
    assert_eq!(messages, MESSAGES as usize, "all are due at once");
}

#[tokio::test]
async fn a_tilde_id_finds_cancels_and_moves_its_message() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(["a", "b", "c"].map(|b| unnamed(far(), b)).to_vec())
        .await;
    let found = pages(&fixture, &all()).await;
    let ids: Vec<String> = found.iter().map(|f| f.id.to_string()).collect();
    assert!(ids.iter().all(|id| id.starts_with('~')), "{ids:?}");
    for id in &ids {
        assert_eq!(state(&fixture, id).await, Some(Pending));
    }
    assert_eq!(
        cancel_at_home(&fixture, &ids[0]).await,
        WriteResult::Cancelled
    );
    assert_eq!(
        cancel_at_home(&fixture, &ids[0]).await,
        WriteResult::Unknown
    );
    assert_eq!(
        move_to(&fixture, &ids[0], past()).await,
        WriteResult::Unknown
    );
    // It keeps its id when it leaves its place, and is found by it as often as it moves.
    for due in [far().plus(7), far().plus(9_999_999), past()] {
        assert_eq!(
            move_to(&fixture, &ids[1], due).await,
            WriteResult::Rescheduled
        );
        let moved = fixture
            .store
            .find(&route(), &ids[1])
            .await
            .expect("looked")
            .expect("found");
        assert_eq!((moved.entry.due, moved.id.as_str()), (due, ids[1].as_str()));
        fixture.check().await;
    }
    let claimed = fixture.claim(LONG).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(
        entries(&claimed[0])[0].id.as_ref().map(Text::as_str),
        Some(ids[1].as_str())
    );
    assert_eq!(state(&fixture, &ids[1]).await, Some(InFlight));
    assert_eq!(
        cancel_at_home(&fixture, &ids[1]).await,
        WriteResult::InFlight
    );
    assert_eq!(
        move_to(&fixture, &ids[1], far()).await,
        WriteResult::TooLate
    );
    assert_eq!(
        fixture
            .store
            .settle(P, &[settlement(&claimed[0])])
            .await
            .expect("settled")
            .len(),
        1
    );
    assert_eq!(state(&fixture, &ids[1]).await, None);
    assert_eq!(state(&fixture, &ids[2]).await, Some(Pending));
    assert_eq!(
        cancel_at_home(&fixture, &ids[2]).await,
        WriteResult::Cancelled
    );
    assert_eq!(fixture.counts().await.messages, 0);
    for nobody in [
        "~",
        "~x",
        "~1.0.n.1.1.0",
        "nobody",
        "~zzzzzzzzzzzzz.0.n.1.1.0",
    ] {
        assert_eq!(
            cancel_at_home(&fixture, nobody).await,
            WriteResult::Unknown,
            "{nobody}"
        );
        assert_eq!(
            move_to(&fixture, nobody, far()).await,
            WriteResult::Unknown,
            "{nobody}"
        );
        assert_eq!(state(&fixture, nobody).await, None, "{nobody}");
    }
    fixture.check().await;
}

#[tokio::test]
async fn looking_and_moving_work_at_maxmemory() {
    let redis = Redis::start_with("redis-server", &["--maxmemory", "12mb"]).await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture
        .keep(vec![named("a", far(), "x"), unnamed(far(), "y")])
        .await;
    let id = pages(&fixture, &all())
        .await
        .into_iter()
        .map(|f| f.id.to_string())
        .find(|id| id.starts_with('~'));
    let id = id.expect("the nameless one");
    let () = fixture.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(pages(&fixture, &all()).await.len(), 2);
    assert_eq!(state(&fixture, "a").await, Some(Pending));
    assert_eq!(
        move_to(&fixture, "a", far().plus(1)).await,
        WriteResult::Rescheduled
    );
    assert_eq!(
        move_to(&fixture, &id, far().plus(1)).await,
        WriteResult::Rescheduled
    );
    let room = async |wanted| {
        let replaced = fixture.store.command(
            fixture.p,
            WriteOp::Replace {
                route: route(),
                id: "a".into(),
                bundle: bundle(vec![named("a", far(), wanted)]),
                or_store: false,
                of: None,
            },
        );
        tokio::time::timeout(Duration::from_secs(5), replaced)
            .await
            .expect("it does not wait for room")
    };
    assert!(matches!(room("y").await, Err(StoreError::Full(_))));
    assert_eq!(cancel_at_home(&fixture, &id).await, WriteResult::Cancelled);
    let () = fixture.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(room("y").await, Ok(WriteResult::Replaced));
}

#[tokio::test]
async fn the_histogram_counts_what_waits() {
    let fixture = StoreFixture::on(Redis::shared().await, 4).await;
    let now = fixture.store.clock().now();
    for (n, ahead) in [30_000_i64, 31_000, 90_000, 7_200_500, -5000]
        .into_iter()
        .enumerate()
    {
        let p = postdate::domain::Partition((n % 4) as u16);
        fixture
            .at(p)
            .keep(vec![
                unnamed(now.plus(ahead), "a"),
                unnamed(now.plus(ahead), "b"),
            ])
            .await;
    }
    let histogram = fixture.store.histogram(None).await.expect("read");
    assert!(histogram.exact);
    assert_eq!(histogram.overdue, 2);
    let sums = [&histogram.minute, &histogram.hour, &histogram.day].map(|w| w.iter().sum::<u64>());
    assert_eq!(sums, [4, 6, 8], "{histogram:?}");
    let later = |days: i64, more_ms: i64| now.plus(days * 86_400_000 + more_ms);
    let p = postdate::domain::Partition(3);
    let far = [
        later(1, 60_000),
        later(29, 3_600_000),
        later(29, 7_200_000),
        later(31, 0),
    ];
    for due in far {
        fixture.at(p).keep(vec![unnamed(due, "a")]).await;
    }
    let month = fixture.store.month(None).await.expect("read");
    assert_eq!((month.exact, month.later_days.len()), (true, 29));
    assert_eq!(
        (month.later_days[0], month.later_days[28]),
        (1, 2),
        "{month:?}"
    );
    assert_eq!(month.later_days.iter().sum::<u64>(), 3, "{month:?}");
    let other = postdate::domain::RouteName::new("mail").expect("a name");
    assert_eq!(
        fixture
            .store
            .histogram(Some(&other))
            .await
            .expect("read")
            .day
            .iter()
            .sum::<u64>(),
        0
    );
    let views = fixture.store.partition_views().await.expect("read");
    assert_eq!(
        views.iter().map(|v| v.messages).collect::<Vec<_>>(),
        [4, 2, 2, 6]
    );
    assert!(views.iter().all(|v| v.head.is_some() && v.claims == 0));
}

/// A month with more slices than are read: the last day is estimated as the first one is.
#[tokio::test]
async fn a_full_month_is_estimated_day_by_day() {
    const DAY_MS: i64 = 86_400_000;
    const DAY_MESSAGES: u64 = 40;
    let fixture = StoreFixture::on(Redis::shared().await, 1).await;
    let now = fixture.store.clock().now();
    let p = postdate::domain::Partition(0);
    for day in 1..30 {
        for n in 0..DAY_MESSAGES as i64 {
            // Each in a slice of its own.
            let ahead = day * DAY_MS + 3_600_000 + n * 1_800_000;
            fixture
                .at(p)
                .keep(vec![unnamed(now.plus(ahead), "a")])
                .await;
        }
    }
    let month = fixture.store.month(None).await.expect("read");
    assert!(!month.exact, "not all was read");
    assert_eq!(month.later_days, [DAY_MESSAGES; 29]);
}

/// How many messages each race is run over; 10,000 where it is proven for good.
fn rounds() -> usize {
    std::env::var("POSTDATE_RACES").map_or(400, |n| n.parse().expect("POSTDATE_RACES is a number"))
}

/// Claims one side by side with the commands, and holds every answer against what was claimed: a message is
/// claimed if and only if its command was not told that it was in time.
async fn race(by_name: bool, reschedule: bool) -> [usize; 2] {
    let fixture = &StoreFixture::shared().await;
    let late = AtomicUsize::new(0);
    let in_time = AtomicUsize::new(0);
    for batch in 0..rounds().div_ceil(20) {
        let names: Vec<String> = (0..20).map(|n| format!("r{batch}-{n}")).collect();
        let due = past().plus(batch as i64);
        for name in &names {
            let mut entry = if by_name {
                named(name, due, name)
            } else {
                unnamed(due, name)
            };
            // A list shows no bodies.
            entry.message.key = Some(name.clone().into());
            fixture.keep(vec![entry]).await;
        }
        let shown = pages(
            fixture,
            &BrowseQuery {
                from: due,
                to: due,
                ..all()
            },
        )
        .await;
        let key = |entry: &Entry| {
            String::from_utf8_lossy(entry.message.key.as_deref().unwrap_or_default()).into_owned()
        };
        let ids: Vec<(String, String)> = shown
            .iter()
            .map(|f| (f.id.to_string(), key(&f.entry)))
            .collect();
        assert_eq!(ids.len(), names.len());
        let commands = async {
            let commands = ids.iter().enumerate().map(|(n, (id, _))| async move {
                // Cancels that come together are one call; these come one after another.
                for _ in 0..if reschedule { 0 } else { n } {
                    fixture.heads().await;
                }
                if reschedule {
                    move_to(fixture, id, far()).await
                } else {
                    cancel_at_home(fixture, id).await
                }
            });
            futures_util::future::join_all(commands).await
        };
        let claims = async {
            let mut claimed = Vec::new();
            let request = fixture.request(LONG).await;
            for _ in 0..20 {
                // Trips that change nothing, more in some batches: the claim comes early or late.
                for _ in 0..if reschedule { batch % 4 } else { 0 } {
                    fixture.heads().await;
                }
                let one = postdate::store::ClaimRequest {
                    max_bundles: 1,
                    ..request.clone()
                };
                claimed.extend(fixture.store.claim(&one).await.expect("claimed"));
            }
            claimed
        };
        let (answers, claimed) = tokio::join!(commands, claims);
        let published: BTreeSet<String> = claimed.iter().flat_map(live).collect();
        for ((id, body), answer) in ids.iter().zip(answers) {
            let was_late = match answer {
                WriteResult::Cancelled | WriteResult::Rescheduled => false,
                WriteResult::InFlight | WriteResult::TooLate => true,
                other => panic!("{id}: {other:?}"),
            };
            assert_eq!(published.contains(body), was_late, "{id}: {answer:?}");
            (if was_late { &late } else { &in_time }).fetch_add(1, Ordering::Relaxed);
        }
        for one in &claimed {
            fixture.settle(one).await;
        }
    }
    fixture.check().await;
    [late, in_time].map(AtomicUsize::into_inner)
}

#[tokio::test]
async fn interleaving_of_a_cancel_and_the_claim_every_answer_is_true() {
    for by_name in [true, false] {
        let [late, in_time] = race(by_name, false).await;
        assert!(
            late > 0 && in_time > 0,
            "no race: {late} late, {in_time} in time"
        );
    }
}

#[tokio::test]
async fn interleaving_of_a_reschedule_and_the_claim_every_answer_is_true() {
    for by_name in [true, false] {
        let [late, in_time] = race(by_name, true).await;
        assert!(
            late > 0 && in_time > 0,
            "no race: {late} late, {in_time} in time"
        );
    }
}

/// A route that reads several topics is replayed topic by topic.
#[tokio::test]
async fn a_replay_of_one_topic_leaves_the_progress_of_another_alone() {
    let fixture = StoreFixture::on(Redis::shared().await, 1).await;
    let store = &fixture.store;
    let route = route();
    let topics = [None, Some("a".into()), Some("b".into())];
    for (n, topic) in topics.iter().enumerate() {
        let note = n.to_string();
        let noted = store.note_replay(&route, topic.as_ref(), Some(&note));
        noted.await.expect("noted");
    }
    store
        .note_replay(&route, topics[1].as_ref(), None)
        .await
        .expect("forgotten");
    let mut notes: Vec<Option<String>> = Vec::new();
    for topic in &topics {
        let note = store.replay_note(&route, topic.as_ref());
        notes.push(note.await.expect("read"));
    }
    assert_eq!(notes, [Some("0".into()), None, Some("2".into())]);
}

/// A message that was due on arrival, and whose publish failed, has its id from its way past the store.
#[tokio::test]
async fn a_message_that_was_stored_for_a_retry_is_found_and_cancelled_by_the_id_that_is_shown() {
    let fixture = StoreFixture::on(Redis::shared().await, 1).await;
    let mut entry = unnamed(far(), "x");
    entry.id = Some("~k3x9-4b.0.7".into());
    fixture.keep(vec![entry, unnamed(far(), "y")]).await;
    let shown = pages(&fixture, &all()).await;
    assert_eq!(shown.len(), 2);
    for found in shown {
        assert_eq!(state(&fixture, found.id.as_str()).await, Some(Pending));
        let cancelled = cancel_at_home(&fixture, found.id.as_str()).await;
        assert_eq!(cancelled, WriteResult::Cancelled, "{}", found.id);
    }
    fixture.check().await;
}

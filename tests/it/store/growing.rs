//! Named messages that are due much later share bundles that grow, and leave them before they are due.

use std::collections::BTreeSet;

use postdate::domain::{DeadReason, Text, UnixMs};
use postdate::store::{
    BrowseQuery, BundleId, DeadFilter, IntendedMessage, MessageFilter, ScrubReport, Store,
    StoredState, WriteOp, WriteResult,
};

use super::fixture::*;
use super::invariants::Snapshot;
use crate::support::Redis;

/// Time until the messages are due, at least, and what is added to that at random, ms.
const FAR_MS: i64 = 600_000;
const WITHIN_MS: i64 = 300_000;

fn later(rng: &mut fastrand::Rng) -> UnixMs {
    far_ms(FAR_MS + rng.i64(0..WITHIN_MS))
}

fn far_ms(ms: i64) -> UnixMs {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    UnixMs(now.expect("after 1970").as_millis() as i64 + ms)
}

fn growing(s: &Snapshot) -> Vec<&String> {
    s.bundles.keys().filter(|id| id.contains("/+/")).collect()
}

/// Stores so many named messages, each by a call of its own, and returns when they are due.
async fn store_many(fixture: &StoreFixture, count: usize, rng: &mut fastrand::Rng) -> Vec<UnixMs> {
    let mut dues = Vec::new();
    for n in 0..count {
        let due = later(rng);
        let results = fixture
            .keep(vec![named(&format!("m{n}"), due, "body")])
            .await;
        assert_eq!(results, [WriteResult::Stored]);
        dues.push(due);
    }
    dues
}

/// The versions of so many messages.
async fn versions(store: &Store, count: usize) -> Vec<Text> {
    let mut versions = Vec::new();
    for n in 0..count {
        let found = store.find(&route(), &format!("m{n}")).await.expect("asked");
        versions.push(found.expect("it is there").version);
    }
    versions
}

/// All messages of the route, as a list shows them.
async fn listed(store: &Store) -> Vec<(String, UnixMs)> {
    let mut query = BrowseQuery {
        route: Some(route()),
        from: UnixMs(0),
        to: UnixMs(i64::MAX),
        after: None,
        limit: 7,
        filter: MessageFilter::default(),
    };
    let mut all = Vec::new();
    loop {
        let page = store.browse(&query).await.expect("a page");
        let shown = page.found.into_iter();
        all.extend(shown.map(|one| (one.id.as_str().to_owned(), one.entry.due)));
        match page.next {
            Some(next) => query.after = Some(next),
            None => return all,
        }
    }
}

/// Makes all growing bundles due to be spread.
pub async fn make_due(fixture: &StoreFixture) {
    let due_set = fixture.key("due:orders/+");
    let ids: Vec<String> = fixture.command(&["ZRANGE", &due_set, "0", "-1"]).await;
    for id in &ids {
        fixture.command::<i64>(&["ZADD", &due_set, "1", id]).await;
    }
    if !ids.is_empty() {
        let idx = fixture.key("idx");
        fixture
            .command::<i64>(&["ZADD", &idx, "1", "orders/+"])
            .await;
    }
}

pub async fn spread(store: &Store) -> usize {
    let mut spread = 0;
    for due in store.due_to_spread(&[P], &[route()]).await {
        spread += store.spread(&due).await.expect("spread");
    }
    spread
}

#[tokio::test]
async fn messages_that_are_due_much_later_share_bundles_and_each_is_found() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(1);
    let dues = store_many(&fixture, 300, &mut rng).await;
    let s = fixture.check().await;
    let grown = growing(&s).len();
    assert!((1..40).contains(&grown), "{grown} bundles");
    let alone = s.bundles.len() - grown;
    assert!(alone <= 2 * 40, "the first two of a span: {alone}");
    assert_eq!(fixture.counts().await.messages, 300);

    let mut expected: Vec<_> = (0..300).map(|n| (format!("m{n}"), dues[n])).collect();
    for (name, due) in &expected {
        let found = fixture.store.find(&route(), name).await.expect("asked");
        let found = found.expect("it is there");
        assert_eq!((found.state, found.entry.due), (StoredState::Pending, *due));
        assert_eq!(fixture.body_of(name).await.as_deref(), Some("body"));
    }
    let shown = listed(&fixture.store).await;
    expected.sort_by_key(|(_, due)| *due);
    let moments = |all: &[(String, UnixMs)]| all.iter().map(|(_, due)| *due).collect::<Vec<_>>();
    assert_eq!(moments(&shown), moments(&expected), "in due order");
    let all: BTreeSet<_> = shown.into_iter().collect();
    assert_eq!(all, expected.into_iter().collect());
    let histogram = fixture.store.histogram(None).await.expect("a histogram");
    assert_eq!(histogram.day.iter().sum::<u64>(), 300);
    // On the border of a day a message counts on one side.
    for offset in (-200_000..200_000).step_by(20_000) {
        let name = format!("border{offset}");
        let due = fixture.store.clock().now().plus(86_400_000 + offset);
        fixture.keep(vec![named(&name, due, "body")]).await;
    }
    let day = fixture
        .store
        .histogram(None)
        .await
        .expect("a histogram")
        .day;
    let month = fixture.store.month(None).await.expect("a month").later_days;
    let all = day.iter().sum::<u64>() + month.iter().sum::<u64>();
    assert_eq!(all, 320, "{day:?} {month:?}");
    let mut scanned = 0;
    let visit = |_, _: &_, _| scanned += 1;
    fixture
        .store
        .scan(&route(), visit, |_, _| {})
        .await
        .expect("scanned");
    assert_eq!(scanned, 320);
}

#[tokio::test]
async fn each_is_cancelled_replaced_or_moved_and_its_bytes_are_free_at_once() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(2);
    store_many(&fixture, 200, &mut rng).await;
    let before = fixture.counts().await;
    for n in 0..200 {
        let name = format!("m{n}");
        match n % 4 {
            0 => assert_eq!(fixture.cancel(&name).await, WriteResult::Cancelled),
            1 => {
                let due = later(&mut rng);
                let results = fixture
                    .write(vec![replace(vec![named(&name, due, "other")])])
                    .await;
                assert_eq!(results, [[WriteResult::Replaced]]);
            }
            2 => {
                let moved = fixture.reschedule(&name, later(&mut rng), "").await;
                assert_eq!(moved, WriteResult::Rescheduled);
            }
            _ => {
                let again = fixture
                    .keep(vec![named(&name, later(&mut rng), "again")])
                    .await;
                assert_eq!(again, [WriteResult::Duplicate]);
            }
        }
        if n % 20 == 0 {
            fixture.check().await;
        }
    }
    let counts = fixture.counts().await;
    assert_eq!(counts.messages, 150);
    assert!(counts.bytes < before.bytes, "{counts:?} {before:?}");
    fixture.check().await;
    for n in 0..200 {
        let name = format!("m{n}");
        let expected = if n % 4 == 0 {
            WriteResult::Unknown
        } else {
            WriteResult::Cancelled
        };
        assert_eq!(fixture.cancel(&name).await, expected, "{name}");
    }
    let s = fixture.check().await;
    assert!(s.bundles.is_empty() && s.names.is_empty(), "{s:?}");
    // What the writer knew of its bundles is gone: it begins others.
    store_many(&fixture, 20, &mut rng).await;
    fixture.check().await;
    assert_eq!(fixture.counts().await.messages, 20);
}

#[tokio::test]
async fn one_call_stores_replaces_and_cancels_in_its_order() {
    use WriteResult::{Cancelled, Duplicate, Replaced, Stored};
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(3);
    let due = later(&mut rng);
    // From here on the span has a growing bundle.
    store_at(&fixture, due, &["x", "y", "z"]).await;
    let results = fixture
        .write(vec![
            keep(vec![named("a", due, "1")]),
            keep(vec![named("a", due, "2")]),
            replace(vec![named("a", due, "3")]),
            cancel("x"),
            keep(vec![named("x", due, "4")]),
            keep(vec![named("b", due, "5")]),
            cancel("b"),
            replace(vec![named("z", due, "6")]),
        ])
        .await;
    let expected = [
        Stored, Duplicate, Replaced, Cancelled, Stored, Stored, Cancelled, Replaced,
    ];
    assert_eq!(results.concat(), expected);
    fixture.check().await;
    for (name, body) in [("a", "3"), ("x", "4"), ("y", "y"), ("z", "6")] {
        assert_eq!(fixture.body_of(name).await.as_deref(), Some(body), "{name}");
    }
    assert_eq!(fixture.counts().await.messages, 4);
}

async fn store_at(fixture: &StoreFixture, due: UnixMs, names: &[&str]) {
    for name in names {
        fixture.keep(vec![named(name, due, name)]).await;
    }
}

#[tokio::test]
async fn before_they_are_due_all_are_spread_and_stay_what_they_were() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(4);
    store_many(&fixture, 300, &mut rng).await;
    for n in (0..300).step_by(3) {
        assert_eq!(
            fixture.cancel(&format!("m{n}")).await,
            WriteResult::Cancelled
        );
    }
    let before = listed(&fixture.store).await;
    assert_eq!(spread(&fixture.store).await, 0, "none is due");
    make_due(&fixture).await;
    assert!(spread(&fixture.store).await > 0);
    let s = fixture.check().await;
    assert_eq!(growing(&s), Vec::<&String>::new());
    assert_eq!(listed(&fixture.store).await, before);
    assert_eq!(fixture.counts().await.messages, 200);
    for n in 0..300 {
        let expected = if n % 3 == 0 {
            WriteResult::Unknown
        } else {
            WriteResult::Cancelled
        };
        assert_eq!(fixture.cancel(&format!("m{n}")).await, expected);
    }
    assert!(fixture.check().await.bundles.is_empty());
}

/// An order as people send it, some 150 bytes of JSON.
fn order(n: usize) -> String {
    let mut rng = fastrand::Rng::with_seed(n as u64);
    format!(
        r#"{{"event":"order.timeout","order_id":"m{n}","customer":{},"state":"placed","total_cents":{},"created":"2026-11-{:02}T10:{:02}:00Z"}}"#,
        rng.u32(10_000_000..99_999_999),
        rng.u32(100..1_000_000),
        rng.u8(1..30),
        rng.u8(..60),
    )
}

/// Messages that are much alike take a part of their bytes, and each is still found, cancelled and spread alone.
#[tokio::test]
async fn what_is_alike_is_kept_as_what_differs() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(17);
    for n in 0..300 {
        let name = format!("m{n}");
        fixture
            .keep(vec![named(&name, later(&mut rng), &order(n))])
            .await;
    }
    let counts = fixture.counts().await;
    assert_eq!(counts.messages, 300);
    let each = counts.bytes / 300;
    assert!(each < 140, "{each} bytes each");
    let s = fixture.check().await;
    let mut examples = 0;
    for id in growing(&s) {
        let key = fixture.key(&format!("b:{id}"));
        let first: Vec<u8> = fixture.command(&["LINDEX", &key, "0"]).await;
        examples += usize::from(first.starts_with(b"PE"));
    }
    assert!(examples > 0);
    let all_are_there = async |from: usize| {
        for n in from..300 {
            let id = format!("m{n}");
            assert_eq!(fixture.body_of(&id).await, Some(order(n)), "{id}");
        }
        assert_eq!(listed(&fixture.store).await.len(), 300 - from);
    };
    all_are_there(0).await;
    fixture.command::<i64>(&["DEL", &fixture.key("gone")]).await;
    fixture.store.scrub(P).await.expect("scrubbed");
    fixture.check().await;
    for n in 0..100 {
        let cancelled = fixture.cancel(&format!("m{n}")).await;
        assert_eq!(cancelled, WriteResult::Cancelled);
    }
    all_are_there(100).await;
    fixture.check().await;
    make_due(&fixture).await;
    assert!(spread(&fixture.store).await > 0);
    all_are_there(100).await;
    fixture.check().await;
    for n in 100..300 {
        fixture.cancel(&format!("m{n}")).await;
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.messages, counts.bytes), (0, 0));
    assert!(fixture.check().await.bundles.is_empty());
    // Nothing is left of bundles all of whose messages were cancelled while they grew.
    for n in 0..60 {
        let name = format!("m{n}");
        fixture
            .keep(vec![named(&name, later(&mut rng), &order(n))])
            .await;
    }
    for n in 0..60 {
        let name = format!("m{n}");
        if n % 2 == 0 {
            fixture.cancel(&name).await;
        } else {
            fixture.reschedule(&name, far_ms(100_000), "").await;
            fixture.cancel(&name).await;
        }
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.messages, counts.bytes), (0, 0));
    assert!(fixture.check().await.bundles.is_empty());
}

/// An example that is lost takes its bundle's messages with it: they are dead letters, none of them is another one.
#[tokio::test]
async fn without_its_example_a_message_is_no_other_one() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(18);
    let due = later(&mut rng);
    for n in 0..20 {
        fixture
            .keep(vec![named(&format!("m{n}"), due, &order(n))])
            .await;
    }
    let s = fixture.check().await;
    let [id] = growing(&s)[..] else {
        panic!("one: {s:?}");
    };
    let key = fixture.key(&format!("b:{id}"));
    let mut example: Vec<u8> = fixture.command(&["LINDEX", &key, "0"]).await;
    assert!(example.starts_with(b"PE"));
    example[20] ^= 1;
    let mut lset = redis::cmd("LSET");
    lset.arg(&key).arg(0).arg(&example);
    lset.exec_async(&mut fixture.raw.clone())
        .await
        .expect("set");
    assert!(fixture.store.find_whole(&route(), "m9").await.is_err());
    let report = fixture.store.scrub(P).await.expect("scrubbed");
    assert_eq!(report.unreadable.len(), 1, "{report:?}");
    make_due(&fixture).await;
    assert_eq!(spread(&fixture.store).await, 1);
    let dead = fixture
        .store
        .dead_page(&DeadFilter::default(), None, 100)
        .await
        .expect("a page");
    assert_eq!(dead.marks.len(), 18, "all but the two that were alone");
    assert_eq!(listed(&fixture.store).await.len(), 2);
}

/// Who looked at a message and acts on it later means that message, wherever it lies by then.
#[tokio::test]
async fn a_message_keeps_its_version_until_it_changes() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(14);
    store_many(&fixture, 60, &mut rng).await;
    let before = versions(&fixture.store, 60).await;
    make_due(&fixture).await;
    assert!(spread(&fixture.store).await > 0);
    assert_eq!(versions(&fixture.store, 60).await, before);
    for n in 0..60 {
        let name = format!("m{n}");
        let due = later(&mut rng);
        if n % 2 == 0 {
            let moved = fixture.reschedule(&name, due, "").await;
            assert_eq!(moved, WriteResult::Rescheduled);
        } else {
            let op = replace(vec![named(&name, due, "other")]);
            assert_eq!(fixture.write(vec![op]).await, [[WriteResult::Replaced]]);
        }
    }
    let after = versions(&fixture.store, 60).await;
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(before, after)| before != after)
    );
    for (n, version) in before.into_iter().enumerate() {
        let op = WriteOp::Cancel {
            route: route(),
            id: format!("m{n}").as_str().into(),
            of: Some(IntendedMessage::Seen(version)),
        };
        let result = fixture.store.command(P, op).await.expect("asked");
        assert_eq!(result, WriteResult::Unknown, "another one is there now");
    }
    assert_eq!(fixture.counts().await.messages, 60);
}

/// Each list shows every message once, whatever is spread while it is made.
#[tokio::test]
async fn a_list_passes_by_nothing_that_is_spread_meanwhile() {
    let fixture = StoreFixture::shared().await;
    let other = fixture.another();
    other.reached().await;
    let mut rng = fastrand::Rng::with_seed(15);
    for round in 0..4 {
        store_many(&fixture, 150, &mut rng).await;
        let expected: BTreeSet<String> = (0..150).map(|n| format!("m{n}")).collect();
        let due_set = fixture.key("due:orders/+");
        let ids: Vec<String> = fixture.command(&["ZRANGE", &due_set, "0", "-1"]).await;
        assert!(ids.len() > 3, "{ids:?}");
        let spreads = async {
            for id in &ids {
                let id = BundleId::parse(id).expect("an id");
                assert!(other.store.spread_now(P, id).await.expect("spread"));
            }
        };
        let mut spreads = std::pin::pin!(spreads);
        let mut lists = 0;
        loop {
            let list = listed(&fixture.store);
            let (shown, is_over) = tokio::select! {
                biased;
                () = &mut spreads => (listed(&fixture.store).await, true),
                shown = list => (shown, false),
            };
            lists += 1;
            let names: BTreeSet<String> = shown.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(names, expected, "round {round}, list {lists}");
            assert_eq!(shown.len(), 150, "each once");
            if is_over {
                break;
            }
        }
        for name in &expected {
            assert_eq!(fixture.cancel(name).await, WriteResult::Cancelled);
        }
    }
}

/// Where many messages wait, few bundles hold those of one moment.
#[tokio::test]
async fn the_bundles_of_a_moment_are_few_however_many_messages_wait() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(16);
    // One span of 32 s to begin with.
    let begin = (far_ms(FAR_MS).0 >> 15) << 15;
    // The first messages of a span stay alone.
    for name in ["a", "b"] {
        fixture.keep(vec![named(name, UnixMs(begin), "body")]).await;
    }
    for hundred in 0..40 {
        let entry = |n: i64| {
            let due = UnixMs(begin + rng.i64(0..1 << 15));
            named(&format!("m{hundred}-{n}"), due, "body")
        };
        let entries: Vec<_> = (0..100).map(entry).collect();
        fixture.keep(entries).await;
    }
    let s = fixture.check().await;
    let spans: Vec<_> = s
        .bundles
        .iter()
        .filter(|(id, _)| id.contains("/+/"))
        .map(|(_, bundle)| {
            let dues = bundle.entries.iter().map(|entry| entry.due.0);
            (dues.clone().min(), dues.max())
        })
        .collect();
    assert!(spans.len() > 15, "{}", spans.len());
    for moment in (begin..begin + (1 << 15)).step_by(500) {
        let holds = |(first, last): &&(Option<i64>, Option<i64>)| {
            *first <= Some(moment) && *last >= Some(moment)
        };
        let holders = spans.iter().filter(holds).count();
        // 32 s, 16, 8, and two of 4: the last level goes on.
        assert!(holders <= 5 + 40 * 100 / 256 / 8, "{holders} at {moment}");
    }
    assert_eq!(listed(&fixture.store).await.len(), 4002);
}

/// Of more bundles than are read a sample stands for all.
#[tokio::test]
async fn many_bundles_are_estimated_without_a_leaning() {
    const SPANS: i64 = 2200;
    let fixture = StoreFixture::shared().await;
    let begin = far_ms(3 * 3_600_000);
    // The writer forgets the latest spans, where there are many.
    for first in (0..SPANS / 50).rev().map(|fifty| fifty * 50) {
        for name in ["a", "b", "c"] {
            let entry = |n: i64| {
                let due = begin.plus(n << 17);
                named(&format!("{name}{n}"), due, "body")
            };
            let entries: Vec<_> = (first..first + 50).map(entry).collect();
            fixture.keep(entries).await;
        }
    }
    let s = fixture.check().await;
    assert_eq!(growing(&s).len() as i64, SPANS);
    let day = fixture.store.histogram(None).await.expect("a histogram");
    let month = fixture.store.month(None).await.expect("a month");
    assert!(!day.exact && !month.exact);
    let all = day.day.iter().sum::<u64>() + month.later_days.iter().sum::<u64>();
    let expected = 3 * SPANS as u64;
    let off = all.abs_diff(expected);
    assert!(off * 25 < expected, "{all} instead of {expected}");
}

/// Cancels, moves and stores beside two that spread: whatever was answered stands.
#[tokio::test]
async fn what_is_cancelled_while_it_is_spread_is_gone_and_nothing_else_is() {
    let fixture = StoreFixture::shared().await;
    let other = fixture.another();
    other.reached().await;
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..5 {
        store_many(&fixture, 150, &mut rng).await;
        make_due(&fixture).await;
        let cancels = async {
            let mut cancelled = 0;
            for n in (0..150).step_by(2) {
                let answer = other.cancel(&format!("m{n}")).await;
                assert_eq!(answer, WriteResult::Cancelled, "it is due much later");
                cancelled += 1;
            }
            cancelled
        };
        let (one, two, cancelled) =
            tokio::join!(spread(&fixture.store), spread(&other.store), cancels);
        assert!(one + two > 0);
        fixture.check().await;
        assert_eq!(
            fixture.counts().await.messages,
            150 - cancelled,
            "round {round}"
        );
        for n in (1..150).step_by(2) {
            assert_eq!(
                fixture.cancel(&format!("m{n}")).await,
                WriteResult::Cancelled
            );
        }
    }
}

#[tokio::test]
async fn growing_bundles_alone_are_no_damage() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(12);
    store_at(&fixture, later(&mut rng), &["a", "b", "c"]).await;
    for name in ["a", "b"] {
        assert_eq!(fixture.cancel(name).await, WriteResult::Cancelled);
    }
    let s = fixture.check().await;
    assert_eq!((growing(&s).len(), s.bundles.len()), (1, 1));
    assert_eq!(fixture.store.lost_indexes(&[P]).await, []);
    let report = fixture.store.scrub(P).await.expect("scrubbed");
    let clean = ScrubReport {
        counts: Some(0),
        ..ScrubReport::default()
    };
    assert_eq!(report, clean);
    // Entries that no transition makes, in the indexes of what is published.
    make_due(&fixture).await;
    let (shelves, heads) = (fixture.key("shelves"), fixture.key("heads"));
    let plant = async || {
        let place = format!("orders/{:016}/+", 1);
        let planted: i64 = fixture.command(&["ZADD", &shelves, "0", &place]).await;
        assert_eq!(planted, 1);
        let planted: i64 = fixture.command(&["ZADD", &heads, "1", "orders/+"]).await;
        assert_eq!(planted, 1);
    };
    plant().await;
    fixture.store.scrub(P).await.expect("scrubbed");
    fixture.check().await;
    // Who meets them before a scrub claims nothing, and they are gone after that.
    plant().await;
    assert_eq!(fixture.claim(LONG).await.len(), 0);
    fixture
        .keep(vec![named("soon", far_ms(1000), "body")])
        .await;
    let heads: Vec<String> = fixture.command(&["ZRANGE", &heads, "0", "-1"]).await;
    assert!(!heads.contains(&"orders/+".to_owned()), "{heads:?}");
    fixture.check().await;
}

/// Documented: what was cancelled comes back. Here nothing is left of it, and what was not cancelled is not lost with it.
#[tokio::test]
async fn a_bitmap_that_is_lost_takes_no_message_with_it() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(13);
    let due = later(&mut rng);
    store_at(&fixture, due, &["a", "b", "c", "d", "e"]).await;
    assert_eq!(fixture.cancel("d").await, WriteResult::Cancelled);
    let gone = fixture.key("gone");
    let ids: Vec<String> = fixture.command(&["HKEYS", &gone]).await;
    // A scrub makes it again from what the bundle has: as it was, and as each loss leaves it.
    let whole: Vec<String> = fixture.command(&["HVALS", &gone]).await;
    for broken in ["", "0", "01x", "1111"] {
        fixture.command::<i64>(&["DEL", &gone]).await;
        if !broken.is_empty() {
            fixture
                .command::<i64>(&["HSET", &gone, &ids[0], broken])
                .await;
        }
        fixture.store.scrub(P).await.expect("scrubbed");
        let mended: Vec<String> = fixture.command(&["HVALS", &gone]).await;
        assert_eq!(mended, whole, "{broken:?}");
        let histogram = fixture.store.histogram(None).await.expect("a histogram");
        assert_eq!(histogram.day.iter().sum::<u64>(), 4);
        fixture.check().await;
    }
    // Whoever writes before a scrub reads what is gone from the list.
    let lose = async || fixture.command::<i64>(&["DEL", &gone]).await;
    lose().await;
    assert_eq!(fixture.cancel("d").await, WriteResult::Unknown);
    assert_eq!(fixture.cancel("c").await, WriteResult::Cancelled);
    fixture.check().await;
    lose().await;
    let moved = fixture.reschedule("e", later(&mut rng), "").await;
    assert_eq!(moved, WriteResult::Rescheduled);
    fixture.check().await;
    lose().await;
    store_at(&fixture, due, &["c", "f"]).await;
    fixture.check().await;
    assert_eq!(fixture.counts().await.messages, 5);
    lose().await;
    make_due(&fixture).await;
    assert_eq!(spread(&fixture.store).await, 1);
    fixture.check().await;
    assert_eq!(fixture.counts().await.messages, 5);
    let kept = listed(&fixture.store).await.into_iter();
    let kept: BTreeSet<_> = kept.map(|(name, _)| name).collect();
    assert_eq!(
        kept,
        BTreeSet::from(["a", "b", "c", "e", "f"].map(str::to_owned))
    );
    fixture.store.scrub(P).await.expect("scrubbed");
    fixture.check().await;
}

#[tokio::test]
async fn what_a_redis_has_lost_of_a_growing_bundle_is_found() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    let mut rng = fastrand::Rng::with_seed(7);
    store_many(&fixture, 120, &mut rng).await;
    let s = fixture.check().await;
    let grown: Vec<String> = growing(&s).into_iter().cloned().collect();
    let [lost, orphan, wrong, ..] = &grown[..] else {
        panic!("three: {grown:?}");
    };
    let blob = |id: &str| fixture.key(&format!("b:{id}"));
    fixture.command::<i64>(&["DEL", &blob(lost)]).await;
    fixture
        .command::<i64>(&["ZREM", &fixture.key("due:orders/+"), orphan])
        .await;
    fixture.command::<String>(&["SET", &blob(wrong), "x"]).await;
    let (mut gone, mut back) = (BTreeSet::new(), BTreeSet::new());
    let names = |ids: &[BundleId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    for _ in 0..3 {
        let report = fixture.store.scrub(P).await.expect("scrubbed");
        gone.extend(names(&report.lost));
        back.extend(names(&report.restored));
    }
    assert_eq!(back, BTreeSet::from([orphan.clone()]));
    assert_eq!(gone, BTreeSet::from([lost.clone(), wrong.clone()]));
    fixture.check().await;
}

/// One message of a bundle cannot be read: it alone becomes a dead letter.
#[tokio::test]
async fn a_message_that_cannot_be_read_takes_no_other_with_it() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(8);
    let due = later(&mut rng);
    store_at(&fixture, due, &["a", "b", "c", "d", "e"]).await;
    let s = fixture.check().await;
    let [id] = growing(&s)[..] else {
        panic!("one: {s:?}");
    };
    let key = fixture.key(&format!("b:{id}"));
    let (_, place) = s.names["orders/d"].split_once(' ').expect("a place");
    fixture
        .command::<String>(&["LSET", &key, place, "not ours"])
        .await;
    make_due(&fixture).await;
    assert_eq!(spread(&fixture.store).await, 1);
    let dead = fixture
        .store
        .dead_page(&DeadFilter::default(), None, 10)
        .await
        .expect("a page");
    let reasons: Vec<_> = dead.marks.iter().map(|mark| mark.id.reason()).collect();
    assert_eq!(reasons, [DeadReason::Corrupt]);
    let kept = listed(&fixture.store).await.into_iter();
    let kept: BTreeSet<_> = kept.map(|(name, _)| name).collect();
    assert_eq!(
        kept,
        BTreeSet::from(["a", "b", "c", "e"].map(str::to_owned))
    );
    // Its name means nothing any more.
    assert_eq!(fixture.cancel("d").await, WriteResult::Unknown);
}

/// A replica of that version may serve it.
#[tokio::test]
async fn a_bundle_of_a_later_version_is_left_alone_and_those_behind_it_are_not() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(9);
    store_many(&fixture, 100, &mut rng).await;
    let s = fixture.check().await;
    let id = growing(&s)[0].clone();
    let key = fixture.key(&format!("b:{id}"));
    let element: Vec<u8> = fixture.command(&["LINDEX", &key, "0"]).await;
    let mut later = element.clone();
    later[2] = 99;
    let set = async |element: &[u8]| {
        let mut lset = redis::cmd("LSET");
        lset.arg(&key).arg(0).arg(element);
        lset.exec_async(&mut fixture.raw.clone())
            .await
            .expect("set");
    };
    set(&later).await;
    make_due(&fixture).await;
    spread(&fixture.store).await;
    set(&element).await;
    let s = fixture.check().await;
    assert_eq!(growing(&s), [&id]);
    assert_eq!(spread(&fixture.store).await, 1);
    assert_eq!(listed(&fixture.store).await.len(), 100);
}

#[tokio::test]
async fn a_full_bundle_is_followed_by_another() {
    let fixture = StoreFixture::shared().await;
    let mut rng = fastrand::Rng::with_seed(10);
    let due = later(&mut rng);
    for hundred in 0..6 {
        let names: Vec<String> = (0..100).map(|n| format!("m{hundred}-{n}")).collect();
        let entries = names.iter().map(|name| named(name, due, "body")).collect();
        let results = fixture.keep(entries).await;
        assert_eq!(results, [WriteResult::Stored; 100]);
    }
    let s = fixture.check().await;
    let sizes: Vec<usize> = s
        .bundles
        .iter()
        .filter(|(id, _)| id.contains("/+/"))
        .map(|(_, bundle)| {
            bundle
                .entries
                .iter()
                .filter(|entry| entry.due.0 > 0)
                .count()
        })
        .collect();
    assert_eq!(
        sizes.iter().sum::<usize>(),
        500,
        "the first call stays alone: {sizes:?}"
    );
    // An example may have a place.
    assert!(
        sizes.iter().any(|size| (255..=256).contains(size)),
        "{sizes:?}"
    );
    make_due(&fixture).await;
    assert_eq!(spread(&fixture.store).await, 2);
    assert_eq!(
        fixture.check().await.bundles.len(),
        3,
        "all are due at one moment"
    );
}

/// At `maxmemory` what waits can be cancelled, and nothing more comes in.
#[tokio::test]
async fn what_is_cancelled_in_a_full_redis_frees_its_memory() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    let mut rng = fastrand::Rng::with_seed(11);
    let due = later(&mut rng);
    let names: Vec<String> = (0..200).map(|n| format!("m{n}")).collect();
    let large = "x".repeat(2000);
    for name in &names {
        fixture.keep(vec![named(name, due, &large)]).await;
    }
    let before = fixture.counts().await.bytes;
    make_due(&fixture).await;
    fixture
        .command::<String>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    for name in &names[..100] {
        assert_eq!(fixture.cancel(name).await, WriteResult::Cancelled);
    }
    assert!(fixture.counts().await.bytes < before * 6 / 10);
    assert!(
        spread(&fixture.store).await > 0,
        "it takes no more than it frees"
    );
    fixture
        .command::<String>(&["CONFIG", "SET", "maxmemory", "0"])
        .await;
    fixture.check().await;
    assert_eq!(fixture.counts().await.messages, 100);
}

//! Checks the invariants of a partition's keys, read raw; they must hold after every step.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use postdate::domain::Partition;
use postdate::store::{Bundle, BundleId, DeadId, decode};
use redis::aio::MultiplexedConnection;

/// All that stands in a partition.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Bundle -> score, over all due zsets.
    pub due: BTreeMap<String, i64>,
    /// Bundle -> deadline.
    pub claims: BTreeMap<String, i64>,
    pub bundles: BTreeMap<String, Bundle>,
    pub gone: BTreeMap<String, String>,
    pub done: BTreeMap<String, String>,
    pub expiries: BTreeMap<String, i64>,
    /// `route/name` -> `bundle index`.
    pub names: BTreeMap<String, String>,
    pub counts: BTreeMap<String, i64>,
    /// `route/name` -> until when it stays taken.
    pub delivered: BTreeMap<String, i64>,
    /// Dead id -> its bundle of one.
    pub dead: BTreeMap<String, Bundle>,
    /// Blobs that a time to live will remove.
    pub passing: BTreeSet<String>,
}

impl Snapshot {
    pub fn is_set(map: &BTreeMap<String, String>, id: &str, index: usize) -> bool {
        map.get(id)
            .is_some_and(|bits| bits.as_bytes().get(index) == Some(&b'1'))
    }

    pub fn stands(&self, id: &str) -> bool {
        self.due.contains_key(id) || self.claims.contains_key(id)
    }
}

async fn zset(raw: &mut MultiplexedConnection, key: &str) -> BTreeMap<String, i64> {
    let found: Vec<(String, f64)> = redis::cmd("ZRANGE")
        .arg(key)
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES")
        .query_async(raw)
        .await
        .expect("a zset");
    found
        .into_iter()
        .map(|(member, score)| (member, score as i64))
        .collect()
}

async fn hash<T: redis::FromRedisValue + Ord>(
    raw: &mut MultiplexedConnection,
    key: &str,
) -> BTreeMap<String, T> {
    redis::cmd("HGETALL")
        .arg(key)
        .query_async(raw)
        .await
        .expect("a hash")
}

/// A blob and how long it will live, -1: for ever.
async fn blob(raw: &mut MultiplexedConnection, key: &str) -> (Vec<u8>, i64) {
    redis::pipe()
        .cmd("GET")
        .arg(key)
        .cmd("PTTL")
        .arg(key)
        .query_async(raw)
        .await
        .expect("a blob")
}

/// The messages of a growing bundle, each an element of its list; what is gone is empty.
async fn elements(raw: &mut MultiplexedConnection, key: &str) -> Vec<Vec<u8>> {
    redis::cmd("LRANGE")
        .arg(key)
        .arg(0)
        .arg(-1)
        .query_async(raw)
        .await
        .expect("a list")
}

/// A growing bundle of these elements, as the store joins them. A place without a message has no due time.
fn grown(elements: &[Vec<u8>]) -> Bundle {
    let mut joined = b"PL".to_vec();
    for element in elements {
        joined.extend((element.len() as u32).to_le_bytes());
        joined.extend(element);
    }
    decode(&joined.into()).expect("bundles of one")
}

/// A shelf's member of `shelves`.
fn place_of(shelf: &str, due: i64) -> String {
    let (route, slice) = shelf.split_once('/').expect("a shelf");
    format!("{route}/{due:016}/{slice}")
}

/// Reads a partition and asserts all that must be true of it.
#[allow(clippy::too_many_lines, reason = "one invariant after another")]
pub async fn check(raw: &mut MultiplexedConnection, prefix: &str, p: Partition) -> Snapshot {
    let root = format!("{prefix}:{{{p}}}:");
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("{root}*"))
        .query_async(raw)
        .await
        .expect("keys");
    let idx = zset(raw, &format!("{root}idx")).await;
    let mut tokens: BTreeMap<String, String> = hash(raw, &format!("{root}tokens")).await;
    let mut s = Snapshot {
        claims: zset(raw, &format!("{root}claims")).await,
        gone: hash(raw, &format!("{root}gone")).await,
        done: hash(raw, &format!("{root}done")).await,
        expiries: hash(raw, &format!("{root}expiries")).await,
        names: hash(raw, &format!("{root}names")).await,
        delivered: zset(raw, &format!("{root}delivered")).await,
        counts: hash(raw, &format!("{root}counts")).await,
        ..Snapshot::default()
    };
    let mut sizes = BTreeMap::new();
    let mut heads = BTreeMap::new();
    let mut dead = BTreeMap::new();
    for key in keys {
        let name = &key[root.len()..];
        if let Some(shelf) = name.strip_prefix("due:") {
            let entries = zset(raw, &key).await;
            let first = entries.values().copied().min().expect("never empty");
            heads.insert(shelf.to_owned(), first);
            for (id, score) in entries {
                let parsed =
                    BundleId::parse(&id).unwrap_or_else(|| panic!("{id} is no bundle's id"));
                assert_eq!(parsed.due_set(), shelf, "{id} lies on the wrong shelf");
                assert!(
                    s.due.insert(id.clone(), score).is_none(),
                    "{id} is due twice"
                );
            }
        } else if let Some(id) = name.strip_prefix("b:").filter(|id| id.contains("/+/")) {
            let elements = elements(raw, &key).await;
            let bytes: usize = elements.iter().map(Vec::len).sum();
            sizes.insert(id.to_owned(), bytes as i64);
            s.bundles.insert(id.to_owned(), grown(&elements));
        } else if let Some(id) = name.strip_prefix("b:") {
            let (blob, ttl) = blob(raw, &key).await;
            if ttl >= 0 {
                s.passing.insert(id.to_owned());
                continue;
            }
            sizes.insert(id.to_owned(), blob.len() as i64);
            let bundle = decode(&Bytes::from(blob)).unwrap_or_else(|why| panic!("{id}: {why}"));
            s.bundles.insert(id.to_owned(), bundle);
        } else if let Some(queue) = name.strip_prefix("dead:") {
            for (id, at) in zset(raw, &key).await {
                let parsed =
                    DeadId::parse(&id).unwrap_or_else(|| panic!("{id} is no dead letter's id"));
                assert_eq!(
                    (queue_of(&id), parsed.partition()),
                    (queue.to_owned(), p),
                    "{id} lies elsewhere"
                );
                assert!(dead.insert(id.clone(), at).is_none(), "{id} is dead twice");
            }
        } else if let Some(id) = name.strip_prefix("d:") {
            let (blob, ttl) = blob(raw, &key).await;
            if ttl < 0 {
                sizes.insert(id.to_owned(), blob.len() as i64);
                s.dead.insert(
                    id.to_owned(),
                    decode(&Bytes::from(blob)).expect("a dead letter"),
                );
            }
        }
    }
    assert_eq!(idx, heads, "the index and the due zsets agree");
    // Nobody publishes from growing bundles: they are in no other index.
    let idx: BTreeMap<String, i64> = idx
        .into_iter()
        .filter(|(shelf, _)| !shelf.ends_with("/+"))
        .collect();
    let places = zset(raw, &format!("{root}shelves")).await;
    let expected: BTreeSet<_> = idx
        .iter()
        .map(|(shelf, due)| place_of(shelf, *due))
        .collect();
    assert_eq!(
        places.into_keys().collect::<BTreeSet<_>>(),
        expected,
        "each shelf has its place"
    );
    let mut firsts: BTreeMap<&str, (i64, &str)> = BTreeMap::new();
    for (shelf, due) in &idx {
        let route = shelf.split('/').next().expect("a route");
        let first = firsts.entry(route).or_insert((*due, shelf));
        *first = (*first).min((*due, shelf));
    }
    let firsts: BTreeMap<_, _> = firsts
        .into_values()
        .map(|(due, shelf)| (shelf.to_owned(), due))
        .collect();
    assert_eq!(
        zset(raw, &format!("{root}heads")).await,
        firsts,
        "each route has its earliest shelf"
    );
    let due: BTreeSet<_> = s.due.keys().cloned().collect();
    let claimed: BTreeSet<_> = s.claims.keys().cloned().collect();
    assert!(
        due.is_disjoint(&claimed),
        "a bundle is due or claimed: {due:?} {claimed:?}"
    );
    let blobs: BTreeSet<_> = s.bundles.keys().cloned().collect();
    assert_eq!(
        &due | &claimed,
        blobs,
        "each entry has its blob, each blob its entry"
    );
    assert_eq!(
        tokens.len(),
        claimed.len(),
        "a token per claim: {tokens:?} {claimed:?}"
    );
    tokens.retain(|id, _| !claimed.contains(id));
    assert!(tokens.is_empty(), "tokens without a claim: {tokens:?}");
    assert_eq!(
        dead.keys().collect::<Vec<_>>(),
        s.dead.keys().collect::<Vec<_>>(),
        "each dead letter has its body and each body its entry"
    );
    beside(&s);
    of_bundles_that_stand(raw, &root, &s).await;
    counted(&s, &sizes);
    s
}

/// Names of the keys whose fields or members are no bundle ids.
const NOT_BY_BUNDLE: [&str; 10] = [
    "idx",
    "heads",
    "shelves",
    "names",
    "counts",
    "calls",
    "delivered",
    "order",
    "sources",
    "rates",
];

/// Checks that every other hash and sorted set of the partition, whatever its name, speaks only of bundles that exist:
/// a transition that ends or replaces a bundle leaves nothing of it.
async fn of_bundles_that_stand(raw: &mut MultiplexedConnection, root: &str, s: &Snapshot) {
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("{root}*"))
        .query_async(raw)
        .await
        .expect("keys");
    for key in keys {
        let name = &key[root.len()..];
        if name.contains(':') || NOT_BY_BUNDLE.contains(&name) {
            continue;
        }
        let kind: String = redis::cmd("TYPE")
            .arg(&key)
            .query_async(raw)
            .await
            .expect("a type");
        let ids: Vec<String> = if kind == "zset" {
            zset(raw, &key).await.into_keys().collect()
        } else {
            hash::<String>(raw, &key).await.into_keys().collect()
        };
        for id in ids {
            assert!(s.stands(&id), "{name} of {id}, which stands nowhere");
        }
    }
}

/// Checks that what stands beside bundles fits them.
fn beside(s: &Snapshot) {
    for (id, bits) in s.gone.iter().chain(&s.done) {
        let count = BundleId::parse(id).expect("an id").count();
        assert_eq!(bits.len(), count, "a bit a message: {id}");
    }
    for (id, bundle) in &s.bundles {
        let parsed = BundleId::parse(id).expect("an id");
        if parsed.is_growing() {
            let is_gone = |index| Snapshot::is_set(&s.gone, id, index);
            for (index, entry) in bundle.entries.iter().enumerate() {
                assert_eq!(entry.due.0 == i64::MIN, is_gone(index), "{id} {index}");
            }
            let rest = bundle.entries.len()..parsed.count();
            assert!(rest.clone().all(is_gone), "{id}: {rest:?} is free");
            continue;
        }
        assert_eq!(
            parsed.count(),
            bundle.entries.len(),
            "{id} says how many it holds"
        );
    }
    for (name, place) in &s.names {
        let (id, index) = place.rsplit_once(' ').expect("a place");
        let index: usize = index.parse().expect("an index");
        let Some(bundle) = s.bundles.get(id) else {
            continue;
        }; // free
        let entry = bundle
            .entries
            .get(index)
            .unwrap_or_else(|| panic!("{name} points behind the end of {id}"));
        let own = entry
            .id
            .as_ref()
            .map(|own| format!("{}/{own}", parsed_route(id)));
        assert_eq!(
            own.as_ref(),
            Some(name),
            "{name} points to another's message"
        );
    }
}

fn parsed_route(id: &str) -> &str {
    id.split('/').next().expect("a route")
}

fn queue_of(dead: &str) -> String {
    let id = DeadId::parse(dead).expect("an id");
    match id.reason() {
        reason if reason.is_own_fault() => format!("{}/invalid", id.route()),
        _ => id.route().to_owned(),
    }
}

fn counted(s: &Snapshot, sizes: &BTreeMap<String, i64>) {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for (id, bundle) in &s.bundles {
        let gone = s
            .gone
            .get(id)
            .map_or(0, |bits| bits.bytes().filter(|&b| b == b'1').count());
        let places = BundleId::parse(id).map_or(bundle.entries.len(), |id| id.count());
        *counts.entry(format!("n:{}", parsed_route(id))).or_default() += (places - gone) as i64;
        *counts.entry(format!("b:{}", parsed_route(id))).or_default() += sizes[id];
    }
    for id in s.dead.keys() {
        *counts.entry(format!("d:{}", queue_of(id))).or_default() += 1;
        *counts.entry(format!("x:{}", queue_of(id))).or_default() += sizes[id];
    }
    for name in s.delivered.keys() {
        *counts
            .entry(format!("r:{}", name.split('/').next().expect("a route")))
            .or_default() += 1;
    }
    let mut kept = s.counts.clone();
    kept.retain(|field, n| *n != 0 && field.contains(':'));
    assert_eq!(kept, counts, "the counts are what stands there");
}

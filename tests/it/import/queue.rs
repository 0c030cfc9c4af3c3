//! The other program's queue by itself: what is removed, and under which lock.

use bytes::Bytes;
use postdate::domain::{Secret, Text};
use postdate::import::foreign::{
    BatchMark, EntryProblem, ForeignEntry, ForeignError, ForeignKeys, ForeignPhase, ForeignQueue,
    ForeignServer,
};

use crate::support::Redis;

async fn queue(redis: &Redis, keys: ForeignKeys) -> ForeignQueue {
    let server = ForeignServer {
        url: Secret::new(redis.url()),
        ca: None,
    };
    ForeignQueue::connect(&server, keys, 64)
        .await
        .expect("connected")
}

/// Reads all entries. The name of each is its member.
async fn read(queue: &ForeignQueue) -> Vec<(Text, ForeignEntry)> {
    let entries = queue.read(ForeignPhase::DueTimes, 0).await.expect("read");
    entries
        .into_iter()
        .map(|entry| {
            let entry = entry.expect("whole");
            let name = std::str::from_utf8(&entry.member).expect("UTF-8").into();
            (name, entry)
        })
        .collect()
}

#[tokio::test]
async fn only_what_is_unchanged_is_removed() {
    let redis = Redis::start().await;
    let command = async |parts: &[&str]| redis.command::<u64>(parts).await.expect("an answer");
    for (id, body) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")] {
        command(&["ZADD", "{k}", "1900000000000", id]).await;
        command(&["HSET", "{k}:bodies", id, body]).await;
    }
    let queue = queue(&redis, ForeignKeys::zset("{k}", Some("{k}:bodies"))).await;
    queue.lock().await.expect("locked");
    assert_eq!(
        queue.batch_mark().await.expect("read"),
        BatchMark::default()
    );
    queue.begin_batch("batch").await.expect("marked");
    let begun = queue.batch_mark().await.expect("read");
    assert_eq!((begun.batch.as_str(), begun.removed), ("batch", None));
    let entries = read(&queue).await;
    assert_eq!(entries.len(), 4);
    command(&["ZADD", "{k}", "1900000000001", "b"]).await;
    command(&["HSET", "{k}:bodies", "c", "changed"]).await;
    command(&["ZREM", "{k}", "d"]).await;
    let removed = queue
        .remove(ForeignPhase::DueTimes, "batch", &entries)
        .await
        .expect("removed");
    assert_eq!(removed, [true, false, false, false]);
    let left: Vec<String> = redis
        .command(&["ZRANGE", "{k}", "0", "-1"])
        .await
        .expect("an answer");
    assert_eq!(left, ["c", "b"]);
    let mark = queue.batch_mark().await.expect("read");
    assert_eq!(mark.removed, Some(["a".to_owned()].into()), "what left");
}

#[tokio::test]
async fn an_import_that_has_lost_its_lock_removes_nothing() {
    let redis = Redis::start().await;
    redis
        .command::<u64>(&["ZADD", "k", "1900000000000", "a"])
        .await
        .expect("an answer");
    let first = queue(&redis, ForeignKeys::zset("k", None)).await;
    let second = queue(&redis, ForeignKeys::zset("k", None)).await;
    first.lock().await.expect("locked");
    assert!(matches!(second.lock().await, Err(ForeignError::Locked)));
    let entries = read(&first).await;
    // The lock ends, as that of a stopped process does, and the other one takes it.
    redis
        .command::<u64>(&["DEL", "postdate_import:{k}"])
        .await
        .expect("an answer");
    second.lock().await.expect("locked");
    let refused = first
        .remove(ForeignPhase::DueTimes, "batch", &entries)
        .await;
    assert!(matches!(refused, Err(ForeignError::Locked)), "{refused:?}");
    let refused = first.begin_batch("other").await;
    assert!(matches!(refused, Err(ForeignError::Locked)), "{refused:?}");
    assert!(matches!(
        first.extend_lock().await,
        Err(ForeignError::Locked)
    ));
    assert!(
        matches!(first.unlock().await, Err(ForeignError::Locked)),
        "the other's lock stays"
    );
    assert_eq!(
        second
            .remove(ForeignPhase::DueTimes, "batch", &entries)
            .await
            .expect("removed"),
        [true]
    );
    second.unlock().await.expect("unlocked");
    second.forget_mark().await.expect("removed");
    assert_eq!(
        redis.command::<u64>(&["DBSIZE"]).await.expect("an answer"),
        0
    );
}

#[tokio::test]
async fn reads_are_bounded_and_what_is_too_large_is_not_read() {
    let redis = Redis::start().await;
    for n in 0..450 {
        redis
            .command::<u64>(&["ZADD", "k", &n.to_string(), &format!("m{n}")])
            .await
            .expect("an answer");
    }
    redis
        .command::<u64>(&["ZADD", "k", "9000", &"x".repeat(65)])
        .await
        .expect("an answer");
    let queue = queue(&redis, ForeignKeys::zset("k", None)).await;
    let mut all = Vec::new();
    loop {
        let entries = queue
            .read(ForeignPhase::DueTimes, all.len())
            .await
            .expect("read");
        if entries.is_empty() {
            break;
        }
        assert!(entries.len() <= 200, "{}", entries.len());
        all.extend(entries);
    }
    assert_eq!(all.len(), 451);
    let last = all.pop().expect("the last");
    assert_eq!(
        last,
        Err((EntryProblem::TooLarge, Bytes::from("x".repeat(64))))
    );
    let first = all.first().expect("the first").as_ref().expect("whole");
    assert_eq!((&first.member[..], first.score.as_str()), (&b"m0"[..], "0"));
}

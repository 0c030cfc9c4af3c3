//! An import that was cut off between storing and removing, and a queue whose own program goes on meanwhile.

use super::fixture::{ImportFixture, ImportOutput};
use crate::support::eventually;
use crate::support::run::now_ms;

const HOUR_MS: i64 = 3_600_000;
const COUNT: usize = 100;
const TAKEN: usize = 60;
/// May do all that an import does, but what comes first in its removal.
const CUT_OFF_USER: &str = "cutoff";

/// Adds entries that are due after so long, and imports them as a user whose removals fail.
async fn cut_off(fixture: &ImportFixture, due_ms: i64) {
    let due = (now_ms() + due_ms).to_string();
    for n in 0..COUNT {
        let member = format!("m{n:03}");
        fixture
            .source::<u64>(&["ZADD", "delayed", &due, &member])
            .await;
    }
    let rules = ["on", ">secret", "~*", "+@all", "-zscore"];
    let command = [&["ACL", "SETUSER", CUT_OFF_USER][..], &rules].concat();
    fixture.source::<()>(&command).await;
    let login = format!("://{CUT_OFF_USER}:secret@");
    let url = fixture.source.url().replace("://", &login);
    let cut_off = fixture.import_from(&url, &args()).await;
    assert_eq!(cut_off.code, 1, "{cut_off:?}");
    let members: u64 = fixture.source(&["ZCARD", "delayed"]).await;
    assert_eq!(members, COUNT as u64, "nothing was removed");
}

fn args() -> Vec<&'static str> {
    "zset --key delayed --score ms --member body --route r --yes"
        .split(' ')
        .collect()
}

/// The queue's own program takes some entries.
async fn take(fixture: &ImportFixture) {
    for n in 0..TAKEN {
        let member = format!("m{n:03}");
        fixture.source::<u64>(&["ZREM", "delayed", &member]).await;
    }
}

/// Runs the import again, by another address of the same server.
async fn go_on(fixture: &ImportFixture) -> ImportOutput {
    let url = fixture.source.url().replace("127.0.0.1", "localhost");
    let last = fixture.import_from(&url, &args()).await;
    assert_eq!(
        (last.code, last.count("moved"), last.count("left in")),
        (0, (COUNT - TAKEN) as u64, 0),
        "{last:?}"
    );
    assert_eq!(last.count("of them stored"), 40, "{last:?}");
    let own: Vec<String> = fixture.source(&["KEYS", "*postdate_import*"]).await;
    assert!(
        own.iter().all(|key| !key.contains("mark")),
        "the mark is gone: {own:?}"
    );
    last
}

#[tokio::test]
async fn what_the_queues_own_program_took_meanwhile_is_called_back() {
    let fixture = ImportFixture::new("").await;
    cut_off(&fixture, HOUR_MS).await;
    assert_eq!(fixture.pending().await.len(), COUNT, "all is stored");
    take(&fixture).await;
    let last = go_on(&fixture).await;
    assert_eq!(
        (last.count("taken by"), last.count("that may arrive")),
        (TAKEN as u64, 0),
        "{last:?}"
    );
    assert_eq!(fixture.pending().await.len(), COUNT - TAKEN);
}

#[tokio::test]
async fn what_both_have_delivered_is_counted() {
    let mut fixture = ImportFixture::new("").await;
    cut_off(&fixture, 1000).await;
    fixture.arrived(COUNT).await;
    eventually("nothing waits", async || {
        let waits = fixture.pending().await.len();
        if waits == 0 { Ok(()) } else { Err(waits) }
    })
    .await;
    take(&fixture).await;
    let last = go_on(&fixture).await;
    assert_eq!(
        (last.count("taken by"), last.count("that may arrive")),
        (0, TAKEN as u64),
        "{last:?}"
    );
    assert_eq!(last.count("of them due already"), 0, "{last:?}");
    assert_eq!(fixture.arrived(COUNT).await.len(), COUNT);
}

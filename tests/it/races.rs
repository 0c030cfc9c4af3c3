//! Cancel and reschedule by the API at the very moment at which a message is claimed, with a real consumer at the
//! other end: every answer is true.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::replay::fixture::{ReplayFixture, record};
use crate::support::run::now_ms;

/// Messages of one test, and how far apart they fall due, ms.
const RACES: i64 = 400;
const APART: i64 = 20;
/// How long before its due time the first is asked about, ms, and by how much that is changed at most. A message is
/// claimed a quarter of a second before the first of its bundle is due, later on a busy machine: the test finds out
/// when, for one that was in time lets the next be asked about later, and one that was not, earlier.
const BEFORE: i64 = 500;
const STEP: i64 = 60;

struct Race {
    id: String,
    due: i64,
    status: u16,
    answer: Value,
}

/// Messages that fall due one after another, each of which is asked about close to the moment of its claim.
async fn races(fixture: &ReplayFixture, method: &str, body: &str) -> Vec<Race> {
    let first = now_ms() + 4000;
    let dues = (0..RACES)
        .map(|n| (format!("m{n}"), first + n * APART))
        .collect::<Vec<_>>();
    let records = dues.iter().map(|(id, due)| {
        record(
            0,
            id,
            &[("x-delay-id", id), ("x-deliver-at", &due.to_string())],
        )
    });
    fixture.produce(&records.collect::<Vec<_>>()).await;
    fixture.committed().await;
    let mut before = BEFORE;
    let mut races = Vec::new();
    for (id, due) in dues {
        // One whose moment has gone by while the last was asked for is no race: where asking takes long, most are not.
        let Ok(wait) = u64::try_from(due - before - now_ms()) else {
            continue;
        };
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let path = format!("/api/v1/routes/r/messages/{id}");
        let (status, answer) = fixture
            .relay()
            .request(method, &path, None, body)
            .await
            .expect("an answer");
        let step = fastrand::i64(0..STEP);
        before += if status == 200 { -step } else { step };
        races.push(Race {
            id,
            due,
            status,
            answer: serde_json::from_str(&answer).expect("JSON"),
        });
    }
    races
}

/// Sorts them by their answers. A store that did not answer in time says so, and may have done it.
fn by_result(races: Vec<Race>) -> BTreeMap<String, Vec<Race>> {
    let mut sorted = BTreeMap::<_, Vec<Race>>::new();
    for race in races {
        let result = match (race.status, race.answer["result"].as_str()) {
            (200, Some(result @ ("cancelled" | "rescheduled")))
            | (409, Some(result @ ("in_flight" | "published" | "too_late")))
            | (404, Some(result @ "unknown")) => result,
            (503 | 504, None) => "nobody knows",
            _ => panic!("{} {}", race.status, race.answer),
        };
        sorted.entry(result.to_owned()).or_default().push(race);
    }
    sorted
}

/// Of either kind there are so many that the moment of the claim lies among them.
fn many(in_time: &[Race], too_late: &BTreeMap<String, Vec<Race>>) {
    let too_late: usize = too_late.values().map(Vec::len).sum();
    let least = (in_time.len() + too_late).max(50) / 10;
    assert!(
        in_time.len() >= least && too_late >= least,
        "no race: {} and {too_late}",
        in_time.len()
    );
}

fn ids(races: &[Race]) -> Vec<String> {
    races.iter().map(|race| race.id.clone()).collect()
}

#[tokio::test]
async fn what_is_cancelled_never_arrives_and_all_else_does() {
    let fixture = ReplayFixture::new(1, "").await;
    let mut races = by_result(races(&fixture, "DELETE", "").await);
    races.remove("nobody knows");
    let cancelled = races.remove("cancelled").unwrap_or_default();
    many(&cancelled, &races);
    for (result, races) in &races {
        println!("{result}: {}", races.len());
        fixture.arrived_at_least(&ids(races)).await;
    }
    // One more, so that what was cancelled has had its time.
    let last = now_ms() + 500;
    fixture
        .produce(&[record(0, "last", &[("x-deliver-at", &last.to_string())])])
        .await;
    fixture.arrived_at_least(&["last".to_owned()]).await;
    let arrivals = fixture.arrivals();
    let cancelled = ids(&cancelled);
    let lies: Vec<_> = cancelled
        .iter()
        .filter(|id| arrivals.contains(id))
        .collect();
    assert!(lies.is_empty(), "cancelled, and published: {lies:?}");
}

#[tokio::test]
async fn what_is_rescheduled_arrives_at_its_new_moment_and_all_else_at_its_old_one() {
    let fixture = ReplayFixture::new(1, "").await;
    let later = now_ms() + 4000 + RACES * APART + 2000;
    let mut races = by_result(races(&fixture, "PATCH", &format!("{{\"due_ms\":{later}}}")).await);
    races.remove("nobody knows");
    let moved = races.remove("rescheduled").unwrap_or_default();
    many(&moved, &races);
    let stayed: Vec<Race> = races.into_values().flatten().collect();
    fixture
        .arrived_at_least(&[ids(&moved), ids(&stayed)].concat())
        .await;
    let arrivals = fixture.arrivals_with_due();
    let dues = |id: &str| -> Vec<i64> {
        arrivals
            .iter()
            .filter(|(body, _)| body == id)
            .map(|(_, due)| *due)
            .collect()
    };
    for race in &moved {
        assert!(
            dues(&race.id).iter().all(|due| *due == later),
            "{}: {:?}",
            race.id,
            dues(&race.id)
        );
    }
    for race in &stayed {
        assert!(
            dues(&race.id).iter().all(|due| *due == race.due),
            "{}: {:?}",
            race.id,
            dues(&race.id)
        );
    }
}

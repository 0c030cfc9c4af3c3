//! Replicas of two versions on one store: an upgrade, a step back, and the upgrade once more, under load.

use std::path::{Path, PathBuf};

use super::{Crew, shared};
use crate::support::relay::binary;
use crate::support::{Rabbitmq, Redis, Relay, eventually};

/// Names the relay of the version before.
const EARLIER_BINARY: &str = "POSTDATE_EARLIER_BINARY";
/// Messages that wait in the store before the first replica is replaced.
const STORED_MESSAGES: u64 = 2000;
/// Time until the first of them is due, ms. They fall due while versions change.
const FIRST_DUE_MS: u64 = 8000;
/// Time between two of them, ms.
const DUE_STEP_MS: u64 = 20;
/// Delay of the messages that come meanwhile, ms.
const LOAD_DELAY_MS: u64 = 300;

/// Replaces one replica by another version, and waits until all of them share the work and messages flow.
async fn replace(crew: &Crew, relays: &mut [Relay], n: usize, program: &Path) {
    crew.flows(50).await;
    assert_eq!(
        relays[n].terminate().await.code(),
        Some(0),
        "a clean stop\n{}",
        relays[n].log()
    );
    relays[n].becomes(program);
    relays[n].restart().await;
    shared(relays).await;
}

#[tokio::test]
#[ignore = "needs a relay of another version: scripts/test-upgrade builds it"]
async fn two_versions_side_by_side_lose_nothing_and_repeat_nothing() {
    let earlier = std::env::var_os(EARLIER_BINARY).map(PathBuf::from);
    let earlier = earlier
        .unwrap_or_else(|| panic!("{EARLIER_BINARY} names no relay: run scripts/test-upgrade"));
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let crew = Crew::plan(redis, rabbitmq, "").await;
    let mut crew = crew.begin(&earlier, 3).await;
    let mut relays = std::mem::take(&mut crew.relays);
    crew.send(rabbitmq, STORED_MESSAGES, FIRST_DUE_MS, DUE_STEP_MS)
        .await;
    eventually("they are stored", async || {
        let stored = relays[0].metrics().await?.sum("postdate_pending", &[]);
        if stored > STORED_MESSAGES as f64 - 0.5 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{stored}"))
        }
    })
    .await;
    let newest = binary();
    let changes = async {
        for n in 0..relays.len() {
            replace(&crew, &mut relays, n, &newest).await;
        }
        // A step back, with what the newer version has written meanwhile.
        replace(&crew, &mut relays, 0, &earlier).await;
        replace(&crew, &mut relays, 1, &earlier).await;
        replace(&crew, &mut relays, 0, &newest).await;
        replace(&crew, &mut relays, 1, &newest).await;
    };
    crew.under_load(rabbitmq, LOAD_DELAY_MS, changes).await;
    crew.relays = relays;
    crew.accounted(0).await;
    let report = crew.run.report();
    assert_eq!(report.duplicates(), 0, "{report}");
    for relay in &crew.relays {
        let unknown = relay.total("postdate_unknown_versions_total", &[]).await;
        assert!(unknown < 0.5, "{unknown} bundles of an unknown version");
    }
}

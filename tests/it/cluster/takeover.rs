//! A replica dies, hangs or is stopped.

use std::time::Instant;

use super::{Crew, shared};
use crate::support::process::Signal;
use crate::support::{Rabbitmq, Redis, Relay, When, eventually};

#[tokio::test]
async fn a_dead_replicas_partitions_are_served_by_the_others() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::start(redis, rabbitmq, 3, "[timer]\nclaim = \"2s\"").await;
    let mut dead = crew.relays.remove(1);
    let killed = crew.under_load(rabbitmq, 500, async {
        crew.flows(200).await;
        dead.kill9().await;
        Instant::now()
    });
    let killed = killed.await;
    shared(&crew.relays).await;
    println!(
        "the two others own everything {} ms after the kill",
        killed.elapsed().as_millis()
    );
    crew.relays.push(dead);
    crew.accounted(0).await;
}

#[tokio::test]
async fn a_replica_that_was_stopped_for_longer_than_its_lease_publishes_nothing_that_it_no_longer_holds()
 {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::start(
        redis,
        rabbitmq,
        2,
        "[timer]\nclaim = \"2s\"\nlookahead = \"1500ms\"",
    )
    .await;
    let stopped = crew.relays.remove(1);
    // What it had read and not stored would lie unacknowledged until its connection ends, after 30 s.
    eventually(
        "all that was sent is stored, and it holds claims",
        async || {
            crew.send_when(rabbitmq, 100, |_| When::Delay(1500)).await;
            let sent = crew.run.made() as f64;
            eventually("all that was sent is stored", async || {
                let other = crew.relays[0].metrics().await?;
                let own = stopped.metrics().await?;
                let stored =
                    other.sum("postdate_stored_total", &[]) + own.sum("postdate_stored_total", &[]);
                if stored >= sent {
                    Ok(())
                } else {
                    Err(anyhow::anyhow!("{stored} of {sent}"))
                }
            })
            .await;
            let held = stopped.metrics().await?.sum("postdate_in_flight", &[]);
            if held >= 50.0 {
                Ok(())
            } else {
                Err(anyhow::anyhow!("it holds {held}"))
            }
        },
    )
    .await;
    crew.relays.push(stopped);
    crew.relays[1].signal(Signal::STOP);
    shared(&crew.relays[..1]).await;
    eventually(
        "the other has published all but what is in the stopped one's hands",
        async || {
            let missing = crew.run.ledger().missing().len();
            if missing == 0 {
                Ok(())
            } else {
                Err(missing.to_string())
            }
        },
    )
    .await;
    let before = crew.run.ledger().delivered();
    crew.relays[1].signal(Signal::CONT);
    shared(&crew.relays).await;
    crew.accounted(0).await;
    println!(
        "after it went on, {} deliveries",
        crew.run.ledger().delivered() - before
    );
    let stale = crew.relays[1]
        .total("postdate_stale_claims_total", &[])
        .await;
    assert!(stale > 0.0, "it held something that was taken from it");
}

#[tokio::test]
async fn a_process_that_lives_and_whose_shard_hangs_is_no_owner() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::plan(redis, rabbitmq, "[cluster]\nheartbeat = \"300ms\"").await;
    crew.relays.push(Relay::start(&crew.config).await);
    crew.relays
        .push(Relay::start_with(&crew.config, &[("POSTDATE_HANG", "shard")]).await);
    crew.send(rabbitmq, 300, 500, 10).await;
    shared(&crew.relays[..1]).await;
    crew.accounted(0).await;
    // Not before: until it hears that none of its shards answers it may count partitions as its own.
    eventually("the one that hangs owns nothing", async || {
        let owned = crew.relays[1].metrics().await?;
        let owned = owned.sum("postdate_partitions_owned", &[]);
        anyhow::ensure!(owned < 0.5, "it owns {owned}");
        Ok(())
    })
    .await;
    shared(&crew.relays[..1]).await;
    assert!(
        !crew.relays[1].log().contains("claim failed"),
        "to serve nothing is no error"
    );
    assert_eq!(
        crew.relays[1].terminate().await.code(),
        Some(0),
        "what hangs is waited for, and not for ever"
    );
}

#[tokio::test]
async fn all_holds_when_everybody_serves_everything() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::plan(redis, rabbitmq, "[timer]\nclaim = \"2s\"").await;
    for _ in 0..3 {
        crew.relays
            .push(Relay::start_with(&crew.config, &[("POSTDATE_OWNERSHIP", "off")]).await);
    }
    for relay in &crew.relays {
        shared(std::slice::from_ref(relay)).await;
    }
    let mut dead = crew.relays.remove(0);
    crew.under_load(rabbitmq, 500, async {
        crew.flows(200).await;
        dead.kill9().await;
    })
    .await;
    crew.relays.insert(0, dead);
    assert_eq!(
        crew.relays[1].terminate().await.code(),
        Some(0),
        "a clean stop"
    );
    crew.accounted(2).await;
}

/// Of two settings of `timer.claim`, as a rollout of another one has them for a while, the shorter one ends no claim of
/// the longer one.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_a_shorter_claim_takes_nobody_elses() {
    const MESSAGES: u64 = 200;
    // The other one looks at all claims each ten seconds, and what it shortened would be expired three seconds later.
    const DUE_MS: u64 = 30_000;
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    for more in ["", "order = \"key\""] {
        let mut crew = Crew::plan_with(redis, rabbitmq, more, "").await;
        let timer = |lines: &str| crew.config.clone().section(&format!("[timer]\n{lines}"));
        let long = timer("claim = \"120s\"\nlookahead = \"40s\"");
        let short = timer("claim = \"3s\"");
        let mut holder = Relay::start(&long).await;
        crew.send(rabbitmq, MESSAGES, DUE_MS, 1).await;
        eventually("the messages are claimed", async || {
            let claimed = holder.total("postdate_in_flight", &[]).await;
            anyhow::ensure!(claimed > 0.5, "{claimed}");
            anyhow::Ok(())
        })
        .await;
        let other = Relay::start(&short).await;
        crew.run.drain(&holder).await;
        crew.run.report().assert_accounted(0);
        for relay in [&holder, &other] {
            let stale = relay.total("postdate_stale_claims_total", &[]).await;
            assert_eq!(stale as u64, 0, "{more}");
        }
        holder.terminate().await;
        crew.relays.push(other);
    }
}

//! One replica after another is restarted while messages come and go.

use super::{Crew, shared};
use crate::support::accounting::Stamp;
use crate::support::{Rabbitmq, Redis, Relay, eventually};

/// Messages that wait in the store before the first restart.
const STORED: u64 = 1000;

/// How late the latest of those was that had been stored long before they fell due, ms.
fn gap_ms(crew: &Crew) -> i64 {
    let deliveries = crew.run.ledger().deliveries_from(0);
    let late = deliveries.iter().filter_map(|delivery| {
        let stamp = Stamp::read(&delivery.body).filter(|stamp| stamp.id.seq < STORED)?;
        Some(delivery.received_ms - stamp.due_ms)
    });
    late.max().unwrap_or_default()
}

#[tokio::test]
async fn a_rolling_restart_under_load_repeats_nothing_and_exits_in_order() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::start(redis, rabbitmq, 3, "").await;
    let mut relays: Vec<Relay> = std::mem::take(&mut crew.relays);
    crew.send(rabbitmq, STORED, 8000, 20).await;
    eventually("they are stored", async || {
        let stored = relays[0].metrics().await?.sum("postdate_pending", &[]);
        if stored > STORED as f64 - 0.5 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{stored}"))
        }
    })
    .await;
    let restarts = async {
        for n in 0..relays.len() {
            crew.flows(50).await;
            assert_eq!(
                relays[n].terminate().await.code(),
                Some(0),
                "a clean stop\n{}",
                relays[n].log()
            );
            relays[n].restart().await;
            shared(&relays).await;
        }
    };
    crew.under_load(rabbitmq, 300, restarts).await;
    crew.relays = relays;
    crew.accounted(0).await;
    println!("the latest of what was stored before: {} ms", gap_ms(&crew));
    let report = crew.run.report();
    assert_eq!(report.duplicates(), 0, "{report}");
    for relay in &crew.relays {
        let expired = relay
            .total("postdate_redelivered_total", &[("cause", "claim_expired")])
            .await;
        assert!(expired < 0.5, "{expired} claims were left to expire");
    }
}

//! Brokers that refuse, hang or die.

use std::time::Duration;

use tokio::time::sleep;

use super::common::{late, limit_no_duplicate, limit_recovery};
use crate::outcome::Outcome;
use crate::scenario::{Broker, Scale, Scenario, Setup};
use crate::servers;

pub(super) async fn alarm(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::own_rabbitmq());
    let kafka = Broker::Shared(kafka);
    let rabbitmq = Broker::Own(rabbitmq);
    let mut scenario = Scenario::start_on(scale, Setup::default(), kafka, rabbitmq).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let rabbitmq = scenario.rabbitmq.own();
    rabbitmq
        .ctl(&["set_vm_memory_high_watermark", "0.00001"])
        .await;
    sleep(Duration::from_secs(10)).await;
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    scenario.healed();
    scenario.moment(2000, 2000).await;
    let blocked = scenario.logged("rabbitmq has blocked publishing");
    scenario.precondition(blocked, "nobody was blocked");
    scenario.account().await;
    limit_no_duplicate(&mut scenario);
    limit_recovery(&mut scenario, 10_000);
    scenario.close().await
}

pub(super) async fn kill_rabbitmq(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::own_rabbitmq());
    let kafka = Broker::Shared(kafka);
    let rabbitmq = Broker::Own(rabbitmq);
    let mut scenario = Scenario::start_on(scale, Setup::default(), kafka, rabbitmq).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    // It hangs first, so that something is in its sockets when it dies.
    scenario.rabbitmq.own().stop();
    scenario.moment(300, 1500).await;
    scenario.rabbitmq.own().kill9().await;
    scenario.moment(1000, 8000).await;
    scenario.rabbitmq.own().restart().await;
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    judge_unknown(&mut scenario).await;
    scenario.close().await
}

/// The leader dies, or so many that nobody may write.
pub(super) async fn kill_kafka(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::three_kafkas(), servers::rabbitmq());
    let kafka = Broker::Own(kafka);
    let rabbitmq = Broker::Shared(rabbitmq);
    let setup = Setup {
        patience: Duration::from_secs(120),
        ..Setup::default()
    };
    let mut scenario = Scenario::start_on(scale, setup, kafka, rabbitmq).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    scenario.precondition_claims();
    let target = scenario.ways[0].target.clone();
    let leader = scenario.kafka.own().leader(&target, 0).await;
    let killed = 1 + usize::from(scale.seed.is_multiple_of(2));
    for node in (leader..).take(killed) {
        scenario.kafka.own().kill9_node(node % 3).await;
    }
    scenario.moment(3000, 8000).await;
    scenario.kafka.own().start_again().await;
    scenario.healed();
    scenario.note(format!(
        "{killed} of 3 brokers were killed, the leader of {target}/0 first"
    ));
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    let late = late(&mut scenario);
    let to_kafka: usize = scenario
        .ways
        .iter()
        .zip(&late)
        .filter(|(way, _)| way.to_kafka)
        .map(|(_, n)| n)
        .sum();
    scenario.precondition(to_kafka > 0, "nothing to Kafka was late");
    limit_recovery(&mut scenario, 30_000);
    scenario.close().await
}

/// The node that leads queues dies, or so many that no queue has a leader.
pub(super) async fn kill_quorum(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::three_rabbitmqs());
    let kafka = Broker::Shared(kafka);
    let rabbitmq = Broker::Own(rabbitmq);
    let setup = Setup {
        patience: Duration::from_secs(120),
        ..Setup::default()
    };
    let mut scenario = Scenario::start_on(scale, setup, kafka, rabbitmq).await;
    scenario.under_load().await;
    // They are led by the node that they were declared at, which is the one that clients know.
    scenario.rabbitmq.own().lead_by(1).await;
    scenario.inject(&scenario.all()).await;
    scenario.precondition_claims();
    let killed: &[usize] = if scale.seed.is_multiple_of(2) {
        &[1, 2]
    } else {
        &[1]
    };
    let led = scenario.rabbitmq.own().leaders().await;
    for &node in killed {
        scenario.rabbitmq.own().kill9_node(node).await;
    }
    scenario.moment(3000, 8000).await;
    scenario.rabbitmq.own().start_again().await;
    scenario.healed();
    scenario.note(format!(
        "queues led by each node: {led:?}; killed: {killed:?}"
    ));
    scenario.precondition(led[1] > 0, "the killed node led nothing");
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    limit_recovery(&mut scenario, 30_000);
    scenario.close().await
}

/// Duplicates come from what was with the broker and from what its loss made it deliver again.
async fn judge_unknown(scenario: &mut Scenario) {
    let failed = scenario.total("postdate_publish_failures_total", &[]).await;
    scenario.precondition(failed > 0.0, "no publish failed");
    limit_recovery(scenario, 30_000);
}

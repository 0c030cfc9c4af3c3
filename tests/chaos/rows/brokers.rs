//! Brokers that refuse, hang or die.

use std::time::Duration;

use tokio::time::sleep;

use super::common::{bar_no_duplicate, bar_recovery, late};
use crate::outcome::Outcome;
use crate::servers;
use crate::stage::{Broker, Scale, Setup, Stage};

pub(super) async fn alarm(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::own_rabbitmq());
    let (kafka, rabbitmq) = (Broker::Shared(kafka), Broker::Own(rabbitmq));
    let mut stage = Stage::start_on(scale, Setup::default(), kafka, rabbitmq).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let rabbitmq = stage.rabbitmq.own();
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await;
    sleep(Duration::from_secs(10)).await;
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    stage.healed();
    stage.moment(2000, 2000).await;
    let blocked = stage.logged("rabbitmq has blocked publishing");
    stage.bites(blocked, "nobody was blocked");
    stage.account().await;
    bar_no_duplicate(&mut stage);
    bar_recovery(&mut stage, 10_000);
    stage.close().await
}

pub(super) async fn kill_rabbitmq(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::own_rabbitmq());
    let (kafka, rabbitmq) = (Broker::Shared(kafka), Broker::Own(rabbitmq));
    let mut stage = Stage::start_on(scale, Setup::default(), kafka, rabbitmq).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    // It hangs first, so that something is in its sockets when it dies.
    stage.rabbitmq.own().stop();
    stage.moment(300, 1500).await;
    stage.rabbitmq.own().kill9().await;
    stage.moment(1000, 8000).await;
    stage.rabbitmq.own().restart().await;
    stage.healed();
    stage.moment(2000, 2000).await;
    stage.account().await;
    judge_unknown(&mut stage).await;
    stage.close().await
}

/// The leader dies, or so many that nobody may write.
pub(super) async fn kill_kafka(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::three_kafkas(), servers::rabbitmq());
    let (kafka, rabbitmq) = (Broker::Own(kafka), Broker::Shared(rabbitmq));
    let setup = Setup { patience: Duration::from_secs(120), ..Setup::default() };
    let mut stage = Stage::start_on(scale, setup, kafka, rabbitmq).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    stage.bites_claims();
    let target = stage.ways[0].target.clone();
    let leader = stage.kafka.own().leader(&target, 0).await;
    let killed = 1 + usize::from(scale.seed.is_multiple_of(2));
    for node in (leader..).take(killed) {
        stage.kafka.own().kill9_node(node % 3).await;
    }
    stage.moment(3000, 8000).await;
    stage.kafka.own().start_again().await;
    stage.healed();
    stage.note(format!("{killed} of 3 brokers were killed, the leader of {target}/0 first"));
    stage.moment(2000, 2000).await;
    stage.account().await;
    let late = late(&mut stage);
    let to_kafka: usize = stage.ways.iter().zip(&late).filter(|(way, _)| way.to_kafka).map(|(_, n)| n).sum();
    stage.bites(to_kafka > 0, "nothing to Kafka was late");
    bar_recovery(&mut stage, 30_000);
    stage.close().await
}

/// The node that leads queues dies, or so many that no queue has a leader.
pub(super) async fn kill_quorum(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::three_rabbitmqs());
    let (kafka, rabbitmq) = (Broker::Shared(kafka), Broker::Own(rabbitmq));
    let setup = Setup { patience: Duration::from_secs(120), ..Setup::default() };
    let mut stage = Stage::start_on(scale, setup, kafka, rabbitmq).await;
    stage.under_load().await;
    // They are led by the node that they were declared at, which is the one that clients know.
    stage.rabbitmq.own().lead_by(1).await;
    stage.strike(&stage.all()).await;
    stage.bites_claims();
    let killed: &[usize] = if scale.seed.is_multiple_of(2) { &[1, 2] } else { &[1] };
    let led = stage.rabbitmq.own().leaders().await;
    for &node in killed {
        stage.rabbitmq.own().kill9_node(node).await;
    }
    stage.moment(3000, 8000).await;
    stage.rabbitmq.own().start_again().await;
    stage.healed();
    stage.note(format!("queues led by each node: {led:?}; killed: {killed:?}"));
    stage.bites(led[1] > 0, "the killed node led nothing");
    stage.moment(2000, 2000).await;
    stage.account().await;
    bar_recovery(&mut stage, 30_000);
    stage.close().await
}

/// Duplicates come from what was with the broker and from what its loss made it deliver again.
async fn judge_unknown(stage: &mut Stage) {
    let failed = stage.total("postdate_publish_failures_total", &[]).await;
    stage.bites(failed > 0.0, "no publish failed");
    bar_recovery(stage, 30_000);
}

//! Links that break in all the ways in which links break.

use std::time::Duration;

use tokio::time::sleep;

use super::common::{bar_recovery, send};
use crate::outcome::Outcome;
use crate::stage::{Scale, Setup, Stage};
use crate::support::proxy::Mode;
use crate::support::{Proxy, When};

const WAYS_TO_BREAK: [&str; 7] = ["RST", "FIN", "cut reply", "silence", "trickle", "delay", "refused"];

/// Hurts a link in one of these ways, and mends it.
async fn hurt(proxy: &Proxy, way: &str) {
    let for_a_while = async |mode, seconds| {
        proxy.set(mode);
        sleep(Duration::from_secs(seconds)).await;
        proxy.set(Mode::Pass);
    };
    match way {
        "RST" => proxy.reset(),
        "FIN" => proxy.close(),
        "cut reply" => proxy.cut_replies(),
        "silence" => for_a_while(Mode::Hole, 12).await,
        "trickle" => for_a_while(Mode::Trickle, 8).await,
        "delay" => for_a_while(Mode::Delay(Duration::from_millis(500)), 8).await,
        "refused" => {
            proxy.set(Mode::Refuse);
            proxy.reset();
            sleep(Duration::from_secs(5)).await;
            proxy.set(Mode::Pass);
        }
        other => panic!("{other} is no way to break a link"),
    }
}

pub(super) async fn each(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup { proxied: true, ..Setup::default() }).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let links = [
        ("Redis", stage.redis_proxy.clone()),
        ("Kafka", stage.kafka.get().proxy.clone()),
        ("RabbitMQ", stage.rabbitmq.get().proxy.clone()),
    ];
    for (link, proxy) in links {
        let way = WAYS_TO_BREAK[stage.rng.usize(..WAYS_TO_BREAK.len())];
        let before = proxy.hits();
        hurt(&proxy, way).await;
        stage.moment(1000, 3000).await;
        let hits = proxy.hits() - before;
        stage.note(format!("{link}: {way}, met {hits} times"));
        stage.bites(hits > 0, format!("{link}: {way} met nothing"));
    }
    stage.healed();
    stage.account().await;
    bar_recovery(&mut stage, 20_000);
    stage.close().await
}

pub(super) async fn flapping(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup { proxied: true, ..Setup::default() }).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let (proxy, claim_ms) = (stage.redis_proxy.clone(), stage.setup.claim_s * 1000);
    let away = [(claim_ms / 2, 3000), (claim_ms * 2, 3000)].into_iter().chain([(1000, 1000); 5]);
    for (off, on) in away {
        let before = proxy.hits();
        proxy.set(Mode::Refuse);
        proxy.reset();
        sleep(Duration::from_millis(off)).await;
        proxy.set(Mode::Pass);
        let hits = proxy.hits() - before;
        stage.bites(hits > 0, format!("{off} ms away met nothing"));
        sleep(Duration::from_millis(on)).await;
    }
    stage.healed();
    stage.account().await;
    bar_recovery(&mut stage, 15_000);
    stage.close().await
}

/// A link to another data centre: 5 ms there and back, 20 MiB/s.
const FAR: Mode = Mode::Slow { by: Duration::from_micros(2500), rate: 20 << 20 };
/// Bodies that cross it beside the load: each of the first takes the link for three seconds, the others together for
/// four.
const HUGE: (usize, usize) = (2, 60 << 20);
const LARGE: (usize, usize) = (320, 256 << 10);

pub(super) async fn far(scale: Scale) -> Outcome {
    let routes = "max_size = \"64MiB\"\ndead_letters = { max_message = \"80MiB\" }".to_owned();
    let mut stage = Stage::start(scale, Setup { proxied: true, routes, ..Setup::default() }).await;
    let link = stage.redis_proxy.clone();
    link.set(FAR);
    // From RabbitMQ to RabbitMQ: no other way takes the huge ones.
    let way = stage.ways[3].clone();
    for (count, size) in [HUGE, LARGE] {
        let message = |n: usize| {
            let when = When::At(11_000 + n as u64 * 10);
            stage.run.message(&way.label(), when).key(&way.target).size(size).random()
        };
        send(&stage, &way, (0..count).map(message).collect()).await;
    }
    stage.under_load().await;
    let victim = [stage.rng.usize(0..3)];
    stage.strike(&victim).await;
    stage.bites_claims();
    stage.relays[victim[0]].kill9().await;
    stage.moment(1000, 6000).await;
    stage.relays[victim[0]].restart().await;
    stage.healed();
    stage.moment(8000, 8000).await;
    stage.account().await;
    stage.bites(link.hits() > 0, "nothing went over the slow link");
    let (takeover, limit) = (stage.outcome.takeover_ms.unwrap_or(0), 20_000);
    stage.bar(takeover <= limit, format!("what was due waited for {takeover} ms, the bar is {limit}"));
    bar_recovery(&mut stage, 30_000);
    stage.close().await
}

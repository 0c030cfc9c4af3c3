//! Links that break in all the ways in which links break.

use std::time::Duration;

use tokio::time::sleep;

use super::common::{limit_recovery, send};
use crate::outcome::Outcome;
use crate::scenario::{Scale, Scenario, Setup};
use crate::support::proxy::Mode;
use crate::support::{Proxy, When};

const WAYS_TO_BREAK: [&str; 7] = [
    "RST",
    "FIN",
    "cut reply",
    "silence",
    "trickle",
    "delay",
    "refused",
];

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
    let mut scenario = Scenario::start(
        scale,
        Setup {
            proxied: true,
            ..Setup::default()
        },
    )
    .await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let links = [
        ("Redis", scenario.redis_proxy.clone()),
        ("Kafka", scenario.kafka.get().proxy.clone()),
        ("RabbitMQ", scenario.rabbitmq.get().proxy.clone()),
    ];
    for (link, proxy) in links {
        let way = WAYS_TO_BREAK[scenario.rng.usize(..WAYS_TO_BREAK.len())];
        let before = proxy.hits();
        hurt(&proxy, way).await;
        scenario.moment(1000, 3000).await;
        let hits = proxy.hits() - before;
        scenario.note(format!("{link}: {way}, met {hits} times"));
        scenario.precondition(hits > 0, format!("{link}: {way} met nothing"));
    }
    scenario.healed();
    scenario.account().await;
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

pub(super) async fn flapping(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(
        scale,
        Setup {
            proxied: true,
            ..Setup::default()
        },
    )
    .await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let proxy = scenario.redis_proxy.clone();
    let claim_ms = scenario.setup.claim_s * 1000;
    let away = [(claim_ms / 2, 3000), (claim_ms * 2, 3000)]
        .into_iter()
        .chain([(1000, 1000); 5]);
    for (off, on) in away {
        let before = proxy.hits();
        proxy.set(Mode::Refuse);
        proxy.reset();
        sleep(Duration::from_millis(off)).await;
        proxy.set(Mode::Pass);
        let hits = proxy.hits() - before;
        scenario.precondition(hits > 0, format!("{off} ms away met nothing"));
        sleep(Duration::from_millis(on)).await;
    }
    scenario.healed();
    scenario.account().await;
    limit_recovery(&mut scenario, 15_000);
    scenario.close().await
}

/// A link to another data centre: 5 ms there and back, 20 MiB/s.
const FAR: Mode = Mode::Slow {
    by: Duration::from_micros(2500),
    rate: 20 << 20,
};
/// Bodies that cross it beside the load: each of the first takes the link for three seconds, the others together for
/// four.
const HUGE: (usize, usize) = (2, 60 << 20);
const LARGE: (usize, usize) = (320, 256 << 10);

pub(super) async fn far(scale: Scale) -> Outcome {
    let routes = "max_size = \"64MiB\"\ndead_letters = { max_message = \"80MiB\" }".to_owned();
    let mut scenario = Scenario::start(
        scale,
        Setup {
            proxied: true,
            routes,
            ..Setup::default()
        },
    )
    .await;
    let link = scenario.redis_proxy.clone();
    link.set(FAR);
    // From RabbitMQ to RabbitMQ: no other way takes the huge ones.
    let way = scenario.ways[3].clone();
    for (count, size) in [HUGE, LARGE] {
        let message = |n: usize| {
            let when = When::At(11_000 + n as u64 * 10);
            scenario
                .run
                .message(&way.label(), when)
                .key(&way.target)
                .size(size)
                .random()
        };
        send(&scenario, &way, (0..count).map(message).collect()).await;
    }
    scenario.under_load().await;
    let victim = [scenario.rng.usize(0..3)];
    scenario.inject(&victim).await;
    scenario.precondition_claims();
    scenario.relays[victim[0]].kill9().await;
    scenario.moment(1000, 6000).await;
    scenario.relays[victim[0]].restart().await;
    scenario.healed();
    scenario.moment(8000, 8000).await;
    scenario.account().await;
    scenario.precondition(link.hits() > 0, "nothing went over the slow link");
    let takeover = scenario.outcome.takeover_ms.unwrap_or(0);
    let limit = 20_000;
    scenario.limit(
        takeover <= limit,
        format!("what was due waited for {takeover} ms, the limit is {limit}"),
    );
    limit_recovery(&mut scenario, 30_000);
    scenario.close().await
}

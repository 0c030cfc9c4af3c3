//! A queue of large messages while the store is away: what its consumer holds is bounded in bytes.

use crate::support::proxy::Mode;
use crate::support::{
    Config, Proxy, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

const MESSAGES: u32 = 150;
const SIZE: usize = 1 << 20;
/// Small messages after which a queue hands over as many as it may.
const SMALL: usize = 300;
/// Deliveries that one queue may hand over at `max_size = "1MiB"`, with no other source beside it.
const HANDED_OVER: u32 = 96;

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_hands_over_no_more_large_messages_than_fit_into_memory() {
    let (rabbitmq, redis) = tokio::join!(Rabbitmq::shared(), Redis::start());
    let redis_link = Proxy::before(redis.port()).await;
    let source = names::unique("large");
    let target = names::unique("large-target");
    rabbitmq.declare_queue(&source, QueueKind::Classic).await;
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    let from = format!("{{ rabbitmq = \"main\", queue = \"{source}\", prefetch = 500 }}");
    let to = format!("{{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{target}\" }}");
    let config = Config::new(&redis)
        .through(&redis, redis_link.port())
        .rabbitmq("main", rabbitmq)
        .route("large", &from, &to, "");
    let mut relay = Relay::start(&config).await;
    let run = Run::new();
    run.collect_rabbitmq(rabbitmq, &target);

    let label = format!("rabbitmq:{target}");
    let small = (0..SMALL).map(|_| run.message(&label, When::Delay(0)).key(&target));
    run.send_rabbitmq(rabbitmq, "", Some(&source), small.collect())
        .await;
    run.drain(&relay).await;
    // It is subscribed now; without the store it would not be.
    redis_link.set(Mode::Hole);
    for _ in 0..MESSAGES {
        let message = run
            .message(&label, When::Delay(1000))
            .key(&target)
            .size(SIZE - 4096)
            .random();
        run.send_rabbitmq(rabbitmq, "", Some(&source), vec![message])
            .await;
    }
    let left = eventually("the consumer has what it may have", async || {
        let ready = rabbitmq.queue_len(&source).await;
        if ready <= MESSAGES - HANDED_OVER {
            Ok(ready)
        } else {
            Err(format!("{ready} are ready"))
        }
    })
    .await;
    assert_eq!(left, MESSAGES - HANDED_OVER, "the queue keeps the others");

    redis_link.set(Mode::Pass);
    run.drain(&relay).await;
    let explained = super::repeats(&relay).await;
    run.report().assert_accounted(explained);
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", relay.id())).expect("its status");
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .expect("a peak");
    let peak_kib: u64 = peak
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number");
    println!("{peak}");
    assert!(peak_kib < 400 << 10, "{peak}");
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

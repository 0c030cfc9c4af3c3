//! `docs/start.md`

use super::terminal::{TypedTerminal, page, split_page};
use crate::support::{QueueKind, Rabbitmq, Redis, names};

#[tokio::test(flavor = "multi_thread")]
async fn the_first_ten_minutes_work_as_they_are_written() {
    let page = page("start.md");
    let (_, page) = split_page(&page, "## Beside your own servers");
    assert!(page.contains("rabbitmqadmin declare queue name=mail.delayed"));
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let [source, target] = ["mail.delayed", "mail"].map(names::unique);
    rabbitmq.declare_queue(&source, QueueKind::Quorum).await;
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    let replaced = [
        ("redis://127.0.0.1:6379", redis.url()),
        ("amqp://guest:guest@127.0.0.1:5672/%2f", rabbitmq.url()),
        ("\"mail.delayed\"", format!("\"{source}\"")),
        (
            "routing_key = \"mail\"",
            format!("routing_key = \"{target}\""),
        ),
    ];
    let mut terminal = TypedTerminal::new("start", &replaced);
    terminal.play(page).await;
    for expected in [
        "the configuration is right",
        "ms late",
        "order-7",
        "cancelled",
    ] {
        assert!(
            terminal.said().contains(expected),
            "{expected}: {}",
            terminal.said()
        );
    }
    terminal.end().await;
}

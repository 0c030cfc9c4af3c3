//! Orders that time out, end to end: named messages that are due much later share bundles, are listed, cancelled and moved
//! like all others, and leave their bundles before they are due.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names};

const ORDERS: usize = 40;

/// The ids of what waits.
async fn waiting(relay: &Relay) -> BTreeSet<String> {
    let path = "/api/v1/messages?route=orders&limit=200";
    let (status, text) = relay.get(path).await.expect("an answer");
    assert_eq!(status, 200, "{text}");
    let listed: Value = serde_json::from_str(&text).expect("JSON");
    let ids = listed["items"].as_array().expect("a list").iter();
    ids.map(|one| one["id"].as_str().expect("an id").to_owned())
        .collect()
}

/// The growing bundles of all partitions, by the keys of their due sets.
async fn growing(redis: &Redis, prefix: &str) -> Vec<(String, Vec<String>)> {
    let keys: Vec<String> = redis
        .command(&["KEYS", &format!("{prefix}:{{*}}:due:orders/+")])
        .await
        .expect("keys");
    let mut all = Vec::new();
    for key in keys {
        let ids = redis.command(&["ZRANGE", &key, "0", "-1"]).await;
        all.push((key, ids.expect("a zset")));
    }
    all
}

#[tokio::test]
async fn orders_that_are_due_much_later_wait_together_and_arrive_one_by_one() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let [source, target] = ["source", "target"].map(names::unique);
    for queue in [&source, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let run = Run::new();
    run.collect_rabbitmq(rabbitmq, &target);
    run.unobserved("orders are cancelled and moved by hand");
    let prefix = names::unique("growing");
    let lines = format!(
        "url = \"{}\"\npartitions = 1\ngrowing_bundles = true",
        redis.url()
    );
    let config = Config::under(&lines, &prefix)
        .rabbitmq("main", rabbitmq)
        .route(
            "orders",
            &format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#),
            &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#),
            "",
        );
    let mut relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let label = format!("rabbitmq:{target}");
    let orders = (0..ORDERS).map(|_| {
        let name = names::unique("order");
        run.message(&label, When::Delay(1_800_000))
            .key(&target)
            .contract("x-delay-id", &name)
    });
    run.send_rabbitmq(rabbitmq, "", Some(&source), orders.collect())
        .await;
    let all = eventually("all of it waits", async || {
        let all = waiting(&relay).await;
        if all.len() == ORDERS {
            Ok(all)
        } else {
            Err(format!("{}", all.len()))
        }
    })
    .await;
    let bundles: usize = growing(&redis, &prefix)
        .await
        .iter()
        .map(|(_, ids)| ids.len())
        .sum();
    assert!(
        (1..5).contains(&bundles),
        "{bundles} bundles of {ORDERS} orders"
    );

    // Half of them are paid: nobody has to be reminded.
    let (paid, open): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(n, _)| n % 2 == 0);
    for (_, id) in &paid {
        let path = format!("/api/v1/routes/orders/messages/{id}");
        let (status, text) = relay
            .request("DELETE", &path, None, "")
            .await
            .expect("an answer");
        assert_eq!(status, 200, "{path}: {text}");
    }
    let left: BTreeSet<String> = open.iter().map(|(_, id)| (*id).clone()).collect();
    assert_eq!(waiting(&relay).await, left);

    // A restart forgets which bundles it filled, and loses none.
    relay.terminate().await;
    relay.restart().await;
    assert_eq!(waiting(&relay).await, left);
    for (key, ids) in growing(&redis, &prefix).await {
        for id in ids {
            redis
                .command::<i64>(&["ZADD", &key, "1", &id])
                .await
                .expect("due");
        }
        let idx = key.replace("due:orders/+", "idx");
        redis
            .command::<i64>(&["ZADD", &idx, "1", "orders/+"])
            .await
            .expect("due");
    }
    eventually("all bundles are spread", async || {
        let bundles: usize = growing(&redis, &prefix)
            .await
            .iter()
            .map(|(_, ids)| ids.len())
            .sum();
        if bundles == 0 {
            Ok(())
        } else {
            Err(format!("{bundles}"))
        }
    })
    .await;
    assert_eq!(waiting(&relay).await, left, "they are due when they were");
    for id in &left {
        let path = format!("/api/v1/routes/orders/messages/{id}");
        let answer = relay.request("PATCH", &path, None, r#"{"delay": "100ms"}"#);
        let (status, text) = answer.await.expect("an answer");
        assert_eq!(status, 200, "{path}: {text}");
    }
    eventually("what was not paid arrives", async || {
        let delivered = relay.total("postdate_published_total", &[]).await;
        if delivered >= left.len() as f64 {
            Ok(())
        } else {
            Err(format!("{delivered}"))
        }
    })
    .await;
    assert_eq!(waiting(&relay).await, BTreeSet::new());
    eventually("nothing is pending", async || {
        let pending = relay.metrics().await?.sum("postdate_pending", &[]);
        anyhow::ensure!(pending < 0.5, "{pending}");
        anyhow::Ok(())
    })
    .await;
}

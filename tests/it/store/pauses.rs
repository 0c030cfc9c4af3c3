//! Pauses: kept in the store, known to every replica, and idempotent.

use anyhow::anyhow;
use postdate::domain::{PauseState, RouteName};
use postdate::store::RoutePauses;

use super::fixture::{StoreFixture, route};
use crate::support::eventually;

const INGRESS: PauseState = PauseState {
    ingress: true,
    publishing: false,
};
const PUBLISHING: PauseState = PauseState {
    ingress: false,
    publishing: true,
};
const BOTH: PauseState = PauseState {
    ingress: true,
    publishing: true,
};
const NOTHING: PauseState = PauseState {
    ingress: false,
    publishing: false,
};

async fn knows(pauses: &RoutePauses, what: PauseState) {
    eventually(
        &format!("a replica knows {what:?}"),
        async || match pauses.of("orders") {
            Some(known) if known == what => Ok(()),
            other => Err(anyhow!("it knows {other:?}")),
        },
    )
    .await;
}

#[tokio::test]
async fn what_one_replica_pauses_every_other_knows_and_a_new_one_before_it_begins() {
    let fixture = StoreFixture::shared().await;
    let other = fixture.another();
    let here = fixture.store.pauses();
    let there = other.store.pauses();
    knows(&here, NOTHING).await;
    knows(&there, NOTHING).await;
    assert!(here.may_publish("orders"));

    fixture
        .store
        .pause(&route(), INGRESS)
        .await
        .expect("paused");
    knows(&there, INGRESS).await;
    assert!(there.may_publish("orders"), "only its ingress is");
    other
        .store
        .pause(&route(), PUBLISHING)
        .await
        .expect("paused");
    knows(&here, BOTH).await;
    assert!(!here.may_publish("orders"));
    assert_eq!(here.of("mail"), Some(NOTHING), "no other route is");

    let late = fixture.another();
    let mut pauses = late.store.pauses();
    assert!(
        pauses.of("orders").is_none_or(|known| known == BOTH),
        "nothing is known, or the truth"
    );
    knows(&pauses, BOTH).await;
    let mut opens = std::pin::pin!(pauses.until_publishing("orders"));
    assert!(futures_util::poll!(&mut opens).is_pending());
    fixture
        .store
        .resume(&route(), PUBLISHING)
        .await
        .expect("resumed");
    opens.await;
    assert_eq!(fixture.store.paused(&route()).await, Ok(INGRESS));
    fixture.store.resume(&route(), BOTH).await.expect("resumed");
    knows(&there, NOTHING).await;
}

#[tokio::test]
async fn pausing_twice_keeps_the_first_moment_and_resuming_twice_is_nothing() {
    let fixture = StoreFixture::shared().await;
    let key = format!("{}:paused", fixture.config.prefix);
    fixture.store.pause(&route(), BOTH).await.expect("paused");
    let since: String = fixture.command(&["HGET", &key, "orders/ingress"]).await;
    fixture
        .command::<i64>(&[
            "HSET",
            &key,
            "orders/ingress",
            "5",
            "orders/something-later",
            "1",
        ])
        .await;
    fixture
        .store
        .pause(&route(), INGRESS)
        .await
        .expect("paused");
    let kept: String = fixture.command(&["HGET", &key, "orders/ingress"]).await;
    assert_eq!(kept, "5");
    assert!(since.parse::<i64>().expect("a moment") > 1_700_000_000_000);
    fixture.store.resume(&route(), BOTH).await.expect("resumed");
    fixture.store.resume(&route(), BOTH).await.expect("resumed");
    assert_eq!(
        fixture.store.paused(&route()).await,
        Ok(NOTHING),
        "what is not known pauses nothing"
    );
}

#[tokio::test]
async fn what_is_paused_outlives_every_process() {
    let fixture = StoreFixture::shared().await;
    let mail = RouteName::new("mail").expect("a name");
    fixture
        .store
        .pause(&mail, PUBLISHING)
        .await
        .expect("paused");
    let later = fixture.another();
    drop(fixture);
    assert_eq!(later.store.paused(&mail).await, Ok(PUBLISHING));
}

//! Pauses: kept in the store, known to every replica, and idempotent.

use anyhow::anyhow;
use postdate::domain::{Actor, RouteName, RouteParts, RoutePause, UnixMs};
use postdate::store::RoutePauses;

use super::fixture::{StoreFixture, route};
use crate::support::eventually;

const INGRESS: RouteParts = RouteParts {
    ingress: true,
    publishing: false,
};
const PUBLISHING: RouteParts = RouteParts {
    ingress: false,
    publishing: true,
};
const BOTH: RouteParts = RouteParts {
    ingress: true,
    publishing: true,
};
const NOTHING: RouteParts = RouteParts {
    ingress: false,
    publishing: false,
};

fn ann() -> Actor {
    Actor {
        because: "the supplier is down".parse().ok(),
        ..Actor::new("ann")
    }
}

async fn knows(pauses: &RoutePauses, what: RouteParts) {
    eventually(
        &format!("a replica knows {what:?}"),
        async || match pauses.of("orders") {
            Some(known) if known.parts() == what => Ok(()),
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
        .pause(&route(), INGRESS, &ann())
        .await
        .expect("paused");
    knows(&there, INGRESS).await;
    assert!(there.may_publish("orders"), "only its ingress is");
    other
        .store
        .pause(&route(), PUBLISHING, &ann())
        .await
        .expect("paused");
    knows(&here, BOTH).await;
    assert!(!here.may_publish("orders"));
    assert_eq!(
        here.of("mail").map(|known| known.parts()),
        Some(NOTHING),
        "no other route is"
    );

    let late = fixture.another();
    let mut pauses = late.store.pauses();
    assert!(
        pauses
            .of("orders")
            .is_none_or(|known| known.parts() == BOTH),
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
    assert_eq!(
        fixture
            .store
            .paused(&route())
            .await
            .map(|known| known.parts()),
        Ok(INGRESS)
    );
    fixture.store.resume(&route(), BOTH).await.expect("resumed");
    knows(&there, NOTHING).await;
}

#[tokio::test]
async fn pausing_twice_keeps_the_first_moment_and_resuming_twice_is_nothing() {
    let fixture = StoreFixture::shared().await;
    let key = format!("{}:paused", fixture.config.prefix);
    fixture
        .store
        .pause(&route(), BOTH, &ann())
        .await
        .expect("paused");
    let again = Actor {
        because: "too late".parse().ok(),
        ..Actor::new("bob")
    };
    let first = fixture.store.paused(&route()).await.expect("an answer");
    fixture
        .store
        .pause(&route(), INGRESS, &again)
        .await
        .expect("paused");
    let kept = fixture.store.paused(&route()).await.expect("an answer");
    assert_eq!(kept, first);
    let pause = kept.ingress.expect("a pause");
    assert!(pause.since > Some(UnixMs(1_700_000_000_000)));
    assert_eq!(pause.by, ann());
    // What nobody here has written pauses all the same.
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
    let odd = fixture.store.paused(&route()).await.expect("an answer");
    assert_eq!(odd.parts(), BOTH);
    assert_eq!(odd.ingress.expect("a pause").since, None);
    fixture.store.resume(&route(), BOTH).await.expect("resumed");
    fixture.store.resume(&route(), BOTH).await.expect("resumed");
    assert_eq!(
        fixture.store.paused(&route()).await,
        Ok(RoutePause::default()),
        "what is not known pauses nothing"
    );
}

#[tokio::test]
async fn what_is_paused_outlives_every_process() {
    let fixture = StoreFixture::shared().await;
    let mail = RouteName::new("mail").expect("a name");
    fixture
        .store
        .pause(&mail, PUBLISHING, &ann())
        .await
        .expect("paused");
    let later = fixture.another();
    drop(fixture);
    let paused = later.store.paused(&mail).await.expect("an answer");
    assert_eq!(paused.parts(), PUBLISHING);
    assert_eq!(paused.publishing.expect("a pause").by, ann());
}

//! Two processes of one name.

use std::time::Duration;

use super::{Crew, logged, shared};
use crate::support::process::Signal;
use crate::support::relay::NAME;
use crate::support::{Rabbitmq, Redis, Relay, names};

const BEAT: &str = "[cluster]\nheartbeat = \"300ms\"";
/// So long that a machine that stands still for a second makes nobody silent.
const SLOW_BEAT: &str = "[cluster]\nheartbeat = \"1300ms\"";

#[tokio::test]
async fn the_second_of_a_name_is_refused_and_the_successor_of_a_dead_one_is_not() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let crew = Crew::plan(redis, rabbitmq, SLOW_BEAT).await;
    let name = names::unique("replica");
    let other = names::unique("replica");
    let mut first = Relay::start_with(&crew.config, &[(NAME, &name)]).await;
    let mut second = Relay::spawn(&crew.config, &[(NAME, &name)]);
    let ended = second
        .wait(Duration::from_secs(60))
        .await
        .expect("it ends by itself");
    assert_eq!(ended.code(), Some(1));
    let log = second.log();
    assert!(
        log.contains(&format!("another replica is named \"{name}\" and lives")),
        "{log}"
    );
    shared(std::slice::from_ref(&first)).await;
    assert!(!first.log().contains("may not go on"), "the first stays");

    // One that died leaves its name and its partitions to the next of that name, at once.
    first.kill9().await;
    let successor = Relay::start_with(&crew.config, &[(NAME, &name)]).await;
    shared(std::slice::from_ref(&successor)).await;
    let another = Relay::start_with(&crew.config, &[(NAME, &other)]).await;
    let relays = [successor, another];
    shared(&relays).await;
}

#[tokio::test]
async fn one_that_was_silent_for_too_long_has_lost_its_name_to_whoever_took_it() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let crew = Crew::plan(redis, rabbitmq, BEAT).await;
    let name = names::unique("replica");
    let mut first = Relay::start_with(&crew.config, &[(NAME, &name)]).await;
    // Ready is not yet joined.
    shared(std::slice::from_ref(&first)).await;
    first.signal(Signal::STOP);
    let second = Relay::start_with(&crew.config, &[(NAME, &name)]).await;
    shared(std::slice::from_ref(&second)).await;
    // Past three heartbeats the first counts as dead, and the second is no newcomer any more.
    tokio::time::sleep(Duration::from_secs(2)).await;
    first.signal(Signal::CONT);
    assert_eq!(
        first
            .wait(Duration::from_secs(60))
            .await
            .expect("it ends by itself")
            .code(),
        Some(1)
    );
    logged(&first, "another replica took the name").await;
    shared(std::slice::from_ref(&second)).await;
    assert!(!second.log().contains("may not go on"), "the second stays");
}

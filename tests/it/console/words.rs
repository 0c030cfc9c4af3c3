//! The console has a word for all that the API names.

use std::collections::BTreeSet;

use postdate::domain::{DeadReason, TrailWord};

use super::{WRITE, browser_at};
use crate::support::browser::{self, WIDE};
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, folders, names};

const WORDS: &str = include_str!("../../../src/admin/console/lib/words.js");

/// What stands between these two texts.
fn between(begin: &str, end: &str) -> &'static str {
    let (_, rest) = WORDS.split_once(begin).expect("its beginning");
    rest.split_once(end).expect("its end").0
}

/// The keys of a table.
fn keys(table: &str) -> BTreeSet<&'static str> {
    between(&format!("const {table} = {{\n"), "\n};")
        .lines()
        .filter_map(|row| row.trim().split_once(':'))
        .map(|(key, _)| key)
        .collect()
}

#[test]
fn there_is_a_word_for_every_kind_of_part_every_reason_and_every_event() {
    let groups = between("const PART_GROUPS = [\n", "\n];");
    let kinds: BTreeSet<&str> = groups
        .lines()
        .filter_map(|group| group.split_once("kinds: ["))
        .flat_map(|(_, kinds)| kinds.split('"').skip(1).step_by(2))
        .collect();
    let given: BTreeSet<&str> = WORDS
        .split("kind: \"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(kind, _)| kind)
        .collect();
    assert_eq!(given, kinds, "each kind of part is shown in a group");
    assert_eq!(keys("PART_TROUBLES"), kinds, "each kind has its trouble");

    let reasons: BTreeSet<&str> = DeadReason::all().map(DeadReason::as_str).collect();
    assert_eq!(keys("DEAD_REASONS"), reasons);
    let states = keys("MESSAGE_STATES");
    for event in TrailWord::ALL.map(TrailWord::as_str) {
        assert!(states.contains(event), "{event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_a_file_of_tokens_is_told_in_words() {
    if !browser::available("console: a fault of a file of tokens") {
        return;
    }
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let [from, to] = ["from", "to"].map(names::unique);
    for queue in [&from, &to] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let config = Config::new(redis).rabbitmq("main", rabbitmq).route(
        "orders",
        &format!(r#"{{ rabbitmq = "main", queue = "{from}" }}"#),
        &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{to}" }}"#),
        "",
    );
    let folder = folders::new("console");
    let tokens = folder.join("write-tokens");
    std::fs::write(&tokens, format!("{WRITE}\n")).expect("written");
    let file = tokens.display().to_string();
    let relay = Relay::start_with(
        &config,
        &[("POSTDATE_ADMIN__WRITE_TOKENS_FILE", file.as_str())],
    )
    .await;
    let browser = browser_at(&relay, WIDE, WRITE).await;

    // At once, as one of a Kubernetes secret: the line that is right goes on to count.
    let new = folder.join("new");
    std::fs::write(&new, format!("{WRITE}\nno token at all\n")).expect("written");
    std::fs::rename(&new, &tokens).expect("renamed");
    browser.sees("The file of write tokens has a fault").await;
    let text = browser.text().await;
    assert!(!text.contains("undefined"), "{text}");
}

//! `postdate show`

use std::process::ExitCode;

use clap::Args;
use serde_json::value::RawValue;

use super::api::{self, messages, path_on_route};
use super::client::{ApiClient, ClientError};
use super::facts::{FactLines, key_text};
use super::output::{self, SafeText};
use super::trail;
use crate::api::{MessageAnswer, MessageView, ShownState, Word};
use crate::domain::{Clock, TrailWord, duration};

/// Show a message: its state, when it is due, its failures and headers
///
/// While it waits, is being published, or is a dead letter; then what became of it, as long as its route's trail (the key
/// `history`) tells. Without --route on every route that has or had a message of this id.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate show order-7\n  postdate show order-7 --route orders --json\n\n{}",
    api::ENVIRONMENT_HELP))]
pub(super) struct ShowArgs {
    #[command(flatten)]
    api: api::ApiArgs,
    /// Its own id, or the `~` id that Postdate gave it
    #[arg(value_name = "ID")]
    id: String,
    /// Its route; may be left out
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Print the API's answer as JSON, one message a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ShowArgs) -> ExitCode {
    api::ended(api::connect(&args.api).and_then(|client| {
        let text = if args.json {
            json(&client, args)?
        } else {
            let now = Clock::start().wall().0;
            let found = found(&client, args)?;
            SafeText::joined(found.iter().map(|message| render(message, now)), "\n\n")
        };
        output::out(text);
        Ok(())
    }))
}

fn found(client: &ApiClient, args: &ShowArgs) -> Result<Vec<MessageAnswer>, ClientError> {
    if let Some(route) = &args.route {
        let path = path_on_route(route, &args.id)?;
        return Ok(vec![client.get(&path)?]);
    }
    messages(client, &args.id)
}

/// The API's answer, one message a line.
fn json(client: &ApiClient, args: &ShowArgs) -> Result<SafeText, ClientError> {
    if let Some(route) = &args.route {
        let path = path_on_route(route, &args.id)?;
        return client.get_text(&path).map(|text| SafeText::answer(&text));
    }
    let found: Vec<Box<RawValue>> = messages(client, &args.id)?;
    let lines = found.iter().map(|message| SafeText::answer(message.get()));
    Ok(SafeText::joined(lines, "\n"))
}

/// A message for people: one line a fact.
fn render(message: &MessageAnswer, now_ms: i64) -> SafeText {
    let mut lines = FactLines::default();
    let trail = match message {
        MessageAnswer::Kept(kept) => {
            add_kept(&mut lines, kept, now_ms);
            &kept.trail
        }
        MessageAnswer::Gone(gone) => {
            lines.add("id", &gone.id);
            lines.add("route", &gone.route);
            lines.add("state", &state_of_gone(&gone.state));
            &gone.trail
        }
    };
    lines.add_each("trail", trail.iter().map(trail::told));
    lines.text()
}

fn add_kept(lines: &mut FactLines, message: &MessageView, now_ms: i64) {
    lines.add("id", &message.id);
    lines.add("route", &message.route);
    lines.add("state", &state_of_kept(message));
    lines.add_request(&message.request, now_ms);
    if message.failures > 0 {
        lines.add_moment("asked", Some(message.asked_ms), now_ms);
    }
    lines.add_moment("due", Some(message.due_ms), now_ms);
    if let Some(late_ms) = message.late_by_ms {
        let why = message.why.as_deref().unwrap_or("unknown");
        lines.add("late", &format!("{}: {why}", duration::words(late_ms)));
    }
    lines.add("target", &message.target);
    let key = key_text(message.key.as_deref(), message.key_is_base64);
    lines.add_known("key", key.as_deref());
    lines.add_size(message.size);
    lines.add_position(message.position.as_ref());
    lines.add_known("dead id", message.dead_id.as_deref());
    lines.add_headers(&message.headers);
    lines.add_failures(message.history.as_deref().unwrap_or_default(), now_ms);
}

/// The state of a message that the store has, in words.
fn state_of_kept(message: &MessageView) -> String {
    let attempt = message.attempt;
    let failed = match message.failures {
        0 => String::new(),
        1 => "; 1 publish failed".to_owned(),
        n => format!("; {n} publishes failed"),
    };
    match &message.state {
        Word::Known(ShownState::Pending) if message.failures > 0 => {
            format!("pending, until attempt {attempt}{failed}")
        }
        Word::Known(ShownState::Pending) => "pending".to_owned(),
        Word::Known(ShownState::InFlight) => {
            format!("is being published, attempt {attempt}{failed}")
        }
        Word::Known(ShownState::Published) => "published; its bundle is not settled yet".to_owned(),
        Word::Known(ShownState::Dead) => {
            let id = message.dead_id.as_deref().unwrap_or_default();
            format!("dead letter{failed}: see `postdate dead show {id}`")
        }
        Word::Other(word) => word.clone(),
    }
}

/// The state of a message that is gone, in words.
fn state_of_gone(state: &Word<TrailWord>) -> String {
    match state {
        Word::Known(TrailWord::Delivered | TrailWord::Cancelled | TrailWord::Dropped)
        | Word::Other(_) => state.to_string(),
        Word::Known(TrailWord::Dead) => "was a dead letter".to_owned(),
        Word::Known(_) => format!("gone; last known of it: {state}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::table::precise_moment;

    fn answer(message: serde_json::Value) -> MessageAnswer {
        serde_json::from_value(message).expect("an answer")
    }

    #[test]
    fn a_late_message_says_how_late_it_is_and_why() {
        let message = answer(json!({
            "id": "a", "route": "orders", "due_ms": 5, "asked_ms": 5, "state": "pending", "attempt": 1, "failures": 0,
            "late_by_ms": 291_000, "why": "publishing of the route is\u{1b}[31m paused by hand", "version": "v", "target": "t",
            "size": 0, "headers": [],
        }));
        let shown = render(&message, 291_005);
        let expected = "4 min 51 s: publishing of the route is\\u001b[31m paused by hand";
        assert!(shown.as_str().contains(expected), "{}", shown.as_str());
    }

    #[test]
    fn a_message_that_failed_is_told_whole() {
        let message = answer(json!({
            "id": "order-7", "route": "orders", "due_ms": 1_000_000, "asked_ms": 400_000, "state": "pending",
            "version": "v", "received_ms": 100_000, "delay_ms": 300_000, "attempt": 3, "failures": 2, "target": "orders-out", "key": "k", "size": 12,
            "headers": [{ "name": "a", "value": "1" }, { "name": "b", "value": { "base64": "/w==" } }],
            "position": { "partition": 3, "offset": 1881 },
            "history": [{ "at_ms": 500_000, "reason": "unroutable", "error": "no\u{1b}[31m queue" }],
        }));
        let shown = render(&message, 940_000);
        let mut lines: Vec<&str> = shown.as_str().lines().collect();
        assert_eq!(
            lines[2],
            "state     pending, until attempt 3; 2 publishes failed"
        );
        assert!(
            lines[3].starts_with("received  ")
                && lines[3].ends_with("(14 min ago), with a delay of 5 min"),
            "{lines:#?}"
        );
        lines.remove(3);
        assert!(
            lines[3].starts_with("asked     ") && lines[3].ends_with("(9 min ago)"),
            "{lines:#?}"
        );
        assert!(
            lines[4].starts_with("due       ") && lines[4].ends_with("(in 1 min)"),
            "{lines:#?}"
        );
        assert_eq!(
            lines[5..9].join("|"),
            "target    orders-out|key       k|size      12 bytes|read at   Kafka partition 3, offset 1881"
        );
        assert_eq!(
            lines[9..11],
            ["headers   a: 1", "          b: {\"base64\":\"/w==\"}"]
        );
        assert!(
            lines[11].starts_with("failures  ") && lines[11].contains("unroutable: no"),
            "{lines:#?}"
        );
        assert!(
            !shown.as_str().contains('\u{1b}'),
            "no control character reaches the terminal"
        );
    }

    #[test]
    fn a_message_that_is_gone_is_told_by_its_trail() {
        let message = answer(json!({
            "id": "order-7", "route": "orders", "state": "delivered", "trail": [
                { "at_ms": 500_000, "event": "moved", "due_ms": 1_000_000, "by": "write token 1" },
                { "at_ms": 1_000_002, "event": "delivered", "late_ms": 2, "attempt": 1, "target": "orders",
                  "connection": "kafka.main" },
            ],
        }));
        let shown = render(&message, 1_000_000);
        let lines: Vec<&str> = shown.as_str().lines().collect();
        assert_eq!(
            lines[..3],
            [
                "id        order-7",
                "route     orders",
                "state     delivered"
            ]
        );
        assert!(
            lines[3].starts_with("trail     moved ") && lines[3].ends_with(", by write token 1"),
            "{lines:#?}"
        );
        assert!(lines[4].starts_with("          delivered "), "{lines:#?}");
        let at = precise_moment(1_000_002);
        let end = format!("{at}, 2 ms late, to kafka main, topic orders, first attempt");
        assert!(lines[4].ends_with(&end) && lines.len() == 5, "{lines:#?}");
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let message = answer(json!({
            "id": "~a", "route": "mail", "due_ms": 5, "asked_ms": 5, "state": "in_flight", "attempt": 1,
            "failures": 0, "version": "v", "target": "x/y", "size": 0, "headers": [],
        }));
        let shown = render(&message, 5);
        let names: Vec<&str> = shown
            .as_str()
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(names, ["id", "route", "state", "due", "target", "size"]);
        assert!(shown.as_str().contains("is being published, attempt 1\n"));
    }
}

use bytes::Bytes;

use super::*;
use crate::domain::Secret;
use crate::domain::testing::route;
use crate::import::RefusalReason::{BadScore, Invalid, NotJson, NotRedisson, NotText};
use crate::import::foreign::ForeignServer;

/// The arrival of the tests' entries, Unix ms.
const ARRIVAL_MS: i64 = 1_900_000_000_000;

fn judge(form: EntryForm, score: ScoreUnit) -> EntryJudge {
    EntryJudge::new(&ImportRequest {
        route: route(),
        server: ForeignServer {
            url: Secret::new("redis://h"),
            ca: None,
        },
        queue: ImportQueue::Zset {
            key: "delayed".to_owned(),
            hash: None,
        },
        form,
        score,
        key: Some("k".to_owned()),
        headers: vec![("x-kind".to_owned(), "reminder".to_owned())],
        dry_run: true,
        because: None,
    })
}

fn entry(member: impl Into<Bytes>, score: &str) -> ForeignEntry {
    ForeignEntry {
        member: member.into(),
        score: score.to_owned(),
        body: Bytes::from_static(b"from the hash"),
    }
}

fn judged(
    form: EntryForm,
    score: ScoreUnit,
    entry: &ForeignEntry,
) -> Result<AcceptedEntry, RefusalReason> {
    judge(form, score)
        .judge(entry, UnixMs(ARRIVAL_MS).into())
        .map_err(|(reason, _)| reason)
}

fn body(form: EntryForm, member: &[u8]) -> Result<Vec<u8>, RefusalReason> {
    let entry = entry(member.to_vec(), "1900000100000");
    let accepted = judged(form, ScoreUnit::Milliseconds, &entry)?;
    Ok(accepted.message.message.body.unwrap_or_default().to_vec())
}

fn packed(value: &[u8]) -> Vec<u8> {
    [
        &[8u8][..],
        &[1; 8],
        &(value.len() as u64).to_le_bytes(),
        value,
    ]
    .concat()
}

#[test]
fn a_body_is_what_the_form_says() {
    let redisson = EntryForm::Redisson;
    let field = || EntryForm::JsonField("payload".to_owned());
    let object = br#"{"@class":"A","n":1}"#;
    for (form, member, expected) in [
        (
            EntryForm::Member,
            b"\xff\0".to_vec(),
            Ok(b"\xff\0".to_vec()),
        ),
        (
            EntryForm::Hash,
            b"id-7".to_vec(),
            Ok(b"from the hash".to_vec()),
        ),
        (
            redisson(BodyCodec::Bytes),
            packed(b"\x03\xff"),
            Ok(b"\x03\xff".to_vec()),
        ),
        (
            redisson(BodyCodec::Bytes),
            b"order-7".to_vec(),
            Err(NotRedisson),
        ),
        (
            redisson(BodyCodec::Text),
            packed("é".as_bytes()),
            Ok("é".as_bytes().to_vec()),
        ),
        (redisson(BodyCodec::Text), packed(b"\xff"), Err(NotText)),
        (
            redisson(BodyCodec::Json),
            packed(br#""a\u00e9""#),
            Ok("aé".as_bytes().to_vec()),
        ),
        (
            redisson(BodyCodec::Json),
            packed(object),
            Ok(object.to_vec()),
        ),
        (redisson(BodyCodec::Json), packed(b"\x03\x01"), Err(NotJson)),
        (
            field(),
            br#"{ "id":1, "payload" : "text" }"#.to_vec(),
            Ok(b"text".to_vec()),
        ),
        (
            field(),
            br#"{"payload":{"b":1.0e2,"a":[1, 2]}}"#.to_vec(),
            Ok(br#"{"b":1.0e2,"a":[1, 2]}"#.to_vec()),
        ),
        (
            field(),
            br#"{"payload":12345678901234567890123}"#.to_vec(),
            Ok(b"12345678901234567890123".to_vec()),
        ),
        (
            field(),
            br#"{"a":{"payload":1},"payl\u006fad":2}"#.to_vec(),
            Ok(b"2".to_vec()),
        ),
        (
            field(),
            br#"{"payload":1,"payload":2}"#.to_vec(),
            Ok(b"2".to_vec()),
        ),
        (field(), br#"{"id":1}"#.to_vec(), Err(NotJson)),
        (field(), b"{}".to_vec(), Err(NotJson)),
        (field(), b"[1]".to_vec(), Err(NotJson)),
        (field(), br#"{"payload":1"#.to_vec(), Err(NotJson)),
    ] {
        assert_eq!(
            body(form.clone(), &member),
            expected,
            "{form:?} {}",
            member.escape_ascii()
        );
    }
}

#[test]
fn a_score_is_a_moment_in_its_unit_or_nothing() {
    let soon = ARRIVAL_MS + RECALL_MS;
    for (unit, score, expected) in [
        (
            ScoreUnit::Milliseconds,
            "1900000100000",
            Ok(1_900_000_100_000),
        ),
        (
            ScoreUnit::Milliseconds,
            "1900000100000.25",
            Ok(1_900_000_100_001),
        ),
        (ScoreUnit::Milliseconds, "1900000000001", Ok(soon)),
        (ScoreUnit::Milliseconds, "1700000000000", Ok(soon)),
        (ScoreUnit::Milliseconds, "1900000100", Err(BadScore)),
        (ScoreUnit::Milliseconds, "inf", Err(BadScore)),
        (ScoreUnit::Milliseconds, "-5", Err(BadScore)),
        (ScoreUnit::Seconds, "1900000100", Ok(1_900_000_100_000)),
        (ScoreUnit::Seconds, "1900000100.123", Ok(1_900_000_100_123)),
        (ScoreUnit::Seconds, "1900000100.1231", Ok(1_900_000_100_124)),
        (ScoreUnit::Seconds, "1900000100000", Err(BadScore)),
        (ScoreUnit::Seconds, "nan", Err(BadScore)),
        // Beyond the route's `max_delay`.
        (ScoreUnit::Seconds, "9900000100", Err(Invalid)),
    ] {
        let judged = judged(EntryForm::Member, unit, &entry("m", score));
        assert_eq!(
            judged.map(|accepted| accepted.message.due.0),
            expected,
            "{unit:?} {score}"
        );
    }
    let hint = judge(EntryForm::Member, ScoreUnit::Milliseconds).due("1900000100");
    assert_eq!(
        hint,
        Err((BadScore, "score 1900000100; are these seconds?".to_owned()))
    );
}

#[test]
fn a_name_follows_from_all_of_an_entry() {
    let judge = judge(EntryForm::Member, ScoreUnit::Milliseconds);
    let name = |entry: &ForeignEntry| judge.name(entry);
    let first = name(&entry("m", "1900000100000"));
    assert_eq!(first, name(&entry("m", "1900000100000")));
    assert!(first.starts_with("zset-") && first.len() == 37, "{first}");
    let other_body = ForeignEntry {
        body: Bytes::new(),
        ..entry("m", "1900000100000")
    };
    for other in [
        entry("n", "1900000100000"),
        entry("m", "1900000100001"),
        other_body,
    ] {
        assert_ne!(first, name(&other), "{other:?}");
    }
}

#[test]
fn a_message_has_the_key_and_the_headers_that_were_asked_for_and_no_delay() {
    let accepted = judged(
        EntryForm::Member,
        ScoreUnit::Milliseconds,
        &entry("m", "1900000100000"),
    );
    let message = accepted.expect("accepted").message.message;
    assert_eq!(message.key.as_deref(), Some(&b"k"[..]));
    let names: Vec<&str> = message
        .headers
        .iter()
        .map(|header| header.name.as_str())
        .collect();
    assert_eq!(names, ["x-kind"]);
}

#[test]
fn an_example_is_short_and_holds_no_command_for_a_terminal() {
    let shown = shown(&[&b"\x1b[2J\n"[..], &[b'a'; 100]].concat(), "why");
    assert!(
        shown.starts_with("`\\x1b[2J\\n") && shown.ends_with("...`: why"),
        "{shown}"
    );
    assert!(shown.len() < 80, "{shown}");
}

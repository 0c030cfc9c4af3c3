//! Redrive: turns a dead letter into a bundle that is published again, if the route's rules allow it. Pure.

use std::sync::Arc;

use super::admit::{is_delay_header, within_limits};
use crate::domain::{
    DeadReason, Entry, Flags, InvalidReason, KafkaPosition, OwnTarget, Route, Target, TargetRef,
    UnixMs, duration, topics::DerivedTargets,
};
use crate::store::Bundle;

/// The bundle that a dead letter becomes: its messages due at this moment, without delay headers, their attempts counted from 1
/// again, their hand-outs counted on. A dead letter holds one message, or several where a bundle was kept unopened.
/// `target` names another target than the dead letter had. All rules of the route apply as they are now, to each
/// message. `Err` names the broken rule, in a sentence for a person.
pub fn redrive(
    letter: &Bundle,
    reason: DeadReason,
    route: &Route,
    target: Option<&str>,
    due: UnixMs,
    now: UnixMs,
) -> Result<Bundle, String> {
    if letter.entries.is_empty() {
        return Err("there is no message in it that could be published".to_owned());
    }
    let ahead = due.since(now);
    let most = route.policy.max_delay_ms;
    if ahead > most {
        let (ahead, most) = (duration::words(ahead), duration::render(most));
        return Err(format!("due in {ahead}, over max_delay of {most}"));
    }
    let found = match target {
        Some(name) => route.named_target(name).cloned(),
        None => own_target(letter, route),
    };
    let Some(found) = found else {
        let name = target.unwrap_or(letter.target.as_str());
        return Err(format!(
            "{name:?} is neither the route's target nor in allow_targets"
        ));
    };
    let entries: Result<Vec<Entry>, String> = letter
        .entries
        .iter()
        .map(|entry| redrive_entry(entry, reason, route, due))
        .collect();
    Ok(Bundle {
        target: route.target_ref(&found),
        entries: Arc::new(entries?),
    })
}

/// The target that a dead letter had. One that died before it had any may have the one of its topic.
fn own_target(letter: &Bundle, route: &Route) -> Option<Arc<Target>> {
    let of_topic = |derived: &DerivedTargets| {
        let topic = letter.entries.first()?.source_topic.as_ref()?;
        derived.of_topic(topic.as_str()).ok()
    };
    match (&letter.target, &route.own_target) {
        (TargetRef::Own, OwnTarget::PerTopic(derived)) => of_topic(derived),
        (target, _) => route.target(target),
    }
}

/// One message of a dead letter as it is published again.
fn redrive_entry(
    entry: &Entry,
    reason: DeadReason,
    route: &Route,
    due: UnixMs,
) -> Result<Entry, String> {
    let mut entry = entry.clone();
    if entry.flags.has(Flags::LEFT_OUT) {
        let place =
            entry
                .position
                .map_or_else(String::new, |KafkaPosition { partition, offset }| {
                    format!(": it is in its topic, partition {partition}, offset {offset}")
                });
        let why = if reason == DeadReason::Invalid(InvalidReason::Undecodable) {
            "it could not be opened, so there is nothing to send"
        } else {
            "its body was over dead_letters.max_message and was not kept"
        };
        return Err(format!("{why}{place}"));
    }
    let unreadable = DeadReason::Invalid(InvalidReason::BadHeaders);
    if reason == unreadable && entry.message.headers.is_empty() {
        return Err("its headers could not be read, so it cannot leave with them".to_owned());
    }
    entry
        .message
        .headers
        .retain(|header| !is_delay_header(header, route));
    within_limits(&entry.message, None, route).map_err(|(_, why)| why)?;
    entry.due = due;
    entry.asked = None;
    entry.failures = 0;
    if let Some(request) = &mut entry.request {
        // Whoever sends it again wants it, and gives its consumers all their tries anew.
        request.expires = None;
        request.given_back = 0;
    }
    entry.flags = entry.flags.without(Flags::DYING);
    if entry
        .id
        .as_ref()
        .is_some_and(|id| !id.as_str().starts_with('~'))
    {
        entry.flags = entry.flags.with(Flags::NAMED);
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::domain::{Header, HeaderValue, Target, TargetRef, Text, testing};

    const FAILED: DeadReason = DeadReason::Attempts;

    fn route() -> Route {
        let mut route = Route::clone(&testing::route());
        let other = Target::Kafka {
            connection: "main".into(),
            topic: "orders.retry".into(),
        };
        route.allow_targets = vec![Arc::new(other)];
        route.policy.max_size = 10;
        route
    }

    fn letter(change: impl FnOnce(&mut Entry)) -> Bundle {
        let mut entry = testing::entry(UnixMs(7), b"body");
        entry.asked = Some(UnixMs(3));
        entry.handouts = 16;
        entry.failures = 16;
        let header = |name: &str| Header::new(name, HeaderValue::Bytes(Bytes::from_static(b"x")));
        entry.message.headers = vec![header("X-Delay"), header("kept"), header("x-delay-due")];
        change(&mut entry);
        Bundle {
            target: TargetRef::Own,
            entries: Arc::new(vec![entry]),
        }
    }

    fn again(letter: &Bundle, target: Option<&str>) -> Result<Bundle, String> {
        redrive(letter, FAILED, &route(), target, UnixMs(100), UnixMs(100))
    }

    #[test]
    fn it_is_due_now_without_delay_headers_and_its_attempts_begin_anew() {
        let bundle = again(&letter(|e| e.id = Some("order-7".into())), None).expect("it may go");
        let entry = &bundle.entries[0];
        assert_eq!(
            (entry.due, entry.asked_due(), entry.failures, entry.handouts),
            (UnixMs(100), UnixMs(100), 0, 16)
        );
        let names: Vec<_> = entry
            .message
            .headers
            .iter()
            .map(|h| h.name.as_str())
            .collect();
        assert_eq!(names, ["kept"]);
        assert!(entry.flags.has(Flags::NAMED));
        let made = again(&letter(|e| e.id = Some("~1.2.3".into())), None).expect("it may go");
        assert!(
            !made.entries[0].flags.has(Flags::NAMED),
            "an id that Postdate made is no name"
        );
    }

    #[test]
    fn it_may_be_due_later_within_max_delay() {
        let route = route();
        let most = route.policy.max_delay_ms;
        let due = |due: UnixMs| redrive(&letter(|_| ()), FAILED, &route, None, due, UnixMs(100));
        let later = due(UnixMs(100 + most)).expect("it may go");
        assert_eq!(later.entries[0].asked_due(), UnixMs(100 + most));
        assert!(due(UnixMs(101 + most)).is_err_and(|why| why.contains("over max_delay")));
    }

    #[test]
    fn it_goes_to_its_own_or_an_allowed_target_only() {
        let target = |bundle: Result<Bundle, String>| bundle.map(|b| b.target.as_str().to_owned());
        assert_eq!(target(again(&letter(|_| ()), None)), Ok(String::new()));
        assert_eq!(
            target(again(&letter(|_| ()), Some("orders"))),
            Ok(String::new())
        );
        assert_eq!(
            target(again(&letter(|_| ()), Some("orders.retry"))),
            Ok("orders.retry".to_owned())
        );
        for bad in ["elsewhere", "", "orders.delayed"] {
            assert!(
                again(&letter(|_| ()), Some(bad)).is_err_and(|why| why.contains("allow_targets"))
            );
        }
        let mut moved = letter(|_| ());
        moved.target = TargetRef::Named("orders.old".into());
        assert!(
            again(&moved, None).is_err(),
            "the target that it had is not allowed any more"
        );
        assert_eq!(target(again(&moved, Some("orders"))), Ok(String::new()));
    }

    #[test]
    fn a_dead_letter_of_several_messages_goes_as_a_whole_or_stays() {
        let mut several = letter(|e| e.id = Some("a".into()));
        let second = letter(|e| e.id = Some("b".into())).entries[0].clone();
        Arc::make_mut(&mut several.entries).push(second);
        let bundle = again(&several, None).expect("it may go");
        let ids: Vec<_> = bundle.entries.iter().filter_map(|e| e.id.clone()).collect();
        assert_eq!(ids, [Text::from("a"), Text::from("b")]);
        assert!(
            bundle
                .entries
                .iter()
                .all(|e| e.due == UnixMs(100) && e.flags.has(Flags::NAMED))
        );
        Arc::make_mut(&mut several.entries)[1].message.body = Some(vec![0; 11].into());
        assert!(again(&several, None).is_err_and(|why| why.contains("max_size")));
    }

    #[test]
    fn what_is_not_whole_or_too_large_stays() {
        let why = |letter: &Bundle| again(letter, None).expect_err("it may not go");
        assert!(why(&letter(|e| e.message.body = Some(vec![0; 11].into()))).contains("max_size"));
        let left_out = letter(|e| {
            e.flags = Flags(Flags::LEFT_OUT);
            e.position = Some(KafkaPosition {
                partition: 3,
                offset: 42,
            });
        });
        assert!(why(&left_out).contains("partition 3, offset 42"));
        let undecodable = DeadReason::Invalid(InvalidReason::Undecodable);
        assert_eq!(
            redrive(&left_out, undecodable, &route(), None, UnixMs(0), UnixMs(0)),
            Err("it could not be opened, so there is nothing to send: it is in its topic, partition 3, offset 42".to_owned())
        );
        let empty = Bundle {
            target: TargetRef::Own,
            entries: Arc::default(),
        };
        assert!(why(&empty).contains("no message"));
        let reason = DeadReason::Invalid(InvalidReason::BadHeaders);
        let headless = letter(|e| e.message.headers.clear());
        assert!(redrive(&headless, reason, &route(), None, UnixMs(0), UnixMs(0)).is_err());
    }

    #[test]
    fn what_died_before_it_had_a_target_gets_the_one_of_its_topic() {
        let route = testing::route_per_topic("(.*)\\.delayed", "{1}");
        let now = UnixMs(9);
        let again = |topic: Option<&str>| {
            let letter = letter(|entry| entry.source_topic = topic.map(Text::from));
            redrive(&letter, FAILED, &route, None, now, now).map(|bundle| bundle.target)
        };
        assert_eq!(
            again(Some("mails.delayed")),
            Ok(TargetRef::Named("mails".into()))
        );
        for unknown in [None, Some("mails")] {
            assert!(again(unknown).is_err(), "{unknown:?}");
        }
    }
}

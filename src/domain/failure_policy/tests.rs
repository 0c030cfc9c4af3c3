use super::*;
use crate::domain::{DelayRequest, Expiry, Flags, RequestedTime, testing};

const NOW: UnixMs = UnixMs(10_000);
const MAX_MS: i64 = 1500;
const PASSING: PublishFlow = PublishFlow::Passing { waits: 0 };

fn refused(reason: Refusal) -> Verdict {
    Verdict::Refused {
        reason,
        error: "no".into(),
    }
}

/// The fate of a message at its `nth` publish, at full jitter. `+1000`: published again after this long. `=1000`: the
/// same in place. A reason: dead for it; with `>`, by way of `dead_letter_to`.
fn fate(
    verdict: &Verdict,
    nth: u32,
    flow: PublishFlow,
    on_refused: OnRefused,
    has_quota: bool,
    via: bool,
) -> String {
    let mut route = (*testing::route()).clone();
    route.policy.retry = RetryPolicy {
        attempts: 3,
        initial_ms: 1000,
        max_ms: MAX_MS,
    };
    route.policy.on_refused = on_refused;
    route.dead_letter_to = via.then(|| route.to.clone());
    let mut entry = testing::entry(NOW, b"body");
    entry.failures = nth - 1;
    let publish = FailedPublish {
        entry: &entry,
        verdict,
        handouts: nth,
        flow,
        now: NOW,
        jitter: 1.0,
    };
    let mut asked = None;
    let failed = decide(publish, &route, |size| {
        asked = Some(size);
        has_quota
    });
    let counted = failed.entry.failures - entry.failures;
    let text = match failed.decision {
        FailureDecision::RetryAt(at) => format!("+{}", at.since(NOW)),
        FailureDecision::WaitUntil(at) => format!("={}", at.since(NOW)),
        FailureDecision::DeadLetter(reason) => reason.as_str().to_owned(),
        FailureDecision::DeadLetterVia(reason) => format!(">{}", reason.as_str()),
        FailureDecision::Drop(reason) => format!("drop {}", reason.as_str()),
    };
    let is_dead = matches!(
        failed.decision,
        FailureDecision::DeadLetter(_) | FailureDecision::DeadLetterVia(_)
    );
    assert_eq!(
        asked.is_some(),
        !verdict.is_hopeless() && (is_dead || failed.is_full.is_some()),
        "the quota is taken from by the dead only, and not by those who are to blame themselves"
    );
    assert!(asked.is_none_or(|size| size == entry.stored_size()));
    match (counted, failed.is_full) {
        (0, None) => format!("{text} uncounted"),
        (_, None) => text,
        (_, Some(reason)) => format!("{text} full of {}", reason.as_str()),
    }
}

const ALL: [OnRefused; 4] = [
    OnRefused::Retry,
    OnRefused::Wait,
    OnRefused::DeadLetter,
    OnRefused::Drop,
];

#[test]
fn the_table_of_what_passes_through() {
    let passing =
        |verdict: &Verdict, nth| ALL.map(|policy| fate(verdict, nth, PASSING, policy, true, false));
    let unknown = Verdict::Unknown {
        error: "lost".into(),
    };
    let table: [(&str, Verdict, u32, [&str; 4]); 12] = [
        (
            "unroutable",
            refused(Refusal::Unroutable),
            1,
            ["+1000", "=1000", "unroutable", "drop refused"],
        ),
        (
            "its third time",
            refused(Refusal::Unroutable),
            3,
            ["unroutable", "unroutable", "unroutable", "drop refused"],
        ),
        (
            "not allowed",
            refused(Refusal::NotAllowed),
            1,
            ["+1000", "=1000", "not_allowed", "drop refused"],
        ),
        (
            "too big",
            refused(Refusal::TooBig),
            1,
            ["too_big_for_target"; 4],
        ),
        (
            "unpublishable",
            refused(Refusal::Unpublishable),
            1,
            ["unpublishable"; 4],
        ),
        (
            "missing",
            refused(Refusal::UnknownTarget),
            1,
            ["=1000 uncounted"; 4],
        ),
        (
            "missing for long",
            refused(Refusal::UnknownTarget),
            99,
            ["=1000 uncounted"; 4],
        ),
        (
            "away",
            refused(Refusal::Unavailable),
            1,
            ["=1000 uncounted"; 4],
        ),
        ("unknown", unknown.clone(), 1, ["=1000"; 4]),
        ("unknown twice", unknown.clone(), 2, ["=1500"; 4]),
        ("unknown for ever", unknown, 3, ["attempts"; 4]),
        ("not tried", Verdict::NotTried, 1, ["=100 uncounted"; 4]),
    ];
    for (what, verdict, nth, expected) in table {
        assert_eq!(
            passing(&verdict, nth),
            expected.map(str::to_owned),
            "{what}"
        );
    }
}

#[test]
fn the_table_of_what_is_delayed() {
    let unknown = Verdict::Unknown {
        error: "lost".into(),
    };
    let table: [(&str, Verdict, [&str; 3]); 8] = [
        (
            "unroutable",
            refused(Refusal::Unroutable),
            ["+1000", "+1500", "unroutable"],
        ),
        (
            "not allowed",
            refused(Refusal::NotAllowed),
            ["+1000", "+1500", "not_allowed"],
        ),
        (
            "too big",
            refused(Refusal::TooBig),
            ["too_big_for_target"; 3],
        ),
        (
            "content",
            refused(Refusal::Unpublishable),
            ["unpublishable"; 3],
        ),
        (
            "missing",
            refused(Refusal::UnknownTarget),
            ["+1000", "+1500", "unknown_target"],
        ),
        (
            "away",
            refused(Refusal::Unavailable),
            ["+1000", "+1500", "attempts"],
        ),
        ("unknown", unknown, ["+1000", "+1500", "attempts"]),
        ("not tried", Verdict::NotTried, ["+0 uncounted"; 3]),
    ];
    for (what, verdict, expected) in table {
        for policy in ALL {
            let fates =
                [1, 2, 3].map(|nth| fate(&verdict, nth, PublishFlow::Delayed, policy, true, false));
            assert_eq!(fates, expected.map(str::to_owned), "{what}");
        }
    }
}

#[test]
fn where_no_room_is_left_for_the_dead_it_is_tried_again_and_said() {
    let passing = PASSING;
    let unroutable = refused(Refusal::Unroutable);
    let full = |flow, policy| fate(&unroutable, 3, flow, policy, false, true);
    assert_eq!(
        full(PublishFlow::Delayed, OnRefused::Retry),
        "+1500 full of unroutable"
    );
    assert_eq!(full(passing, OnRefused::Retry), "+1500 full of unroutable");
    assert_eq!(full(passing, OnRefused::Wait), "=1500 full of unroutable");
    for own_fault in [Refusal::TooBig, Refusal::Unpublishable] {
        let dead = fate(
            &refused(own_fault),
            1,
            PublishFlow::Delayed,
            OnRefused::Retry,
            false,
            true,
        );
        assert_eq!(dead, format!(">{}", own_fault.as_str()), "it needs no room");
    }
    let dead = fate(&unroutable, 1, passing, OnRefused::DeadLetter, false, false);
    assert_eq!(dead, "+1500 full of unroutable");
}

#[test]
fn with_dead_letter_to_it_dies_by_way_of_that() {
    let too_big = refused(Refusal::TooBig);
    for flow in [PublishFlow::Delayed, PASSING] {
        assert_eq!(
            fate(&too_big, 1, flow, OnRefused::Retry, true, true),
            ">too_big_for_target"
        );
    }
}

#[test]
fn a_wait_is_jittered_and_a_target_that_is_away_is_asked_every_second() {
    let retry = RetryPolicy {
        attempts: 9,
        initial_ms: 100,
        max_ms: 300_000,
    };
    assert_eq!(
        [1, 2, 3, 40, 400].map(|n| back_off_ms(retry, n, 1.0)),
        [100, 200, 400, 300_000, 300_000]
    );
    assert_eq!(back_off_ms(retry, 1, 0.0), 50);
    let missing = refused(Refusal::UnknownTarget);
    let waits = |waits| {
        fate(
            &missing,
            1,
            PublishFlow::Passing { waits },
            OnRefused::Retry,
            true,
            false,
        )
    };
    assert_eq!(
        [0, 1, 9, 1_000_000].map(waits),
        ["=1000 uncounted"; 4].map(str::to_owned)
    );
}

#[test]
fn what_nobody_knows_of_is_flagged() {
    let entry = testing::entry(NOW, b"body");
    let verdict = Verdict::Unknown {
        error: "lost".into(),
    };
    let flow = PASSING;
    let publish = FailedPublish {
        entry: &entry,
        verdict: &verdict,
        handouts: 1,
        flow,
        now: NOW,
        jitter: 0.5,
    };
    let failed = decide(publish, &testing::route(), |_| true);
    assert!(failed.entry.flags.has(Flags::CONFIRM_UNKNOWN));
    assert_eq!(
        (
            failed.entry.handouts,
            failed.entry.failures,
            failed.entry.history.len()
        ),
        (1, 1, 1)
    );
}

#[test]
fn an_outage_of_the_target_spends_no_attempt_however_long_it_lasts() {
    let interrupted = Verdict::Interrupted {
        error: "lost".into(),
    };
    let away = refused(Refusal::PartitionAway);
    let passing = PASSING;
    for (verdict, nth, flow, expected) in [
        (&interrupted, 1, PublishFlow::Delayed, "+1000 uncounted"),
        (&interrupted, 3, PublishFlow::Delayed, "+1500 uncounted"),
        (&interrupted, 99, PublishFlow::Delayed, "+1500 uncounted"),
        (&interrupted, 1, passing, "=1000 uncounted"),
        (&interrupted, 99, passing, "=1500 uncounted"),
        (&away, 1, PublishFlow::Delayed, "+1000 uncounted"),
        (&away, 99, PublishFlow::Delayed, "+1000 uncounted"),
        (&away, 99, passing, "=1000 uncounted"),
    ] {
        for policy in ALL {
            let fate = fate(verdict, nth, flow, policy, true, false);
            assert_eq!(fate, expected, "{verdict:?}, {nth}, {flow:?}, {policy:?}");
        }
    }
}

#[test]
fn only_what_may_have_been_written_is_a_repeat_and_what_was_not_waits_as_it_is_late() {
    let route = testing::route();
    let decided = |verdict: &Verdict, late_ms: i64| {
        let publish = FailedPublish {
            entry: &testing::entry(NOW.plus(-late_ms), b"body"),
            verdict,
            handouts: 1,
            flow: PublishFlow::Delayed,
            now: NOW,
            jitter: 1.0,
        };
        let failed = decide(publish, &route, |_| true);
        let FailureDecision::RetryAt(at) = failed.decision else {
            panic!("{:?}", failed.decision)
        };
        (failed.entry, at.since(NOW))
    };
    let interrupted = Verdict::Interrupted {
        error: "lost".into(),
    };
    let (entry, _) = decided(&interrupted, 0);
    assert!(entry.flags.has(Flags::CONFIRM_UNKNOWN));
    assert_eq!((entry.handouts, entry.failures), (1, 0));
    for (late_ms, wait_ms) in [(0, 1000), (5000, 2500), (3_600_000, 30_000)] {
        let (entry, wait) = decided(&refused(Refusal::PartitionAway), late_ms);
        assert_eq!(entry, testing::entry(NOW.plus(-late_ms), b"body"));
        assert_eq!(wait, wait_ms, "{late_ms} ms late");
    }
}

#[test]
fn what_is_not_handed_over_keeps_the_count_of_the_claims_before() {
    let entry = testing::entry(NOW, b"body");
    for (verdict, flow) in [
        (refused(Refusal::PartitionAway), PublishFlow::Delayed),
        (Verdict::NotTried, PublishFlow::Delayed),
        (Verdict::NotTried, PASSING),
    ] {
        let publish = FailedPublish {
            entry: &entry,
            verdict: &verdict,
            handouts: 3,
            flow,
            now: NOW,
            jitter: 1.0,
        };
        let failed = decide(publish, &testing::route(), |_| true);
        assert_eq!(failed.entry.handouts, 2, "{verdict:?}, {flow:?}");
    }
}

#[test]
fn a_dead_message_is_tried_again_for_ever_unless_its_target_can_never_take_it() {
    let mut entry = testing::entry(NOW, b"body");
    dying_message::begin(&mut entry, NOW, DeadReason::NotAllowed);
    let route = testing::route();
    let verdicts = [
        refused(Refusal::Unroutable),
        refused(Refusal::UnknownTarget),
        refused(Refusal::Unavailable),
        refused(Refusal::PartitionAway),
        Verdict::Unknown {
            error: "lost".into(),
        },
        refused(Refusal::TooBig),
        refused(Refusal::Unpublishable),
    ];
    for verdict in &verdicts {
        let publish = FailedPublish {
            entry: &entry,
            verdict,
            handouts: 90,
            flow: PublishFlow::Dying,
            now: NOW,
            jitter: 1.0,
        };
        let failed = decide(publish, &route, |_| panic!("it has its quota"));
        if verdict.is_hopeless() {
            assert_eq!(
                failed.decision,
                FailureDecision::DeadLetter(DeadReason::NotAllowed)
            );
            assert!(!failed.entry.flags.has(Flags::DYING));
        } else {
            let again = NOW.plus(route.policy.retry.max_ms);
            assert_eq!(failed.decision, FailureDecision::RetryAt(again));
            assert_eq!(dying_message::reason(&failed.entry), DeadReason::NotAllowed);
        }
        assert_eq!(
            failed.entry.flags.has(Flags::CONFIRM_UNKNOWN),
            verdict.is_unknown(),
            "{verdict:?}"
        );
    }
}

#[test]
fn a_delayed_message_that_no_binding_wants_is_treated_by_on_unroutable() {
    let decided = |policy, refusal, request, flow| {
        let mut route = (*testing::route()).clone();
        route.policy.on_unroutable = policy;
        let mut entry = testing::entry(NOW, b"body");
        entry.request = request;
        let publish = FailedPublish {
            entry: &entry,
            verdict: &refused(refusal),
            handouts: 1,
            flow,
            now: NOW,
            jitter: 1.0,
        };
        decide(publish, &route, |_| true).decision
    };
    let request = Some(DelayRequest {
        expires: None,
        given_back: 0,
        received: NOW,
        time: RequestedTime::Delay(0),
    });
    let again = |decision| matches!(decision, FailureDecision::RetryAt(_));
    let unwanted = |policy| decided(policy, Refusal::Unroutable, request, PublishFlow::Delayed);
    assert!(again(unwanted(OnUnroutable::Retry)));
    assert_eq!(
        unwanted(OnUnroutable::DeadLetter),
        FailureDecision::DeadLetter(DeadReason::Unroutable)
    );
    assert_eq!(
        unwanted(OnUnroutable::Drop),
        FailureDecision::Drop(DropReason::Refused)
    );
    for (refusal, request, flow) in [
        (Refusal::UnknownTarget, request, PublishFlow::Delayed),
        (Refusal::Unavailable, request, PublishFlow::Delayed),
        // It passed through, and was stored because it was refused.
        (Refusal::Unroutable, None, PublishFlow::Delayed),
        (Refusal::Unroutable, None, PASSING),
        (Refusal::Unroutable, request, PublishFlow::Dying),
    ] {
        let decision = decided(OnUnroutable::Drop, refusal, request, flow);
        assert!(again(decision), "{refusal:?} {flow:?}: {decision:?}");
    }
}

#[test]
fn what_is_not_wanted_any_more_takes_no_attempt_and_no_quota_and_ends_as_its_route_says() {
    let mut route = (*testing::route()).clone();
    let mut entry = testing::entry(NOW.plus(-500), b"body");
    entry.request = Some(DelayRequest {
        received: UnixMs(0),
        time: RequestedTime::Delay(1),
        expires: Some(Expiry::at(NOW.plus(-1))),
        given_back: 0,
    });
    let decided = |route: &Route| {
        let publish = FailedPublish {
            entry: &entry,
            verdict: &Verdict::Expired,
            handouts: 1,
            flow: PublishFlow::Delayed,
            now: NOW,
            jitter: 1.0,
        };
        let failed = decide(publish, route, |_| panic!("it takes no quota"));
        assert_eq!((failed.entry.failures, failed.entry.handouts), (0, 0));
        let last = failed.entry.history.last().expect("the reason");
        assert_eq!(last.reason.as_str(), "expired");
        assert_eq!(last.error.as_str(), "wanted until 1970-01-01T00:00:09.999Z");
        failed.decision
    };
    let expired = DeadReason::Expired;
    assert_eq!(decided(&route), FailureDecision::DeadLetter(expired));
    route.dead_letter_to = Some(route.to.clone());
    assert_eq!(decided(&route), FailureDecision::DeadLetterVia(expired));
    route.policy.on_expired = OnExpired::Drop;
    assert_eq!(decided(&route), FailureDecision::Drop(DropReason::Expired));
}

#[test]
fn no_retry_is_later_than_the_message_is_wanted() {
    let route = testing::route();
    let retried = |verdict: &Verdict, wanted_ms: i64| {
        let mut entry = testing::entry(NOW, b"body");
        entry.request = Some(DelayRequest {
            received: UnixMs(0),
            time: RequestedTime::Delay(1),
            expires: Some(Expiry::after(NOW, wanted_ms)),
            given_back: 0,
        });
        let publish = FailedPublish {
            entry: &entry,
            verdict,
            handouts: 1,
            flow: PublishFlow::Delayed,
            now: NOW,
            jitter: 1.0,
        };
        match decide(publish, &route, |_| true).decision {
            FailureDecision::RetryAt(at) => at.since(NOW),
            other => panic!("{other:?}"),
        }
    };
    for verdict in [
        refused(Refusal::Unavailable),
        refused(Refusal::PartitionAway),
        Verdict::Unknown { error: "no".into() },
    ] {
        let unlimited = retried(&verdict, i64::MAX);
        assert!(unlimited > 300, "{verdict:?}: {unlimited}");
        assert_eq!(retried(&verdict, 300), 300, "{verdict:?}");
        assert_eq!(retried(&verdict, unlimited + 1), unlimited, "{verdict:?}");
    }
}

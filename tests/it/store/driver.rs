//! Makes each call on the store and on the model, and compares answers and what stands afterwards.

use postdate::domain::{DelayRequest, Entry, Flags, RequestedTime, Text, UnixMs};
use postdate::store::{
    Claim, ClaimProgress, DeadFilter, DeadId, Division, NewBundle, Remainder, SettleAnswer,
    Settlement, SweepOutcome, WriteResult,
};

use super::fixture::*;
use super::growing::{make_due, spread};
use super::invariants::Snapshot;
use super::model::{self, Claim as ModelClaim, Claimed, Message, MessageView, Model, Name, Share};

/// All names that steps speak of.
pub const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// One call. `who` is one of two holders of claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A bundle: a name or none a message; whether a pending one is replaced; whether it is due.
    Store(Vec<Option<&'static str>>, bool, bool),
    Claim {
        who: usize,
        expires: bool,
    },
    Settle {
        who: usize,
    },
    GiveBack {
        who: usize,
        first_confirmed: bool,
    },
    Extend {
        who: usize,
        expires: bool,
        first_confirmed: bool,
    },
    Divide {
        who: usize,
        shares: [SharePlan; 3],
    },
    Cancel(&'static str),
    Reschedule(&'static str, bool),
    Replace(&'static str, bool),
    /// A message that was given back for the so-manieth time; whether a pending one is replaced; whether it is due.
    Back(&'static str, u32, bool, bool),
    Sweep,
    /// All growing bundles are spread.
    Spread,
    /// Of all dead letters the first; then once more, when it is not there any more.
    Redrive,
    /// Likewise.
    DropDead,
}

/// [`Share`], ordered, so that histories can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharePlan {
    Confirmed,
    Back,
    /// Back, and flagged: its publish went unanswered.
    Unsure,
    Alone,
    InFlight,
    Dead,
}

impl From<SharePlan> for Share {
    fn from(plan: SharePlan) -> Self {
        match plan {
            SharePlan::Confirmed => Self::Confirmed,
            SharePlan::Back => Self::Back { repeat: false },
            SharePlan::Unsure => Self::Back { repeat: true },
            SharePlan::Alone => Self::Alone,
            SharePlan::InFlight => Self::InFlight,
            SharePlan::Dead => Self::Dead { repeat: false },
        }
    }
}

/// A claimed bundle of one of the two holders, also when the claim has been lost: the histories have stale calls too.
struct InHand {
    claim: Claim,
    model_claim: ModelClaim,
    entries: Vec<postdate::domain::Entry>,
    skip: Vec<bool>,
    expiries: u32,
}

pub struct Driver<'a> {
    fixture: &'a StoreFixture,
    model: Model,
    hands: [Vec<InHand>; 2],
    messages: u32,
}

impl<'a> Driver<'a> {
    pub fn new(fixture: &'a StoreFixture) -> Self {
        Self {
            fixture,
            model: Model::new(fixture.dedupe_ms > 0),
            hands: [Vec::new(), Vec::new()],
            messages: 0,
        }
    }

    fn message(&mut self, name: Option<&'static str>, due: UnixMs) -> Message {
        self.messages += 1;
        Message {
            name,
            due: due.0,
            last: None,
            count: 0,
            body: self.messages,
            repeat: false,
        }
    }

    pub async fn step(&mut self, step: &Step) {
        match step {
            Step::Store(names, replace_it, due) => {
                let when = if *due { past() } else { far() };
                let mut messages: Vec<Message> = Vec::new();
                for (n, name) in names.iter().enumerate() {
                    let due = when.plus(n as i64);
                    messages.push(self.message(*name, due));
                }
                let entries = messages.iter().map(entry).collect();
                let op = if *replace_it {
                    replace(entries)
                } else {
                    keep(entries)
                };
                let results = self.fixture.write(vec![op]).await.remove(0);
                let results: Vec<model::WriteResult> =
                    results.into_iter().map(model_result).collect();
                assert_eq!(results, self.model.store(messages, *replace_it));
            }
            Step::Cancel(name) => {
                assert_eq!(
                    model_result(self.fixture.cancel(name).await),
                    self.model.cancel(name)
                );
            }
            Step::Reschedule(name, due) => {
                let when = if *due { past() } else { far() };
                let message = self.message(Some(name), when);
                let result = self
                    .fixture
                    .reschedule(name, when, &text_of(message.body))
                    .await;
                assert_eq!(
                    model_result(result),
                    self.model.reschedule(name, when.0, message)
                );
            }
            Step::Replace(name, due) => {
                let when = if *due { past() } else { far() };
                let message = self.message(Some(name), when);
                let body = text_of(message.body);
                let op = replacement(name, when, &body);
                let result = self.fixture.write(vec![op]).await[0][0];
                assert_eq!(model_result(result), self.model.replace(name, message));
            }
            Step::Back(name, count, replace_it, due) => {
                let when = if *due { past() } else { far() };
                let message = Message {
                    count: *count,
                    ..self.message(Some(name), when)
                };
                let entries = vec![entry(&message)];
                let op = if *replace_it {
                    replace(entries)
                } else {
                    keep(entries)
                };
                let result = self.fixture.write(vec![op]).await[0][0];
                let expected = self.model.store(vec![message], *replace_it);
                assert_eq!([model_result(result)], expected[..]);
            }
            // What lost its name to a message that was given back has it again, if nobody has it now.
            Step::Spread => {
                make_due(self.fixture).await;
                spread(&self.fixture.store).await;
                self.model.regain(&meanings(&self.fixture.check().await));
            }
            Step::Sweep => {
                let swept = sweep(&self.fixture.store, self.fixture.p, LONG, false).await;
                assert_eq!(
                    swept,
                    Ok(SweepOutcome {
                        expired: self.model.sweep(),
                        clamped: 0
                    })
                );
            }
            Step::Redrive => {
                let Some((id, entry)) = self.first_dead().await else {
                    return;
                };
                let again = bundle(vec![Entry {
                    due: past(),
                    ..entry.clone()
                }]);
                for _ in 0..2 {
                    let redriven = self.fixture.store.redrive(&id, &again).await;
                    assert_eq!(redriven, Ok(self.model.redrive(number(&entry), past().0)));
                }
            }
            Step::DropDead => {
                let Some((id, entry)) = self.first_dead().await else {
                    return;
                };
                for _ in 0..2 {
                    let dropped = self
                        .fixture
                        .store
                        .drop_dead(std::slice::from_ref(&id))
                        .await;
                    assert_eq!(dropped, Ok(vec![self.model.drop_dead(number(&entry))]));
                }
            }
            Step::Claim { who, expires } => self.claim(*who, *expires).await,
            Step::Settle { who } => self.settle(*who).await,
            Step::GiveBack {
                who,
                first_confirmed,
            } => {
                for hand in &self.hands[*who] {
                    let confirmed = hand.confirmed(*first_confirmed);
                    let news = [hand.progress(&confirmed)];
                    let held = self
                        .fixture
                        .store
                        .give_back(self.fixture.p, &news)
                        .await
                        .expect("answered")
                        .remove(0);
                    assert_eq!(
                        held != SettleAnswer::Stale,
                        self.model.give_back(hand.model_claim, &confirmed)
                    );
                    self.model.remember(names_of(&news[0].delivered));
                }
            }
            Step::Extend {
                who,
                expires,
                first_confirmed,
            } => {
                for hand in &self.hands[*who] {
                    let confirmed = hand.confirmed(*first_confirmed);
                    let lease = if *expires { 0 } else { LONG };
                    let news = [hand.progress(&confirmed)];
                    let held = self
                        .fixture
                        .store
                        .extend(self.fixture.p, lease, &news)
                        .await;
                    let held = held.expect("answered").remove(0);
                    assert_eq!(
                        held != SettleAnswer::Stale,
                        self.model.extend(hand.model_claim, *expires, &confirmed)
                    );
                    self.model.remember(names_of(&news[0].delivered));
                }
            }
            Step::Divide { who, shares } => self.divide(*who, shares).await,
        }
    }

    /// The dead letter of the least body, found by pages; those are all there are.
    async fn first_dead(&self) -> Option<(DeadId, Entry)> {
        let mut messages = Vec::new();
        let mut after = None;
        loop {
            let page = self
                .fixture
                .store
                .dead_page(&DeadFilter::default(), after.as_ref(), 2)
                .await;
            let page = page.expect("a page");
            let here = page
                .marks
                .into_iter()
                .map(|mark| mark.id)
                .filter(|id| id.partition() == self.fixture.p);
            let ids: Vec<DeadId> = here.collect();
            let bodies = self.fixture.store.dead_letters(&ids).await.expect("read");
            for (id, body) in ids.into_iter().zip(bodies) {
                messages.push((
                    id,
                    body.expect("it is there").bundle.expect("readable").entries[0].clone(),
                ));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut found: Vec<u32> = messages.iter().map(|(_, entry)| number(entry)).collect();
        found.sort_unstable();
        assert_eq!(found, self.model.dead());
        messages.into_iter().min_by_key(|(_, entry)| number(entry))
    }

    async fn claim(&mut self, who: usize, expires: bool) {
        let claimed = self.fixture.claim(if expires { 0 } else { LONG }).await;
        let mut expected = self.model.claim(past().0 + 1_000_000, expires, 0);
        assert_eq!(claimed.len(), expected.len(), "as many bundles");
        for c in claimed {
            let bodies: Vec<_> = entries(&c).iter().map(number).collect();
            let is = |t: &Claimed| t.messages.iter().map(|l| l.body).eq(bodies.iter().copied());
            let at = expected.iter().position(is);
            let Claimed {
                claim: model_claim,
                skip,
                expiries,
                ..
            } = expected
                .remove(at.unwrap_or_else(|| panic!("claimed {bodies:?}, expected {expected:?}")));
            assert_eq!((&c.skip, c.expiries), (&skip, expiries));
            let entries = entries(&c).to_vec();
            self.hands[who].push(InHand {
                claim: c.claim,
                model_claim,
                entries,
                skip: c.skip,
                expiries,
            });
        }
    }

    async fn settle(&mut self, who: usize) {
        let all: Vec<_> = self.hands[who].iter().map(InHand::settlement).collect();
        let held = self
            .fixture
            .store
            .settle(self.fixture.p, &all)
            .await
            .expect("settled");
        for (hand, held) in self.hands[who].iter().zip(held) {
            assert_eq!(
                held != SettleAnswer::Stale,
                self.model.settle(hand.model_claim)
            );
            self.model.remember(names_of(&hand.settlement().delivered));
        }
    }

    async fn divide(&mut self, who: usize, plan: &[SharePlan; 3]) {
        let mut born = Vec::new();
        for hand in &self.hands[who] {
            let mut next = plan.iter().cycle();
            let shares: Vec<Option<Share>> = hand
                .skip
                .iter()
                .map(|skip| (!skip).then(|| Share::from(*next.next().expect("cycles"))))
                .collect();
            let back_at = past().plus(500);
            let division = hand.division(&shares, back_at);
            self.model.remember(names_of(&division.delivered));
            let held_on: Vec<usize> = (0..shares.len())
                .filter(|&i| shares[i] == Some(Share::InFlight))
                .collect();
            let answer = self.fixture.divide(division).await;
            match (
                self.model.divide(hand.model_claim, &shares, back_at.0),
                answer,
            ) {
                (model::SettleOutcome::Stale, SettleAnswer::Stale) => {}
                (model::SettleOutcome::Done(model_claim), SettleAnswer::Applied(claims)) => {
                    assert_eq!(usize::from(model_claim.is_some()), claims.len());
                    born.extend(
                        model_claim
                            .into_iter()
                            .zip(claims)
                            .map(|(model_claim, claim)| InHand {
                                claim,
                                model_claim,
                                entries: held_on.iter().map(|&i| hand.entries[i].clone()).collect(),
                                skip: vec![false; held_on.len()],
                                expiries: hand.expiries,
                            }),
                    );
                }
                (expected, answer) => panic!("expected {expected:?}, got {answer:?}"),
            }
        }
        self.hands[who].extend(born);
    }

    /// All invariants, and the same messages and names as in the model.
    pub async fn compare(&self) {
        let snapshot = self.fixture.check().await;
        let mut expected = self.model.seen();
        expected.retain(|view| !may_be_forgotten(view));
        assert_eq!(seen(&snapshot), expected);
        assert_eq!(meanings(&snapshot), self.model.meanings());
        let delivered: Vec<_> = snapshot
            .delivered
            .keys()
            .filter_map(|n| n.strip_prefix("orders/"))
            .filter_map(delivered_name)
            .collect();
        assert_eq!(
            delivered,
            self.model.remembered.iter().copied().collect::<Vec<_>>()
        );
        let mut dead: Vec<_> = snapshot
            .dead
            .values()
            .map(|b| number(&b.entries[0]))
            .collect();
        dead.sort_unstable();
        assert_eq!(dead, self.model.dead());
        assert!(snapshot.passing.is_empty(), "no call left a blob behind");
    }
}

impl InHand {
    fn confirmed(&self, first: bool) -> Vec<bool> {
        (0..self.skip.len())
            .map(|i| first && i == 0 && !self.skip[i])
            .collect()
    }

    fn names(&self, wanted: impl Fn(usize) -> bool) -> Vec<(Text, u32)> {
        let all = self.entries.iter().enumerate().filter(|(i, _)| wanted(*i));
        all.filter_map(|(i, e)| Some((e.id.clone()?, i as u32)))
            .collect()
    }

    fn settlement(&self) -> Settlement {
        let delivered = self.delivered(|i| !self.skip[i]);
        Settlement {
            claim: self.claim.clone(),
            names: self.names(|_| true),
            delivered,
        }
    }

    fn delivered(&self, confirmed: impl Fn(usize) -> bool) -> Vec<Text> {
        let all = self.entries.iter().enumerate();
        let confirmed = all.filter(|(i, _)| confirmed(*i));
        confirmed
            .filter_map(|(_, entry)| entry.remembered_name())
            .collect()
    }

    fn progress(&self, confirmed: &[bool]) -> ClaimProgress {
        let delivered = self.delivered(|i| confirmed[i]);
        ClaimProgress {
            claim: self.claim.clone(),
            confirmed: Some(confirmed.to_vec()),
            delivered,
        }
    }

    fn division(&self, shares: &[Option<Share>], back_at: UnixMs) -> Division {
        let part = |from: Vec<u32>, lease_ms: Option<u64>, expiries: u32| -> Option<Remainder> {
            let entry = |&i: &u32| {
                let mut entry = self.entries[i as usize].clone();
                if lease_ms.is_none() {
                    entry.asked = entry.asked.or(Some(entry.due));
                    entry.due = back_at;
                }
                if shares[i as usize] == Some(Share::Back { repeat: true }) {
                    entry.flags = entry.flags.with(Flags::CONFIRM_UNKNOWN);
                }
                entry
            };
            let entries = from.iter().map(entry).collect();
            let fresh = NewBundle {
                route: route(),
                bundle: bundle(entries),
            };
            (!from.is_empty()).then_some(Remainder {
                new_bundle: fresh,
                from,
                lease_ms,
                expiries,
                sequence: None,
            })
        };
        let all = |wanted: fn(&Share) -> bool| -> Vec<u32> {
            (0..shares.len() as u32)
                .filter(|&i| shares[i as usize].as_ref().is_some_and(wanted))
                .collect()
        };
        let dead = all(|share| matches!(share, Share::Dead { .. }));
        let dead = dead
            .into_iter()
            .map(|i| dead_letter(self.entries[i as usize].clone()))
            .collect();
        let mut remainders = vec![part(
            all(|share| matches!(share, Share::Back { .. })),
            None,
            0,
        )];
        let alone = all(|share| *share == Share::Alone).into_iter();
        remainders.extend(alone.map(|i| part(vec![i], None, self.expiries)));
        remainders.push(part(
            all(|share| *share == Share::InFlight),
            Some(LONG),
            self.expiries,
        ));
        Division {
            claim: self.claim.clone(),
            confirmed: shares
                .iter()
                .map(|s| *s == Some(Share::Confirmed))
                .collect(),
            delivered: self.delivered(|i| shares[i] == Some(Share::Confirmed)),
            freed: self.names(|i| {
                matches!(
                    shares[i],
                    None | Some(Share::Confirmed | Share::Dead { .. })
                )
            }),
            remainders: remainders.into_iter().flatten().collect(),
            dead,
            held_keys: Vec::new(),
        }
    }
}

/// The same names, as the model has them.
fn names_of(names: &[Text]) -> Vec<Name> {
    let names = names.iter().map(Text::as_str);
    names.filter_map(delivered_name).collect()
}

/// A delivered name as the store remembers it.
fn delivered_name(text: &str) -> Option<Name> {
    NAMES.into_iter().find(|known| *known == text)
}

fn entry(message: &Message) -> Entry {
    let due = UnixMs(message.due);
    let entry = match message.name {
        Some(name) => named(name, due, &text_of(message.body)),
        None => unnamed(due, &text_of(message.body)),
    };
    let request = (message.count > 0).then_some(DelayRequest {
        received: due,
        time: RequestedTime::Delay(0),
        expires: None,
        given_back: message.count,
    });
    Entry { request, ..entry }
}

fn text_of(number: u32) -> String {
    format!("m{number}")
}

/// The model's number of a body.
fn number(entry: &Entry) -> u32 {
    body(entry)[1..]
        .parse()
        .expect("a body of the driver's own")
}

fn model_result(result: WriteResult) -> model::WriteResult {
    match result {
        WriteResult::Stored => model::WriteResult::Stored,
        WriteResult::Duplicate => model::WriteResult::Duplicate,
        WriteResult::Replaced => model::WriteResult::Replaced,
        WriteResult::Cancelled => model::WriteResult::Cancelled,
        WriteResult::InFlight => model::WriteResult::InFlight,
        WriteResult::Unknown => model::WriteResult::Unknown,
        WriteResult::Published => model::WriteResult::Published,
        WriteResult::Rescheduled => model::WriteResult::Rescheduled,
        WriteResult::TooLate => model::WriteResult::TooLate,
    }
}

/// A growing bundle keeps nothing of a message that is gone, nor does the bundle that it is spread into.
fn may_be_forgotten(view: &MessageView) -> bool {
    view.gone && view.due >= far().0
}

fn seen(s: &Snapshot) -> Vec<MessageView> {
    let mut seen = Vec::new();
    for (id, bundle) in &s.bundles {
        for (index, entry) in bundle.entries.iter().enumerate() {
            if entry.due == UnixMs(i64::MIN) {
                continue;
            }
            seen.push(MessageView {
                body: number(entry),
                due: entry.due.0,
                repeat: entry.repeat_cause(0).is_some(),
                claimed: s.claims.contains_key(id),
                gone: Snapshot::is_set(&s.gone, id, index),
                done: Snapshot::is_set(&s.done, id, index),
                expiries: s.expiries.get(id).copied().unwrap_or_default() as u32,
            });
        }
    }
    seen.retain(|view| !may_be_forgotten(view));
    seen.sort();
    seen
}

fn meanings(s: &Snapshot) -> std::collections::BTreeMap<&'static str, u32> {
    let mut meant = std::collections::BTreeMap::new();
    for (name, place) in &s.names {
        let (id, index) = place.rsplit_once(' ').expect("a place");
        let index = index.parse().expect("an index");
        let free = Snapshot::is_set(&s.gone, id, index) || Snapshot::is_set(&s.done, id, index);
        if let (Some(bundle), false) = (s.bundles.get(id), free) {
            let name = name.strip_prefix("orders/").expect("its route");
            let name = NAMES
                .into_iter()
                .find(|known| *known == name)
                .expect("a name of the driver's");
            meant.insert(name, number(&bundle.entries[index]));
        }
    }
    meant
}

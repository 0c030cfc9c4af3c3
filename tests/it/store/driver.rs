//! Makes each call on the store and on the model, and compares answers and what stands afterwards.

use postdate::domain::{Entry, Text, UnixMs};
use postdate::store::{
    Claim, DeadFilter, DeadId, Division, Fresh, Held, Progress, Remainder, Settlement, Swept,
};

use super::invariants::Snapshot;
use super::model::{Grip, Letter, Model, Parted, Seen, Share};
use super::room::*;

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
    Sweep,
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
    Held,
    Dead,
}

impl From<SharePlan> for Share {
    fn from(plan: SharePlan) -> Self {
        match plan {
            SharePlan::Confirmed => Self::Confirmed,
            SharePlan::Back => Self::Back,
            SharePlan::Held => Self::Held,
            SharePlan::Dead => Self::Dead,
        }
    }
}

/// A bundle in somebody's hands, also when the claim has been lost: stale calls are part of the game.
struct InHand {
    claim: Claim,
    grip: Grip,
    entries: Vec<postdate::domain::Entry>,
    skip: Vec<bool>,
    expiries: u32,
}

pub struct Driver<'a> {
    room: &'a Room,
    model: Model,
    hands: [Vec<InHand>; 2],
    letters: usize,
}

impl<'a> Driver<'a> {
    pub fn new(room: &'a Room) -> Self {
        Self { room, model: Model::new(room.dedupe_ms > 0), hands: [Vec::new(), Vec::new()], letters: 0 }
    }

    fn body(&mut self) -> String {
        self.letters += 1;
        format!("m{}", self.letters)
    }

    pub async fn step(&mut self, step: &Step) {
        match step {
            Step::Store(names, replace_it, due) => {
                let when = if *due { past() } else { far() };
                let mut letters: Vec<Letter> = Vec::new();
                for (n, name) in names.iter().enumerate() {
                    let due = when.plus(n as i64);
                    letters.push(Letter { name: name.map(str::to_owned), due, body: self.body() });
                }
                let entry = |l: &Letter| match &l.name {
                    Some(name) => named(name, l.due, &l.body),
                    None => unnamed(l.due, &l.body),
                };
                let entries = letters.iter().map(entry).collect();
                let op = if *replace_it { replace(entries) } else { keep(entries) };
                let results = self.room.write(vec![op]).await.remove(0);
                assert_eq!(results, self.model.store(letters, *replace_it));
            }
            Step::Cancel(name) => assert_eq!(self.room.cancel(name).await, self.model.cancel(name)),
            Step::Reschedule(name, due) => {
                let (when, body) = (if *due { past() } else { far() }, self.body());
                let result = self.room.reschedule(name, when, &body).await;
                assert_eq!(result, self.model.reschedule(name, when, &body));
            }
            Step::Sweep => {
                let swept = self.room.store.sweep(self.room.p, LONG, false).await;
                assert_eq!(swept, Ok(Swept { expired: self.model.sweep(), clamped: 0 }));
            }
            Step::Redrive => {
                let Some((id, entry)) = self.first_dead().await else { return };
                let again = bundle(vec![Entry { due: past(), ..entry.clone() }]);
                for _ in 0..2 {
                    let redriven = self.room.store.redrive(&id, &again).await;
                    assert_eq!(redriven, Ok(self.model.redrive(&body(&entry), past())));
                }
            }
            Step::DropDead => {
                let Some((id, entry)) = self.first_dead().await else { return };
                for _ in 0..2 {
                    let dropped = self.room.store.drop_dead(std::slice::from_ref(&id)).await;
                    assert_eq!(dropped, Ok(vec![self.model.drop_dead(&body(&entry))]));
                }
            }
            Step::Claim { who, expires } => self.claim(*who, *expires).await,
            Step::Settle { who } => self.settle(*who).await,
            Step::GiveBack { who, first_confirmed } => {
                for hand in &self.hands[*who] {
                    let confirmed = hand.confirmed(*first_confirmed);
                    let news = [hand.progress(&confirmed)];
                    let held =
                        self.room.store.give_back(self.room.p, &news).await.expect("answered").remove(0);
                    assert_eq!(held != Held::Stale, self.model.give_back(hand.grip, &confirmed));
                    self.model.remember(texts(&news[0].delivered));
                }
            }
            Step::Extend { who, expires, first_confirmed } => {
                for hand in &self.hands[*who] {
                    let confirmed = hand.confirmed(*first_confirmed);
                    let lease = if *expires { 0 } else { LONG };
                    let news = [hand.progress(&confirmed)];
                    let held = self.room.store.extend(self.room.p, lease, &news).await;
                    let held = held.expect("answered").remove(0);
                    assert_eq!(held != Held::Stale, self.model.extend(hand.grip, *expires, &confirmed));
                    self.model.remember(texts(&news[0].delivered));
                }
            }
            Step::Divide { who, shares } => self.divide(*who, shares).await,
        }
    }

    /// The dead letter of the least body, found by pages; those are all there are.
    async fn first_dead(&self) -> Option<(DeadId, Entry)> {
        let mut letters = Vec::new();
        let mut after = None;
        loop {
            let page = self.room.store.dead_page(&DeadFilter::default(), after.as_ref(), 2).await;
            let page = page.expect("a page");
            let here = page.marks.into_iter().map(|mark| mark.id).filter(|id| id.partition() == self.room.p);
            let ids: Vec<DeadId> = here.collect();
            let bodies = self.room.store.dead_letters(&ids).await.expect("read");
            for (id, body) in ids.into_iter().zip(bodies) {
                letters.push((id, body.expect("it is there").bundle.expect("readable").entries[0].clone()));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut found: Vec<String> = letters.iter().map(|(_, entry)| body(entry)).collect();
        found.sort();
        assert_eq!(found, self.model.dead());
        letters.into_iter().min_by_key(|(_, entry)| body(entry))
    }

    async fn claim(&mut self, who: usize, expires: bool) {
        let claimed = self.room.claim(if expires { 0 } else { LONG }).await;
        let mut expected = self.model.claim(UnixMs(past().0 + 1_000_000), expires);
        assert_eq!(claimed.len(), expected.len(), "as many bundles");
        for c in claimed {
            let bodies: Vec<_> = entries(&c).iter().map(body).zip(c.skip.iter().copied()).collect();
            let at = expected.iter().position(|(_, b, _)| *b == bodies);
            let (grip, _, expiries) =
                expected.remove(at.unwrap_or_else(|| panic!("claimed {bodies:?}, expected {expected:?}")));
            assert_eq!(c.expiries, expiries);
            let entries = entries(&c).to_vec();
            self.hands[who].push(InHand { claim: c.claim, grip, entries, skip: c.skip, expiries });
        }
    }

    async fn settle(&mut self, who: usize) {
        let all: Vec<_> = self.hands[who].iter().map(InHand::settlement).collect();
        let held = self.room.store.settle(self.room.p, &all).await.expect("settled");
        for (hand, held) in self.hands[who].iter().zip(held) {
            assert_eq!(held != Held::Stale, self.model.settle(hand.grip));
            self.model.remember(texts(&hand.settlement().delivered));
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
            self.model.remember(texts(&division.delivered));
            let held_on: Vec<usize> = (0..shares.len()).filter(|&i| shares[i] == Some(Share::Held)).collect();
            let answer = self.room.divide(division).await;
            match (self.model.divide(hand.grip, &shares, back_at), answer) {
                (Parted::Stale, Held::Stale) => {}
                (Parted::Done(grip), Held::Done(claims)) => {
                    assert_eq!(usize::from(grip.is_some()), claims.len());
                    born.extend(grip.into_iter().zip(claims).map(|(grip, claim)| InHand {
                        claim,
                        grip,
                        entries: held_on.iter().map(|&i| hand.entries[i].clone()).collect(),
                        skip: vec![false; held_on.len()],
                        expiries: hand.expiries,
                    }));
                }
                (expected, answer) => panic!("expected {expected:?}, got {answer:?}"),
            }
        }
        self.hands[who].extend(born);
    }

    /// All invariants, and the same messages and names as in the model.
    pub async fn compare(&self) {
        let snapshot = self.room.check().await;
        assert_eq!(seen(&snapshot), self.model.seen());
        assert_eq!(meanings(&snapshot), self.model.meanings());
        let delivered: Vec<_> = snapshot.delivered.keys().filter_map(|n| n.strip_prefix("orders/")).collect();
        assert_eq!(delivered, self.model.remembered.iter().map(String::as_str).collect::<Vec<_>>());
        let mut dead: Vec<_> = snapshot.dead.values().map(|b| body(&b.entries[0])).collect();
        dead.sort();
        assert_eq!(dead, self.model.dead());
        assert!(snapshot.passing.is_empty(), "no call left a blob behind");
    }
}

impl InHand {
    fn confirmed(&self, first: bool) -> Vec<bool> {
        (0..self.skip.len()).map(|i| first && i == 0 && !self.skip[i]).collect()
    }

    fn names(&self, wanted: impl Fn(usize) -> bool) -> Vec<(Text, u32)> {
        let all = self.entries.iter().enumerate().filter(|(i, _)| wanted(*i));
        all.filter_map(|(i, e)| Some((e.id.clone()?, i as u32))).collect()
    }

    fn settlement(&self) -> Settlement {
        let delivered = self.delivered(|i| !self.skip[i]);
        Settlement { claim: self.claim.clone(), names: self.names(|_| true), delivered }
    }

    fn delivered(&self, confirmed: impl Fn(usize) -> bool) -> Vec<Text> {
        self.names(confirmed).into_iter().map(|(name, _)| name).collect()
    }

    fn progress(&self, confirmed: &[bool]) -> Progress {
        let delivered = self.delivered(|i| confirmed[i]);
        Progress { claim: self.claim.clone(), confirmed: Some(confirmed.to_vec()), delivered }
    }

    fn division(&self, shares: &[Option<Share>], back_at: UnixMs) -> Division {
        let part = |share: Share| -> Option<Remainder> {
            let from: Vec<u32> =
                (0..shares.len()).filter(|&i| shares[i] == Some(share)).map(|i| i as u32).collect();
            let mut entries: Vec<_> = from.iter().map(|&i| self.entries[i as usize].clone()).collect();
            if share == Share::Back {
                for entry in &mut entries {
                    entry.due = back_at;
                }
            }
            let fresh = Fresh { route: route(), bundle: bundle(entries) };
            let lease_ms = (share == Share::Held).then_some(LONG);
            (!from.is_empty()).then_some(Remainder { fresh, from, lease_ms, expiries: self.expiries })
        };
        let dead = (0..shares.len())
            .filter(|&i| shares[i] == Some(Share::Dead))
            .map(|i| dead_letter(self.entries[i].clone()))
            .collect();
        Division {
            claim: self.claim.clone(),
            confirmed: shares.iter().map(|s| *s == Some(Share::Confirmed)).collect(),
            delivered: self.delivered(|i| shares[i] == Some(Share::Confirmed)),
            freed: self.names(|i| !matches!(shares[i], Some(Share::Back | Share::Held))),
            remainders: [part(Share::Back), part(Share::Held)].into_iter().flatten().collect(),
            dead,
        }
    }
}

fn texts(names: &[Text]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn seen(s: &Snapshot) -> Vec<Seen> {
    let mut seen = Vec::new();
    for (id, bundle) in &s.bundles {
        for (index, entry) in bundle.entries.iter().enumerate() {
            seen.push(Seen {
                body: body(entry),
                due: entry.due,
                claimed: s.claims.contains_key(id),
                gone: Snapshot::is_set(&s.gone, id, index),
                done: Snapshot::is_set(&s.done, id, index),
                expiries: s.expiries.get(id).copied().unwrap_or_default() as u32,
            });
        }
    }
    seen.sort();
    seen
}

fn meanings(s: &Snapshot) -> std::collections::BTreeMap<String, String> {
    let mut meant = std::collections::BTreeMap::new();
    for (name, place) in &s.names {
        let (id, index) = place.rsplit_once(' ').expect("a place");
        let index = index.parse().expect("an index");
        let free = Snapshot::is_set(&s.gone, id, index) || Snapshot::is_set(&s.done, id, index);
        if let (Some(bundle), false) = (s.bundles.get(id), free) {
            let name = name.strip_prefix("orders/").expect("its route").to_owned();
            meant.insert(name, body(&bundle.entries[index]));
        }
    }
    meant
}

//! Routes whose keys leave in order: one owner at a time, sequences that only grow, held keys that a successor knows,
//! and where messages live.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use postdate::domain::{Flags, Partition, UnixMs};
use postdate::store::{
    Claim, ClaimAnswer, DeadFilter, Division, HeldKey, NewBundle, OrderPosition, OrderedAnswer,
    OrderedClaims, OrderedRequest, Remainder, SettleAnswer, WriteOp, WriteResult,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::fixture::*;
use crate::support::{Cluster, Redis, names};

/// One who may hold the route.
struct RouteOwner {
    fixture: StoreFixture,
    name: String,
    claims: Vec<ClaimAnswer>,
}

impl RouteOwner {
    fn new(fixture: &StoreFixture) -> Self {
        let fixture = fixture.another();
        Self {
            name: fixture.store.unique(),
            fixture,
            claims: Vec::new(),
        }
    }

    async fn ask(&self, lease_ms: u64, freed: &[(&'static str, HeldKey)]) -> OrderedAnswer {
        let request = OrderedRequest {
            claim: self.fixture.request(lease_ms).await,
            until: past(),
            route: route(),
            owner: self.name.clone(),
            may_take: self.claims.is_empty(),
            longest_lease_ms: lease_ms,
            freed: freed
                .iter()
                .map(|(key, hold)| (Bytes::from(*key), *hold))
                .collect(),
        };
        self.fixture
            .store
            .claim_in_order(&request)
            .await
            .expect("an answer")
    }

    async fn take(&mut self, lease_ms: u64) -> Option<OrderedClaims> {
        let answer = self.ask(lease_ms, &[]).await;
        if lease_ms == 0 {
            self.fixture.clock_moves().await;
        }
        match answer {
            OrderedAnswer::Claimed(taken) => Some(taken),
            OrderedAnswer::Wait(_) | OrderedAnswer::Lost => None,
        }
    }

    /// The first of these goes back at a moment, and its key is held.
    async fn fail(&mut self, claimed: &ClaimAnswer, due: UnixMs) -> (SettleAnswer, HeldKey) {
        let mut entries = entries(claimed).to_vec();
        let sequence = self.fixture.store.next_sequence(1);
        let hold = HeldKey {
            due,
            from: sequence,
            to: sequence,
        };
        entries[0].due = due;
        let key = entries[0].message.key.clone().expect("a key");
        let fresh = NewBundle {
            route: route(),
            bundle: bundle(entries),
        };
        let back = Remainder {
            new_bundle: fresh,
            from: vec![0],
            lease_ms: None,
            expiries: 0,
            sequence: Some(sequence),
        };
        let division = Division {
            claim: claimed.claim.clone(),
            confirmed: vec![false],
            delivered: Vec::new(),
            freed: Vec::new(),
            remainders: vec![back],
            dead: Vec::new(),
            held_keys: vec![(key, hold)],
        };
        (self.fixture.divide(division).await, hold)
    }
}

fn of(key: &'static str, due: UnixMs, body: &str) -> postdate::domain::Entry {
    let mut entry = unnamed(due, body);
    entry.message.key = Some(Bytes::from(key));
    entry
}

/// One of each call that is another script for such a route.
pub(super) async fn one_of_each(fixture: &StoreFixture) {
    let mut owner = RouteOwner::new(fixture);
    fixture.keep(vec![of("k", past(), "1")]).await;
    let claimed = owner
        .take(LONG)
        .await
        .expect("it is the owner")
        .claimed
        .remove(0);
    assert_eq!(
        fixture.extend(&claimed.claim, LONG, None).await,
        SettleAnswer::Applied(Vec::new())
    );
    assert_eq!(
        owner.fail(&claimed, far()).await.0,
        SettleAnswer::Applied(Vec::new())
    );
    owner
        .fixture
        .store
        .release_route(fixture.p, &route(), &owner.name)
        .await
        .expect("answered");
    fixture
        .command::<i64>(&["HSET", &fixture.key("order"), "k:removed/k", "1 1 1"])
        .await;
    assert_eq!(
        fixture
            .store
            .scrub(fixture.p)
            .await
            .expect("scrubbed")
            .freed,
        1
    );
}

async fn fixture() -> StoreFixture {
    StoreFixture::ordered(Redis::shared().await, 1).await
}

#[tokio::test]
async fn nobody_else_claims_while_a_claim_stands_and_a_successor_sees_all() {
    let fixture = fixture().await;
    let mut first = RouteOwner::new(&fixture);
    let mut second = RouteOwner::new(&fixture);
    for body in ["1", "2"] {
        fixture.keep(vec![of("k", past(), body)]).await;
    }
    // Its time is over at once, its claims with it.
    let taken = first.take(0).await.expect("it is the owner");
    assert_eq!(taken.held_keys, Some(Vec::new()), "nothing is held");
    let claimed: Vec<_> = taken.claimed.iter().map(live).collect();
    assert_eq!(claimed, [["1"], ["2"]]);
    fixture.keep(vec![of("k", past(), "3")]).await;
    assert!(
        second.take(LONG).await.is_none(),
        "what it held has not come back"
    );
    sweep(&fixture.store, fixture.p, LONG, false)
        .await
        .expect("swept");
    let taken = second.take(LONG).await.expect("it is the owner now");
    assert_eq!(
        taken.claimed.iter().map(live).collect::<Vec<_>>(),
        [["1"], ["2"], ["3"]]
    );
    assert!(first.take(LONG).await.is_none(), "another one is");
    // With claims of its own it may not begin anew.
    first.claims = taken.claimed;
    second.claims = std::mem::take(&mut first.claims);
    assert!(
        second
            .take(LONG)
            .await
            .is_some_and(|taken| taken.held_keys.is_none()),
        "it still is"
    );
    fixture.check().await;
}

#[tokio::test]
async fn an_extended_claim_keeps_its_holder_and_one_that_gives_up_lets_the_next_in() {
    let fixture = fixture().await;
    let mut first = RouteOwner::new(&fixture);
    let mut second = RouteOwner::new(&fixture);
    fixture.keep(vec![of("k", past(), "1")]).await;
    let taken = first.take(0).await.expect("it is the owner");
    let claimed = &taken.claimed[0];
    assert_eq!(
        fixture.extend(&claimed.claim, LONG, None).await,
        SettleAnswer::Applied(Vec::new())
    );
    assert!(
        second.take(LONG).await.is_none(),
        "its owner has it for as long"
    );
    fixture.settle(claimed).await;
    first
        .fixture
        .store
        .release_route(fixture.p, &route(), &second.name)
        .await
        .expect("answered");
    assert!(second.take(LONG).await.is_none(), "that was not its owner");
    first
        .fixture
        .store
        .release_route(fixture.p, &route(), &first.name)
        .await
        .expect("answered");
    assert!(second.take(LONG).await.is_some());
}

#[tokio::test]
async fn a_holder_whose_time_ran_out_with_claims_in_hand_has_lost_them() {
    let fixture = fixture().await;
    let mut first = RouteOwner::new(&fixture);
    fixture.keep(vec![of("k", past(), "1")]).await;
    first.claims = first.take(0).await.expect("it is the owner").claimed;
    assert!(matches!(first.ask(LONG, &[]).await, OrderedAnswer::Lost));
    sweep(&fixture.store, fixture.p, LONG, false)
        .await
        .expect("swept");
    let claimed = first.claims.remove(0);
    assert_eq!(first.fail(&claimed, past()).await.0, SettleAnswer::Stale);
    let taken = first.take(LONG).await.expect("it is the owner again");
    assert_eq!(
        taken.held_keys,
        Some(Vec::new()),
        "what is stale holds no key"
    );
    assert_eq!(taken.claimed.len(), 1);
}

#[tokio::test]
async fn a_deadline_too_far_ahead_lets_nobody_in_before_it_was_brought_back() {
    let fixture = fixture().await;
    let mut first = RouteOwner::new(&fixture);
    let mut second = RouteOwner::new(&fixture);
    fixture.keep(vec![of("k", past(), "1")]).await;
    // As if the clock had stepped back since.
    first.take(10 * LONG).await.expect("it is the owner");
    assert!(second.take(1).await.is_none());
    sweep(&fixture.store, fixture.p, 1, false)
        .await
        .expect("swept");
    assert!(
        second.take(1).await.is_none(),
        "now the owner's time is brought back too"
    );
    crate::support::eventually("the claim has ended and come back", async || {
        sweep(&fixture.store, fixture.p, 1, false)
            .await
            .map_err(|why| why.to_string())?;
        second
            .take(LONG)
            .await
            .map(drop)
            .ok_or("not yet".to_owned())
    })
    .await;
}

/// The route may have left the configuration: no message of it will ever come and free them.
#[tokio::test]
async fn held_keys_are_forgotten_once_nothing_of_their_route_waits() {
    let fixture = fixture().await;
    let mut owner = RouteOwner::new(&fixture);
    let order = fixture.key("order");
    let held = async || {
        let fields: Vec<String> = fixture.command(&["HKEYS", &order]).await;
        fields
            .into_iter()
            .filter(|field| field.starts_with("k:"))
            .collect::<Vec<_>>()
    };
    let freed = async || {
        fixture
            .store
            .scrub(fixture.p)
            .await
            .expect("scrubbed")
            .freed
    };
    fixture.keep(vec![of("k", past(), "1")]).await;
    let claimed = owner
        .take(LONG)
        .await
        .expect("it is the owner")
        .claimed
        .remove(0);
    assert_eq!(
        owner.fail(&claimed, past()).await.0,
        SettleAnswer::Applied(Vec::new())
    );
    assert_eq!(
        (freed().await, held().await.len()),
        (0, 1),
        "what failed waits"
    );
    let claimed = owner
        .take(LONG)
        .await
        .expect("it is the owner")
        .claimed
        .remove(0);
    assert_eq!(
        (freed().await, held().await.len()),
        (0, 1),
        "it is in flight"
    );
    fixture.settle(&claimed).await;
    // Another route's messages, and a longer name that begins like it, are no reason to keep it.
    fixture
        .command::<i64>(&["HSET", &order, &format!("k:{}-2/k", route()), "1 1 1"])
        .await;
    assert_eq!(freed().await, 2);
    assert_eq!(held().await, Vec::<String>::new());
    fixture.keep(vec![of("k", past(), "2")]).await;
    assert_eq!(
        owner
            .take(LONG)
            .await
            .expect("it is the owner")
            .claimed
            .len(),
        1,
        "the key goes on"
    );
}

/// A claim that frees a key may come after the division that holds the key again: the two calls go by two connections.
#[tokio::test]
async fn a_claim_frees_the_hold_that_ended_and_no_later_one() {
    let fixture = fixture().await;
    let mut owner = RouteOwner::new(&fixture);
    fixture.keep(vec![of("k", past(), "1")]).await;
    let claimed = owner.take(LONG).await.expect("it is the owner").claimed;
    let (_, ended) = owner.fail(&claimed[0], past()).await;
    let claimed = owner.take(LONG).await.expect("it is the owner").claimed;
    let (_, later) = owner.fail(&claimed[0], far()).await;
    let field = format!("k:{}/k", route());
    let held = async || {
        fixture
            .command::<i64>(&["HEXISTS", &fixture.key("order"), &field])
            .await
    };
    owner.ask(LONG, &[("k", ended)]).await;
    assert_eq!(held().await, 1, "it is held again");
    owner.ask(LONG, &[("k", later)]).await;
    assert_eq!(held().await, 0);
}

#[tokio::test]
async fn stamps_only_grow_whoever_gives_them() {
    let fixture = fixture().await;
    let ahead = u64::MAX >> 12;
    fixture
        .command::<i64>(&["HSET", &fixture.key("order"), "stamp", &ahead.to_string()])
        .await;
    let another = fixture.another();
    for (n, who) in [&fixture, &another, &fixture].into_iter().enumerate() {
        who.keep(vec![
            of("k", past(), &n.to_string()),
            of("k", past(), "and"),
        ])
        .await;
    }
    let mut owner = RouteOwner::new(&fixture);
    let taken = owner.take(LONG).await.expect("it is the owner");
    let bodies: Vec<_> = taken.claimed.iter().map(|c| live(c)[0].clone()).collect();
    assert_eq!(
        bodies,
        ["0", "1", "2"],
        "of one moment, in the order they came"
    );
    let sequences: Vec<_> = taken
        .claimed
        .iter()
        .map(|c| c.claim.id.sequence())
        .collect();
    assert!(
        sequences[0] > ahead && sequences.windows(2).all(|pair| pair[0] + 1 < pair[1]),
        "{sequences:?}"
    );
}

/// Whatever comes into the store comes behind all that came before, by whichever call, and lets the next one know.
#[tokio::test]
async fn what_is_moved_replaced_or_redriven_has_a_higher_stamp_than_all_before() {
    let fixture = fixture().await;
    let order = fixture.key("order");
    let mut ahead = u64::MAX >> 12;
    let mut named_one = of("k", past(), "named");
    named_one.id = Some("n".into());
    named_one.flags = named_one.flags.with(Flags::NAMED);
    fixture.keep(vec![named_one.clone()]).await;
    let one = bundle(vec![named_one]);
    let dead_letter = postdate::store::DeadLetter::of(
        route(),
        postdate::domain::DeadReason::Attempts,
        postdate::domain::TargetRef::Own,
        of("k", past(), "dead"),
    );
    for call in ["move", "replace", "redrive"] {
        ahead += 1000;
        fixture
            .command::<i64>(&["HSET", &order, "stamp", &ahead.to_string()])
            .await;
        let another = fixture.another();
        match call {
            "move" => drop(another.reschedule("n", past().plus(1), "x").await),
            "replace" => {
                let op = WriteOp::Replace {
                    route: route(),
                    id: "n".into(),
                    bundle: one.clone(),
                    or_store: false,
                    of: None,
                };
                assert_eq!(
                    another.store.command(another.p, op).await,
                    Ok(WriteResult::Replaced)
                );
            }
            _ => {
                another
                    .write(vec![WriteOp::DeadLetter(dead_letter.clone())])
                    .await;
                let filter = DeadFilter::default();
                let page = another.store.dead_page(&filter, None, 1);
                let dead = page.await.expect("read").marks.remove(0);
                assert_eq!(
                    another.store.redrive(&dead.id, &dead_letter.bundle).await,
                    Ok(true)
                );
            }
        }
        let stamp: String = fixture.command(&["HGET", &order, "stamp"]).await;
        let stamp: u64 = stamp.parse().expect("a number");
        assert!(stamp > ahead, "{call}: {stamp} after {ahead}");
        ahead = stamp;
    }
    let mut owner = RouteOwner::new(&fixture);
    let taken = owner.take(LONG).await.expect("it is the owner");
    let bodies: Vec<_> = taken.claimed.iter().map(|c| live(c)[0].clone()).collect();
    assert_eq!(bodies, ["named", "dead"], "in the order in which they came");
}

#[tokio::test]
async fn a_claim_that_has_not_room_for_all_says_what_it_left() {
    let fixture = fixture().await;
    for n in 0..4 {
        fixture
            .keep(vec![of("k", past().plus(n / 2), &n.to_string())])
            .await;
    }
    let owner = RouteOwner::new(&fixture);
    let mut claim = fixture.request(LONG).await;
    claim.max_bundles = 3;
    let request = OrderedRequest {
        claim,
        until: past(),
        route: route(),
        owner: owner.name,
        may_take: true,
        longest_lease_ms: LONG,
        freed: Vec::new(),
    };
    let OrderedAnswer::Claimed(taken) = fixture
        .store
        .claim_in_order(&request)
        .await
        .expect("an answer")
    else {
        panic!("it is free")
    };
    let left = taken.left.expect("one is left");
    let last = taken.claimed.last().expect("three");
    let third = OrderPosition {
        due: last.due,
        sequence: last.claim.id.sequence(),
    };
    assert!(
        third < left && left.due == past().plus(1),
        "{third:?} {left:?}"
    );
}

#[tokio::test]
async fn an_unordered_route_pays_nothing() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![of("k", past(), "1")]).await;
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.extend(&claimed.claim, LONG, None).await;
    fixture.settle(&claimed).await;
    assert_eq!(
        fixture
            .command::<i64>(&["EXISTS", &fixture.key("order")])
            .await,
        0
    );
}

#[tokio::test]
async fn names_of_an_ordered_route_are_found_wherever_their_keys_are() {
    let fixture = StoreFixture::ordered(Redis::shared().await, 8).await;
    let home = fixture.store.home_of(&route(), "a");
    let elsewhere = Partition((home.0 + 3) % 8);
    assert_eq!(
        fixture.store.locate(&route(), "a", home).await,
        Ok(home),
        "it is nowhere"
    );
    fixture
        .at(elsewhere)
        .keep(vec![named("a", far(), "1")])
        .await;
    assert_eq!(
        fixture.store.locate(&route(), "a", home).await,
        Ok(elsewhere)
    );
    assert!(
        fixture
            .store
            .find(&route(), "a")
            .await
            .expect("an answer")
            .is_some()
    );
    fixture.at(home).keep(vec![named("a", far(), "2")]).await;
    assert_eq!(
        fixture.store.locate(&route(), "a", home).await,
        Ok(home),
        "of two the nearest"
    );
}

#[tokio::test]
async fn a_route_cannot_change_its_order_while_messages_are_kept() {
    let unordered = StoreFixture::shared().await;
    let ordered = StoreFixture::ordered_like(&unordered);
    let agree = async |fixture: &StoreFixture| {
        let agreed = fixture
            .store
            .agree_on_placement(&[route()])
            .await
            .expect("an answer");
        agreed.map_err(|why| why.to_string())
    };
    assert_eq!(agree(&unordered).await, Ok(()));
    unordered.keep(vec![named("a", far(), "1")]).await;
    let why = agree(&ordered).await.expect_err("one is kept");
    assert!(
        why.contains("route `orders` has 1 messages and 0 dead letters")
            && why.contains("order = \"none\" first"),
        "{why}"
    );
    assert_eq!(unordered.cancel("a").await, WriteResult::Cancelled);
    assert_eq!(agree(&ordered).await, Ok(()), "nothing is kept any more");
    ordered.keep(vec![named("a", far(), "1")]).await;
    assert_eq!(agree(&ordered).await, Ok(()));
    assert!(
        agree(&unordered)
            .await
            .expect_err("one is kept")
            .contains("order = \"key\" first")
    );
    assert_eq!(ordered.cancel("a").await, WriteResult::Cancelled);
    assert_eq!(agree(&unordered).await, Ok(()));
    assert_eq!(agree(&unordered).await, Ok(()));
}

/// One step of a random history of two keys and two who want to hold them.
#[derive(Clone, Debug)]
enum Step {
    Store(usize, i64),
    Claim(usize),
    /// The owner's time, and that of all its claims, is over.
    End,
    /// The first that it has.
    Settle(usize),
    Fail(usize),
    Sweep,
    /// The n-th of those that ever were.
    Cancel(usize),
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2usize, 0..3i64).prop_map(|(key, due)| Step::Store(key, due)),
        5 => (0..2usize).prop_map(Step::Claim),
        2 => Just(Step::End),
        3 => (0..2usize).prop_map(Step::Settle),
        3 => (0..2usize).prop_map(Step::Fail),
        3 => Just(Step::Sweep),
        2 => (0..12usize).prop_map(Step::Cancel),
        1 => (0..2usize).prop_map(Step::Release),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Due,
    Claimed { by: usize, ended: bool },
    Gone,
}

/// Model of an ordered route: each message's place and sequence number, which of them somebody published whose claim
/// was over, who held_keys, and which keys are held.
#[derive(Default)]
struct Model {
    messages: BTreeMap<usize, (&'static str, i64, usize, Where)>,
    /// The bundle in which each was claimed last, until it goes back as another one.
    bundles: BTreeMap<usize, Claim>,
    published: BTreeSet<usize>,
    owner: Option<(usize, bool)>,
    held_keys: BTreeMap<&'static str, i64>,
    places: usize,
}

impl Model {
    /// Reports whether a request succeeds, and whether it makes a new owner.
    fn may(&self, who: usize, has_claims: bool) -> Option<bool> {
        let lost = self
            .messages
            .values()
            .any(|m| matches!(m.3, Where::Claimed { ended: true, .. }));
        match self.owner {
            Some((owner, false)) => (owner == who).then_some(false),
            Some((owner, true)) if owner == who && has_claims => None,
            _ => (!lost).then_some(true),
        }
    }

    /// Reports whether a claim is of the bundle that its message is in.
    fn is_of_now(&self, claimed: &ClaimAnswer) -> bool {
        self.bundles
            .get(&number(claimed))
            .is_some_and(|claim| claim.id == claimed.claim.id)
    }

    /// Reports whether a claim is the last one of its message, and this owner's.
    fn is_held(&self, who: usize, claimed: &ClaimAnswer) -> bool {
        let n = number(claimed);
        let is_last = self.bundles.get(&n).is_some_and(|claim| {
            claim.id == claimed.claim.id && claim.token == claimed.claim.token
        });
        let holder = self.messages.get(&n).map(|message| message.3);
        is_last && matches!(holder, Some(Where::Claimed { by, .. }) if by == who)
    }

    fn cancel(&mut self, n: usize) -> WriteResult {
        match self
            .messages
            .get_mut(&n)
            .filter(|_| !self.published.contains(&n))
        {
            Some(message) if message.3 == Where::Due => {
                message.3 = Where::Gone;
                WriteResult::Cancelled
            }
            Some(message) if message.3 != Where::Gone => WriteResult::InFlight,
            _ => WriteResult::Unknown,
        }
    }

    fn due_in_order(&self) -> Vec<usize> {
        let mut due: Vec<_> = self
            .messages
            .iter()
            .filter(|(_, m)| m.3 == Where::Due)
            .collect();
        due.sort_by_key(|(_, m)| (m.1, m.2));
        due.into_iter().map(|(&n, _)| n).collect()
    }
}

const KEYS: [&str; 2] = ["a", "b"];

/// Ends the claims of the route's owner, and its own: the deadlines of all of them are in the past from now on.
async fn end_claims(fixture: &StoreFixture, model: &mut Model, owner: &str) {
    let claims: Vec<String> = fixture
        .command(&["ZRANGE", &fixture.key("claims"), "0", "-1"])
        .await;
    for id in claims {
        fixture
            .command::<i64>(&["ZADD", &fixture.key("claims"), "1", &id])
            .await;
    }
    let entry = format!("{owner} 1");
    fixture
        .command::<i64>(&["HSET", &fixture.key("order"), "h:orders", &entry])
        .await;
    for message in model.messages.values_mut() {
        if let Where::Claimed { ended, .. } = &mut message.3 {
            *ended = true;
        }
    }
}

async fn play(fixture: &StoreFixture, history: &[Step]) {
    let mut model = Model::default();
    let mut owners = [RouteOwner::new(fixture), RouteOwner::new(fixture)];
    for owner in &owners {
        owner.fixture.reached().await;
    }
    for step in history {
        model.places += 1;
        let place = model.places;
        match *step {
            Step::Store(key, due) => {
                let n = model.messages.len();
                let key = KEYS[key];
                let entry = named(&n.to_string(), past().plus(due), &n.to_string());
                let message = postdate::domain::Message {
                    key: Some(key.into()),
                    ..entry.message
                };
                fixture
                    .keep(vec![postdate::domain::Entry { message, ..entry }])
                    .await;
                model.messages.insert(n, (key, due, place, Where::Due));
            }
            Step::Claim(who) => claim(&mut model, &mut owners[who], who).await,
            Step::End => {
                let Some((who, _)) = model.owner else {
                    continue;
                };
                end_claims(fixture, &mut model, &owners[who].name).await;
                model.owner = Some((who, true));
            }
            Step::Settle(who) if !owners[who].claims.is_empty() => {
                let claimed = owners[who].claims.remove(0);
                let n = number(&claimed);
                let ours = model.is_held(who, &claimed);
                assert_eq!(fixture.settle(&claimed).await != SettleAnswer::Stale, ours);
                if ours {
                    model.messages.get_mut(&n).expect("known").3 = Where::Gone;
                } else if model.is_of_now(&claimed) {
                    model.published.insert(n);
                }
            }
            // Nobody publishes again what is known to be published.
            Step::Fail(who)
                if owners[who]
                    .claims
                    .first()
                    .is_some_and(|c| !model.published.contains(&number(c))) =>
            {
                let claimed = owners[who].claims.remove(0);
                let later = 10 + place as i64;
                let (held, _) = owners[who].fail(&claimed, past().plus(later)).await;
                let n = number(&claimed);
                let ours = model.is_held(who, &claimed);
                assert_eq!(held != SettleAnswer::Stale, ours);
                if ours {
                    model.bundles.remove(&n);
                    let message = model.messages.get_mut(&n).expect("known");
                    (message.1, message.2, message.3) = (later, place, Where::Due);
                    model.held_keys.insert(message.0, later);
                }
            }
            Step::Sweep => {
                sweep(&fixture.store, fixture.p, LONG, false)
                    .await
                    .expect("swept");
                for message in model.messages.values_mut() {
                    if matches!(message.3, Where::Claimed { ended: true, .. }) {
                        message.3 = Where::Due;
                    }
                }
            }
            Step::Cancel(n) => assert_eq!(fixture.cancel(&n.to_string()).await, model.cancel(n)),
            Step::Release(who) if owners[who].claims.is_empty() => {
                fixture
                    .store
                    .release_route(fixture.p, &route(), &owners[who].name)
                    .await
                    .expect("answered");
                if model.owner.is_some_and(|(owner, _)| owner == who) {
                    model.owner = None;
                }
            }
            Step::Settle(_) | Step::Fail(_) | Step::Release(_) => {}
        }
        fixture.check().await;
    }
}

fn number(claimed: &ClaimAnswer) -> usize {
    body(&entries(claimed)[0]).parse().expect("a number")
}

async fn claim(model: &mut Model, owner: &mut RouteOwner, who: usize) {
    let may = model.may(who, !owner.claims.is_empty());
    let taken = owner.take(LONG).await;
    assert_eq!(taken.as_ref().map(|taken| taken.held_keys.is_some()), may);
    let Some(taken) = taken else { return };
    let found: Vec<usize> = taken.claimed.iter().map(number).collect();
    assert_eq!(
        found,
        model.due_in_order(),
        "all that is due, in the order in which it is to leave"
    );
    assert_eq!(taken.left, None);
    if let Some(held_keys) = taken.held_keys {
        let found: BTreeMap<_, _> = held_keys
            .into_iter()
            .map(|(key, hold)| (key, hold.due))
            .collect();
        let expected = model
            .held_keys
            .iter()
            .map(|(key, due)| (Bytes::from(*key), past().plus(*due)));
        assert_eq!(
            found,
            expected.collect(),
            "a successor knows which keys are held"
        );
    }
    for n in found {
        model.messages.get_mut(&n).expect("known").3 = Where::Claimed {
            by: who,
            ended: false,
        };
    }
    model.bundles.extend(
        taken
            .claimed
            .iter()
            .map(|claimed| (number(claimed), claimed.claim.clone())),
    );
    model.owner = Some((who, false));
    owner.claims.extend(taken.claimed);
}

#[tokio::test]
async fn an_earlier_claim_of_a_message_that_its_owner_holds_again_is_stale() {
    let claimed_twice = [
        Step::Store(0, 0),
        Step::Claim(1),
        Step::End,
        Step::Sweep,
        Step::Claim(0),
    ];
    let claimed_again = [Step::End, Step::Sweep, Step::Claim(1)];
    for last in [Step::Fail(1), Step::Settle(1)] {
        play(
            &fixture().await,
            &[&claimed_twice[..], &claimed_again, &[last]].concat(),
        )
        .await;
    }
}

#[tokio::test]
async fn a_claim_of_a_message_that_has_gone_back_in_another_bundle_is_stale() {
    let stores = [Step::Store(0, 0), Step::Store(0, 0), Step::Store(0, 0)];
    let first = [Step::Claim(1), Step::End, Step::Sweep];
    let second = [Step::Claim(0), Step::Fail(0), Step::End, Step::Sweep];
    // Both claim the first message; the one that the first claim was of is gone.
    let last = [Step::Claim(1), Step::Settle(1), Step::Cancel(0)];
    play(
        &fixture().await,
        &[&stores[..], &first, &second, &last].concat(),
    )
    .await;
}

fn random_histories(runtime: &tokio::runtime::Runtime, fixture: &StoreFixture, cases: u32) {
    let config = Config {
        cases,
        max_shrink_iters: 300,
        failure_persistence: None,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&prop::collection::vec(step(), 1..30), |history| {
        let run = std::panic::AssertUnwindSafe(|| runtime.block_on(play(fixture, &history)));
        let outcome = std::panic::catch_unwind(run);
        runtime.block_on(fixture.wipe());
        outcome.map_err(|_| {
            TestCaseError::fail("it differs from the model; the panic above says where")
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn random_histories_of_two_keys_are_as_in_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let fixture = runtime.block_on(fixture());
    random_histories(&runtime, &fixture, 80);
}

#[test]
fn random_histories_of_two_keys_on_a_cluster_are_as_in_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cluster = runtime.block_on(Cluster::start_with("redis-server", 0));
    let fixture = runtime.block_on(async {
        let node = cluster.master_of(cluster.slot("{0}").await).await;
        let config = config_of(cluster.topology(), &names::unique("store"), 1);
        StoreFixture::ordered_of(config, cluster.node(node)).await
    });
    random_histories(&runtime, &fixture, 40);
}

#[tokio::test]
async fn an_earlier_claim_of_the_same_bundle_by_the_same_owner_is_stale() {
    let stores = [Step::Store(0, 0), Step::Store(0, 0)];
    let claims = [
        Step::Claim(0),
        Step::End,
        Step::Sweep,
        Step::Claim(1),
        Step::End,
        Step::Sweep,
        Step::Claim(0),
    ];
    play(
        &fixture().await,
        &[&stores[..], &claims, &[Step::Settle(0)]].concat(),
    )
    .await;
}

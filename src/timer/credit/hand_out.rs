//! Which timer shard gets how much of a route's credit, and when. No I/O and no clock.

use std::collections::VecDeque;

/// Waiting shards are served once this part of the limit is free: claims stay large when the target is the bottleneck.
const SERVED_FROM: i64 = 4;
/// Lifetime of an offer, microseconds. A shard polls within a fraction of it, unless the shard hangs.
const OFFER_LIFETIME_US: i64 = 1_000_000;

/// The credit of one route in messages, and the shards that wait for some of it.
///
/// A shard that finds too little free waits. Once enough is free, the waiting shards get equal parts, in the order in
/// which they asked. Each part is set aside as an offer until its shard polls. While a shard waits, no other shard
/// gets anything before it.
#[derive(Debug, Default)]
pub(super) struct HandOut {
    /// Messages of claims on their way, claimed messages without a verdict, and offers.
    taken: i64,
    waiting: VecDeque<usize>,
    offers: Vec<Offer>,
}

/// Credit that is set aside for a shard that waited.
#[derive(Debug)]
struct Offer {
    shard: usize,
    messages: i64,
    until_us: i64,
}

/// The bounds at the moment of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Messages that may be taken.
    pub(super) limit: i64,
    /// The route may read at least one more bundle.
    pub(super) has_bytes: bool,
    /// Monotonic microseconds.
    pub(super) now_us: i64,
}

impl Terms {
    fn enough(&self) -> i64 {
        (self.limit / SERVED_FROM).max(1)
    }
}

impl HandOut {
    /// Takes credit for a shard: its offer, or at most `wanted` messages of what is free. `None`: the shard waits.
    pub(super) fn ask(&mut self, shard: usize, wanted: i64, terms: &Terms) -> Option<i64> {
        self.lapse(terms.now_us);
        if let Some(messages) = self.take_offer(shard) {
            if terms.has_bytes {
                return Some(messages);
            }
            self.taken -= messages;
            self.waiting.push_back(shard);
            return None;
        }
        if self.waiting.is_empty() && terms.has_bytes && self.free(terms) >= terms.enough() {
            let messages = wanted.min(self.free(terms));
            self.taken += messages;
            return Some(messages);
        }
        if !self.waiting.contains(&shard) {
            self.waiting.push_back(shard);
        }
        None
    }

    /// Reports whether [`HandOut::ask`] would give this shard something.
    pub(super) fn is_open(&mut self, shard: usize, terms: &Terms) -> bool {
        self.lapse(terms.now_us);
        let has_offer = self.offers.iter().any(|offer| offer.shard == shard);
        let is_free = self.waiting.is_empty() && self.free(terms) >= terms.enough();
        terms.has_bytes && (has_offer || is_free)
    }

    /// Makes offers to the waiting shards if enough is free. Returns the shards that have an offer now.
    pub(super) fn serve(&mut self, terms: &Terms) -> Vec<usize> {
        self.lapse(terms.now_us);
        let mut served = Vec::new();
        if !terms.has_bytes || self.free(terms) < terms.enough() {
            return served;
        }
        while self.free(terms) > 0
            && let Some(shard) = self.waiting.pop_front()
        {
            let parts = self.waiting.len() as i64 + 1;
            let messages = (self.free(terms) / parts).max(1);
            self.taken += messages;
            self.offers.push(Offer {
                shard,
                messages,
                until_us: terms.now_us + OFFER_LIFETIME_US,
            });
            served.push(shard);
        }
        served
    }

    /// Gives messages back. A negative number takes more, even beyond the limit.
    pub(super) fn give_back(&mut self, messages: i64) {
        self.taken -= messages;
    }

    /// Forgets that a shard waits, and takes back its offer.
    pub(super) fn withdraw(&mut self, shard: usize) {
        self.waiting.retain(|&waiting| waiting != shard);
        if let Some(messages) = self.take_offer(shard) {
            self.taken -= messages;
        }
    }

    /// Messages that are taken, if too few are free for a claim.
    pub(super) fn used_up(&self, terms: &Terms) -> Option<i64> {
        (self.free(terms) < terms.enough()).then_some(self.taken)
    }

    /// Reports whether a shard waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn free(&self, terms: &Terms) -> i64 {
        terms.limit - self.taken
    }

    fn take_offer(&mut self, shard: usize) -> Option<i64> {
        let at = self.offers.iter().position(|offer| offer.shard == shard)?;
        Some(self.offers.swap_remove(at).messages)
    }

    /// Takes back the offers that no shard has collected in time.
    fn lapse(&mut self, now_us: i64) {
        let taken = &mut self.taken;
        self.offers.retain(|offer| {
            let stands = now_us < offer.until_us;
            if !stands {
                *taken -= offer.messages;
            }
            stands
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::{Just, Strategy, any, prop_oneof};
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    const SHARDS: usize = 4;

    /// One step of a history. Numbers select one of what is there.
    #[derive(Clone, Debug)]
    enum Step {
        /// A shard polls, with something due.
        Ask(usize, i64),
        /// A shard polls, with nothing due.
        Withdraw(usize),
        /// A claim brings so many thousandths of what it took. The rest goes back.
        Claimed(usize, i64),
        /// Some messages of a claimed bundle have their verdicts, are lost, or are divided off and end.
        Verdicts(usize, i64),
        /// A message that waits for its key's turn is open again.
        Reopened(usize),
        /// The target gets into trouble or out of it.
        Limit(i64),
        Bytes(bool),
        /// Time goes by, as for a shard that hangs.
        Wait(i64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..SHARDS, 1..1500_i64).prop_map(|(shard, wanted)| Step::Ask(shard, wanted)),
            1 => (0..SHARDS).prop_map(Step::Withdraw),
            4 => (any::<usize>(), 0..=1000_i64).prop_map(|(at, part)| Step::Claimed(at, part)),
            8 => (any::<usize>(), 1..400_i64).prop_map(|(at, count)| Step::Verdicts(at, count)),
            1 => any::<usize>().prop_map(Step::Reopened),
            1 => prop_oneof![Just(1000), Just(40), Just(2)].prop_map(Step::Limit),
            1 => any::<bool>().prop_map(Step::Bytes),
            2 => (0..700_000_i64).prop_map(Step::Wait),
        ];
        vec(step, 0..300)
    }

    proptest! {
        #[test]
        fn credit_is_bounded_goes_round_and_never_leaks(steps in steps()) {
            let mut hand_out = HandOut::default();
            let mut terms = Terms { limit: 1000, has_bytes: true, now_us: 0 };
            // Credit that was given out: grants of claims on their way, and claimed bundles.
            let mut grants: Vec<i64> = Vec::new();
            let mut bundles: Vec<i64> = Vec::new();
            // For each waiting shard, how often each other shard was served since it asked.
            let mut waits: BTreeMap<usize, BTreeMap<usize, u32>> = BTreeMap::new();
            let mut highest_limit = terms.limit;
            let mut reopened = 0;
            for step in steps {
                let mut served = Vec::new();
                match step {
                    Step::Ask(shard, wanted) => {
                        let was_open = hand_out.is_open(shard, &terms);
                        let had_offer = hand_out.offers.iter().any(|offer| {
                            offer.shard == shard && terms.now_us < offer.until_us
                        });
                        match hand_out.ask(shard, wanted, &terms) {
                            Some(messages) => {
                                prop_assert!(messages > 0);
                                prop_assert!(was_open, "given although it was closed");
                                grants.push(messages);
                                waits.remove(&shard);
                                if !had_offer {
                                    served.push(shard);
                                }
                            }
                            None => drop(waits.entry(shard).or_default()),
                        }
                    }
                    Step::Withdraw(shard) => {
                        hand_out.withdraw(shard);
                        waits.remove(&shard);
                    }
                    Step::Claimed(at, part) if !grants.is_empty() => {
                        let messages = grants.swap_remove(at % grants.len());
                        let brought = messages * part / 1000;
                        hand_out.give_back(messages - brought);
                        if brought > 0 {
                            bundles.push(brought);
                        }
                    }
                    Step::Verdicts(at, count) if !bundles.is_empty() => {
                        let at = at % bundles.len();
                        let count = count.min(bundles[at]);
                        bundles[at] -= count;
                        bundles.retain(|&open| open > 0);
                        hand_out.give_back(count);
                    }
                    Step::Reopened(at) if !bundles.is_empty() => {
                        let at = at % bundles.len();
                        bundles[at] += 1;
                        reopened += 1;
                        hand_out.give_back(-1);
                    }
                    Step::Limit(limit) => {
                        terms.limit = limit;
                        highest_limit = highest_limit.max(limit);
                    }
                    Step::Bytes(has_bytes) => terms.has_bytes = has_bytes,
                    Step::Wait(us) => terms.now_us += us,
                    Step::Claimed(..) | Step::Verdicts(..) | Step::Reopened(..) => {}
                }
                served.extend(hand_out.serve(&terms));
                for shard in served {
                    waits.remove(&shard);
                    for (waiting, others) in &mut waits {
                        let count = others.entry(shard).or_default();
                        *count += 1;
                        prop_assert!(*count <= 1, "{waiting} waits, {shard} was served twice");
                    }
                }
                let offered: i64 = hand_out.offers.iter().map(|offer| offer.messages).sum();
                let given: i64 = grants.iter().chain(&bundles).sum();
                prop_assert_eq!(hand_out.taken, given + offered);
                prop_assert!(hand_out.taken <= highest_limit + reopened);
                let is_enough = terms.has_bytes && hand_out.free(&terms) >= terms.enough();
                prop_assert!(!is_enough || hand_out.waiting.is_empty(), "it waits for nothing");
            }
            for messages in grants.into_iter().chain(bundles) {
                hand_out.give_back(messages);
            }
            (0..SHARDS).for_each(|shard| hand_out.withdraw(shard));
            prop_assert_eq!(hand_out.taken, 0, "nothing is left");
        }
    }

    const TERMS: Terms = Terms {
        limit: 200,
        has_bytes: true,
        now_us: 0,
    };

    #[test]
    fn waiting_shards_get_equal_parts_in_the_order_in_which_they_asked() {
        let mut hand_out = HandOut::default();
        assert_eq!(hand_out.ask(0, 12_500, &TERMS), Some(200));
        assert_eq!(hand_out.ask(1, 500, &TERMS), None);
        assert_eq!(hand_out.ask(0, 500, &TERMS), None);
        assert_eq!(hand_out.ask(2, 500, &TERMS), None);
        hand_out.give_back(49);
        assert!(hand_out.serve(&TERMS).is_empty(), "a quarter is not free");
        hand_out.give_back(1);
        assert_eq!(hand_out.serve(&TERMS), [1, 0, 2]);
        let given = [0, 1, 2].map(|shard| hand_out.ask(shard, 1, &TERMS));
        assert_eq!(given, [Some(17), Some(16), Some(17)]);
        assert_eq!(hand_out.ask(2, 1, &TERMS), None, "all of it is given out");
    }

    #[test]
    fn an_offer_that_nobody_collects_goes_to_the_others() {
        let mut hand_out = HandOut::default();
        hand_out.give_back(-200);
        assert_eq!(hand_out.ask(0, 1, &TERMS), None);
        hand_out.give_back(100);
        assert_eq!(hand_out.serve(&TERMS), [0]);
        assert_eq!(hand_out.ask(1, 1, &TERMS), None);
        let later = Terms {
            now_us: OFFER_LIFETIME_US,
            ..TERMS
        };
        assert_eq!(hand_out.serve(&later), [1]);
        assert_eq!(hand_out.ask(1, 1, &later), Some(100));
    }

    #[test]
    fn shards_wait_for_bytes_as_for_messages() {
        let mut hand_out = HandOut::default();
        let full = Terms {
            has_bytes: false,
            ..TERMS
        };
        assert_eq!(hand_out.ask(0, 1, &full), None);
        assert!(hand_out.serve(&full).is_empty());
        assert_eq!(hand_out.ask(1, 1, &TERMS), None, "behind the first");
        assert_eq!(hand_out.serve(&TERMS), [0, 1]);
        assert_eq!(hand_out.ask(0, 1, &full), None, "its offer is no use");
        assert_eq!(hand_out.ask(1, 1, &TERMS), Some(100));
        assert_eq!(hand_out.serve(&TERMS), [0]);
    }

    #[test]
    fn a_limit_of_one_goes_round() {
        let one = Terms { limit: 1, ..TERMS };
        let mut hand_out = HandOut::default();
        assert_eq!(hand_out.ask(0, 9, &one), Some(1));
        assert_eq!(hand_out.ask(1, 9, &one), None);
        assert_eq!(hand_out.ask(0, 9, &one), None);
        for shard in [1, 0, 1] {
            hand_out.give_back(1);
            assert_eq!(hand_out.serve(&one), [shard]);
            assert_eq!(hand_out.ask(shard, 9, &one), Some(1));
            assert_eq!(hand_out.ask(shard, 9, &one), None);
        }
    }
}

//! Two ways through a world: all of it, breadth first, or one history after another by dice.

use std::collections::{BTreeSet, HashSet};
use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};

use super::checks::Broken;
use super::step::show;
use super::store::SettleOutcome;
use super::world::{Action, Answer, Op, Setting, World, Write};

/// Counts of a search of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchReport {
    pub states: usize,
    /// States in which nothing goes on by itself any more.
    pub rests: usize,
    /// The longest way to a state.
    pub depth: usize,
}

/// A history that ends in what must not be.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub broken: Broken,
    pub actions: Vec<Action>,
    setting: Setting,
}

/// Visits every state that can be reached, the nearest first, so that what it finds is as short as can be.
pub fn everything(setting: &Setting, most: usize) -> Result<SearchReport, Box<Counterexample>> {
    let start = World::new(setting);
    let mut known: HashSet<u64> = HashSet::new();
    known.insert(fingerprint(&start));
    // Of each state how it was reached: by which action from which other.
    let mut ways: Vec<(u32, Action)> = vec![(0, Action::Tick)];
    let mut frontier = vec![(0_u32, Box::new(start))];
    let mut seen = SearchReport {
        states: 1,
        rests: 0,
        depth: 0,
    };
    let mut actions = Vec::new();
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (from, world) in frontier {
            let fail = |broken, last| {
                let mut actions: Vec<Action> = Option::into_iter(last).collect();
                let mut at = from;
                while at > 0 {
                    let (before, action) = ways[at as usize];
                    actions.push(action);
                    at = before;
                }
                actions.reverse();
                Box::new(Counterexample {
                    broken,
                    actions,
                    setting: setting.clone(),
                })
            };
            if world.possible(setting, &mut actions) == 0 {
                seen.rests += 1;
                world
                    .at_rest(setting)
                    .map_err(|broken| fail(broken, None))?;
            }
            for &action in &actions {
                let mut then = Box::new(World::clone(&world));
                then.step(setting, action)
                    .map_err(|broken| fail(broken, Some(action)))?;
                if known.insert(fingerprint(&then)) {
                    next.push((action, from, then));
                }
            }
        }
        frontier = Vec::with_capacity(next.len());
        for (action, from, world) in next {
            frontier.push((ways.len() as u32, world));
            ways.push((from, action));
        }
        seen.states = ways.len();
        seen.depth += usize::from(!frontier.is_empty());
        assert!(
            seen.states <= most,
            "{}: more than {most} states; make it smaller",
            setting.name
        );
    }
    Ok(seen)
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = Fingerprint::default();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Sixty-four bits of a state, a word at a time: cheaper than the hasher of `std` in a build without an optimiser.
#[derive(Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n)
            .wrapping_add(STEP)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The golden ratio in sixty-four bits.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Dice: the same seed, the same throws, on any machine (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.throw() % n.max(1) as u64) as usize
    }
}

/// One history: dice decide what happens next, until the world has come to rest. Answers its length, and adds what
/// kinds of things happened, and what kinds of calls came late.
pub fn history(
    setting: &Setting,
    dice: &mut Dice,
    kinds: &mut BTreeSet<u8>,
) -> Result<usize, Box<Counterexample>> {
    let mut world = World::new(setting);
    let mut taken = Vec::new();
    let mut actions = Vec::new();
    loop {
        let by_itself = world.possible(setting, &mut actions);
        let fail = |broken, actions| {
            Box::new(Counterexample {
                broken,
                actions,
                setting: setting.clone(),
            })
        };
        if by_itself == 0 {
            return match world.at_rest(setting) {
                Ok(()) => Ok(taken.len()),
                Err(broken) => Err(fail(broken, taken)),
            };
        }
        let some = actions.len() - by_itself;
        // One step in eight or so is one that nothing forces to happen.
        let at = if some > 0 && dice.below(8) == 0 {
            by_itself + dice.below(some)
        } else {
            dice.below(by_itself)
        };
        taken.push(actions[at]);
        kinds.insert(actions[at].kind());
        if actions[at] == Action::Late {
            kinds.extend(world.late_copy());
        }
        if let Err(broken) = world.step(setting, actions[at]) {
            return Err(fail(broken, taken));
        }
    }
}

impl Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {}: {}",
            self.setting.name, self.broken.rule, self.broken.what
        )?;
        let mut world = World::new(&self.setting);
        for (n, &action) in self.actions.iter().enumerate() {
            writeln!(f, "{:4}  {}", n + 1, described(&world, action))?;
            // The last of them is what must not be.
            if let Err(broken) = world.step(&self.setting, action) {
                writeln!(f, "      {}: {}", broken.rule, broken.what)?;
            }
        }
        Ok(())
    }
}

impl Action {
    /// A number for each kind of thing that can happen.
    fn kind(self) -> u8 {
        match self {
            Self::Read(_) => 0,
            Self::Send(_) => 1,
            Self::Execute(_) => 2,
            Self::Hear(_) => 3,
            Self::LoseReply(_) => 4,
            Self::Commit(_) => 5,
            Self::Crash(_, late) => 6 + u8::from(late),
            Self::Late => 8,
            Self::Claim(_) => 9,
            Self::Sweep(_) => 10,
            Self::HandOver(..) => 11,
            Self::Finish(..) => 12,
            Self::Split(..) => 13,
            Self::Note(..) => 14,
            Self::Drain(_) => 15,
            Self::Leave(_) => 16,
            Self::Deliver(_) => 17,
            Self::DeliverUnheard(_) => 18,
            Self::Vanish(_) => 19,
            Self::Refuse(_) => 20,
            Self::Reject(_) => 21,
            Self::Lapse(_) => 22,
            Self::Tick => 23,
            Self::Replicate => 24,
            Self::FailOver => 25,
            Self::Notice(_) => 26,
            Self::Redrive(_) => 27,
            Self::Resend(_) => 28,
            Self::OwnDeadline(..) => 29,
            Self::Close(_) => 30,
            Self::Open(_) => 31,
            Self::Return(_) => 32,
            Self::ReadGrowing(..) => 47,
            Self::Spread(_) => 48,
        }
    }
}

impl World {
    /// A number for each kind of late copy: by what its call was answered, or by its call where every copy runs.
    fn late_copy(&self) -> Option<u8> {
        let (caller, wire) = self.late.as_ref()?;
        let known = self
            .master
            .calls
            .iter()
            .find(|(of, ..)| of == caller)
            .filter(|(_, n, _)| *n >= wire.number);
        Some(match (&wire.op, known) {
            (Op::Extend(..), _) => 33,
            (Op::GiveBack(_), _) => 34,
            (Op::Sweep, _) => 35,
            // The copy comes first after all.
            (_, None) => 36,
            (_, Some((_, number, _))) if *number > wire.number => 37,
            (_, Some((_, _, answer))) => match answer {
                Answer::Marked => 38,
                Answer::Refused => 39,
                Answer::Written(_) => 40,
                Answer::Claimed(_) => 41,
                Answer::Divided(SettleOutcome::Stale) => 42,
                Answer::Divided(SettleOutcome::Done(_)) => 43,
                Answer::Settled(false) => 44,
                Answer::Settled(true) => 45,
                Answer::Overtaken | Answer::Swept => 46,
            },
        })
    }
}

/// An action in words.
fn described(world: &World, action: Action) -> String {
    let who = |a: usize| match a.checked_sub(world.ingress.len()) {
        None => format!("ingress {a}"),
        Some(t) => format!("timer {t}"),
    };
    let call = |a: usize| {
        world
            .actor(a)
            .wire
            .as_ref()
            .map_or_else(String::new, |wire| call(&wire.op))
    };
    let claimed = |t: usize, h: usize| {
        let claimed = &world.timers[t].claimed_bundles[h];
        let slots: Vec<_> = claimed
            .slots
            .iter()
            .map(|(l, s)| format!("{} {s:?}", show(l.body)))
            .collect();
        format!("bundle {} ({})", claimed.claim.bundle, slots.join(", "))
    };
    let sent = |k: usize| {
        format!(
            "{} of timer {}",
            show(world.socket[k].message.body),
            world.socket[k].timer
        )
    };
    match action {
        Action::Read(s) => format!("ingress {s} reads on"),
        Action::Send(s) => format!("ingress {s} sends what it has read to the store"),
        Action::Execute(a) => format!("{}: {} runs in the store", who(a), call(a)),
        Action::Hear(a) => {
            let answer = world
                .actor(a)
                .wire
                .as_ref()
                .and_then(|wire| wire.answer.as_ref());
            format!("{} hears of {}: {answer:?}", who(a), call(a))
        }
        Action::LoseReply(a) => format!(
            "{}: the answer to {} is lost; it is sent again",
            who(a),
            call(a)
        ),
        Action::Commit(s) => format!("ingress {s} acknowledges what was answered"),
        Action::Crash(a, late) => {
            let late = if late {
                "; its call is still on its way"
            } else {
                ""
            };
            format!("{} is killed and started again{late}", who(a))
        }
        Action::Resend(a) => {
            format!(
                "{}: {} is sent again, while its first copy is still on its way",
                who(a),
                call(a)
            )
        }
        Action::Late => "the copy that was still on its way arrives".to_owned(),
        Action::Claim(t) => format!("timer {t} sends a claim"),
        Action::ReadGrowing(t, bundle) => format!("timer {t} reads bundle {bundle}, which grows"),
        Action::Spread(t) => format!("timer {t} spreads what it has read"),
        Action::Sweep(t) => format!("timer {t} sweeps"),
        Action::HandOver(t, h) => format!("timer {t} hands over the next of {}", claimed(t, h)),
        Action::Finish(t, h) => format!("timer {t} is finished with {}", claimed(t, h)),
        Action::Split(t, h) => format!("timer {t} splits off what hangs of {}", claimed(t, h)),
        Action::Note(t, h) => format!("timer {t} notes what is confirmed of {}", claimed(t, h)),
        Action::Drain(t) => format!("timer {t} is told to end"),
        Action::Leave(t) => format!("timer {t} ends, and another begins"),
        Action::Deliver(k) => format!("the broker takes {} and confirms it", sent(k)),
        Action::DeliverUnheard(k) => {
            format!("the broker takes {}, and its confirm is lost", sent(k))
        }
        Action::Vanish(k) => format!("{} is lost on its way", sent(k)),
        Action::Refuse(k) => format!("the broker refuses {}", sent(k)),
        Action::Reject(k) => format!("the broker refuses {} for good", sent(k)),
        Action::Lapse(bundle) => format!("the deadline of bundle {bundle} passes"),
        Action::OwnDeadline(t, h) => {
            format!(
                "timer {t}: by its own clock the deadline of {} passes",
                claimed(t, h)
            )
        }
        Action::Close(s) => format!("ingress {s} is closed"),
        Action::Open(s) => format!("ingress {s} is open again"),
        Action::Return(s) => format!("ingress {s} gives back what it took"),
        Action::Tick => "time goes on".to_owned(),
        Action::Replicate => "the replica has everything".to_owned(),
        Action::FailOver => "the replica takes over".to_owned(),
        Action::Notice(a) => format!("{} finds the new master", who(a)),
        Action::Redrive(body) => format!("somebody redrives {}", show(body)),
    }
}

fn call(op: &Op) -> String {
    let one = |write: &Write| match write {
        Write::Store(messages, _, grows) => {
            let messages: Vec<_> = messages.iter().map(|l| show(l.body)).collect();
            let how = if *grows { " to grow" } else { "" };
            format!("store {}{how}", messages.join(" "))
        }
        Write::Cancel(name) => format!("cancel {name}"),
        Write::Move(name, due, _) => format!("move {name} to {due}"),
        Write::Replace(name, message) => format!("replace {name} by {}", show(message.body)),
    };
    match op {
        Op::Mark(_, read) => format!("the mark {read}"),
        Op::Write(writes) => writes.iter().map(one).collect::<Vec<_>>().join(", "),
        Op::Claim(_) => "a claim".to_owned(),
        Op::Spread(bundle, _) => format!("the spread of bundle {bundle}"),
        Op::Settle(claim, _) => format!("the settle of bundle {}", claim.bundle),
        Op::Divide(claim, shares, ..) => {
            format!("the division of bundle {} {shares:?}", claim.bundle)
        }
        Op::Extend(claim, ..) => format!("the note about bundle {}", claim.bundle),
        Op::GiveBack(all) => format!("the return of {} bundles", all.len()),
        Op::Sweep => "a sweep".to_owned(),
    }
}

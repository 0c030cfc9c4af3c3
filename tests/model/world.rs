//! The world around the model: ingresses that store and acknowledge, timers that claim, publish and settle,
//! their wires, a broker, and the store's masters. A state, the actions that are possible in it, and no clock but `now`.

use std::collections::BTreeSet;

use super::drift::Drift;
use super::store::{
    Claim, Claimed, FindResult, Message, Model, Moment, Name, SettleOutcome, Share, StoreFault,
    WriteResult,
};

/// One record of a source.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    Put {
        name: Option<Name>,
        due: Moment,
    },
    Cancel(Name),
    Move(Name, Moment),
    Replace(Name, Moment),
    /// What a consumer gives back for the so-manieth time. It is there once the record before it was delivered.
    Back(Name, Moment, u32),
}

/// A source: its records, and how many of them one call takes at most.
#[derive(Clone, Debug)]
pub struct Source {
    pub records: Vec<Record>,
    pub batch: usize,
    /// It drops what went back more often than this.
    pub limit: Option<u8>,
}

/// A planted fault of an actor of this world, or of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Store(StoreFault),
    /// Handed over counts as confirmed.
    SettleBeforeConfirm,
    /// Expired claims are looked for when a timer starts, and not again.
    SweepAtStart,
    /// A source is acknowledged before the store has answered.
    CommitBeforeStore,
    /// Answers count before a replica has what they speak of.
    NoWait,
    /// Messages go out when they are claimed.
    Early,
    /// A message that goes back after its claim expired forgets the expiry.
    ForgetExpiry,
    /// The mark of what was read is not waited for.
    MarkWithoutWait,
    /// Any loss of the store's clock counts as a step of it, and steps hold expiry back without an end.
    DriftIsAStep,
    /// A clock that steps for ever holds expiry back for ever.
    HoldForEver,
    /// A holder's own deadline does not allow for the drift of clocks.
    NoAllowance,
    /// A message counts as due by the timer's own clock.
    OwnClock,
    /// A source is read while its ingress is closed.
    SubscribeWhileWaiting,
    /// The messages of a bundle that was lost keep the credit that they took.
    CreditKept,
    /// Whether a message is still wanted is judged when it is claimed, and not when it is handed over.
    ExpiryAtClaim,
}

/// How often each thing may happen that nothing forces to happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub crashes: u8,
    pub lost_replies: u8,
    /// Deadlines that pass while their holder lives.
    pub pauses: u8,
    /// Publishes that are refused, and those that are refused for good.
    pub refusals: u8,
    pub rejections: u8,
    /// Publishes whose confirm never comes.
    pub unknowns: u8,
    pub failovers: u8,
    pub drains: u8,
    pub redrives: u8,
    /// Times that a timer notes progress, or splits off what hangs.
    pub notes: u8,
    pub splits: u8,
    /// Times that an ingress is closed: by hand, or because the store takes nothing in.
    pub closings: u8,
}

/// One search's setting.
#[derive(Clone, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub sources: Vec<Source>,
    pub timers: usize,
    pub replace: bool,
    pub remembers: bool,
    /// Keys leave in order: what is stored gets its place in it before the call.
    pub ordered: bool,
    /// Named messages that are not due at once join growing bundles.
    pub grows: bool,
    /// Messages are wanted until so long after they are due.
    pub wanted_for: Option<Moment>,
    /// Calls take time: they can be late, and their answers lost. Otherwise they are one step.
    pub wires: bool,
    /// Answers wait for a replica (the tier `replicated`).
    pub replicated: bool,
    pub lookahead: Moment,
    /// Messages without a verdict that a timer may have before it claims more.
    pub credit: usize,
    pub drift: Drift,
    pub budget: Budget,
    pub fault: Option<Fault>,
}

impl Setting {
    /// Reports whether consumers give back what they got.
    pub fn gives_back(&self) -> bool {
        let records = self.sources.iter().flat_map(|source| &source.records);
        records
            .into_iter()
            .any(|record| matches!(record, Record::Back(..)))
    }

    /// The record's place among all, and the record.
    pub fn record(&self, source: usize, at: usize) -> (usize, Record) {
        let before: usize = self.sources[..source].iter().map(|s| s.records.len()).sum();
        (before + at, self.sources[source].records[at])
    }
}

/// A call on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The highest record read of a source.
    Mark(usize, usize),
    /// A bundle of each run of messages; commands between them. In order.
    Write(Vec<Write>),
    Claim(Moment),
    /// A growing bundle, and which of its messages were gone when it was read.
    Spread(usize, Vec<bool>),
    Settle(Claim, Vec<Name>),
    Divide(Claim, Vec<Option<Share>>, Moment, Vec<Name>),
    Extend(Claim, Vec<bool>, Vec<Name>),
    GiveBack(Vec<(Claim, Vec<bool>, Vec<Name>)>),
    Sweep,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// And whether it replaces what is pending under a name, and whether it joins a growing bundle.
    Store(Vec<Message>, bool, bool),
    Cancel(Name),
    Move(Name, Moment, Message),
    Replace(Name, Message),
}

impl Write {
    /// The names that it speaks of.
    pub fn names(&self) -> Vec<Name> {
        match self {
            Self::Store(messages, ..) => {
                messages.iter().filter_map(|message| message.name).collect()
            }
            Self::Cancel(name) | Self::Move(name, ..) | Self::Replace(name, _) => vec![name],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Marked,
    /// Nothing was changed: something is not as its caller saw it.
    Refused,
    /// Nothing was changed: a later call of the same caller came first.
    Overtaken,
    /// And the body that a cancel or a replace took.
    Written(Vec<(WriteResult, Option<u32>)>),
    Claimed(Vec<Claimed>),
    Divided(SettleOutcome),
    Settled(bool),
    Swept,
}

/// An actor's one outstanding call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wire {
    pub op: Op,
    pub number: u8,
    pub found: FindResult,
    /// The answer on its way back, once the call has run.
    pub answer: Option<Answer>,
    /// The deadline of what it claims or extends has passed since it was sent.
    pub lapsed: bool,
}

/// State that every actor has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Actor {
    /// Number of the process: one after another.
    pub incarnation: u8,
    pub number: u8,
    pub wire: Option<Wire>,
    /// It has not noticed yet that another master has taken over.
    pub behind: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ingress {
    pub actor: Actor,
    /// Records up to here were read, answered, acknowledged.
    pub read: usize,
    pub answered: usize,
    pub committed: usize,
    /// Records up to here are marked as read.
    pub marked: usize,
    /// Records below this one were read by an earlier incarnation.
    pub below: usize,
    /// Nothing is to be read or stored.
    pub closed: bool,
    /// How often what was taken went back since it was closed.
    pub returned: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryState {
    Skip,
    Open,
    Handed,
    Confirmed,
    Refused,
    Rejected,
    /// It was not wanted any more.
    Expired,
    Unknown,
    NotTried,
}

/// A bundle that a timer has claimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimedBundle {
    pub claim: Claim,
    /// The claim it began with.
    pub first: Claim,
    pub slots: Vec<(Message, DeliveryState)>,
    pub expiries: u32,
    pub lapsed: bool,
    pub lost: bool,
    pub news: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timer {
    pub actor: Actor,
    pub claimed_bundles: Vec<ClaimedBundle>,
    /// The growing bundle that it has read, and which of its messages were gone.
    pub growing: Option<(usize, Vec<bool>)>,
    pub draining: bool,
    /// Leases in a row for which it let nothing expire.
    pub withheld: u8,
    /// The credit that it has taken: a message's from the claim to the verdict.
    pub taken: usize,
}

/// A publication on its way to its broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Publication {
    pub message: Message,
    /// It says that it may be a repeat.
    pub flagged: bool,
    pub timer: usize,
    pub incarnation: u8,
    pub first: Claim,
}

/// Deliveries of one record, as a consumer counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tally {
    pub plain: u8,
    pub flagged: bool,
    /// How often it came, up to twice; where consumers give back what comes.
    pub times: u8,
}

/// A numbered caller: actor and incarnation.
pub type Caller = (usize, u8);

/// The store as one master has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Master {
    pub model: Model,
    /// Each caller's last call and its answer.
    pub calls: Vec<(Caller, u8, Answer)>,
    pub marks: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: Moment,
    pub master: Master,
    /// Has what the replica had when it took over; the old master goes on for those who are behind.
    pub old: Option<Box<Master>>,
    pub replica: Option<Box<Master>>,
    pub ingress: Vec<Ingress>,
    pub timers: Vec<Timer>,
    pub socket: Vec<Publication>,
    /// A call that has not arrived yet, though its caller is dead or has sent it again.
    pub late: Option<(Caller, Wire)>,
    pub tally: Vec<Tally>,
    /// Bodies of which a cancel was answered.
    pub cancelled: BTreeSet<u32>,
    /// Records that somebody was told would be delivered.
    pub owed: BTreeSet<usize>,
    pub left: Budget,
}

/// An action that can happen next. Actors are numbered: the ingresses, then the timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read(usize),
    Send(usize),
    Execute(usize),
    Hear(usize),
    LoseReply(usize),
    /// The connection is given up and the call sent again, while its first copy is still on its way.
    Resend(usize),
    Commit(usize),
    Crash(usize, bool),
    Late,
    Claim(usize),
    ReadGrowing(usize, usize),
    Spread(usize),
    Sweep(usize),
    HandOver(usize, usize),
    Finish(usize, usize),
    Split(usize, usize),
    Note(usize, usize),
    Drain(usize),
    Leave(usize),
    Deliver(usize),
    DeliverUnheard(usize),
    Vanish(usize),
    Refuse(usize),
    Reject(usize),
    Lapse(usize),
    Tick,
    Replicate,
    FailOver,
    Notice(usize),
    Redrive(u32),
    /// A holder's own deadline passes; the store's may not have.
    OwnDeadline(usize, usize),
    Close(usize),
    Open(usize),
    /// An ingress that is closed for long gives back what it took.
    Return(usize),
}

/// Bodies are numbered by record and by how often it was read.
pub const READS: u32 = 16;

pub fn record_of(body: u32) -> usize {
    (body / READS) as usize
}

impl World {
    pub fn new(setting: &Setting) -> Self {
        let mut model = Model::new(setting.remembers);
        if let Some(Fault::Store(fault)) = setting.fault {
            model.fault = Some(fault);
        }
        let marks = vec![0; setting.sources.len()];
        let master = Master {
            model,
            calls: Vec::new(),
            marks,
        };
        let records = setting.sources.iter().map(|s| s.records.len()).sum();
        World {
            now: 0,
            replica: (setting.budget.failovers > 0).then(|| Box::new(master.clone())),
            old: None,
            master,
            ingress: vec![Ingress::default(); setting.sources.len()],
            timers: vec![Timer::default(); setting.timers],
            socket: Vec::new(),
            late: None,
            tally: vec![Tally::default(); records],
            cancelled: BTreeSet::new(),
            owed: BTreeSet::new(),
            left: setting.budget,
        }
    }

    pub fn actor(&self, a: usize) -> &Actor {
        match self.ingress.get(a) {
            Some(ingress) => &ingress.actor,
            None => &self.timers[a - self.ingress.len()].actor,
        }
    }

    pub fn actor_mut(&mut self, a: usize) -> &mut Actor {
        let ingresses = self.ingress.len();
        match self.ingress.get_mut(a) {
            Some(ingress) => &mut ingress.actor,
            None => &mut self.timers[a - ingresses].actor,
        }
    }

    pub fn actors(&self) -> usize {
        self.ingress.len() + self.timers.len()
    }

    /// The master that this actor speaks to.
    pub fn master_of(&self, a: usize) -> &Master {
        match &self.old {
            Some(old) if self.actor(a).behind => old,
            _ => &self.master,
        }
    }

    /// Reports whether a live actor has this claim, or a call of his made it and its answer is yet to come.
    pub fn has_holder(&self, bundle: usize, nonce: u32) -> bool {
        let is = |claim: &Claim| claim.bundle == bundle && claim.nonce == nonce;
        let in_hands = self
            .timers
            .iter()
            .flat_map(|t| &t.claimed_bundles)
            .any(|claimed| is(&claimed.claim));
        in_hands || (0..self.actors()).any(|a| self.unheard(a).any(|claim| is(&claim)))
    }

    /// Claims that an outstanding call of this actor has made: at its master, or by a late copy at the new one.
    pub fn unheard(&self, a: usize) -> impl Iterator<Item = Claim> + '_ {
        let actor = self.actor(a);
        let number = actor.wire.as_ref().map(|wire| wire.number);
        let old = self
            .old
            .iter()
            .filter(|_| actor.behind)
            .flat_map(|old| &old.calls);
        let calls = self.master.calls.iter().chain(old);
        calls
            .filter(move |(caller, n, _)| *caller == (a, actor.incarnation) && Some(*n) == number)
            .flat_map(|(_, _, answer)| match answer {
                Answer::Claimed(taken) => taken.iter().map(|t| t.claim).collect(),
                Answer::Divided(SettleOutcome::Done(Some(claim))) => vec![*claim],
                _ => Vec::new(),
            })
    }
}

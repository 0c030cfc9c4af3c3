//! Intake: from a batch of deliveries to stored bundles, direct publishes and resolved receipts.
//!
//! Each source (a Kafka partition under one assignment, a queue's channel) hands its batches over one after
//! another. A batch is judged, bundled, and takes its place in the order of each store partition before the
//! next one is looked at, so what is said of one name is judged in order; the answers resolve receipts later.

mod gate;
mod invalid;
mod passing;
mod replay;
mod submitter;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tracing::debug;

use self::gate::Gate;
pub(super) use self::submitter::Submitter;
use super::Delivery;
use super::admit::{Admitted, admit};
use super::bundling::Work;
use super::due_on_arrival::{Direct, Due};
use super::jitter::Jitter;
use super::linger::{Company, Far, Met, PATIENCE};
use super::loops::LoopWatch;
use super::pass_through::{Passing, Through};
use super::permits::AdmissionGate;
use crate::backoff::Backoff;
use crate::domain::{Arrival, Entry, Flags, Message, Partition, Route, RouteName, Text, UnixMs};
use crate::egress::Lanes;
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{Bundle, DeadRoom, Store, WriteOp};
use crate::telemetry::{Bursts, Metrics, RouteMetrics, Watch};

/// Offsets that share a store partition: a batch makes few bundles, load spreads over all partitions.
const BLOCK: i64 = 512;
/// Longest time between two tries to write a source's mark.
const MARK_DEADLINE: Duration = Duration::from_secs(3);
/// What is due later than this is not urgent, ms.
const SOON_MS: i64 = 100;

/// What both technologies' consumers hand their batches to.
pub struct Intake {
    store: Store,
    lanes: Arc<dyn Lanes>,
    metrics: Arc<Metrics>,
    watch: Arc<Watch>,
    bursts: Arc<Bursts>,
    direct: Direct,
    room: Arc<DeadRoom>,
    gates: BTreeMap<RouteName, AdmissionGate>,
    companies: Mutex<BTreeMap<RouteName, Arc<Company>>>,
    loops: Mutex<BTreeMap<RouteName, Arc<LoopWatch>>>,
    tasks: Tasks,
    shutdown: Shutdown,
}

/// One source of a route in order of delivery: a Kafka partition under one assignment, or a queue's
/// channel. Its batches are taken one after another.
pub struct Source {
    intake: Arc<Intake>,
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    name: String,
    /// The highest offset ever read by others: before this source was opened, or beside it.
    reread_until: Option<i64>,
    /// The highest offset that the store knows to be read.
    marked: Option<i64>,
    batches: u64,
    jitter: Jitter,
    company: Arc<Company>,
    loops: Arc<LoopWatch>,
    /// Whether what is due on arrival may pass the store by.
    straight: bool,
    gate: Gate,
    through: Through,
    /// Whether nothing of the last batch was due soon.
    had_time: bool,
}

/// What a batch's deliveries turned out to be, in order.
struct Judged {
    /// For the store.
    work: Work,
    /// For the store too, and due far ahead.
    far: Vec<Far>,
    /// Straight to their targets.
    due: Vec<Due>,
    through: Vec<Passing>,
    /// When the first of them is due: a command, and what passes through, now.
    soonest: UnixMs,
}

impl Judged {
    fn new(route: &Arc<Route>, now: UnixMs) -> Self {
        let work = Work::new(route.clone(), now);
        Self { work, far: Vec::new(), due: Vec::new(), through: Vec::new(), soonest: UnixMs(i64::MAX) }
    }
}

/// What the intake is built from.
pub struct Parts<'a> {
    /// Where messages are kept.
    pub store: Store,
    /// Where those go that need not wait.
    pub lanes: Arc<dyn Lanes>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// Who is told how a followed message ended.
    pub watch: Arc<Watch>,
    /// Where invalid messages are logged.
    pub bursts: Arc<Bursts>,
    /// How much room the dead letters have left.
    pub room: Arc<DeadRoom>,
    /// How many messages of each route may be taken in.
    pub gates: BTreeMap<RouteName, AdmissionGate>,
    /// Where its tasks run.
    pub tasks: &'a Tasks,
    /// When sources stop.
    pub shutdown: &'a Shutdown,
    /// The stage that begins once all sources have ended.
    pub direct_shutdown: &'a Shutdown,
}

impl Intake {
    /// Starts it; sources are opened by the consumers.
    pub fn start(parts: Parts<'_>) -> Arc<Self> {
        let Parts { store, lanes, metrics, watch, bursts, room, gates, tasks, shutdown, direct_shutdown } =
            parts;
        let direct = Direct::start(&store, &lanes, &bursts, &room, tasks, direct_shutdown);
        let (tasks, shutdown) = (tasks.clone(), shutdown.clone());
        let companies = Mutex::default();
        Arc::new(Self {
            store,
            lanes,
            metrics,
            watch,
            bursts,
            direct,
            room,
            gates,
            companies,
            loops: Mutex::default(),
            tasks,
            shutdown,
        })
    }

    /// Opens a source. `name` identifies it for good: `kafka/<connection>/<group>/<topic>/<partition>`, or
    /// `rabbitmq/<connection>/<queue>`. Waits for the store (it reads how far the source was ever read);
    /// `None` if it is away and shutting down begins, or the route is not served here.
    pub async fn open(self: &Arc<Self>, route: &Arc<Route>, name: String) -> Option<Source> {
        let metrics = self.metrics.route(&route.name)?.clone();
        let reread_until = self.until_done("read a source's mark", || self.store.mark(&name)).await?;
        Some(Source {
            intake: self.clone(),
            jitter: Jitter::new(route, &name),
            company: self.company(route),
            loops: self.loops.lock().entry(route.name.clone()).or_default().clone(),
            route: route.clone(),
            name,
            reread_until,
            marked: reread_until,
            batches: 0,
            straight: false,
            had_time: false,
            gate: Gate::new(&route.name, self.gates.get(&route.name), &self.store),
            through: self.through(route, &metrics),
            metrics,
        })
    }

    fn submitter(&self, metrics: &Arc<RouteMetrics>) -> Submitter {
        Submitter {
            store: self.store.clone(),
            metrics: metrics.clone(),
            tasks: self.tasks.clone(),
            shutdown: self.shutdown.clone(),
        }
    }

    /// The company that all sources of a route keep.
    fn company(&self, route: &Arc<Route>) -> Arc<Company> {
        let mut companies = self.companies.lock();
        let new = || Arc::new(Company::new(route.clone(), self.store.partitions()));
        companies.entry(route.name.clone()).or_insert_with(new).clone()
    }

    /// Tries until it succeeds; `None` if shutting down is forced, or has begun and a try has failed.
    async fn until_done<T, F>(&self, what: &str, call: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, crate::store::StoreError>>,
    {
        let mut failures = 0;
        loop {
            let tried = tokio::select! {
                () = self.shutdown.forced() => return None,
                tried = tokio::time::timeout(MARK_DEADLINE, call()) => tried,
            };
            match tried {
                Ok(Ok(done)) => return Some(done),
                Ok(Err(why)) => debug!(error = %why, "cannot {what}; trying on"),
                Err(_) => debug!("no answer in time; cannot {what}; trying on"),
            }
            if self.shutdown.is_draining() {
                return None;
            }
            failures += 1;
            tokio::select! {
                () = self.shutdown.draining() => {}
                () = tokio::time::sleep(Backoff::CLIENT.wait(failures)) => {}
            }
        }
    }
}

impl Source {
    /// Takes what the route has room for of a batch in order of delivery, and answers with the rest: all of it while
    /// the gate is closed. Returns once that may come: everything that was taken has its place in the store's order,
    /// and what passes through is confirmed. Receipts are resolved then or later; dropped, where shutting down has
    /// begun and the store cannot be reached. Not cancel-safe: a caller that gives up drops the source and its ledger
    /// with it.
    pub async fn take(&mut self, mut batch: Vec<Delivery>) -> Vec<Delivery> {
        let Some(granted) = self.gate.try_admit(batch.len()) else { return batch };
        let rest = batch.split_off(granted.messages());
        for (delivery, permit) in batch.iter_mut().zip(granted) {
            delivery.receipt.keep(permit);
        }
        self.take_admitted(batch).await;
        rest
    }

    /// The same for what the route has room for.
    async fn take_admitted(&mut self, mut batch: Vec<Delivery>) {
        self.metrics.admitted.inc_by(batch.len() as u64);
        if !self.mark(&mut batch).await {
            return;
        }
        self.batches += 1;
        self.straight = self.goes_straight();
        let arrival = self.intake.store.clock().arrival();
        let now = arrival.latest;
        let mut judged = Judged::new(&self.route, now);
        for delivery in batch {
            self.judge(delivery, arrival, &mut judged).await;
        }
        let Judged { mut work, far, due, through, soonest } = judged;
        self.had_time = soonest >= now.plus(SOON_MS);
        self.intake.direct.publish(&self.route, &self.metrics, due);
        match self.company.meet(far, now, self.intake.store.clock().local().mono_us()) {
            Met::Alone(far) => {
                for Far { target, entry, receipt, home } in far {
                    work.store(home, target, entry, receipt);
                }
            }
            Met::First(number) => self.leave_later(number),
            Met::Full(company) => self.submitter().submit_all(company).await,
            Met::Wait => {}
        }
        self.submitter().submit_all(work).await;
        self.through.publish(&self.route, through, &self.intake.shutdown).await;
    }

    /// Whether nothing of the last batch was urgent: the next one may be gathered for some milliseconds.
    pub fn had_time(&self) -> bool {
        self.had_time
    }

    /// Whether nothing holds the route's messages back: a limited rate, an order of its keys and a pause hold them in
    /// the store.
    fn goes_straight(&self) -> bool {
        let (pauses, policy) = (self.intake.store.pauses(), &self.route.policy);
        policy.rate.is_none() && !policy.ordered && pauses.may_publish(self.route.name.as_str())
    }

    /// Flags what was read before, and notes how far is read now: before anything of it is stored, so that
    /// whatever a crash makes us read again is known by it. A mark that has risen since we wrote it is another
    /// consumer's, who took us for dead or whom we took for dead: what lies at or below it, it has read too.
    async fn mark(&mut self, batch: &mut [Delivery]) -> bool {
        let offset = |delivery: &Delivery| delivery.position.map(|(_, offset)| offset);
        let highest = batch.iter().filter_map(offset).max();
        if let Some(highest) = highest.filter(|&h| self.marked.is_none_or(|marked| h > marked)) {
            let store = &self.intake.store;
            let marking = || store.raise_mark(&self.name, highest);
            let marked = self.intake.until_done("note how far a source is read", marking).await;
            let Some(before) = marked else { return false };
            if before > self.marked {
                self.reread_until = before;
            }
            self.marked = before.max(Some(highest));
        }
        for delivery in batch {
            if offset(delivery).is_some_and(|offset| self.reread_until.is_some_and(|until| offset <= until)) {
                delivery.flags = delivery.flags.with(Flags::SOURCE_REREAD);
            }
        }
        true
    }

    async fn judge(&mut self, delivery: Delivery, arrival: Arrival, judged: &mut Judged) {
        let now = arrival.latest;
        let Judged { work, far, due: direct, soonest, .. } = &mut *judged;
        let Delivery { message, malformed, produced, flags, position, receipt } = delivery;
        let unreadable = malformed.is_some();
        let key = self.route.order_key(&message);
        let entry = |due, id: Option<Text>, flags, message: Message| Entry {
            id,
            flags,
            position,
            ..Entry::new(due, message)
        };
        match admit(message, malformed, produced, &self.route, arrival) {
            Admitted::PassThrough { target, message } => {
                *soonest = now;
                let p = self.place(key.as_ref(), None, position);
                self.passing(Passing::new(entry(now, None, flags, message), target, p, receipt), judged);
            }
            Admitted::Delayed { due, id, target, message } => {
                let due = self.jitter.put_off(due, id.as_ref(), position);
                *soonest = due.min(*soonest);
                let named = id.is_some();
                let flags = if named { flags.with(Flags::NAMED) } else { flags };
                let p = self.place(key.as_ref(), id.as_ref(), position);
                let entry = entry(due, id, flags, message);
                // Judged by the clock that the wheel will judge it by, which need not be asked of what is still to come.
                if !named && self.straight && due <= now && self.intake.store.clock().is_due(due) {
                    direct.push(Due { target, entry, partition: p, receipt });
                } else if !named && key.is_none() && Company::may_wait(&entry, now) {
                    far.push(Far { target: self.route.target_ref(&target), entry, receipt, home: p });
                } else {
                    work.store(p, self.route.target_ref(&target), entry, receipt);
                }
            }
            Admitted::Cancel { id } => {
                *soonest = now;
                let Some(p) = self.place_of_command(key.as_ref(), &id).await else { return };
                let route = self.route.name.clone();
                work.command(p, WriteOp::Cancel { route, id, of: None }, receipt);
            }
            Admitted::Reschedule { id, due, target, message } => {
                let due = self.jitter.put_off(due, Some(&id), position);
                *soonest = now;
                let Some(p) = self.place_of_command(key.as_ref(), &id).await else { return };
                let entry = entry(due, Some(id.clone()), flags.with(Flags::NAMED), message);
                let fallback =
                    Some(Bundle { target: self.route.target_ref(&target), entries: Arc::new(vec![entry]) });
                let route = self.route.name.clone();
                work.command(p, WriteOp::Reschedule { route, id, due, fallback, of: None }, receipt);
            }
            Admitted::Invalid { reason, error, message } => {
                let entry = entry(now, None, flags, message);
                self.invalid(reason, &error, unreadable, entry, receipt, judged);
            }
        }
    }

    /// Where a message lives: with its key where keys leave in order; else with its name, or with its block of
    /// offsets (RabbitMQ: its batch).
    fn place(&self, key: Option<&Bytes>, id: Option<&Text>, position: Option<(i32, i64)>) -> Partition {
        let partitions = self.intake.store.partitions();
        match (key, id, position) {
            (Some(key), ..) => partitions.of_key(&self.route.name, key),
            (_, Some(id), _) => partitions.of_name(&self.route.name, id.as_str()),
            (_, None, Some((_, offset))) => partitions.of_block(&self.name, (offset / BLOCK) as u64),
            (_, None, None) => partitions.of_block(&self.name, self.batches),
        }
    }

    /// Where the message that a command names is: as a rule with the command's own key. `None` if shutting down is
    /// forced.
    async fn place_of_command(&self, key: Option<&Bytes>, id: &Text) -> Option<Partition> {
        let home = self.place(key, Some(id), None);
        if !self.route.policy.ordered {
            return Some(home);
        }
        let (store, route) = (&self.intake.store, &self.route.name);
        self.intake.until_done("look for a name", || store.whereabouts(route, id.as_str(), home)).await
    }

    /// Has a company leave when it has waited long enough.
    fn leave_later(&self, number: u64) {
        let (company, submitter) = (self.company.clone(), self.submitter());
        self.intake.tasks.spawn("ingress:company", async move {
            tokio::time::sleep(PATIENCE).await;
            if let Some(work) = company.leave(number) {
                submitter.submit_all(work).await;
            }
        });
    }

    fn submitter(&self) -> Submitter {
        self.intake.submitter(&self.metrics)
    }
}

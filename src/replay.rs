//! `replay`: reads a Kafka topic's past once more, into the store. Relays may run meanwhile.

mod types;

use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use tokio::sync::mpsc;

pub use self::types::{ReplayOutcome, ReplayOverview, ReplayRequest, ReplayTimes, ReplayWatcher};

use self::types::ReplayNote;
use crate::app::runtime;
use crate::app::storing::StoringRooms;
use crate::config::Config;
use crate::domain::{Endpoint, KafkaPosition, OnDuplicate, Route, UnixMs};
use crate::ingress::kafka::replay_window::{ReplayWindow, RereadError, WindowReader};
use crate::ingress::replay::{
    JudgedRecord, RecordJudge, ReplayBounds, ReplayPlan, ReplayPlanner, ReplayStep, ReplayTally,
    StoredRecords, StoredRecordsBuilder,
};
use crate::ingress::{Ledger, Released, Source};
use crate::telemetry::RouteMetrics;

/// Log filter unless another one is configured.
const DEFAULT_LOG_FILTER: &str = "warn,lapin=off,rdkafka=error,librdkafka=error";
/// Time between two notes of the replay's position, microseconds.
const NOTE_INTERVAL_US: i64 = 1_000_000;
/// Records passed to the intake at once.
const RECORD_BATCH: usize = 500;
/// Batches that may be read ahead.
const BATCHES_AHEAD: usize = 4;
/// Most records on their way to the store. Above this number all of them are waited for.
const MAX_UNDERWAY: usize = 20_000;
/// Most bytes on their way to the store. Above this number all of them are waited for.
const MAX_UNDERWAY_BYTES: usize = 16 << 20;

/// Replays a route.
pub fn replay(
    config: &Config,
    request: &ReplayRequest,
    watcher: &Arc<dyn ReplayWatcher>,
) -> anyhow::Result<ReplayOutcome> {
    // The watcher tells how the replay goes; the rooms say only what is wrong.
    runtime::run_to_end(
        &runtime::log_as_text(config, Some(DEFAULT_LOG_FILTER)),
        run_replay(config, request, watcher),
    )
}

/// Context that the steps of a replay share.
struct Replay {
    route: Arc<Route>,
    /// Name of the topic as a source of the ingress. The partition is appended to it.
    source: String,
    rooms: StoringRooms,
    past: Arc<WindowReader>,
    watcher: Arc<dyn ReplayWatcher>,
}

async fn run_replay(
    config: &Config,
    request: &ReplayRequest,
    watcher: &Arc<dyn ReplayWatcher>,
) -> anyhow::Result<ReplayOutcome> {
    let times = request.times;
    let replay = Replay::begin(config, request, watcher).await?;
    let past = replay.past.clone();
    // The group's positions are read first: records below them that are stored are then seen by the scan.
    let mut windows = blocking(move || past.windows(times.since)).await??;
    let note = replay.note().await?;
    let resumed = note.as_ref().filter(|note| note.times() == times);
    if let Some(note) = resumed {
        for window in &mut windows {
            // The end is that of the first run, not the position of the relays by now.
            window.to = note
                .partitions
                .get(&window.partition)
                .map_or(window.from, |(_, to)| *to);
        }
    }
    let known = Arc::new(replay.scan().await?);
    let bounds = ReplayBounds {
        now: replay.rooms.store.clock().now(),
        until: times.until,
        due_after: times.due_after,
    };
    let (plans, tally) = replay.plan(&windows, &known, bounds).await?;
    let next = |window: &ReplayWindow| {
        let noted = resumed.and_then(|note| note.partitions.get(&window.partition));
        noted
            .map_or(window.from, |(next, _)| *next)
            .max(window.from)
    };
    let done = windows
        .iter()
        .map(|w| (next(w) - w.from).max(0) as u64)
        .sum();
    let overview = ReplayOverview {
        tally,
        known: known.len(),
        done: resumed.map(|_| done),
        forgets: note
            .as_ref()
            .map(ReplayNote::times)
            .filter(|other| *other != times),
        windows: windows.clone(),
    };
    if !replay.watcher.goes_on(&overview) || request.dry_run {
        return Ok(ReplayOutcome::Left);
    }
    let partitions = windows
        .iter()
        .map(|w| (w.partition, (next(w), w.to)))
        .collect();
    let note = ReplayNote {
        since_ms: times.since.0,
        until_ms: times.until.map(|t| t.0),
        due_after_ms: times.due_after.0,
        partitions,
    };
    let rooms = &replay.rooms;
    let subject = format!("since {}", times.since);
    let audit = rooms
        .audit("postdate replay", &subject, request.because.as_ref())
        .await?;
    let outcome = replay
        .store_all(config, &windows, plans, &known, note, bounds)
        .await;
    let result = match &outcome {
        Ok(ReplayOutcome::Done { stored, .. }) => format!("{stored} messages stored"),
        Ok(ReplayOutcome::Left) => "nothing was done".to_owned(),
        Err(why) => format!("{why:#}"),
    };
    let audited = audit.end(&result).await;
    rooms.finish_traces().await;
    let outcome = outcome?;
    audited?;
    Ok(outcome)
}

/// Runs a function on a thread that may block.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    Ok(tokio::task::spawn_blocking(run).await?)
}

impl Replay {
    async fn begin(
        config: &Config,
        request: &ReplayRequest,
        watcher: &Arc<dyn ReplayWatcher>,
    ) -> anyhow::Result<Self> {
        let route = &request.route;
        let Endpoint::Kafka {
            connection,
            topics,
            group,
            ..
        } = &route.from
        else {
            bail!("route {} does not read from Kafka", route.name);
        };
        let topic = topics.single().context("the route reads several topics")?;
        let rooms = StoringRooms::begin(config, route, !request.dry_run, false).await?;
        let at = config
            .kafka
            .get(connection)
            .context("an unknown kafka connection")?;
        let past = Arc::new(WindowReader::new(at, group, topic, route, rooms.clock)?);
        let source = format!("kafka/{connection}/{group}/{topic}");
        Ok(Self {
            route: route.clone(),
            source,
            rooms,
            past,
            watcher: watcher.clone(),
        })
    }

    /// The note of an earlier run that was not finished.
    async fn note(&self) -> anyhow::Result<Option<ReplayNote>> {
        let Route {
            name, source_topic, ..
        } = &*self.route;
        let noted = self.rooms.store.replay_note(name, source_topic.as_ref());
        let note = noted.await?;
        // A note of another version is ignored: everything is read again then.
        Ok(note.and_then(|note| serde_json::from_str(&note).ok()))
    }

    /// Collects the messages of the route that the store holds.
    async fn scan(&self) -> anyhow::Result<StoredRecords> {
        let mut known = StoredRecordsBuilder::default();
        let progress = |done, of| self.watcher.scanned(u64::from(done), u64::from(of));
        let add = |at, entry: &_, standing| known.add(at, entry, standing, &self.route);
        self.rooms
            .store
            .scan(&self.route.name, add, progress)
            .await?;
        Ok(known.finish())
    }

    fn source_of(&self, partition: i32) -> String {
        format!("{}/{partition}", self.source)
    }

    /// Reads all windows, and plans the action for each record.
    async fn plan(
        &self,
        windows: &[ReplayWindow],
        known: &Arc<StoredRecords>,
        bounds: ReplayBounds,
    ) -> anyhow::Result<(Vec<ReplayPlan>, ReplayTally)> {
        let total = windows.iter().map(ReplayWindow::len).sum();
        let mut plans = Vec::new();
        let mut tally = ReplayTally::default();
        let mut before = 0;
        for window in windows {
            let past = self.past.clone();
            let known = known.clone();
            let watcher = self.watcher.clone();
            let route = self.route.clone();
            let partitions = self.rooms.store.partitions();
            let window = window.clone();
            let mut judge =
                RecordJudge::new(&self.route, &self.source_of(window.partition), bounds.now);
            let done = before;
            before += window.len();
            let plan = blocking(move || {
                let first = KafkaPosition {
                    partition: window.partition,
                    offset: window.from,
                };
                let mut planner = ReplayPlanner::new(bounds, &route, partitions, &known, first);
                past.read(&window, window.from, |record| {
                    watcher.read(done + (record.position.offset - window.from) as u64, total);
                    planner.take(&judge.judge(record));
                    true
                })?;
                Ok::<_, RereadError>(planner.finish())
            });
            let plan = plan.await??;
            tally += plan.tally;
            plans.push(plan);
        }
        self.watcher.read(total, total);
        Ok((plans, tally))
    }

    /// Reads all windows once more, and carries out the plans.
    async fn store_all(
        &self,
        config: &Config,
        windows: &[ReplayWindow],
        plans: Vec<ReplayPlan>,
        known: &Arc<StoredRecords>,
        mut note: ReplayNote,
        bounds: ReplayBounds,
    ) -> anyhow::Result<ReplayOutcome> {
        let intake = self.rooms.intake(config)?;
        // A name that is taken by now, in its partition of the store, belongs to a later message, which is kept.
        let mut route = Route::clone(&self.route);
        route.policy.on_duplicate = OnDuplicate::Keep;
        let route = Arc::new(route);
        self.keep(&note).await?;
        let mut progress = ReplayProgress {
            before: 0,
            total: windows.iter().map(ReplayWindow::len).sum(),
        };
        for (window, plan) in windows.iter().zip(plans) {
            let source = self.source_of(window.partition);
            let source = intake
                .open(&route, source)
                .await
                .ok_or_else(|| anyhow!("the route is not served"))?;
            let (from, _) = note
                .partitions
                .get(&window.partition)
                .copied()
                .unwrap_or((window.to, window.to));
            let records = self.records(window, from, plan, known.clone(), bounds);
            self.store_one(window, source, records, &mut note, &progress)
                .await?;
            progress.before += window.len();
        }
        self.watcher.stored(progress.total, progress.total, false);
        let topic = route.source_topic.as_ref();
        self.rooms
            .store
            .note_replay(&route.name, topic, None)
            .await?;
        let count = |of: fn(&RouteMetrics) -> u64| {
            self.rooms.metrics.route(&route.name).map_or(0, |m| of(m))
        };
        let stored = count(|m| m.stored.get());
        let duplicates = count(|m| m.duplicates.get());
        let later = self.later(windows, bounds.now).await;
        let later =
            later.context("it is done, but what the relays have read meanwhile is not known")?;
        Ok(ReplayOutcome::Done {
            stored,
            duplicates,
            later,
        })
    }

    /// The number of offsets that the relays have read beyond these windows.
    async fn later(&self, windows: &[ReplayWindow], now: UnixMs) -> anyhow::Result<u64> {
        let past = self.past.clone();
        let read = blocking(move || past.windows(now)).await??;
        let mut later = 0;
        for window in windows {
            let read = read.iter().find(|r| r.partition == window.partition);
            let beyond = read.map_or(0, |read| read.to - window.to);
            later += beyond.max(0) as u64;
        }
        Ok(later)
    }

    /// Reads a window's records from an offset on, each with its planned step, on a thread of its own.
    fn records(
        &self,
        window: &ReplayWindow,
        from: i64,
        plan: ReplayPlan,
        known: Arc<StoredRecords>,
        bounds: ReplayBounds,
    ) -> RecordStream {
        let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let past = self.past.clone();
        let window = window.clone();
        let mut judge =
            RecordJudge::new(&self.route, &self.source_of(window.partition), bounds.now);
        let ended = tokio::task::spawn_blocking(move || {
            let mut batch = Vec::new();
            past.read(&window, from, |record| {
                let record = judge.judge(record);
                let step = plan.step(&record, &known);
                batch.push((record, step));
                batch.len() < RECORD_BATCH
                    || sender.blocking_send(std::mem::take(&mut batch)).is_ok()
            })?;
            // The receiver is gone only if the replay has failed already.
            drop(sender.blocking_send(batch));
            Ok(())
        });
        RecordStream { batches, ended }
    }

    /// Carries out the plan of one window, and notes how far it has come.
    async fn store_one(
        &self,
        window: &ReplayWindow,
        mut source: Source,
        mut records: RecordStream,
        note: &mut ReplayNote,
        progress: &ReplayProgress,
    ) -> anyhow::Result<()> {
        let ledger = Ledger::new();
        let mut bytes = 0;
        let mut noted_us = self.rooms.clock.mono_us();
        while let Some(batch) = records.batches.recv().await {
            let Some(last) = batch.last().map(|(record, _)| record.position.offset) else {
                continue;
            };
            bytes += batch.iter().map(|(record, _)| record.size()).sum::<usize>();
            if !source.is_open() {
                self.watcher
                    .stored(progress.at(window, last), progress.total, true);
            }
            if !source.replay_batch(batch, &ledger).await {
                bail!("ended before it was done");
            }
            if let Some(released) = ledger.release() {
                advance(note, window, &released);
            }
            if ledger.outstanding() > MAX_UNDERWAY || bytes > MAX_UNDERWAY_BYTES {
                settle(&ledger, window, note).await?;
                bytes = 0;
            }
            self.watcher
                .stored(progress.at(window, last), progress.total, false);
            if self.rooms.clock.mono_us() - noted_us > NOTE_INTERVAL_US {
                self.keep(note).await?;
                noted_us = self.rooms.clock.mono_us();
            }
        }
        records.ended.await??;
        settle(&ledger, window, note).await?;
        note.partitions
            .insert(window.partition, (window.to, window.to));
        self.keep(note).await
    }

    /// Keeps the note in the store.
    async fn keep(&self, note: &ReplayNote) -> anyhow::Result<()> {
        let topic = self.route.source_topic.as_ref();
        let text = serde_json::to_string(note)?;
        let store = &self.rooms.store;
        store
            .note_replay(&self.route.name, topic, Some(&text))
            .await?;
        Ok(())
    }
}

/// Waits until every record under way is stored.
async fn settle(
    ledger: &Ledger,
    window: &ReplayWindow,
    note: &mut ReplayNote,
) -> anyhow::Result<()> {
    let done = ledger.settle(|released| advance(note, window, &released));
    ensure!(done.await, "ended before it was done");
    Ok(())
}

/// Moves the note to the end of the ledger's resolved prefix.
fn advance(note: &mut ReplayNote, window: &ReplayWindow, released: &Released) {
    let (next, _) = note
        .partitions
        .entry(window.partition)
        .or_insert((window.from, window.to));
    *next = released.last + 1;
}

/// Records that are being read, in batches.
struct RecordStream {
    batches: mpsc::Receiver<Vec<(JudgedRecord, Option<ReplayStep>)>>,
    ended: tokio::task::JoinHandle<Result<(), RereadError>>,
}

/// Progress over all partitions, in offsets.
struct ReplayProgress {
    /// Offsets of the windows that are done.
    before: u64,
    /// Offsets of all windows.
    total: u64,
}

impl ReplayProgress {
    /// The number of offsets done once this window is done up to and including `offset`.
    fn at(&self, window: &ReplayWindow, offset: i64) -> u64 {
        self.before + (offset + 1 - window.from).max(0) as u64
    }
}

//! Moves entries, batch by batch: note the names, store, wait, remove, call back what was taken meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;

use super::judge::{AcceptedEntry, EntryJudge, shown};
use super::note::{DoubtfulName, EntryTaker, ImportNote};
use super::types::{ImportRequest, ImportTally, ImportWait, ImportWatcher, RefusalReason};
use crate::app::storing::StoringRooms;
use crate::config::Config;
use crate::domain::{OnDuplicate, Route, Text, TrailWord, UnixMs};
use crate::import::foreign::{
    EntryProblem, ForeignEntry, ForeignError, ForeignPhase, ForeignQueue, QueueSize,
};
use crate::ingress::intake::ImportedMessage;
use crate::ingress::{Ledger, Source};
use crate::lifecycle::tick;
use crate::store::{Store, StoreError, TRAIL_DELAY, WriteOp, WriteResult};

/// Time between two extensions of the lock while the store is waited for.
const LOCK_INTERVAL: Duration = Duration::from_secs(2);
/// Added to the time that another import's lock has left.
const LOCK_MARGIN: Duration = Duration::from_millis(200);
/// Longest wait for the store's answer to a question about one message.
const ANSWER_DEADLINE: Duration = Duration::from_secs(8);
/// Most passes over what stays: entries that others remove shift the ranks of the rest.
const MOST_PASSES: usize = 4;

/// Takes the queue's lock. A lock that a killed import left behind ends by itself, and is waited for once.
pub(super) async fn take_lock(
    queue: &ForeignQueue,
    watcher: &Arc<dyn ImportWatcher>,
) -> anyhow::Result<()> {
    match queue.lock().await {
        Err(ForeignError::Locked) => {}
        other => return Ok(other?),
    }
    let ends_in = queue.locked_for().await?;
    watcher.locked(ends_in);
    // Nothing tells of a lock's end but time.
    tokio::time::sleep(ends_in + LOCK_MARGIN).await;
    queue.lock().await.context("it is running")
}

/// Counts an entry that could not be read.
pub(super) fn refused_unread(
    tally: &mut ImportTally,
    phase: ForeignPhase,
    problem: EntryProblem,
    member: &Bytes,
) {
    let reason = match problem {
        // These are counted by their due times.
        EntryProblem::TooLarge | EntryProblem::NoBody if phase == ForeignPhase::Elements => return,
        EntryProblem::TooLarge => RefusalReason::TooLarge,
        EntryProblem::NoBody => RefusalReason::NoBody,
        EntryProblem::NoDueTime => RefusalReason::NoDueTime,
    };
    tally.refuse(reason, || shown(member, ""));
}

/// Moves the entries of one queue.
pub(super) struct EntryMover<'a> {
    route: Arc<Route>,
    store: &'a Store,
    queue: &'a ForeignQueue,
    source_name: String,
    source: Source,
    judge: EntryJudge,
    watcher: &'a Arc<dyn ImportWatcher>,
    /// Entries of the queue at the beginning.
    of: u64,
    tally: ImportTally,
    /// Names that an earlier run noted and this one has not met yet.
    doubtful: BTreeMap<String, DoubtfulName>,
}

impl<'a> EntryMover<'a> {
    pub(super) async fn begin(
        config: &Config,
        rooms: &'a StoringRooms,
        request: &ImportRequest,
        queue: &'a ForeignQueue,
        size: QueueSize,
        watcher: &'a Arc<dyn ImportWatcher>,
    ) -> anyhow::Result<Self> {
        let source_name = queue.name();
        let note = rooms
            .store
            .import_note(&request.route.name, &source_name)
            .await?;
        let note: Option<ImportNote> = note
            .map(|note| serde_json::from_str(&note))
            .transpose()
            .context("the note of an earlier import cannot be read")?;
        let doubtful = match note {
            Some(note) => note.judged(&queue.batch_mark().await?),
            None => BTreeMap::new(),
        };
        // A name that is taken belongs to this very entry, stored by an earlier run.
        let mut route = Route::clone(&request.route);
        route.policy.on_duplicate = OnDuplicate::Keep;
        let route = Arc::new(route);
        let intake = rooms.intake(config)?;
        let source = intake.open(&route, format!("import/{source_name}")).await;
        Ok(Self {
            route,
            store: &rooms.store,
            queue,
            source_name,
            source: source.ok_or_else(|| anyhow!("the route is not served"))?,
            judge: EntryJudge::new(request),
            watcher,
            of: size.due_times,
            tally: ImportTally::default(),
            doubtful,
        })
    }

    /// Moves all entries of a phase. Ends when nothing is left but what stays.
    pub(super) async fn run(&mut self, phase: ForeignPhase) -> anyhow::Result<()> {
        for _ in 0..MOST_PASSES {
            // The last phase finds everything that stays once more, but for elements without a due time.
            self.tally.refused.retain(|reason, _| {
                phase == ForeignPhase::DueTimes && *reason == RefusalReason::NoDueTime
            });
            let before = self.tally.moved + self.tally.taken;
            let mut stay = 0;
            loop {
                let entries = self.queue.read(phase, stay).await?;
                if entries.is_empty() {
                    break;
                }
                stay += self.batch(phase, entries).await?;
            }
            if stay == 0 || self.tally.moved + self.tally.taken == before {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Settles what earlier runs have left open, forgets the note, and returns what was done.
    pub(super) async fn finish(mut self) -> anyhow::Result<ImportTally> {
        self.settle_doubtful().await?;
        self.store
            .note_import(&self.route.name, &self.source_name, None)
            .await?;
        self.queue.forget_mark().await?;
        self.watcher.moved(self.tally.moved, self.tally.moved, None);
        Ok(self.tally)
    }

    /// Settles the names that an earlier run has noted and that are in the queue no longer. A message that the queue's
    /// own program has taken is called back.
    async fn settle_doubtful(&mut self) -> anyhow::Result<()> {
        let doubtful = std::mem::take(&mut self.doubtful);
        let names: Vec<Text> = doubtful
            .iter()
            .filter(|(_, doubt)| doubt.taker != EntryTaker::Import)
            .map(|(name, _)| name.as_str().into())
            .collect();
        let stored = self.stored_earlier(&names).await?;
        let has_trail = self.store.trail(&self.route.name).is_some();
        for name in names {
            let DoubtfulName { due_ms, taker } = doubtful[name.as_str()];
            self.queue.extend_lock().await?;
            // Without a trail nobody remembers what was stored, fell due and left.
            let is_forgotten = !has_trail && self.store.clock().now() >= UnixMs(due_ms);
            match taker {
                EntryTaker::Program if stored.contains(&name) => self.call_back(&name).await?,
                _ => {
                    let may_repeat = stored.contains(&name) || is_forgotten;
                    self.tally.repeated += u64::from(may_repeat);
                }
            }
        }
        Ok(())
    }

    /// Moves one batch. Returns the number of entries that stay.
    async fn batch(
        &mut self,
        phase: ForeignPhase,
        entries: Vec<Result<ForeignEntry, (EntryProblem, Bytes)>>,
    ) -> anyhow::Result<usize> {
        let arrival = self.store.clock().arrival();
        let mut stay = 0;
        let mut accepted = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => match self.judge.judge(&entry, arrival) {
                    Ok(message) => accepted.push((entry, message)),
                    Err((reason, why)) => {
                        stay += 1;
                        if phase == ForeignPhase::DueTimes {
                            self.tally.refuse(reason, || shown(&entry.member, &why));
                        }
                    }
                },
                Err((problem, member)) => {
                    stay += 1;
                    refused_unread(&mut self.tally, phase, problem, &member);
                }
            }
        }
        if !accepted.is_empty() {
            self.move_accepted(phase, accepted).await?;
        }
        Ok(stay)
    }

    async fn move_accepted(
        &mut self,
        phase: ForeignPhase,
        accepted: Vec<(ForeignEntry, AcceptedEntry)>,
    ) -> anyhow::Result<()> {
        let names: Vec<Text> = accepted
            .iter()
            .filter(|(_, accepted)| self.doubtful.contains_key(accepted.message.id.as_str()))
            .map(|(_, accepted)| accepted.message.id.clone())
            .collect();
        let stored = self.stored_earlier(&names).await?;
        let mut entries = Vec::with_capacity(accepted.len());
        let mut to_store = Vec::with_capacity(accepted.len());
        for (entry, accepted) in accepted {
            let AcceptedEntry {
                message,
                is_overdue,
            } = accepted;
            entries.push((message.id.clone(), entry));
            if stored.contains(&message.id) {
                self.tally.resumed += 1;
                continue;
            }
            self.tally.overdue += u64::from(is_overdue);
            // What was noted and is due may have been stored and have left, and nobody remembers. No message leaves before
            // it is due.
            let doubt = self.doubtful.get(message.id.as_str());
            let is_forgotten =
                doubt.is_some_and(|doubt| self.store.clock().now() >= UnixMs(doubt.due_ms));
            self.tally.repeated += u64::from(is_forgotten);
            to_store.push(message);
        }
        let batch = format!("{:032x}", fastrand::u128(..));
        self.note(&batch, &entries, &to_store).await?;
        self.queue.begin_batch(&batch).await?;
        self.store_all(to_store).await?;
        let removed = self.queue.remove(phase, &batch, &entries).await?;
        for ((name, _), removed) in entries.iter().zip(removed) {
            self.doubtful.remove(name.as_str());
            if removed {
                self.tally.moved += 1;
            } else {
                self.call_back(name).await?;
            }
        }
        self.report(None);
        Ok(())
    }

    fn report(&self, wait: Option<ImportWait>) {
        self.watcher
            .moved(self.tally.moved, self.of.max(self.tally.moved + 1), wait);
    }

    /// Finds the names that an earlier run has stored: their messages wait, are in flight, or have left.
    async fn stored_earlier(&self, names: &[Text]) -> anyhow::Result<BTreeSet<Text>> {
        let mut stored = BTreeSet::new();
        let unknown = self.look_up(names.iter().collect(), &mut stored).await?;
        if !unknown.is_empty() && self.store.trail(&self.route.name).is_some() {
            self.report(Some(ImportWait::Trail {
                messages: unknown.len(),
                takes: TRAIL_DELAY,
            }));
            // What left a moment ago is not in the trail yet, and nothing tells when it is but time.
            tokio::time::sleep(TRAIL_DELAY).await;
            self.look_up(unknown, &mut stored).await?;
        }
        Ok(stored)
    }

    /// Adds the names that the store has or the trail tells of. Returns the others.
    async fn look_up<'n>(
        &self,
        names: Vec<&'n Text>,
        stored: &mut BTreeSet<Text>,
    ) -> anyhow::Result<Vec<&'n Text>> {
        let mut unknown = Vec::new();
        for name in names {
            // Looking up many names takes some time.
            self.queue.extend_lock().await?;
            if self.is_known(name.as_str()).await? {
                stored.insert(name.clone());
            } else {
                unknown.push(name);
            }
        }
        Ok(unknown)
    }

    /// Reports whether the store has a message, or the trail tells that it had it.
    async fn is_known(&self, id: &str) -> anyhow::Result<bool> {
        let route = &self.route.name;
        if answer(self.store.find(route, id)).await?.is_some() {
            return Ok(true);
        }
        let trail = answer(self.store.trail_of(route, id)).await?;
        let events = trail.map(|trail| trail.events).unwrap_or_default();
        Ok(events
            .iter()
            .any(|event| event.word != TrailWord::Deduplicated))
    }

    /// Notes the names of a batch that is about to be stored and removed, beside those of earlier runs.
    async fn note(
        &self,
        batch: &str,
        entries: &[(Text, ForeignEntry)],
        to_store: &[ImportedMessage],
    ) -> anyhow::Result<()> {
        let mut moving: BTreeMap<String, i64> = BTreeMap::new();
        let mut earlier = self.doubtful.clone();
        for (name, _) in entries {
            // Stored by an earlier run: its due time is noted already.
            if let Some(doubt) = earlier.remove(name.as_str()) {
                moving.insert(name.as_str().to_owned(), doubt.due_ms);
            }
        }
        for message in to_store {
            moving.insert(message.id.as_str().to_owned(), message.due.0);
        }
        let note = serde_json::to_string(&ImportNote::new(batch, moving, &earlier))?;
        self.store
            .note_import(&self.route.name, &self.source_name, Some(&note))
            .await?;
        Ok(())
    }

    /// Stores messages, and waits until the store has all of them. Extends the lock meanwhile.
    async fn store_all(&mut self, messages: Vec<ImportedMessage>) -> anyhow::Result<()> {
        let Self {
            source,
            queue,
            watcher,
            tally,
            of,
            ..
        } = self;
        let gate = source.gate();
        let ledger = Ledger::new();
        let mut storing = std::pin::pin!(async {
            let stored = source.store_imported(messages, &ledger).await;
            ledger.settle(drop).await && stored
        });
        loop {
            tokio::select! {
                stored = &mut storing => {
                    if !stored {
                        bail!("ended before it was done");
                    }
                    return Ok(());
                }
                () = tick(LOCK_INTERVAL) => {
                    queue.extend_lock().await?;
                    let wait = (!gate.is_open()).then_some(ImportWait::Paused);
                    watcher.moved(tally.moved, (*of).max(tally.moved + 1), wait);
                }
            }
        }
    }

    /// Cancels a message whose entry its own program has taken, or changed.
    async fn call_back(&mut self, id: &Text) -> anyhow::Result<()> {
        let route = &self.route.name;
        let home = self.store.home_of(route, id.as_str());
        let partition = answer(self.store.locate(route, id.as_str(), home)).await?;
        let op = WriteOp::Cancel {
            route: route.clone(),
            id: id.clone(),
            of: None,
        };
        let is_called_back = match answer(self.store.command(partition, op)).await? {
            WriteResult::Cancelled => true,
            // An earlier run that was cut off may have called it back.
            _ => self.last_event(id.as_str()).await? == Some(TrailWord::Cancelled),
        };
        if is_called_back {
            self.tally.taken += 1;
        } else {
            self.tally.repeated += 1;
        }
        Ok(())
    }

    /// The last event that the trail has of a message.
    async fn last_event(&self, id: &str) -> anyhow::Result<Option<TrailWord>> {
        let trail = answer(self.store.trail_of(&self.route.name, id)).await?;
        let last = trail.and_then(|trail| trail.events.into_iter().next_back());
        Ok(last.map(|event| event.word))
    }
}

/// Waits for the store's answer within a deadline.
async fn answer<T>(asked: impl Future<Output = Result<T, StoreError>>) -> anyhow::Result<T> {
    let Ok(answer) = tokio::time::timeout(ANSWER_DEADLINE, asked).await else {
        bail!(
            "the store did not answer within {} s",
            ANSWER_DEADLINE.as_secs()
        );
    };
    Ok(answer?)
}

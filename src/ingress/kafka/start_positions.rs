//! Start positions: a partition is read once its start position is known and committed. Each is judged by itself.
//!
//! All ways to a start position are this one: partitions that the group gives, those whose commit changed or whose log
//! went back while they were read, and those that an operator says a word on. A partition without a start position (no
//! leader, no answer) is looked up again from time to time, and the others are read meanwhile. A partition of which too
//! many records would be read again waits for a word. Its commit says so: a position that was doubted once is not
//! believed later, when the log has grown beyond it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::future::join_all;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, error, warn};

use super::assignment::{OffsetRange, StartPosition, TopicPartition};
use super::first_start::FirstStarts;
use super::group_state::{Unplaced, list};
use super::log_ends::{SHORT_ANSWER_TIMEOUT, ask_all_since, ask_ends, ask_since, ask_times};
use super::placement::{
    CommittedPosition, LogEnds, Placement, PlacementCause, REREAD_LIMIT, REREAD_MARGIN_MS, Reread,
    TimedOffsets, place, reread,
};
use super::rebalance::{GroupClient, GroupContext};
use super::record::quietly;
use crate::domain::{Latest, ReadMark, SkipOutcome, UnixMs};
use crate::ingress::Sink;
use crate::mutants::{self, Mutant};

/// Shortest time between two lookups of start positions.
const LOOKUP_INTERVAL_US: i64 = 1_000_000;
/// Rest after a lookup, as a multiple of the time it took: reading comes first.
pub(super) const LOOKUP_REST_FACTOR: i64 = 4;

/// The reason why a log cannot be asked for its offsets.
pub(super) const NO_LEADER: &str = "its leader does not answer";

/// A partition with what the brokers answer about it.
struct KnownPartition {
    of: Unplaced,
    committed: Option<CommittedPosition>,
    ends: LogEnds,
}

/// A start position, chosen and perhaps not yet committed.
struct ChosenStart {
    of: Unplaced,
    committed: Option<CommittedPosition>,
    start: CommittedPosition,
    finding: StartFinding,
}

/// What was found about the position before the start.
enum StartFinding {
    Believed,
    /// Records were deleted before they were read.
    Overtaken(OffsetRange),
    /// So many records, at most, are read again.
    Reread(i64),
}

impl<S: Sink> GroupContext<S> {
    /// Starts the offered partitions whose start position is known. `at_most` is the longest wait for each
    /// answer of the brokers.
    pub(super) fn start_partitions(
        &self,
        consumer: &GroupClient<S>,
        offered: Vec<Unplaced>,
        at_most: Duration,
    ) -> KafkaResult<()> {
        let mut unplaced = Vec::new();
        // What kept them from being read the last time may be over.
        let offered = offered
            .into_iter()
            .map(|of| Unplaced::new(of.key, of.cause, of.read))
            .collect();
        let chosen = self.choose_starts(consumer, offered, &mut unplaced, at_most);
        let chosen = commit_starts(consumer, chosen, &mut unplaced);
        let mut taken = TopicPartitionList::new();
        for chosen in chosen {
            self.report_finding(&chosen);
            let ChosenStart { of, start, .. } = chosen;
            if of.is_held {
                unplaced.push(of);
                continue;
            }
            let (topic, partition) = &of.key;
            let position = StartPosition {
                start: start.offset,
                resolved_time: start.resolved,
            };
            let Some(assignment) = self.setup.begin(topic, *partition, position) else {
                continue;
            };
            taken.add_partition_offset(topic, *partition, Offset::Offset(start.offset))?;
            let mut state = self.state.lock();
            state.refused_topics.remove(topic);
            state.insert(assignment);
        }
        for unplaced in unplaced.iter().filter(|unplaced| !unplaced.is_held) {
            self.warn_once(&unplaced.to_string());
        }
        self.state.lock().unplaced.extend(unplaced);
        self.show_troubles();
        consumer.incremental_assign(&taken)?;
        if taken.count() > 0 && !mutants::is(Mutant::StayPaused) {
            // The client library keeps a partition paused beyond its assignment. A partition that was paused
            // when it was revoked would never be read again.
            consumer.resume(&taken)?;
        }
        Ok(())
    }

    /// Looks up the start positions that are not known yet, from time to time.
    pub(super) fn retry_unplaced(&self, consumer: &GroupClient<S>) {
        let clock = self.setup.deps.clock;
        let now = clock.mono_us();
        let unplaced: Vec<Unplaced> = {
            let mut state = self.state.lock();
            if now < state.next_lookup_us {
                return;
            }
            state
                .unplaced
                .extract_if(.., |unplaced| !unplaced.is_held)
                .collect()
        };
        if unplaced.is_empty() {
            return;
        }
        let outcome = self.start_partitions(consumer, unplaced, SHORT_ANSWER_TIMEOUT);
        let ended = clock.mono_us();
        let mut state = self.state.lock();
        state.next_lookup_us = ended + LOOKUP_INTERVAL_US.max((ended - now) * LOOKUP_REST_FACTOR);
        if let Err(error) = outcome {
            state.mark_broken(format!("partitions cannot be taken: {error}"));
        }
    }

    /// Ends the assignment of a partition that is read. It gets a start position like one that is given.
    pub(super) fn place_anew(
        &self,
        consumer: &GroupClient<S>,
        key: TopicPartition,
        cause: PlacementCause,
    ) {
        let ended = list([(key.0.as_str(), key.1)]);
        let mut state = self.state.lock();
        let Some(read) = state.find(&key.0, key.1).map(|ended| ended.read_mark()) else {
            return;
        };
        warn!(consumer = %self.setup.owner, topic = key.0, partition = key.1, expected = read.until, ?cause, "the committed position is gone or was moved back, or the log went back: reading begins anew");
        state.remove(std::slice::from_ref(&key));
        state.unplaced.push(Unplaced::new(key, cause, Some(read)));
        state.next_lookup_us = 0;
        if let Err(error) = consumer.incremental_unassign(&ended) {
            state.mark_broken(format!("partitions cannot be let go: {error}"));
        }
    }

    /// Has a partition that waits for a word begin at an offset.
    pub(super) fn begin_at(
        &self,
        consumer: &GroupClient<S>,
        key: &TopicPartition,
        offset: i64,
    ) -> SkipOutcome {
        let held = {
            let mut state = self.state.lock();
            if let Some(assignment) = state.find(&key.0, key.1) {
                return SkipOutcome::DoesNotStand(assignment.next);
            }
            let held = state.unplaced.iter().find(|unplaced| unplaced.key == *key);
            match held {
                Some(held) if held.is_held => held.clone(),
                _ => return state.not_read(key),
            }
        };
        let ends = ask_ends(consumer, std::iter::once(key));
        let Some(&LogEnds { begin, end }) = ends.get(key) else {
            return SkipOutcome::Failed(NO_LEADER.to_owned());
        };
        if !(begin..=end).contains(&offset) {
            return SkipOutcome::OutsideLog(begin, end);
        }
        let told = Unplaced::new(key.clone(), PlacementCause::Told(offset), held.read);
        self.state
            .lock()
            .unplaced
            .retain(|unplaced| unplaced.key != *key);
        let started = self.start_partitions(consumer, vec![told], SHORT_ANSWER_TIMEOUT);
        let mut state = self.state.lock();
        if let Err(error) = started {
            state.mark_broken(format!("partitions cannot be taken: {error}"));
        }
        // Without an answer of the brokers it begins there as soon as they answer.
        state
            .find(&key.0, key.1)
            .map_or(SkipOutcome::NoAnswer, |begun| {
                SkipOutcome::GoesOn(begun.next)
            })
    }

    /// The same, at the first record of a time or later.
    pub(super) fn begin_since(
        &self,
        consumer: &GroupClient<S>,
        key: &TopicPartition,
        time: UnixMs,
    ) -> SkipOutcome {
        match ask_since(consumer, key, time) {
            Some(offset) => self.begin_at(consumer, key, offset),
            None => SkipOutcome::Failed(NO_LEADER.to_owned()),
        }
    }

    /// Chooses the start positions that can be known. The others are added to `unplaced`.
    fn choose_starts(
        &self,
        consumer: &GroupClient<S>,
        mut offered: Vec<Unplaced>,
        unplaced: &mut Vec<Unplaced>,
        at_most: Duration,
    ) -> Vec<ChosenStart> {
        if offered.is_empty() || self.state.lock().is_leaving() {
            unplaced.append(&mut offered);
            return Vec::new();
        }
        let asked = list(
            offered
                .iter()
                .map(|unplaced| (unplaced.key.0.as_str(), unplaced.key.1)),
        );
        let committed = match consumer.committed_offsets(asked, at_most) {
            Ok(committed) => committed,
            Err(error) => {
                debug!(consumer = %self.setup.owner, %error, "kafka does not tell the committed positions");
                unplaced.append(&mut offered);
                return Vec::new();
            }
        };
        // Before the ends: no log that is read ends before the end that is noted of it.
        let first_starts = self.first_starts(consumer, &offered, &committed);
        let keys = offered.iter().map(|unplaced| &unplaced.key);
        let ends = ask_ends(consumer, keys);
        let mut known = Vec::new();
        for of in offered {
            match (read_commit(&committed, &of.key), ends.get(&of.key)) {
                (Ok(committed), Some(&ends)) => known.push(KnownPartition {
                    of,
                    committed,
                    ends,
                }),
                _ => unplaced.push(of),
            }
        }
        let mut placed = Vec::new();
        let mut doubted = BTreeMap::new();
        let known = self.remember(known, unplaced);
        let (known, fresh) = self.choose_fresh(consumer, known, &first_starts, unplaced);
        for known in known {
            let fresh = fresh.get(&known.of.key).copied();
            let placement = place(
                known.of.cause,
                known.committed,
                known.ends,
                known.of.read,
                fresh,
            );
            if let Placement::Reread(ReadMark {
                resolved: Some(resolved),
                ..
            }) = placement
            {
                doubted.insert(known.of.key.clone(), resolved);
            }
            placed.push((known, placement));
        }
        let times = ask_times(consumer, &doubted);
        let mut chosen = Vec::new();
        for (known, placement) in placed {
            let found = times.get(&known.of.key).copied();
            match self.choose_start(known, placement, found) {
                Ok(start) => chosen.push(start),
                Err(of) => unplaced.push(of),
            }
        }
        chosen
    }

    /// Chooses where a partition begins. `found` are the records of the time at which it was read. `Err` if the brokers
    /// do not tell them.
    fn choose_start(
        &self,
        known: KnownPartition,
        placement: Placement,
        found: Option<TimedOffsets>,
    ) -> Result<ChosenStart, Unplaced> {
        let KnownPartition {
            mut of,
            committed,
            ends,
        } = known;
        let (offset, resolved, finding) = match placement {
            Placement::Start(offset, resolved) => (offset, resolved, StartFinding::Believed),
            Placement::Overtaken(range) => (range.to, None, StartFinding::Overtaken(range)),
            Placement::Reread(mark) if mark.resolved.is_some() && found.is_none() => {
                return Err(of);
            }
            Placement::Reread(mark) => {
                let Reread { start, count } = reread(mark, ends, found);
                let mut resolved = mark.resolved;
                of.is_held = count > REREAD_LIMIT;
                if of.is_held {
                    of.why = self.why_held(&of.key, committed, ends, start, count);
                } else {
                    // Of the records before the start, the last one is older than this.
                    resolved = resolved.map(|time| time.plus(-REREAD_MARGIN_MS));
                }
                (start, resolved, StartFinding::Reread(count))
            }
        };
        let start = CommittedPosition {
            offset,
            resolved,
            is_held: of.is_held,
        };
        Ok(ChosenStart {
            of,
            committed,
            start,
            finding,
        })
    }

    /// Asks the store how far partitions were read of which the brokers do not tell it. Those that it does not tell of
    /// either are added to `unplaced`.
    fn remember(
        &self,
        known: Vec<KnownPartition>,
        unplaced: &mut Vec<Unplaced>,
    ) -> Vec<KnownPartition> {
        let (unsure, mut known): (Vec<_>, Vec<_>) = known.into_iter().partition(|known| {
            let tells_enough = known.committed.is_some_and(|committed| {
                committed.offset <= known.ends.end || committed.resolved.is_some()
            });
            known.of.cause == PlacementCause::Given && !tells_enough
        });
        let marks = unsure.iter().map(|unsure| {
            let (topic, partition) = &unsure.of.key;
            let source = self.setup.source(topic, *partition);
            async move { self.setup.deps.sink.read_mark(&source).await }
        });
        let marks = self.setup.runtime.block_on(join_all(marks));
        for (mut unsure, mark) in unsure.into_iter().zip(marks) {
            match mark {
                Ok(mark) => {
                    unsure.of.read = mark;
                    known.push(unsure);
                }
                Err(error) => {
                    unsure.of.why = format!("the store does not tell how far it was read: {error}");
                    unplaced.push(unsure.of);
                }
            }
        }
        known
    }

    /// Asks where partitions begin that nobody has read ever, by their routes' `start`. Those of which nobody tells it are
    /// added to `unplaced`.
    fn choose_fresh(
        &self,
        consumer: &GroupClient<S>,
        known: Vec<KnownPartition>,
        first_starts: &FirstStarts,
        unplaced: &mut Vec<Unplaced>,
    ) -> (Vec<KnownPartition>, BTreeMap<TopicPartition, i64>) {
        let mut since = BTreeMap::new();
        let mut unknown = BTreeMap::new();
        let mut fresh = BTreeMap::new();
        for KnownPartition {
            of,
            committed,
            ends,
        } in &known
        {
            if !of.is_fresh(committed.is_some()) {
                continue;
            }
            match self.fresh_start(first_starts, &of.key, ends.end) {
                Ok(None) => {}
                Ok(Some(Latest::At(offset))) => drop(fresh.insert(of.key.clone(), offset)),
                Ok(Some(Latest::Since(time))) => drop(since.insert(of.key.clone(), time)),
                Err(why) => drop(unknown.insert(of.key.clone(), why)),
            }
        }
        if !since.is_empty() {
            fresh.extend(ask_all_since(consumer, &since));
        }
        let (told, untold): (Vec<_>, Vec<_>) = known.into_iter().partition(|known| {
            let key = &known.of.key;
            !unknown.contains_key(key) && (!since.contains_key(key) || fresh.contains_key(key))
        });
        unplaced.extend(untold.into_iter().map(|untold| {
            let why = unknown.remove(&untold.of.key);
            Unplaced {
                why: why.unwrap_or_else(|| NO_LEADER.to_owned()),
                ..untold.of
            }
        }));
        (told, fresh)
    }

    /// Why a partition waits for a word, and which.
    fn why_held(
        &self,
        (topic, partition): &TopicPartition,
        committed: Option<CommittedPosition>,
        ends: LogEnds,
        start: i64,
        count: i64,
    ) -> String {
        let end = ends.end;
        let position = match committed {
            Some(committed) if committed.offset > end => {
                let offset = committed.offset;
                format!("its position {offset} is beyond the log's end {end}")
            }
            Some(_) => "its position was found to be untrue".to_owned(),
            None => "its position is lost".to_owned(),
        };
        let route = self.setup.route_of(topic);
        let several = route
            .as_ref()
            .is_some_and(|route| route.source_topic.is_some());
        let topic = if several {
            format!(" --topic {topic}")
        } else {
            String::new()
        };
        let route = route.map_or(String::new(), |route| route.name.to_string());
        format!(
            "{position}, and {count} records would be read again: `postdate skip --route {route}{topic} --partition {partition} \
             --to {start}` goes on there and reads them, `--since MOMENT` takes over at a time"
        )
    }

    /// Reports what was found about the position before a start.
    fn report_finding(&self, chosen: &ChosenStart) {
        let ChosenStart {
            of,
            committed,
            start,
            finding,
        } = chosen;
        let (topic, partition) = &of.key;
        let committed = committed.map(|committed| committed.offset);
        match finding {
            StartFinding::Believed => {}
            StartFinding::Overtaken(range) => {
                if let Some(route) = self.setup.route_of(topic) {
                    self.report_lost(&route, topic, *partition, *range);
                }
            }
            StartFinding::Reread(_) if of.is_held => {
                error!(consumer = %self.setup.owner, topic, partition, why = of.why, "kafka partition waits for a word on where to begin");
            }
            StartFinding::Reread(count) => {
                warn!(consumer = %self.setup.owner, topic, partition, committed, start = start.offset, count, "the committed position cannot be true, reading again");
            }
        }
    }
}

/// The committed position of a partition. `Err` if the broker did not say.
pub(super) fn read_commit(
    answers: &TopicPartitionList,
    (topic, partition): &TopicPartition,
) -> Result<Option<CommittedPosition>, ()> {
    let answer = answers.find_partition(topic, *partition).ok_or(())?;
    answer.error().map_err(|_| ())?;
    let Offset::Offset(offset) = answer.offset() else {
        return Ok(None);
    };
    // The client library panics for metadata of others that is not UTF-8.
    let metadata = quietly(|| catch_unwind(AssertUnwindSafe(|| answer.metadata().to_owned())));
    Ok(Some(CommittedPosition::read(
        offset,
        &metadata.unwrap_or_default(),
    )))
}

/// Commits the start positions that are not committed, all at once. Returns those that are. Those that cannot be are
/// added to `unplaced`. Waits for the answer as long as the last commit does: at most ten seconds for the group's
/// coordinator (`session.timeout.ms`), and as long for the coordinator's answer (`socket.timeout.ms`).
fn commit_starts<S: Sink>(
    consumer: &GroupClient<S>,
    chosen: Vec<ChosenStart>,
    unplaced: &mut Vec<Unplaced>,
) -> Vec<ChosenStart> {
    let (mut done, news): (Vec<_>, Vec<_>) = chosen
        .into_iter()
        .partition(|chosen| chosen.committed == Some(chosen.start));
    if news.is_empty() {
        return done;
    }
    let mut starts = TopicPartitionList::new();
    let listed = news
        .iter()
        .try_for_each(|chosen| list_commit(&mut starts, &chosen.of.key, &chosen.start));
    match listed.and_then(|()| consumer.commit(&starts, CommitMode::Sync)) {
        Ok(()) => done.extend(news),
        Err(error) => unplaced.extend(news.into_iter().map(|chosen| Unplaced {
            why: format!("its start position cannot be committed: {error}"),
            is_held: false,
            ..chosen.of
        })),
    }
    done
}

/// Adds a position to a list of commits.
pub(super) fn list_commit(
    list: &mut TopicPartitionList,
    (topic, partition): &TopicPartition,
    position: &CommittedPosition,
) -> KafkaResult<()> {
    let mut listed = list.add_partition(topic, *partition);
    listed.set_offset(Offset::Offset(position.offset))?;
    listed.set_metadata(position.metadata());
    Ok(())
}

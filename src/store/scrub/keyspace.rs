//! The walk through the key space, a few thousand keys at a time, by cursor. Only this walk finds due sets that
//! no index lists, blobs without an entry, and dead-letter queues that no count lists.

use std::collections::BTreeMap;

use redis::cluster_routing::Slot;
use redis::{Cmd, Pipeline, Value};

use super::SCRUB_STEPS;
use super::due_sets::head_of;
use super::findings::Findings;
use super::findings::KeyKind;
use crate::domain::Partition;
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::model::bundle::{BundleId, SPREAD_AHEAD_MS};
use crate::store::{DeadId, ScrubReport, Store, StoreError, decode};

/// Keys read in one trip.
const SCAN_KEYS: usize = 500;

/// Where the walk goes on: the place of the node, and the cursor in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyspaceCursor {
    node: usize,
    cursor: u64,
}

type KeyAnswer = Result<Value, StoreError>;

/// Keys to be read again: keys of a wrong type, and blobs without an entry.
#[derive(Default)]
struct SuspectKeys {
    wrong_type: BTreeMap<Partition, Vec<KeyKind>>,
    orphans: Vec<(Partition, BundleId)>,
}

/// The meaning of a key, by its name.
enum KeyMeaning {
    Due(String),
    DeadQueue(String),
    Blob(BundleId),
    DeadLetter(DeadId),
    Trail(String),
}

impl KeyMeaning {
    fn of(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once(':')?;
        match kind {
            "due" => Some(Self::Due(rest.to_owned())),
            "dead" => Some(Self::DeadQueue(rest.to_owned())),
            "b" => BundleId::parse(rest).map(Self::Blob),
            "d" => DeadId::parse(rest).map(Self::DeadLetter),
            "trail" => Some(Self::Trail(rest.to_owned())),
            _ => None,
        }
    }
}

impl Store {
    /// Walks on through the key space, node by node, and has the finds of all partitions mended.
    pub(super) async fn walk_keys(
        &self,
        own: Partition,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let mut place = self.0.scrub_positions.keyspace.lock().await;
        let mut at = *place;
        let nodes = self.0.side.each();
        if at.node >= nodes.len() {
            at = KeyspaceCursor::default();
        }
        let Some(node) = nodes.get(at.node) else {
            return Ok(());
        };
        let mut all: BTreeMap<Partition, Findings> = BTreeMap::new();
        for _ in 0..SCRUB_STEPS {
            let mut pipe = redis::pipe();
            pipe.cmd("SCAN")
                .arg(at.cursor)
                .arg("MATCH")
                .arg(self.0.keys.every())
                .arg("COUNT")
                .arg(SCAN_KEYS);
            let told = pipe.query_async(&mut node.connection.clone()).await;
            let ((next, keys),): ((u64, Vec<String>),) =
                told.map_err(|e| self.0.side.judge(node, &e))?;
            self.check_keys(own, &keys, &mut all, report).await?;
            at.cursor = next;
            if next == 0 {
                at.node += 1;
                break;
            }
        }
        for (p, findings) in all {
            ignore_of_others(own, p, self.mend(p, findings, report).await)?;
        }
        *place = at;
        Ok(())
    }

    /// Checks the keys of one trip. One more trip reads their state, in all partitions.
    async fn check_keys(
        &self,
        own: Partition,
        keys: &[String],
        all: &mut BTreeMap<Partition, Findings>,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let mut meanings = Vec::new();
        let mut commands = Vec::with_capacity(keys.len() * 3);
        for key in keys {
            let Some((p, name)) = self
                .0
                .keys
                .split(key)
                .filter(|(p, _)| p.0 < self.0.partitions.count())
            else {
                continue;
            };
            let Some(key) = KeyMeaning::of(name) else {
                continue;
            };
            let before = commands.len();
            self.ask_of(p, &key, &mut commands);
            meanings.push((p, key, commands.len() - before));
        }
        let mut answers = self.0.side.gather(commands).await.into_iter();
        let mut suspects = SuspectKeys::default();
        for (p, key, count) in meanings {
            let of_key: Vec<KeyAnswer> = answers.by_ref().take(count).collect();
            let away = of_key
                .iter()
                .find(|answer| matches!(answer, Err(StoreError::Unavailable(_))));
            if let Some(Err(why)) = away {
                ignore_of_others(own, p, Err(why.clone()))?;
                continue;
            }
            self.note(p, key, &of_key, all.entry(p).or_default(), &mut suspects);
        }
        for (p, kinds) in suspects.wrong_type {
            ignore_of_others(own, p, self.quarantine(p, &kinds, report).await)?;
        }
        for (p, id) in &suspects.orphans {
            ignore_of_others(
                own,
                *p,
                self.check_orphan(*p, id, all.entry(*p).or_default()).await,
            )?;
        }
        Ok(())
    }

    /// Notes the finds about one key.
    fn note(
        &self,
        p: Partition,
        key: KeyMeaning,
        answers: &[KeyAnswer],
        findings: &mut Findings,
        suspects: &mut SuspectKeys,
    ) {
        match key {
            KeyMeaning::Due(due_set) => {
                if is(&answers[0], "zset") {
                    let head = answers[1].as_ref().ok().and_then(head_of);
                    let said = answers[2]
                        .as_ref()
                        .ok()
                        .and_then(|v| read::<Option<f64>>(v.clone()).ok());
                    if said.is_some_and(|said| said != head) {
                        findings.due_sets.insert(due_set);
                    }
                } else if !is(&answers[0], "none") {
                    suspects
                        .wrong_type
                        .entry(p)
                        .or_default()
                        .push((format!("due:{due_set}"), "zset"));
                    findings.due_sets.insert(due_set);
                }
            }
            KeyMeaning::DeadQueue(queue) => {
                if is(&answers[0], "zset") {
                    self.save(p, |places| places.found_queues.extend([queue]));
                } else if !is(&answers[0], "none") {
                    suspects
                        .wrong_type
                        .entry(p)
                        .or_default()
                        .push((format!("dead:{queue}"), "zset"));
                }
            }
            KeyMeaning::Blob(id) => {
                let kind = id.kind();
                let wrong_type = !is(&answers[2], kind) && !is(&answers[2], "none");
                findings
                    .wrong_type
                    .extend(wrong_type.then(|| (format!("b:{id}"), kind)));
                // If the due set or `claims` itself has a wrong type, nothing can be said of its members.
                let nowhere = answers[..2].iter().all(is_nil);
                suspects
                    .orphans
                    .extend((nowhere && is(&answers[2], kind)).then_some((p, id)));
            }
            KeyMeaning::DeadLetter(id) => {
                if is_nil(&answers[0]) {
                    findings.dead.add(id);
                }
            }
            KeyMeaning::Trail(route) => {
                if !is(&answers[0], "list") && !is(&answers[0], "none") {
                    suspects
                        .wrong_type
                        .entry(p)
                        .or_default()
                        .push((format!("trail:{route}"), "list"));
                }
            }
        }
    }

    /// Adds the questions about one key.
    fn ask_of(&self, p: Partition, key: &KeyMeaning, commands: &mut Vec<(Slot, Cmd)>) {
        let keys = &self.0.keys;
        let slot = Keys::slot(p);
        let mut ask = |name: &str, args: &[&str]| {
            let mut command = redis::cmd(name);
            command.arg(args);
            commands.push((slot, command));
        };
        match key {
            KeyMeaning::Due(due_set) => {
                let due = keys.due(p, due_set);
                ask("TYPE", &[&due]);
                ask("ZRANGE", &[&due, "0", "0", "WITHSCORES"]);
                ask("ZSCORE", &[&keys.of(p, "idx"), due_set]);
            }
            KeyMeaning::DeadQueue(queue) => ask("TYPE", &[&keys.queue(p, queue)]),
            KeyMeaning::Blob(id) => {
                ask("ZSCORE", &[&keys.due(p, id.due_set()), id.as_str()]);
                ask("ZSCORE", &[&keys.of(p, "claims"), id.as_str()]);
                ask("TYPE", &[&keys.blob(p, id)]);
            }
            KeyMeaning::Trail(route) => ask("TYPE", &[&keys.of(p, &format!("trail:{route}"))]),
            KeyMeaning::DeadLetter(id) => {
                ask("ZSCORE", &[&keys.queue(p, &id.queue()), id.as_str()]);
            }
        }
    }

    /// Notes a blob without an entry and its due time, unless the blob has a time to live.
    async fn check_orphan(
        &self,
        p: Partition,
        id: &BundleId,
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let key = self.0.keys.blob(p, id);
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("PTTL").arg(&key);
        let (ttl,): (i64,) = self.ask(p, &pipe).await?;
        if ttl != -1 {
            return Ok(());
        }
        if let Some(blob) = self
            .0
            .side
            .get_blobs(Keys::slot(p), vec![key])
            .await?
            .pop()
            .flatten()
        {
            // An unreadable bundle is due at once. Whoever claims it finds it out.
            let mut first = decode(&blob).map_or(self.0.clock.now(), |bundle| bundle.first_due());
            if id.is_growing() {
                first = first.plus(-SPREAD_AHEAD_MS);
            }
            findings.bundle(id.clone(), Some(first.0));
        }
        Ok(())
    }
}

/// Ignores a failure in another partition. That partition's own scrub handles it, or a later walk once its node
/// is back.
fn ignore_of_others(
    own: Partition,
    p: Partition,
    done: Result<(), StoreError>,
) -> Result<(), StoreError> {
    match done {
        Err(StoreError::Damaged(_) | StoreError::Unavailable(_)) if p != own => Ok(()),
        other => other,
    }
}

fn is_nil(answer: &KeyAnswer) -> bool {
    matches!(answer, Ok(Value::Nil))
}

/// Reports whether `TYPE` answered this.
fn is(answer: &KeyAnswer, kind: &str) -> bool {
    matches!(answer, Ok(Value::SimpleString(found)) if found == kind)
}

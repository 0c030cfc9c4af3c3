//! The walk through the key space: due zsets that no index tells of, blobs that no entry tells of, graves that no
//! count tells of. The only way to find any of them; a few thousand keys a time, by cursor.

use std::collections::BTreeMap;

use redis::cluster_routing::Slot;
use redis::{Cmd, Pipeline, Value};

use super::STEPS;
use super::corrupt::Kind;
use super::due_sets::head_of;
use super::findings::Finds;
use crate::domain::Partition;
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::model::bundle::BundleId;
use crate::store::{AuditReport, DeadId, Store, StoreError, decode};

/// Keys looked at in one trip.
const KEYS: usize = 500;

/// Where the walk goes on: the node's place, and the cursor in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keyspace {
    node: usize,
    cursor: u64,
}

type Answer = Result<Value, StoreError>;

/// What has to be looked at again: keys of the wrong type, and blobs that stand nowhere.
#[derive(Default)]
struct Odd {
    spoilt: BTreeMap<Partition, Vec<Kind>>,
    orphans: Vec<(Partition, BundleId)>,
}

/// What a key should be, by its name.
enum Meant {
    Due(String),
    Grave(String),
    Blob(BundleId),
    Letter(DeadId),
}

impl Meant {
    fn of(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once(':')?;
        match kind {
            "due" => Some(Self::Due(rest.to_owned())),
            "dead" => Some(Self::Grave(rest.to_owned())),
            "b" => BundleId::parse(rest).map(Self::Blob),
            "d" => DeadId::parse(rest).map(Self::Letter),
            _ => None,
        }
    }
}

impl Store {
    /// Goes on through the key space, node by node, and has what it finds mended, whosever it is.
    pub(super) async fn walk_keys(&self, own: Partition, report: &mut AuditReport) -> Result<(), StoreError> {
        let mut place = self.0.audits.keyspace.lock().await;
        let mut at = *place;
        let nodes = self.0.side.each();
        if at.node >= nodes.len() {
            at = Keyspace::default();
        }
        let Some(node) = nodes.get(at.node) else { return Ok(()) };
        let mut all: BTreeMap<Partition, Finds> = BTreeMap::new();
        for _ in 0..STEPS {
            let mut pipe = redis::pipe();
            pipe.cmd("SCAN").arg(at.cursor).arg("MATCH").arg(self.0.keys.every()).arg("COUNT").arg(KEYS);
            let told = pipe.query_async(&mut node.connection.clone()).await;
            let ((next, keys),): ((u64, Vec<String>),) = told.map_err(|e| self.0.side.judge(node, &e))?;
            self.look_at_keys(own, &keys, &mut all, report).await?;
            at.cursor = next;
            if next == 0 {
                at.node += 1;
                break;
            }
        }
        for (p, finds) in all {
            passing_by(own, p, self.mend(p, finds, report).await)?;
        }
        *place = at;
        Ok(())
    }

    /// Looks at what a trip through the key space found, of all partitions in one more.
    async fn look_at_keys(
        &self,
        own: Partition,
        keys: &[String],
        all: &mut BTreeMap<Partition, Finds>,
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        let (mut meant, mut commands) = (Vec::new(), Vec::with_capacity(keys.len() * 3));
        for key in keys {
            let Some((p, name)) = self.0.keys.split(key).filter(|(p, _)| p.0 < self.0.partitions.count())
            else {
                continue;
            };
            let Some(key) = Meant::of(name) else { continue };
            let before = commands.len();
            self.ask_of(p, &key, &mut commands);
            meant.push((p, key, commands.len() - before));
        }
        let mut answers = self.0.side.gather(commands).await.into_iter();
        let mut odd = Odd::default();
        for (p, key, count) in meant {
            let of_key: Vec<Answer> = answers.by_ref().take(count).collect();
            let is_away = |answer: &&Answer| matches!(answer, Err(StoreError::Unavailable(_)));
            if let Some(Err(why)) = of_key.iter().find(is_away) {
                passing_by(own, p, Err(why.clone()))?;
                continue;
            }
            self.note(p, key, &of_key, all.entry(p).or_default(), &mut odd);
        }
        for (p, kinds) in odd.spoilt {
            passing_by(own, p, self.quarantine(p, &kinds, report).await)?;
        }
        for (p, id) in &odd.orphans {
            passing_by(own, *p, self.look_at_orphan(*p, id, all.entry(*p).or_default()).await)?;
        }
        Ok(())
    }

    /// Notes what is wrong with one key.
    fn note(&self, p: Partition, key: Meant, answers: &[Answer], finds: &mut Finds, odd: &mut Odd) {
        match key {
            Meant::Due(shelf) => {
                if is(&answers[0], "zset") {
                    let head = answers[1].as_ref().ok().and_then(head_of);
                    let said = answers[2].as_ref().ok().and_then(|v| read::<Option<f64>>(v.clone()).ok());
                    if said.is_some_and(|said| said != head) {
                        finds.shelves.insert(shelf);
                    }
                } else if !is(&answers[0], "none") {
                    odd.spoilt.entry(p).or_default().push((format!("due:{shelf}"), "zset"));
                    finds.shelves.insert(shelf);
                }
            }
            Meant::Grave(grave) => {
                if is(&answers[0], "zset") {
                    self.save(p, |places| places.found_graves.extend([grave]));
                } else if !is(&answers[0], "none") {
                    odd.spoilt.entry(p).or_default().push((format!("dead:{grave}"), "zset"));
                }
            }
            Meant::Blob(id) => {
                let spoilt = !is(&answers[2], "string") && !is(&answers[2], "none");
                finds.spoilt.extend(spoilt.then(|| (format!("b:{id}"), "string")));
                // Where the place itself is spoilt nothing can be said of what should stand in it.
                let nowhere = answers[..2].iter().all(is_nil);
                odd.orphans.extend((nowhere && is(&answers[2], "string")).then_some((p, id)));
            }
            Meant::Letter(id) => {
                if is_nil(&answers[0]) {
                    finds.bones.letter(id);
                }
            }
        }
    }

    /// What is asked about one key.
    fn ask_of(&self, p: Partition, key: &Meant, commands: &mut Vec<(Slot, Cmd)>) {
        let (keys, slot) = (&self.0.keys, Keys::slot(p));
        let mut ask = |name: &str, args: &[&str]| {
            let mut command = redis::cmd(name);
            command.arg(args);
            commands.push((slot, command));
        };
        match key {
            Meant::Due(shelf) => {
                let due = keys.due(p, shelf);
                ask("TYPE", &[&due]);
                ask("ZRANGE", &[&due, "0", "0", "WITHSCORES"]);
                ask("ZSCORE", &[&keys.of(p, "idx"), shelf]);
            }
            Meant::Grave(grave) => ask("TYPE", &[&keys.grave(p, grave)]),
            Meant::Blob(id) => {
                ask("ZSCORE", &[&keys.due(p, id.shelf()), id.as_str()]);
                ask("ZSCORE", &[&keys.of(p, "claims"), id.as_str()]);
                ask("TYPE", &[&keys.blob(p, id)]);
            }
            Meant::Letter(id) => ask("ZSCORE", &[&keys.grave(p, &id.grave()), id.as_str()]),
        }
    }

    /// Notes a blob that stands nowhere, unless it will pass, with the due time that it says.
    async fn look_at_orphan(&self, p: Partition, id: &BundleId, finds: &mut Finds) -> Result<(), StoreError> {
        let key = self.0.keys.blob(p, id);
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("PTTL").arg(&key);
        let (ttl,): (i64,) = self.ask(p, &pipe).await?;
        if ttl != -1 {
            return Ok(());
        }
        if let Some(blob) = self.0.side.get_blobs(Keys::slot(p), vec![key]).await?.pop().flatten() {
            // One that cannot be read is due at once, and found out by whoever claims it.
            let first = decode(&blob).map_or(self.0.clock.now(), |bundle| bundle.first_due());
            finds.bundle(id.clone(), Some(first.0));
        }
        Ok(())
    }
}

/// What fails at another's partition is left to its own audit, and to a later walk once its node is back.
fn passing_by(own: Partition, p: Partition, done: Result<(), StoreError>) -> Result<(), StoreError> {
    match done {
        Err(StoreError::Damaged(_) | StoreError::Unavailable(_)) if p != own => Ok(()),
        other => other,
    }
}

fn is_nil(answer: &Answer) -> bool {
    matches!(answer, Ok(Value::Nil))
}

/// Whether this is the answer to `TYPE`.
fn is(answer: &Answer, kind: &str) -> bool {
    matches!(answer, Ok(Value::SimpleString(found)) if found == kind)
}

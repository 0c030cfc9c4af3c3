//! Notices within seconds that an index was deleted, also where writes have begun it anew since.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Cmd, FromRedisValue, Value};

use crate::domain::Partition;
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::model::bundle::{growing_due_set, is_of_growing};
use crate::store::{Store, StoreError};

type Answer = Result<Value, StoreError>;

/// The routes of one partition that have messages, as its counts say.
#[derive(Debug, Default)]
struct CountedRoutes {
    all: Vec<String>,
    /// Those of them without a head: all they have may be in flight or in growing bundles.
    headless: Vec<String>,
}

impl Store {
    /// The partitions in which one of the indexes `idx`, `heads`, `shelves` lacks what another one has. Two trips a node.
    /// Partitions of a node that is away are left out.
    pub async fn lost_indexes(&self, partitions: &[Partition]) -> Vec<Partition> {
        let commands = partitions.iter().flat_map(|&p| {
            [self.counts_command(p), self.heads_command(p)].map(|command| (Keys::slot(p), command))
        });
        let counted = self.0.side.gather(commands.collect()).await;
        let mut looks = Vec::with_capacity(partitions.len());
        let mut commands = Vec::new();
        for (&p, answers) in partitions.iter().zip(counted.chunks(2)) {
            let routes = CountedRoutes::read(answers);
            let own = self.index_commands(p, &routes);
            looks.push((p, own.len(), routes));
            commands.extend(own.into_iter().map(|command| (Keys::slot(p), command)));
        }
        let mut answers = self.0.side.gather(commands).await.into_iter();
        let mut lost = Vec::new();
        for (p, asked, routes) in looks {
            let own: Vec<Answer> = answers.by_ref().take(asked).collect();
            // A store that does not tell has lost nothing that could be mended now.
            if lacks_index(&own, &routes).unwrap_or(false) {
                lost.push(p);
            }
        }
        lost
    }

    fn counts_command(&self, p: Partition) -> Cmd {
        let mut counts = redis::cmd("HGETALL");
        counts.arg(self.0.keys.of(p, "counts"));
        counts
    }

    fn heads_command(&self, p: Partition) -> Cmd {
        let mut heads = redis::cmd("ZRANGE");
        heads.arg(self.0.keys.of(p, "heads")).arg(0).arg(-1);
        heads
    }

    /// What [`lacks_index`] judges of a partition. All of it is asked for at once: a write in between would look like a
    /// loss.
    fn index_commands(&self, p: Partition, routes: &CountedRoutes) -> Vec<Cmd> {
        let mut commands: Vec<Cmd> = ["idx", "shelves"]
            .map(|index| {
                let mut entries = redis::cmd("ZCARD");
                entries.arg(self.0.keys.of(p, index));
                entries
            })
            .into();
        commands.push(self.heads_command(p));
        for route in &routes.headless {
            let mut first = redis::cmd("ZRANGEBYLEX");
            first.arg(self.0.keys.of(p, "shelves"));
            first.arg(format!("[{route}/")).arg(format!("({route}0"));
            first.arg("LIMIT").arg(0).arg(1);
            commands.push(first);
        }
        if !routes.all.is_empty() {
            let mut growing = redis::cmd("ZMSCORE");
            growing.arg(self.0.keys.of(p, "idx"));
            for route in &routes.all {
                growing.arg(growing_due_set(route));
            }
            commands.push(growing);
        }
        commands
    }
}

impl CountedRoutes {
    /// Reads the counts and the heads of a partition. No routes if the store did not tell.
    fn read(answers: &[Answer]) -> Self {
        let [counts, heads] = answers else {
            return Self::default();
        };
        let (Ok(counts), Ok(heads)) = (
            told::<BTreeMap<String, String>>(counts),
            told::<Vec<String>>(heads),
        ) else {
            return Self::default();
        };
        let headed = routes_with_head(&heads);
        let counted = counts.into_iter().filter(|(_, n)| n != "0");
        let all: Vec<String> = counted
            .filter_map(|(field, _)| field.strip_prefix("n:").map(str::to_owned))
            .collect();
        let headless = all.iter().filter(|route| !headed.contains(route.as_str()));
        let headless = headless.cloned().collect();
        Self { all, headless }
    }
}

fn told<T: FromRedisValue>(answer: &Answer) -> Result<T, StoreError> {
    read(answer.clone()?)
}

/// The routes of these heads. No head belongs to growing bundles.
fn routes_with_head(heads: &[String]) -> BTreeSet<&str> {
    let heads = heads.iter().filter(|head| !is_of_growing(head));
    heads.filter_map(|head| head.split('/').next()).collect()
}

/// Reports whether the indexes of a partition cannot be of one moment: `shelves` has an entry for each of `idx` but those
/// of growing bundles, and each route with such an entry has a head.
fn lacks_index(answers: &[Answer], routes: &CountedRoutes) -> Result<bool, StoreError> {
    let [listed, shelved, heads, rest @ ..] = answers else {
        return Ok(false);
    };
    let (listed, shelved): (usize, usize) = (told(listed)?, told(shelved)?);
    let heads: Vec<String> = told(heads)?;
    let (firsts, scores) = rest.split_at(routes.headless.len().min(rest.len()));
    let scores: Vec<Option<f64>> = scores.first().map_or(Ok(Vec::new()), told)?;
    let growing = scores.iter().flatten().count();
    if listed != shelved + growing || heads.is_empty() != (shelved == 0) {
        return Ok(true);
    }
    let headed = routes_with_head(&heads);
    for (route, first) in routes.headless.iter().zip(firsts) {
        let first: Vec<String> = told(first)?;
        if !first.is_empty() && !headed.contains(route.as_str()) {
            return Ok(true);
        }
    }
    Ok(false)
}

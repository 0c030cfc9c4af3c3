//! Where partitions begin that nobody has read ever, by their routes' `start`: what was there when the first replica first
//! read the route is noted in the store, once for all replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::Consumer;

use super::assignment::TopicPartition;
use super::group_state::Unplaced;
use super::log_ends::ask_ends;
use super::rebalance::{ANSWER_TIMEOUT, GroupClient, GroupContext};
use super::start_positions::{NO_LEADER, read_commit};
use crate::broker::kafka;
use crate::domain::{Endpoint, FirstStart, Latest, Route, RouteName, StartRule};
use crate::ingress::Sink;

/// The first start of each route, or why nobody tells it.
pub(super) type FirstStarts = BTreeMap<RouteName, Result<Arc<FirstStart>, String>>;

impl<S: Sink> GroupContext<S> {
    /// Where a partition begins that nobody has read ever, and whose log ends at `end`. `None`: at its oldest record, as
    /// its route says, or because the partition was not there when the route was first read.
    pub(super) fn fresh_start(
        &self,
        first_starts: &FirstStarts,
        (topic, partition): &TopicPartition,
        end: i64,
    ) -> Result<Option<Latest>, String> {
        let Some((route, start)) = self.start_rule(topic) else {
            return Ok(None);
        };
        let since = match start {
            StartRule::Earliest => return Ok(None),
            StartRule::Latest => None,
            StartRule::Since(time) => Some(Latest::Since(time)),
        };
        match first_starts.get(&route.name) {
            Some(Ok(first)) => {
                let latest = first.latest(topic, *partition, end);
                Ok(latest.map(|latest| since.unwrap_or(latest)))
            }
            Some(Err(why)) => Err(why.clone()),
            None => Err(NO_LEADER.to_owned()),
        }
    }

    /// The route that reads a topic, and where it begins in what nobody has read.
    fn start_rule(&self, topic: &str) -> Option<(Arc<Route>, StartRule)> {
        let route = self.setup.route_of(topic)?;
        let Endpoint::Kafka { start, .. } = &route.from else {
            return None;
        };
        let start = *start;
        Some((route, start))
    }

    /// The first starts of the routes that ask for them: those of partitions which nobody is known to have read, and do not
    /// begin with all that is there.
    pub(super) fn first_starts(
        &self,
        consumer: &GroupClient<S>,
        offered: &[Unplaced],
        committed: &TopicPartitionList,
    ) -> FirstStarts {
        let mut first_starts = FirstStarts::new();
        for of in offered {
            let is_committed = !matches!(read_commit(committed, &of.key), Ok(None));
            if of.is_fresh(is_committed)
                && let Some((route, start)) = self.start_rule(&of.key.0)
                && start != StartRule::Earliest
                && !first_starts.contains_key(&route.name)
            {
                let first = self.first_start(consumer, &route);
                first_starts.insert(route.name.clone(), first);
            }
        }
        first_starts
    }

    /// The topics of a route as they were when the first replica first read it. `Err` says who does not tell.
    fn first_start(
        &self,
        consumer: &GroupClient<S>,
        route: &Route,
    ) -> Result<Arc<FirstStart>, String> {
        let setup = &self.setup;
        if let Some(first) = setup.first_starts.lock().get(&route.name) {
            return Ok(first.clone());
        }
        let at_ms = setup.deps.clock.wall().0;
        let listed = kafka::list_topics(consumer.client(), ANSWER_TIMEOUT)?;
        let partitions: BTreeMap<String, i32> = listed
            .into_iter()
            .filter(|(topic, _)| {
                let reader = setup.route_of(topic);
                reader.is_some_and(|reader| reader.name == route.name)
            })
            .collect();
        let keys: Vec<TopicPartition> = partitions
            .iter()
            .flat_map(|(topic, count)| (0..*count).map(|partition| (topic.clone(), partition)))
            .collect();
        let mut ends: BTreeMap<String, BTreeMap<i32, i64>> = BTreeMap::new();
        for ((topic, partition), found) in ask_ends(consumer, keys.iter()) {
            ends.entry(topic).or_default().insert(partition, found.end);
        }
        let seen = FirstStart {
            at_ms,
            partitions,
            ends,
        };
        let source = format!("{}/{}", setup.owner, route.name);
        let first = setup.deps.sink.first_start(&source, seen);
        let first = setup.runtime.block_on(first).map_err(|error| {
            format!("the store does not tell when its route was first read: {error}")
        })?;
        let mut known = setup.first_starts.lock();
        let first = known
            .entry(route.name.clone())
            .or_insert_with(|| first.into());
        Ok(first.clone())
    }
}

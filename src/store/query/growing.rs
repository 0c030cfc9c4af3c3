//! Messages of growing bundles in a list of what waits.

use bytes::Bytes;

use super::browse::{Candidate, TRIP_COMMANDS, belongs};
use super::contents::Listed;
use crate::domain::{Partition, RouteName};
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::model::bundle::growing_due_set;
use crate::store::model::codec::{GrowingElements, read_dues};
use crate::store::{BrowseKey, BrowseQuery, Store, StoreError};

/// Bundles that one trip reads: some 64 KiB each.
const TRIP_BUNDLES: usize = 4;

impl Store {
    /// The due sets of growing bundles in these partitions, of this route or of all.
    pub(super) async fn growing_due_sets(
        &self,
        partitions: &[Partition],
        route: Option<&RouteName>,
    ) -> Result<Vec<(Partition, String)>, StoreError> {
        if let Some(route) = route {
            let name = growing_due_set(route.as_str());
            return Ok(partitions.iter().map(|&p| (p, name.clone())).collect());
        }
        let fields = partitions.iter().map(|&p| {
            let mut fields = redis::cmd("HKEYS");
            fields.arg(self.0.keys.of(p, "counts"));
            (Keys::slot(p), fields)
        });
        let fields: Vec<Vec<String>> = self.trips(fields.collect(), TRIP_COMMANDS).await?;
        let mut due_sets = Vec::new();
        for (&p, fields) in partitions.iter().zip(fields) {
            for field in fields {
                if let Some(route) = field.strip_prefix("n:") {
                    due_sets.push((p, growing_due_set(route)));
                }
            }
        }
        Ok(due_sets)
    }

    /// The messages of these growing bundles that belong to the page, with their contents. `None`: one of them has been spread
    /// since it was listed.
    pub(super) async fn growing(
        &self,
        query: &BrowseQuery,
        from: &BrowseKey,
        horizon: Option<i64>,
        candidates: Vec<Candidate>,
    ) -> Result<Option<Vec<Listed>>, StoreError> {
        let mut listed = Vec::new();
        for some in candidates.chunks(TRIP_BUNDLES) {
            let commands = some.iter().flat_map(|c| {
                let keys = &self.0.keys;
                let mut content = redis::cmd("LRANGE");
                content.arg(keys.blob(c.partition, &c.id)).arg(0).arg(-1);
                let mut place = redis::cmd("ZSCORE");
                place.arg(keys.due(c.partition, c.id.due_set()));
                place.arg(c.id.as_str());
                [content, place].map(|command| (Keys::slot(c.partition), command))
            });
            let answers: Vec<redis::Value> =
                self.trips(commands.collect(), 2 * TRIP_BUNDLES).await?;
            for (c, answer) in some.iter().zip(answers.chunks(2)) {
                let [content, place] = answer else { continue };
                let content: Vec<Vec<u8>> = read(content.clone())?;
                let stands: Option<f64> = read(place.clone())?;
                if content.is_empty() && stands.is_none() {
                    return Ok(None);
                }
                let elements = GrowingElements(content.into_iter().map(Bytes::from).collect());
                // A scrub finds those that cannot be read. What is gone, and an example, have no due time.
                let dues = elements.0.iter().enumerate();
                let dues =
                    dues.filter_map(|(index, one)| Some((index, *read_dues(one).ok()?.first()?)));
                listed.extend(dues.filter_map(|(index, due)| {
                    let key = c.key(index, due);
                    let is_wanted = belongs(&key, query, from, horizon);
                    let content = is_wanted.then(|| elements.alone(index)).flatten();
                    is_wanted.then_some(Listed { key, content })
                }));
            }
        }
        Ok(Some(listed))
    }
}

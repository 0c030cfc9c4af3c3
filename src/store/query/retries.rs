//! Messages whose publish failed and that wait to be tried again, a page at a time. The set of bundles that were put back
//! leads to them, so that no page looks at the messages that wait for the first time.

use std::collections::BTreeMap;

use super::browse::{Candidate, PAGE_BYTES, TRIP_COMMANDS, range};
use super::contents::Listed;
use crate::domain::{Partition, RouteName, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::model::bundle::BundleId;
use crate::store::{
    BrowseKey, BrowseQuery, MessageFilter, RetryMark, RetryPage, Store, StoreError,
};

/// Bundles that one read of the set shows.
const READ_BUNDLES: usize = 128;
/// Bundles that one page looks at. It may be short, even empty, where most of them are other routes', or in flight.
const PAGE_BUNDLES: usize = 2048;

impl Store {
    /// The next messages of a route, or of all, that failed and wait to be tried again: by partition, there by the moment for
    /// which they were asked. Waits while the store is away.
    pub async fn retries(
        &self,
        route: Option<&RouteName>,
        after: Option<&RetryMark>,
        limit: usize,
    ) -> Result<RetryPage, StoreError> {
        let mut page = RetryPage {
            found: Vec::new(),
            next: None,
        };
        let mut looked_at = 0;
        let first = after.map_or(Partition(0), |after| after.partition);
        for p in self.0.partitions.all().filter(|p| *p >= first) {
            let mut mark = after.filter(|after| after.partition == p).cloned();
            loop {
                let some = self.put_back_after(p, mark.as_ref()).await?;
                let Some((last, last_asked)) = some.last().cloned() else {
                    break;
                };
                let is_all = some.len() < READ_BUNDLES;
                looked_at += some.len();
                let of_route = some
                    .into_iter()
                    .filter(|(id, _)| route.is_none_or(|r| id.route() == r.as_str()));
                let wanted = limit - page.found.len();
                let from = mark.as_ref();
                if let Some(cut) = self
                    .open_retries(p, of_route.collect(), from, wanted, &mut page)
                    .await?
                {
                    page.next = Some(cut);
                    return Ok(page);
                }
                let bundle = last.as_str().to_owned();
                mark = Some(RetryMark {
                    partition: p,
                    asked: last_asked,
                    bundle,
                    index: u32::MAX,
                });
                if page.found.len() >= limit || looked_at >= PAGE_BUNDLES {
                    page.next = mark;
                    return Ok(page);
                }
                if is_all {
                    break;
                }
            }
        }
        Ok(page)
    }

    /// The next bundles of a partition that were put back: the mark's own, if it may have more, and those behind it.
    async fn put_back_after(
        &self,
        p: Partition,
        mark: Option<&RetryMark>,
    ) -> Result<Vec<(BundleId, UnixMs)>, StoreError> {
        let min = mark.map_or_else(|| "-inf".to_owned(), |mark| mark.asked.0.to_string());
        let mut bundles = Vec::new();
        let mut at = 0;
        loop {
            let command = (
                Keys::slot(p),
                range(
                    &self.0.keys.put_back(p),
                    min.clone(),
                    i64::MAX,
                    at,
                    READ_BUNDLES,
                ),
            );
            let some: Vec<(String, f64)> = self
                .trips(vec![command], 1)
                .await?
                .pop()
                .unwrap_or_default();
            let is_all = some.len() < READ_BUNDLES;
            at += some.len();
            bundles.extend(some.into_iter().filter_map(|(id, asked)| {
                let asked = UnixMs(asked as i64);
                let is_behind = mark.is_none_or(|mark| {
                    let last = mark.index == u32::MAX;
                    let place = (asked, id.as_str()).cmp(&(mark.asked, mark.bundle.as_str()));
                    if last { place.is_gt() } else { place.is_ge() }
                });
                is_behind
                    .then(|| Some((BundleId::parse(&id)?, asked)))
                    .flatten()
            }));
            if is_all || !bundles.is_empty() {
                bundles.truncate(READ_BUNDLES);
                return Ok(bundles);
            }
        }
    }

    /// Adds to the page what waits in these bundles and has failed. Answers the last message looked at if `wanted` did not do
    /// for all of them.
    async fn open_retries(
        &self,
        p: Partition,
        bundles: Vec<(BundleId, UnixMs)>,
        from: Option<&RetryMark>,
        wanted: usize,
        page: &mut RetryPage,
    ) -> Result<Option<RetryMark>, StoreError> {
        let scores = bundles.iter().map(|(id, _)| {
            let mut score = redis::cmd("ZSCORE");
            score.arg(self.0.keys.due(p, id.due_set())).arg(id.as_str());
            (Keys::slot(p), score)
        });
        let scores: Vec<Option<f64>> = self.trips(scores.collect(), TRIP_COMMANDS).await?;
        let order: BTreeMap<String, (usize, UnixMs)> = bundles
            .iter()
            .enumerate()
            .map(|(place, (id, asked))| (id.as_str().to_owned(), (place, *asked)))
            .collect();
        // A bundle without a place in its due set is claimed, or gone.
        let candidates = bundles.into_iter().zip(scores);
        let candidates = candidates
            .filter_map(|((id, _), score)| {
                Some(Candidate {
                    partition: p,
                    id,
                    first: score? as i64,
                })
            })
            .collect();
        let query = BrowseQuery {
            route: None,
            from: UnixMs(0),
            to: UnixMs(i64::MAX),
            after: None,
            limit: usize::MAX,
            filter: MessageFilter::default(),
        };
        let start = BrowseKey::start_of(UnixMs(0));
        let mut listed = self.messages(&query, &start, None, candidates).await?;
        listed.retain(|Listed { key, .. }| {
            from.is_none_or(|from| key.bundle != from.bundle || key.index > from.index)
        });
        listed.sort_by_key(|Listed { key, .. }| {
            (order.get(&key.bundle).map(|(place, _)| *place), key.index)
        });
        let is_cut = listed.len() > wanted;
        listed.truncate(wanted);
        let mut at = 0;
        while at < listed.len() {
            let mut budget = PAGE_BYTES;
            let mut found = Vec::new();
            at += self
                .contents(&listed[at..], &query, &mut budget, &mut found)
                .await?
                .max(1);
            page.found.extend(
                found
                    .into_iter()
                    .filter(|message| message.entry.failures > 0),
            );
        }
        let last = listed.last().filter(|_| is_cut);
        Ok(last.and_then(|Listed { key, .. }| {
            let (_, asked) = order.get(&key.bundle)?;
            Some(RetryMark {
                partition: p,
                asked: *asked,
                bundle: key.bundle.clone(),
                index: key.index,
            })
        }))
    }
}

//! Ordered routes, whose messages of one key leave in order: their sequence numbers, their owners, and the
//! partitions of their names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::claims::read_rows;
use crate::domain::{Partition, RouteName, StoreClock, UnixMs};
use crate::store::call::ids::Ids;
use crate::store::call::keys::Keys;
use crate::store::call::names::name_key;
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::{integer, shape, text};
use crate::store::call::scripts;
use crate::store::call::scripts::ScriptVariant;
use crate::store::model::bundle::BundleId;
use crate::store::{
    HeldKey, OrderPosition, OrderedAnswer, OrderedClaims, OrderedRequest, Store, StoreError,
    slice_of,
};
use bytes::Bytes;

/// The answer to HSCAN: the next cursor, and the fields with their values.
type ScannedHeldKeys = (u64, Vec<(Vec<u8>, String)>);

/// Sequence numbers are below this: microseconds of some 280 years, and exact in a script. A higher one was not given by
/// Postdate, and nothing is counted on from it.
const SEQUENCE_END: u64 = 1 << 53;

/// Held keys read in one trip.
const HELD_KEYS_PAGE: usize = 1000;

/// The ordered routes, and the sequence numbers that this process gave. Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct KeyOrder(Arc<KeyOrderInner>);

struct KeyOrderInner {
    routes: BTreeSet<RouteName>,
    clock: Arc<StoreClock>,
    /// The highest sequence number that this process gave or saw.
    given: AtomicU64,
}

impl KeyOrder {
    pub(in crate::store) fn new(routes: &BTreeSet<RouteName>, clock: &Arc<StoreClock>) -> Self {
        Self(Arc::new(KeyOrderInner {
            routes: routes.clone(),
            clock: clock.clone(),
            given: AtomicU64::new(0),
        }))
    }

    /// Reports whether a route is an ordered one.
    pub(in crate::store) fn has(&self, route: &str) -> bool {
        // By default there is no ordered route, and nothing is compared.
        self.0.routes.iter().any(|name| name.as_str() == route)
    }

    /// Reserves `count` consecutive sequence numbers, above all that this process gave or saw, and returns the
    /// first. The numbers follow Redis's clock, so processes hardly ever collide.
    fn next_sequence(&self, count: usize) -> u64 {
        let now_us = self.0.clock.now_us().unwrap_or_default().max(0) as u64;
        let next = |given: u64| now_us.max(given + 1) + count as u64 - 1;
        let given = self
            .0
            .given
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |given| {
                Some(next(given))
            });
        next(given.unwrap_or_default()) + 1 - count as u64
    }

    /// Notes that somebody gave all sequence numbers up to this one.
    pub(in crate::store) fn seen(&self, sequence: u64) {
        if sequence < SEQUENCE_END {
            self.0.given.fetch_max(sequence, Ordering::AcqRel);
        }
    }

    /// The id of a new bundle. `sequence` is its sequence number if that is known already.
    pub(in crate::store) fn id(
        &self,
        ids: &Ids,
        route: &RouteName,
        first: UnixMs,
        count: usize,
        sequence: Option<u64>,
    ) -> BundleId {
        if !self.has(route.as_str()) {
            return BundleId::new(route, slice_of(first), &ids.unique(), count);
        }
        BundleId::sequenced(
            route,
            slice_of(first),
            sequence.unwrap_or_else(|| self.next_sequence(count)),
            count,
        )
    }
}

impl Store {
    /// Reserves `count` consecutive sequence numbers and returns the first.
    pub fn next_sequence(&self, count: usize) -> u64 {
        self.0.order.next_sequence(count)
    }

    /// Claims bundles of an ordered route in one partition, as its only owner. After an `Err` there may be
    /// claims that the caller does not know: it must give up its owner name.
    pub async fn claim_in_order(
        &self,
        request: &OrderedRequest,
    ) -> Result<OrderedAnswer, StoreError> {
        let until_us = self.lease_end(&request.claim);
        let p = request.claim.partition;
        let mut answer = self.claim_in_order_unread(request).await?;
        if let OrderedAnswer::Claimed(claims) = &mut answer {
            let measured = self
                .measure_claimed(p, std::mem::take(&mut claims.claimed), &until_us)
                .await?;
            claims.claimed = self.open_claimed(p, &measured, &until_us).await?;
        }
        Ok(answer)
    }

    /// Like `claim_in_order`, but the bundles are not read, see [`Store::claim_unread`].
    pub async fn claim_in_order_unread(
        &self,
        request: &OrderedRequest,
    ) -> Result<OrderedAnswer, StoreError> {
        let p = request.claim.partition;
        let may_take = if request.may_take { "1" } else { "0" };
        let mut head: Vec<ScriptArg> = vec![
            request.route.as_str().into(),
            request.owner.as_str().into(),
            may_take.into(),
            request.until.0.into(),
            request.longest_lease_ms.into(),
            request.freed.len().into(),
        ];
        for (key, hold) in &request.freed {
            head.extend([ScriptArg::Blob(key.clone()), hold.text().into()]);
        }
        let (token, mut values) = self
            .send_claim(
                &request.claim,
                head,
                ScriptVariant {
                    ordered: true,
                    ..ScriptVariant::default()
                },
            )
            .await?;
        let mode = values.first().map(text).transpose()?.unwrap_or_default();
        match (mode.as_str(), values.len()) {
            ("h", 2) => return Ok(OrderedAnswer::Wait(integer(&values[1])?.max(0) as u64)),
            ("l", 2) => return Ok(OrderedAnswer::Lost),
            ("n" | "o", 3..) => {}
            _ => return Err(shape("the answer to an ordered claim")),
        }
        let rows = values.split_off(3);
        let due = text(&values[1])?;
        let id = text(&values[2])?;
        let left = match BundleId::parse(&id) {
            Some(id) => Some(OrderPosition {
                due: UnixMs(integer(&values[1])?),
                sequence: id.sequence(),
            }),
            None if due.is_empty() => None,
            // A scrub will remove this malformed member. What lies behind it is not known.
            None => Some(OrderPosition {
                due: UnixMs(integer(&values[1])?),
                sequence: 0,
            }),
        };
        let claimed = read_rows(p, &token, &rows)?;
        let held_keys = if mode == "n" {
            Some(self.held_keys(p, &request.route).await?)
        } else {
            None
        };
        if let Some(highest) = held_keys.iter().flatten().map(|(_, hold)| hold.to).max() {
            self.0.order.seen(highest);
        }
        Ok(OrderedAnswer::Claimed(OrderedClaims {
            claimed,
            left,
            held_keys,
        }))
    }

    /// Gives up an ordered route of which nothing is claimed any more, so that its next owner need not wait.
    pub async fn release_route(
        &self,
        p: Partition,
        route: &RouteName,
        owner: &str,
    ) -> Result<(), StoreError> {
        let keys = vec![self.0.keys.order(p)];
        let args = vec![route.as_str().into(), owner.into()];
        let call = ScriptCall {
            script: &scripts::RELEASE_ROUTE,
            op: "release",
            keys,
            args,
            blobs: Vec::new(),
        };
        self.0.settles.run_unnumbered(p, &call).await.map(drop)
    }

    /// All held keys of a route in a partition. Only the route's owner changes them.
    async fn held_keys(
        &self,
        p: Partition,
        route: &RouteName,
    ) -> Result<Vec<(Bytes, HeldKey)>, StoreError> {
        let prefix = format!("k:{route}/");
        let mut cursor = 0u64;
        let mut held_keys = Vec::new();
        loop {
            let mut pipe = redis::pipe();
            pipe.cmd("HSCAN").arg(self.0.keys.order(p)).arg(cursor);
            pipe.arg("MATCH")
                .arg(format!("{prefix}*"))
                .arg("COUNT")
                .arg(HELD_KEYS_PAGE);
            let (found,): (ScannedHeldKeys,) = self.ask(p, &pipe).await?;
            cursor = found.0;
            held_keys.extend(found.1.into_iter().filter_map(|(field, value)| {
                Some((
                    Bytes::from(field).slice(prefix.len()..),
                    HeldKey::parse(&value)?,
                ))
            }));
            if cursor == 0 {
                return Ok(held_keys);
            }
        }
    }

    /// The partition in which to look for a message of this name or `~` id. Names of an ordered route live with
    /// their keys, so all partitions are asked in one trip. `home` is preferred, and is the answer if nothing
    /// is found.
    pub async fn locate(
        &self,
        route: &RouteName,
        id: &str,
        home: Partition,
    ) -> Result<Partition, StoreError> {
        if !self.0.order.has(route.as_str()) {
            return Ok(home);
        }
        let all: Vec<Partition> = self.0.partitions.all().collect();
        let mut commands = Vec::with_capacity(all.len());
        for &p in &all {
            let mut entry = redis::cmd("HGET");
            entry
                .arg(self.0.keys.of(p, "names"))
                .arg(name_key(route, &id.into()));
            commands.push((Keys::slot(p), entry));
        }
        let entries: Vec<Option<String>> = self.0.browse.gather_all(commands).await?;
        let known: Vec<Partition> = all
            .into_iter()
            .zip(entries)
            .filter(|(_, entry)| entry.is_some())
            .map(|(p, _)| p)
            .collect();
        Ok(if known.contains(&home) {
            home
        } else {
            known.first().copied().unwrap_or(home)
        })
    }
}

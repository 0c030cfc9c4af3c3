//! Routes whose keys leave in order: their stamps, their holders, and where their names are.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Partition, RouteName, StoreClock, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::reply::{integer, shape, text};
use crate::store::call::scripts;
use crate::store::call::scripts::With;
use crate::store::handle::Ids;
use crate::store::model::bundle::BundleId;
use crate::store::write::name_key;
use crate::store::{Hold, Measured, Ordered, OrderedRequest, Position, Store, StoreError, Taken, slice_of};
use bytes::Bytes;

/// An answer to HSCAN: the next cursor, fields and values.
type Scanned = (u64, Vec<(Vec<u8>, String)>);

/// Held keys read in one trip.
const PAGE: usize = 1000;

/// The routes, and the stamps of this process. Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct Order(Arc<Inner>);

struct Inner {
    routes: BTreeSet<RouteName>,
    clock: Arc<StoreClock>,
    /// The highest stamp given or seen.
    given: AtomicU64,
}

impl Order {
    pub(in crate::store) fn new(routes: &BTreeSet<RouteName>, clock: &Arc<StoreClock>) -> Self {
        Self(Arc::new(Inner { routes: routes.clone(), clock: clock.clone(), given: AtomicU64::new(0) }))
    }

    /// Whether a route's keys leave in order.
    pub(in crate::store) fn has(&self, route: &str) -> bool {
        // Where there is no such route, as by default, nothing is compared.
        self.0.routes.iter().any(|name| name.as_str() == route)
    }

    /// The first of so many stamps in a row, above all given so far. They follow Redis's clock, so that processes
    /// hardly ever get into each other's way.
    fn stamps(&self, count: usize) -> u64 {
        let now_us = self.0.clock.now_us().unwrap_or_default().max(0) as u64;
        let next = |given: u64| now_us.max(given + 1) + count as u64 - 1;
        let given = self.0.given.fetch_update(Ordering::AcqRel, Ordering::Acquire, |given| Some(next(given)));
        next(given.unwrap_or_default()) + 1 - count as u64
    }

    /// Stamps up to this one were given by somebody.
    pub(in crate::store) fn seen(&self, stamp: u64) {
        self.0.given.fetch_max(stamp, Ordering::AcqRel);
    }

    /// The id of a new bundle; `stamp` if it is known already.
    pub(in crate::store) fn id(
        &self,
        ids: &Ids,
        route: &RouteName,
        first: UnixMs,
        count: usize,
        stamp: Option<u64>,
    ) -> BundleId {
        if !self.has(route.as_str()) {
            return BundleId::new(route, slice_of(first), &ids.unique(), count);
        }
        BundleId::stamped(route, slice_of(first), stamp.unwrap_or_else(|| self.stamps(count)), count)
    }
}

impl Store {
    /// The first of so many stamps in a row, above all that this process gave so far.
    pub fn stamps(&self, count: usize) -> u64 {
        self.0.order.stamps(count)
    }

    /// Claims of an ordered route in one partition, as its only holder. `Err` means that there may be claims which
    /// the caller knows nothing of: it must give up its holder's name.
    pub async fn claim_in_order(&self, request: &OrderedRequest) -> Result<Ordered, StoreError> {
        let until_us = self.lease_end(&request.claim);
        Ok(match self.claim_in_order_measured(request).await? {
            Ordered::Taken(Taken { claimed, left, holds }) => {
                let claimed = self.open_claimed(request.claim.partition, &claimed, &until_us).await?;
                Ordered::Taken(Taken { claimed, left, holds })
            }
            Ordered::Wait(ms) => Ordered::Wait(ms),
            Ordered::Lost => Ordered::Lost,
        })
    }

    /// The same without the contents, see [`Store::claim_measured`].
    pub async fn claim_in_order_measured(
        &self,
        request: &OrderedRequest,
    ) -> Result<Ordered<Measured>, StoreError> {
        let p = request.claim.partition;
        let may_take = if request.may_take { "1" } else { "0" };
        let mut head: Vec<Arg> = vec![
            request.route.as_str().into(),
            request.holder.as_str().into(),
            may_take.into(),
            request.until.0.into(),
            request.freed.len().into(),
        ];
        head.extend(request.freed.iter().cloned().map(Arg::Blob));
        let (token, mut values) =
            self.send_claim(&request.claim, head, With { ordered: true, ..With::default() }).await?;
        let mode = values.first().map(text).transpose()?.unwrap_or_default();
        match (mode.as_str(), values.len()) {
            ("h", 2) => return Ok(Ordered::Wait(integer(&values[1])?.max(0) as u64)),
            ("l", 2) => return Ok(Ordered::Lost),
            ("n" | "o", 3..) => {}
            _ => return Err(shape("the answer to an ordered claim")),
        }
        let rows = values.split_off(3);
        let (due, id) = (text(&values[1])?, text(&values[2])?);
        let left = match BundleId::parse(&id) {
            Some(id) => Some(Position { due: UnixMs(integer(&values[1])?), stamp: id.stamp() }),
            None if due.is_empty() => None,
            // Junk that the audit will remove; what lies behind it is not known.
            None => Some(Position { due: UnixMs(integer(&values[1])?), stamp: 0 }),
        };
        let claimed = self.measure(&request.claim, &token, &rows).await?;
        let holds = if mode == "n" { Some(self.holds(p, &request.route).await?) } else { None };
        if let Some(highest) = holds.iter().flatten().map(|(_, hold)| hold.to).max() {
            self.0.order.seen(highest);
        }
        Ok(Ordered::Taken(Taken { claimed, left, holds }))
    }

    /// Gives an ordered route up, which nothing is claimed of any more, so that its next holder need not wait.
    pub async fn release(&self, p: Partition, route: &RouteName, holder: &str) -> Result<(), StoreError> {
        let (keys, args) = (vec![self.0.keys.order(p)], vec![route.as_str().into(), holder.into()]);
        let call = Call { script: &scripts::RELEASE, op: "release", keys, args, blobs: Vec::new() };
        self.0.settles.run_unnumbered(p, &call).await.map(drop)
    }

    /// All keys of a route that are held back in a partition. Only its holder changes them.
    async fn holds(&self, p: Partition, route: &RouteName) -> Result<Vec<(Bytes, Hold)>, StoreError> {
        let prefix = format!("k:{route}/");
        let (mut cursor, mut holds) = (0u64, Vec::new());
        loop {
            let mut pipe = redis::pipe();
            pipe.cmd("HSCAN").arg(self.0.keys.order(p)).arg(cursor);
            pipe.arg("MATCH").arg(format!("{prefix}*")).arg("COUNT").arg(PAGE);
            let (found,): (Scanned,) = self.ask(p, &pipe).await?;
            cursor = found.0;
            holds.extend(found.1.into_iter().filter_map(|(field, value)| {
                Some((Bytes::from(field).slice(prefix.len()..), Hold::parse(&value)?))
            }));
            if cursor == 0 {
                return Ok(holds);
            }
        }
    }

    /// The partition in which a message of this name or `~` id is to be looked for. Names of an ordered route live
    /// with their keys: all partitions are asked, in one trip; `home` comes first, and is the answer where nothing is
    /// found.
    pub async fn whereabouts(
        &self,
        route: &RouteName,
        id: &str,
        home: Partition,
    ) -> Result<Partition, StoreError> {
        if !self.0.order.has(route.as_str()) {
            return Ok(home);
        }
        let all: Vec<Partition> = self.0.partitions.all().collect();
        let ask = |&p: &Partition| {
            let mut entry = redis::cmd("HGET");
            entry.arg(self.0.keys.of(p, "names")).arg(name_key(route, &id.into()));
            (Keys::slot(p), entry)
        };
        let entries: Vec<Option<String>> = self.0.browse.gather_all(all.iter().map(ask).collect()).await?;
        let known: Vec<Partition> =
            all.into_iter().zip(entries).filter(|(_, entry)| entry.is_some()).map(|(p, _)| p).collect();
        Ok(if known.contains(&home) { home } else { known.first().copied().unwrap_or(home) })
    }
}

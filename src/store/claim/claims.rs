//! Calls of the timer on the way out: claiming due bundles, and sweeping claims whose owners died.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use redis::Value;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::blobs::BlobHead;
use crate::backoff::Backoff;
use crate::domain::limits::MAX_EXPIRIES;
use crate::domain::{Partition, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::{shape, text};
use crate::store::call::scripts;
use crate::store::call::scripts::ScriptVariant;
use crate::store::connection::link::{StoreLink, read};
use crate::store::model::bundle::BundleId;
use crate::store::model::codec::later_version;
use crate::store::{
    Bundle, Claim, ClaimAnswer, ClaimRequest, CodecError, Store, StoreError, SweepOutcome, decode,
};

/// Most expired claims of one partition that one call takes.
const SWEEP_CLAIMS: usize = 500;
/// Time after which a sweep calls no partition again, however many expired claims are left: the next sweep goes on.
const SWEEP_AGAIN: Duration = Duration::from_secs(3);
/// Longest time for the sweeps of all partitions, then the least and the longest time for the reads before
/// them.
const SWEEP_DEADLINE: Duration = Duration::from_secs(10);
const SWEEP_READ_MIN: Duration = Duration::from_secs(2);
const SWEEP_READ_MAX: Duration = Duration::from_secs(5);
/// Sweeps in flight at once.
const SWEEPS_AT_ONCE: usize = 16;

/// A claimed bundle whose content was not read yet.
#[derive(Debug)]
pub struct MeasuredClaim {
    /// The bundle, without its content.
    pub claimed: ClaimAnswer,
    /// Bytes of the bundle when opened. 0 if its blob is missing.
    pub bytes: usize,
    head: Option<BlobHead>,
}

impl Store {
    /// Claims bundles that are due within the lookahead, with their contents. Bundles that are gone or claimed
    /// by somebody else are left out. A call whose answer was lost answers the same bundles again, however long
    /// that took. The caller's own deadline counts from before this call.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimAnswer>, StoreError> {
        let until_us = self.lease_end(request);
        let claimed = self.claim_unread(request).await?;
        let measured = self
            .measure_claimed(request.partition, claimed, &until_us)
            .await?;
        self.open_claimed(request.partition, &measured, &until_us)
            .await
    }

    /// Claims bundles without reading their contents, which may exceed the caller's free memory. The caller measures
    /// them, opens the bundles that it wants and gives the others back.
    pub async fn claim_unread(
        &self,
        request: &ClaimRequest,
    ) -> Result<Vec<ClaimAnswer>, StoreError> {
        let (token, values) = self
            .send_claim(request, Vec::new(), ScriptVariant::default())
            .await?;
        read_rows(request.partition, &token, &values)
    }

    pub(in crate::store) fn lease_end(&self, request: &ClaimRequest) -> AtomicI64 {
        let now_us = self.0.clock.local().mono_us();
        now_us.saturating_add(request.lease_ms as i64 * 1000).into()
    }

    /// Makes the call. `head` holds the arguments that stand before those of every claim.
    pub(in crate::store) async fn send_claim(
        &self,
        request: &ClaimRequest,
        head: Vec<ScriptArg>,
        with: ScriptVariant,
    ) -> Result<(Arc<str>, Vec<Value>), StoreError> {
        let p = request.partition;
        let token: Arc<str> = self.0.ids.unique().into();
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.extend(
            request
                .due_sets
                .iter()
                .map(|(due_set, _)| self.0.keys.due(p, due_set)),
        );
        let mut args = head;
        args.extend::<[ScriptArg; 5]>([
            token.as_ref().into(),
            request.lookahead_ms.into(),
            request.lease_ms.into(),
            request.max_bundles.into(),
            request.due_sets.len().into(),
        ]);
        for (due_set, messages) in &request.due_sets {
            args.extend::<[ScriptArg; 2]>([due_set.as_str().into(), (*messages).into()]);
        }
        let call = ScriptCall {
            script: scripts::CLAIM.of(with),
            op: "claim",
            keys,
            args,
            blobs: Vec::new(),
        };
        let answer = self.0.claims.run(p, call).await?;
        let Value::Array(values) = answer else {
            return Err(shape("the answer to a claim"));
        };
        Ok((token, values))
    }

    /// Measures claimed bundles of one partition: how many bytes each takes when opened. Retries until `until_us`
    /// (monotonic microseconds), which moves when somebody extends the claims meanwhile.
    pub async fn measure_claimed(
        &self,
        p: Partition,
        claimed: Vec<ClaimAnswer>,
        until_us: &AtomicI64,
    ) -> Result<Vec<MeasuredClaim>, StoreError> {
        let keys: Vec<String> = claimed
            .iter()
            .map(|c| self.0.keys.blob(p, &c.claim.id))
            .collect();
        let mut failures = 0;
        let mut asked_again = false;
        let heads = loop {
            let link = self.contents_link(asked_again);
            let answer = link.measure_blobs(Keys::slot(p), &keys).await;
            if self
                .is_worth_another(answer.as_ref().err(), until_us, &mut failures)
                .await
            {
                continue;
            }
            let heads = answer?;
            if asked_again || heads.iter().all(Option::is_some) {
                break heads;
            }
            asked_again = true;
            tokio::time::sleep(Backoff::CLIENT.wait(1)).await;
        };
        let mut measured = Vec::with_capacity(claimed.len());
        for (claimed, head) in claimed.into_iter().zip(heads) {
            let bytes = head.as_ref().map_or(0, |blob| blob.opened_len(true));
            measured.push(MeasuredClaim {
                claimed,
                bytes,
                head,
            });
        }
        Ok(measured)
    }

    /// Reads and opens claimed bundles of one partition. Retries until `until_us` (monotonic microseconds),
    /// which moves when somebody extends the claims meanwhile.
    pub async fn open_claimed(
        &self,
        p: Partition,
        measured: &[MeasuredClaim],
        until_us: &AtomicI64,
    ) -> Result<Vec<ClaimAnswer>, StoreError> {
        let wanted = |one: &MeasuredClaim| {
            Some((
                self.0.keys.blob(p, &one.claimed.claim.id),
                one.head.clone()?,
            ))
        };
        let wanted: Vec<(String, BlobHead)> = measured.iter().filter_map(wanted).collect();
        let mut failures = 0;
        let mut asked_again = false;
        let mut blobs = loop {
            let link = self.contents_link(asked_again);
            let answer = link.read_blobs(Keys::slot(p), &wanted).await;
            if self
                .is_worth_another(answer.as_ref().err(), until_us, &mut failures)
                .await
            {
                continue;
            }
            let blobs = answer?;
            if asked_again || blobs.iter().all(Option::is_some) {
                break blobs.into_iter();
            }
            asked_again = true;
        };
        let mut opened = Vec::with_capacity(measured.len());
        for one in measured {
            let mut claimed = one.claimed.clone();
            if one.head.is_some()
                && let Some(Some(blob)) = blobs.next()
            {
                claimed.blob = blob;
                claimed.bundle = open(&claimed);
            }
            opened.push(claimed);
        }
        Ok(opened)
    }

    /// The connection that reads contents. The node that it leads to may have answered for this partition only for a
    /// moment, or be a former master that lacks blobs: what it misses is asked for again where the claim was made.
    fn contents_link(&self, again: bool) -> &StoreLink {
        if again {
            self.0.claims.link()
        } else {
            &self.0.contents
        }
    }

    /// Waits before the next attempt while the claims are valid. Bundles given up here would wait for their
    /// claims' deadline.
    async fn is_worth_another(
        &self,
        error: Option<&StoreError>,
        until_us: &AtomicI64,
        failures: &mut u32,
    ) -> bool {
        let is_claimed = self.0.clock.local().mono_us() < until_us.load(Ordering::Relaxed);
        let again = is_claimed && matches!(error, Some(StoreError::Unavailable(_)));
        if again {
            *failures += 1;
            tokio::time::sleep(Backoff::CLIENT.wait(*failures)).await;
        }
        again
    }

    /// Returns expired claims to their due sets and shortens deadlines that lie more than a lease ahead. Calls a
    /// partition again, for three seconds, while it has more expired claims than one call takes. Nothing expires in the
    /// partitions in `paused`. With `thorough` the sweep also shortens deadlines and forgets delivered names whose
    /// time is over: these two are not urgent. Reads in one trip a node. Answers each partition on its own, with an
    /// error for those that cannot be swept in time.
    pub async fn sweep(
        &self,
        partitions: &[Partition],
        lease_ms: u64,
        paused: &BTreeSet<Partition>,
        thorough: bool,
    ) -> Vec<(Partition, Result<SweepOutcome, StoreError>)> {
        let began = Instant::now();
        let ends = began + SWEEP_DEADLINE;
        let mut answers: BTreeMap<Partition, Result<SweepOutcome, StoreError>> = BTreeMap::new();
        let mut crowded = partitions.to_vec();
        while !crowded.is_empty() && (answers.is_empty() || began.elapsed() < SWEEP_AGAIN) {
            let thorough = thorough && answers.is_empty();
            let swept = self
                .sweep_once(&crowded, lease_ms, paused, thorough, ends)
                .await;
            crowded.clear();
            for (p, swept) in swept {
                if matches!(&swept, Ok(swept) if swept.expired as usize >= SWEEP_CLAIMS) {
                    crowded.push(p);
                }
                let so_far = match answers.remove(&p) {
                    Some(Ok(so_far)) => so_far,
                    _ => SweepOutcome::default(),
                };
                let swept = swept.map(|swept| SweepOutcome {
                    expired: so_far.expired + swept.expired,
                    clamped: so_far.clamped + swept.clamped,
                });
                answers.insert(p, swept);
            }
        }
        answers.into_iter().collect()
    }

    /// Sweeps each of these partitions by one call.
    async fn sweep_once(
        &self,
        partitions: &[Partition],
        lease_ms: u64,
        paused: &BTreeSet<Partition>,
        thorough: bool,
        ends: Instant,
    ) -> Vec<(Partition, Result<SweepOutcome, StoreError>)> {
        let late = |what| StoreError::Unavailable(format!("no answer to a {what} in time"));
        // A read that took longer says nothing about who could extend claims meanwhile.
        let read_time = Duration::from_millis(lease_ms / 2).clamp(SWEEP_READ_MIN, SWEEP_READ_MAX);
        let Ok(found) = timeout(
            read_time,
            self.read_sweep_work(partitions, lease_ms, thorough),
        )
        .await
        else {
            return partitions
                .iter()
                .map(|&p| (p, Err(late("search for expired claims"))))
                .collect();
        };
        let found: Vec<(Partition, Result<SweepWork, StoreError>)> =
            partitions.iter().copied().zip(found).collect();
        let sweeps = stream::iter(found).map(|(p, work)| async move {
            match work {
                Ok(work) => (
                    p,
                    self.sweep_found(p, work, lease_ms, paused.contains(&p))
                        .await,
                ),
                Err(why) => (p, Err(why)),
            }
        });
        let mut sweeps = std::pin::pin!(sweeps.buffered(SWEEPS_AT_ONCE));
        let mut swept = Vec::with_capacity(partitions.len());
        while let Ok(Some(one)) = timeout_at(ends, sweeps.next()).await {
            swept.push(one);
        }
        swept.extend(
            partitions[swept.len()..]
                .iter()
                .map(|&p| (p, Err(late("sweep")))),
        );
        swept
    }

    /// Reads what there is to sweep, by partition. Deadlines are judged by the clock of the master that wrote
    /// them.
    async fn read_sweep_work(
        &self,
        partitions: &[Partition],
        lease_ms: u64,
        thorough: bool,
    ) -> Vec<Result<SweepWork, StoreError>> {
        let claimed = |p, from: String, to: String| {
            let mut claimed = redis::cmd("ZRANGEBYSCORE");
            claimed
                .arg(self.0.keys.of(p, "claims"))
                .arg(from)
                .arg(to)
                .arg("LIMIT")
                .arg(0)
                .arg(SWEEP_CLAIMS);
            claimed
        };
        let mut commands = Vec::with_capacity(partitions.len() * 3);
        for &p in partitions {
            let slot = Keys::slot(p);
            let now = match self.0.side.reach(slot).await {
                Ok(connected) => self.0.clock.now_of(connected.clock),
                Err(_) => self.0.clock.now(),
            };
            commands.push((slot, claimed(p, "-inf".to_owned(), now.to_string())));
            if thorough {
                let far = now.plus(lease_ms as i64 + 1000);
                commands.push((slot, claimed(p, far.to_string(), "+inf".to_owned())));
                let mut over = redis::cmd("ZCOUNT");
                over.arg(self.0.keys.delivered(p)).arg("-inf").arg(now.0);
                commands.push((slot, over));
            }
        }
        let mut seen = self.0.side.gather(commands).await.into_iter();
        let mut all_work = Vec::with_capacity(partitions.len());
        for _ in partitions {
            let found: Result<Vec<Value>, StoreError> =
                seen.by_ref().take(if thorough { 3 } else { 1 }).collect();
            all_work.push(found.and_then(SweepWork::read));
        }
        all_work
    }

    /// Sweeps one partition by what the read has found.
    async fn sweep_found(
        &self,
        p: Partition,
        work: SweepWork,
        lease_ms: u64,
        paused: bool,
    ) -> Result<SweepOutcome, StoreError> {
        if work.over > 0 {
            self.forget_names(p).await?;
        }
        let ids: Vec<BundleId> = work
            .claims
            .iter()
            .filter_map(|id| BundleId::parse(id))
            .collect();
        if ids.is_empty() {
            return Ok(SweepOutcome::default());
        }
        let mut due_sets: Vec<&str> = ids.iter().map(BundleId::due_set).collect();
        due_sets.sort_unstable();
        due_sets.dedup();
        let mut keys = self.0.keys.fixed(p);
        keys.extend(due_sets.iter().map(|due_set| self.0.keys.due(p, due_set)));
        let mut args: Vec<ScriptArg> = vec![
            lease_ms.into(),
            (if paused { "1" } else { "0" }).into(),
            due_sets.len().into(),
            ids.len().into(),
        ];
        args.extend(due_sets.iter().map(|&due_set| ScriptArg::from(due_set)));
        for id in &ids {
            let place = due_sets.partition_point(|due_set| *due_set < id.due_set()) + 1;
            args.extend::<[ScriptArg; 2]>([id.as_str().into(), place.into()]);
        }
        let call = ScriptCall {
            script: &scripts::SWEEP,
            op: "sweep",
            keys,
            args,
            blobs: Vec::new(),
        };
        let letters = text(&self.0.settles.run_unnumbered(p, &call).await?)?;
        let count = |letter| letters.chars().filter(|&l| l == letter).count() as u32;
        Ok(SweepOutcome {
            expired: count('e'),
            clamped: count('c'),
        })
    }
}

/// The work that a sweep has found in one partition: claims whose deadline has passed or lies too far ahead,
/// and the number of delivered names whose time is over.
struct SweepWork {
    claims: Vec<String>,
    over: u64,
}

impl SweepWork {
    fn read(found: Vec<Value>) -> Result<Self, StoreError> {
        let mut found = found.into_iter();
        let mut claims: Vec<String> = found.next().map_or(Ok(Vec::new()), read)?;
        claims.extend(found.next().map_or(Ok(Vec::new()), read::<Vec<String>>)?);
        Ok(Self {
            claims,
            over: found.next().map_or(Ok(0), read)?,
        })
    }
}

/// Decodes a claimed bundle. One whose claims expired more often than [`MAX_EXPIRIES`] is not decoded any more: at
/// that number a claim has it decoded for the last time and ends it, unless decoding it kills its reader. A bundle of
/// a later version is not decoded, and never judged by that.
fn open(claimed: &ClaimAnswer) -> Result<Bundle, CodecError> {
    if let Some(version) = later_version(&claimed.blob) {
        return Err(CodecError::UnknownVersion(version));
    }
    if claimed.expiries > MAX_EXPIRIES {
        Err(CodecError::Poison)
    } else {
        decode(&claimed.blob)
    }
}

/// Reads the claimed bundles of an answer.
pub(in crate::store) fn read_rows(
    p: Partition,
    token: &Arc<str>,
    rows: &[Value],
) -> Result<Vec<ClaimAnswer>, StoreError> {
    let mut claimed = Vec::with_capacity(rows.len());
    for row in rows {
        claimed.extend(read_claimed(p, token, row)?);
    }
    Ok(claimed)
}

/// Reads one claimed bundle. `None`: the member of the due set is not a bundle id, or what stands beside it is not
/// ours. That must not cost the other bundles: its claim expires, and a scrub mends it.
fn read_claimed(
    p: Partition,
    token: &Arc<str>,
    row: &Value,
) -> Result<Option<ClaimAnswer>, StoreError> {
    let Value::BulkString(row) = row else {
        return Err(shape("a claimed bundle"));
    };
    let row = String::from_utf8_lossy(row);
    let row = &*row;
    let (due, said, id) = match row.strip_prefix("* ") {
        None => row.split_once(' ').map(|(due, id)| (due, None, id)),
        Some(row) => match row.splitn(5, ' ').collect::<Vec<_>>()[..] {
            [due, expiries, gone, done, id] => Some((due, Some((expiries, gone, done)), id)),
            _ => None,
        },
    }
    .ok_or_else(|| shape("a claimed bundle"))?;
    let Some(id) = BundleId::parse(id) else {
        warn!(
            partition = p.0,
            id, "member of a due set is not a bundle; a scrub removes it"
        );
        return Ok(None);
    };
    let (expiries, gone, done) = said.unwrap_or(("0", "", ""));
    // A score may be any number that Redis knows, infinite ones included.
    let number = |text: &str| text.parse::<f64>().map_or(0, |number| number as i64);
    let bit = |map: &str, index: usize| map.as_bytes().get(index) == Some(&b'1');
    let skip = (0..id.count())
        .map(|index| bit(gone, index) || bit(done, index))
        .collect();
    Ok(Some(ClaimAnswer {
        claim: Claim {
            partition: p,
            id,
            token: token.clone(),
        },
        due: UnixMs(number(due)),
        expiries: number(expiries) as u32,
        skip,
        bundle: Err(CodecError::Missing),
        blob: Bytes::new(),
    }))
}

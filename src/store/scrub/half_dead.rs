//! Bundles of which most is gone give their bytes back. A cancelled message leaves its bundle by a bit alone, so a
//! route whose messages are mostly cancelled would come to `max_pending_bytes` with hardly anything left to deliver.

use bytes::Bytes;
use redis::Pipeline;
use tracing::debug;

use super::PAGE_ENTRIES;
use crate::domain::limits::BUNDLE_BYTES;
use crate::domain::{Entry, Message, Partition};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::text;
use crate::store::call::scripts;
use crate::store::connection::link::read;
use crate::store::model::bundle::BundleId;
use crate::store::model::codec::plain_bytes;
use crate::store::{Bundle, Store, StoreError, decode, encode};

/// Bytes that the beginning of a blob has at most, with its index.
const HEAD_BYTES: usize = 16 << 10;
/// Bytes that an emptied message takes at most when opened.
const EMPTIED_BYTES: usize = 64;
/// Bundles that one scrub shrinks.
const MAX_SHRUNK: usize = 200;

/// A bundle with messages that are gone: one `1` for each of them.
pub(super) type GoneMessages = (BundleId, String);

impl Store {
    /// Empties the messages that are gone of those of these bundles of which they take three quarters or more. A bundle
    /// of which a claim expired is left alone: whoever opens it may die.
    pub(super) async fn shrink_half_dead(
        &self,
        p: Partition,
        bundles: &[GoneMessages],
    ) -> Result<(), StoreError> {
        let mut shrunk = 0;
        for page in bundles.chunks(PAGE_ENTRIES) {
            let mut pipe = Pipeline::with_capacity(2 * page.len());
            for (id, _) in page {
                pipe.cmd("GETRANGE")
                    .arg(self.0.keys.blob(p, id))
                    .arg(0)
                    .arg(HEAD_BYTES - 1);
                pipe.cmd("HGET")
                    .arg(self.0.keys.of(p, "expiries"))
                    .arg(id.as_str());
            }
            let found: Vec<redis::Value> = self.ask(p, &pipe).await?;
            for ((id, gone), answers) in page.iter().zip(found.chunks_exact(2)) {
                let (Ok(head), Ok(expiries)) = (
                    read::<Vec<u8>>(answers[0].clone()),
                    read::<Option<String>>(answers[1].clone()),
                ) else {
                    continue;
                };
                if expiries.is_some() || !is_worth_it(&Bytes::from(head), gone) {
                    continue;
                }
                self.shrink_one(p, id, gone).await?;
                shrunk += 1;
                if shrunk == MAX_SHRUNK {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn shrink_one(&self, p: Partition, id: &BundleId, gone: &str) -> Result<(), StoreError> {
        let mut pipe = Pipeline::new();
        pipe.cmd("GET").arg(self.0.keys.blob(p, id));
        let (blob,): (Option<Vec<u8>>,) = self.ask(p, &pipe).await?;
        let Some(blob) = blob.map(Bytes::from) else {
            return Ok(());
        };
        let Ok(bundle) = decode(&blob) else {
            // Whoever claims it tells what is wrong with it.
            return Ok(());
        };
        let smaller = encode(&emptied(bundle, gone));
        if smaller.len() >= blob.len() {
            return Ok(());
        }
        let mut keys = self.0.keys.fixed(p);
        keys.push(self.0.keys.blob(p, id));
        let call = ScriptCall {
            script: &scripts::SHRINK,
            op: "shrink",
            keys,
            args: vec![
                id.as_str().into(),
                blob.len().into(),
                ScriptArg::Blob(smaller.clone()),
            ],
            blobs: Vec::new(),
        };
        let done = text(&self.0.settles.run_unnumbered(p, &call).await?)?;
        debug!(bundle = %id, from = blob.len(), to = smaller.len(), done, "shrank a bundle");
        Ok(())
    }
}

/// Reports whether a part is so large that the rest is worth another blob.
fn is_most(part: usize, whole: usize) -> bool {
    4 * part >= 3 * whole
}

/// Reports whether so many messages are gone that the bundle is worth a look.
pub(super) fn is_mostly_gone(gone: &str) -> bool {
    is_most(gone.matches('1').count(), gone.len())
}

/// Reports whether the messages that are gone take most of a bundle, by the beginning of its blob.
fn is_worth_it(head: &Bytes, gone: &str) -> bool {
    let Some(bytes) = plain_bytes(head) else {
        return false;
    };
    let all: usize = bytes.iter().sum();
    let mut dead: usize = 0;
    for (bytes, gone) in bytes.iter().zip(gone.bytes()) {
        if gone == b'1' {
            dead += bytes;
        }
    }
    let count = gone.matches('1').count();
    // A larger one has a single large message, and the blob of that goes with it.
    all <= 2 * BUNDLE_BYTES && is_most(dead, all) && dead > count * EMPTIED_BYTES
}

/// The bundle with nothing but the due times of the messages that are gone.
fn emptied(bundle: Bundle, gone: &str) -> Bundle {
    let mut entries = bundle.entries.to_vec();
    for (entry, bit) in entries.iter_mut().zip(gone.bytes()) {
        if bit == b'1' {
            let message = Message {
                origin: entry.message.origin,
                key: None,
                body: None,
                headers: Vec::new(),
                properties: None,
            };
            *entry = Entry::new(entry.due, message);
        }
    }
    Bundle {
        target: bundle.target,
        entries: entries.into(),
    }
}

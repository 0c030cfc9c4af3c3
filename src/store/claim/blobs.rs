//! Reads blobs by size. One trip asks for the sizes and the first bytes. The contents follow in steps, each
//! with its own deadline and within the bytes that one role may ask for at once.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use redis::Value;
use redis::cluster_routing::Slot;

use crate::domain::{Header, Partition};
use crate::mutants::{self, Mutant};
use crate::store::StoreError;
use crate::store::call::keys::{Keys, is_of_growing_bundle};
use crate::store::call::reply::shape;
use crate::store::connection::link::{Connected, StoreLink, read};
use crate::store::model::codec::{join_elements, plain_lengths};

/// First bytes of a blob that come with its size. A blob up to this size needs no second trip. The first bytes
/// of a larger blob say how large it is when opened.
const HEAD_BYTES: usize = 4096;
/// Bytes of a message's head that hold too few headers to matter.
const USUAL_HEAD_BYTES: usize = 256;
/// Bytes in memory for each byte of a head: a header of two letters takes six bytes there.
const OPENED_PER_BYTE: usize = Header::OVERHEAD / 6;
/// Most bytes that one step asks for. A larger blob is read in parts of this size.
const STEP_BYTES: usize = 4 << 20;
/// Bytes that the reads of one role may ask for at once: they lie in Redis's output buffers.
pub(in crate::store) const ASKED_BYTES: usize = 16 << 20;
/// Bytes that one permit stands for.
const PERMIT_BYTES: usize = 1024;

/// Bytes that a growing bundle has, and hardly more: it takes in nothing from then on.
pub(in crate::store) const GROWING_BYTES: usize = 64 << 10;

/// The size and the beginning of a blob.
#[derive(Clone, Debug)]
pub(in crate::store) struct BlobHead {
    /// Length of the blob, bytes.
    pub(in crate::store) len: usize,
    /// The whole blob if it is short or a growing bundle's, otherwise its first bytes.
    pub(in crate::store) head: Bytes,
}

impl BlobHead {
    /// That of a blob that was read already.
    pub(in crate::store) fn whole(head: Bytes) -> Self {
        let len = head.len();
        Self { len, head }
    }

    /// Bytes in memory once the blob is read and opened, with its bodies or without. Nobody knows yet how many headers a
    /// head holds: what is longer than most may be many that are as short as can be.
    pub(in crate::store) fn opened_len(&self, with_bodies: bool) -> usize {
        let opened = plain_lengths(&self.head).map_or(0, |plain| {
            let long = plain.heads.saturating_sub(plain.count * USUAL_HEAD_BYTES);
            plain.heads + long * OPENED_PER_BYTE + if with_bodies { plain.bodies } else { 0 }
        });
        if mutants::is(Mutant::CompressedBudget) {
            self.len
        } else {
            self.len.max(opened)
        }
    }
}

/// One trip: it asks for whole blobs, or for a part of one.
#[derive(Debug, PartialEq)]
enum ReadStep {
    /// The places of the blobs, and their bytes together.
    Whole(Vec<usize>, usize),
    /// The place of the blob, the offset of the part, and its length.
    Part(usize, usize, usize),
}

impl StoreLink {
    /// The number of permits of [`ASKED_BYTES`].
    pub(in crate::store) fn asked_permits() -> usize {
        ASKED_BYTES / PERMIT_BYTES
    }

    /// Measures blobs of one slot. `None`: the blob is missing, or the key holds another type.
    pub(in crate::store) async fn measure_blobs(
        &self,
        slot: Slot,
        keys: &[String],
    ) -> Result<Vec<Option<BlobHead>>, StoreError> {
        let mut measured = Vec::with_capacity(keys.len());
        for keys in keys.chunks(STEP_BYTES / HEAD_BYTES) {
            let mut pipe = redis::Pipeline::with_capacity(2 * keys.len());
            let mut bytes = 0;
            for key in keys {
                if is_of_growing_bundle(key) {
                    pipe.cmd("LLEN")
                        .arg(key)
                        .cmd("LRANGE")
                        .arg(key)
                        .arg(0)
                        .arg(-1);
                    bytes += GROWING_BYTES;
                    continue;
                }
                pipe.cmd("STRLEN")
                    .arg(key)
                    .cmd("GETRANGE")
                    .arg(key)
                    .arg(0)
                    .arg(HEAD_BYTES - 1);
                bytes += HEAD_BYTES;
            }
            let answers = self.ask_for(slot, pipe, bytes).await?;
            for pair in answers.chunks(2) {
                measured.push(match pair {
                    [Value::Int(1..), Value::Array(elements)] => {
                        let elements: Vec<_> = elements
                            .iter()
                            .map(|value| read::<Vec<u8>>(value.clone()))
                            .collect::<Result<_, _>>()?;
                        Some(BlobHead::whole(join_elements(
                            elements.iter().map(Vec::as_slice),
                        )))
                    }
                    [Value::Int(len @ 1..), Value::BulkString(head)] => Some(BlobHead {
                        len: *len as usize,
                        head: Bytes::copy_from_slice(head),
                    }),
                    [Value::Int(_) | Value::Nil, _] => None,
                    _ => return Err(shape("the size of a blob")),
                });
            }
        }
        Ok(measured)
    }

    /// Reads the contents of measured blobs. `None`: the blob is gone meanwhile.
    pub(in crate::store) async fn read_blobs(
        &self,
        slot: Slot,
        blobs: &[(String, BlobHead)],
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let mut contents: Vec<Option<Bytes>> = blobs
            .iter()
            .map(|(_, blob)| (blob.head.len() == blob.len).then(|| blob.head.clone()))
            .collect();
        let long = blobs.iter().map(|(_, blob)| {
            if blob.len > blob.head.len() {
                blob.len
            } else {
                0
            }
        });
        let mut parts = BytesMut::new();
        for step in steps(long) {
            let mut pipe = redis::Pipeline::new();
            match step {
                ReadStep::Whole(places, bytes) => {
                    for &at in &places {
                        pipe.cmd("GET").arg(&blobs[at].0);
                    }
                    let answers = self.ask_for(slot, pipe, bytes).await?;
                    for (at, answer) in places.into_iter().zip(answers) {
                        contents[at] = bulk(answer);
                    }
                }
                ReadStep::Part(at, from, bytes) => {
                    let (key, blob) = &blobs[at];
                    pipe.cmd("GETRANGE")
                        .arg(key)
                        .arg(from)
                        .arg(from + bytes - 1);
                    let part = self.ask_for(slot, pipe, bytes).await?.pop().and_then(bulk);
                    if from == 0 {
                        parts = BytesMut::with_capacity(blob.len);
                    }
                    parts.extend_from_slice(&part.unwrap_or_default());
                    if from + bytes == blob.len {
                        let whole = std::mem::take(&mut parts).freeze();
                        contents[at] = Some(whole).filter(|whole| whole.len() == blob.len);
                    }
                }
            }
        }
        Ok(contents)
    }

    /// Measures and reads blobs whose total size is not bounded in another way.
    pub(in crate::store) async fn get_blobs(
        &self,
        slot: Slot,
        keys: Vec<String>,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let measured = self.measure_blobs(slot, &keys).await?;
        let (places, there): (Vec<usize>, Vec<(String, BlobHead)>) = keys
            .iter()
            .zip(measured)
            .enumerate()
            .filter_map(|(at, (key, blob))| Some((at, (key.clone(), blob?))))
            .unzip();
        let mut contents = vec![None; keys.len()];
        for (at, content) in places.into_iter().zip(self.read_blobs(slot, &there).await?) {
            contents[at] = content;
        }
        Ok(contents)
    }

    /// Measures blobs of several partitions, in the order of the keys.
    pub(in crate::store) async fn measure_blobs_of(
        &self,
        keys: &[(Partition, String)],
    ) -> Result<Vec<Option<BlobHead>>, StoreError> {
        let mut measured = vec![None; keys.len()];
        let of = by_partition(keys.iter().map(|(p, _)| *p));
        let reads = of.into_iter().map(|(p, places)| async move {
            let own: Vec<String> = places.iter().map(|&at| keys[at].1.clone()).collect();
            (self.measure_blobs(Keys::slot(p), &own).await, places)
        });
        for (answer, places) in join_all(reads).await {
            for (at, head) in places.into_iter().zip(answer?) {
                measured[at] = head;
            }
        }
        Ok(measured)
    }

    /// Reads measured blobs of several partitions, in their order. `None`: the blob is gone meanwhile.
    pub(in crate::store) async fn read_blobs_of(
        &self,
        blobs: &[(Partition, String, BlobHead)],
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let mut contents = vec![None; blobs.len()];
        let of = by_partition(blobs.iter().map(|(p, ..)| *p));
        let reads = of.into_iter().map(|(p, places)| async move {
            let own = places
                .iter()
                .map(|&at| (blobs[at].1.clone(), blobs[at].2.clone()));
            (
                self.read_blobs(Keys::slot(p), &own.collect::<Vec<_>>())
                    .await,
                places,
            )
        });
        for (answer, places) in join_all(reads).await {
            for (at, content) in places.into_iter().zip(answer?) {
                contents[at] = content;
            }
        }
        Ok(contents)
    }

    /// Makes one trip whose answers may have this many bytes. A key of another type is answered as nil.
    async fn ask_for(
        &self,
        slot: Slot,
        mut pipe: redis::Pipeline,
        bytes: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let permits = (bytes / PERMIT_BYTES).clamp(1, Self::asked_permits()) as u32;
        let _asked = self
            .asked()
            .acquire_many(permits)
            .await
            .map_err(|_| StoreError::Unavailable("shutting down".to_owned()))?;
        let connected: Connected = self.reach(slot).await?;
        pipe.ignore_errors();
        let answers: Vec<Value> = pipe
            .query_async(&mut connected.connection.asking(bytes as u64))
            .await
            .map_err(|error| self.judge(&connected, &error))?;
        self.still_counts(&connected)?;
        let mut values = Vec::with_capacity(answers.len());
        for answer in answers {
            values.push(match answer {
                Value::ServerError(error) if error.code() == "WRONGTYPE" => Value::Nil,
                Value::ServerError(error) => return Err(self.judge(&connected, &error.into())),
                answer => answer,
            });
        }
        Ok(values)
    }
}

/// The places of each partition.
fn by_partition(partitions: impl Iterator<Item = Partition>) -> BTreeMap<Partition, Vec<usize>> {
    let mut of: BTreeMap<Partition, Vec<usize>> = BTreeMap::new();
    for (at, p) in partitions.enumerate() {
        of.entry(p).or_default().push(at);
    }
    of
}

fn bulk(answer: Value) -> Option<Bytes> {
    if let Value::BulkString(bytes) = answer {
        Some(Bytes::from(bytes))
    } else {
        None
    }
}

/// Cuts blobs of these lengths into steps, in order. Lengths of 0 are left out.
fn steps(lengths: impl Iterator<Item = usize>) -> Vec<ReadStep> {
    let mut steps = Vec::new();
    let mut places = Vec::new();
    let mut bytes = 0;
    for (at, len) in lengths.enumerate().filter(|(_, len)| *len > 0) {
        if len > STEP_BYTES {
            for from in (0..len).step_by(STEP_BYTES) {
                steps.push(ReadStep::Part(at, from, STEP_BYTES.min(len - from)));
            }
            continue;
        }
        if bytes + len > STEP_BYTES {
            steps.push(ReadStep::Whole(std::mem::take(&mut places), bytes));
            bytes = 0;
        }
        places.push(at);
        bytes += len;
    }
    if !places.is_empty() {
        steps.push(ReadStep::Whole(places, bytes));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_asks_for_some_mebibytes_and_a_larger_blob_comes_in_parts() {
        const MIB: usize = 1 << 20;
        let steps_of = |lengths: &[usize]| steps(lengths.iter().copied());
        assert_eq!(steps_of(&[]), []);
        assert_eq!(steps_of(&[0, 10, 0, 20]), [ReadStep::Whole(vec![1, 3], 30)]);
        let two = 2 * MIB;
        let one = MIB;
        assert_eq!(
            steps_of(&[two, two, one]),
            [
                ReadStep::Whole(vec![0, 1], 4 * MIB),
                ReadStep::Whole(vec![2], one)
            ],
            "a step is filled and not exceeded"
        );
        let parts = [
            ReadStep::Part(1, 0, STEP_BYTES),
            ReadStep::Part(1, STEP_BYTES, 3),
            ReadStep::Whole(vec![0, 2], 2),
        ];
        assert_eq!(steps_of(&[1, STEP_BYTES + 3, 1]), parts);
        assert_eq!(
            steps_of(&[STEP_BYTES]),
            [ReadStep::Whole(vec![0], STEP_BYTES)]
        );
    }
}

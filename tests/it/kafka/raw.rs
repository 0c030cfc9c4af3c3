//! A Produce request by hand, for records that no client library would send.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::support::Kafka;

/// Zstd, in a batch's attributes.
const ZSTD: i16 = 4;

/// A record of the wire format, before it is framed.
pub(crate) struct RawRecord<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) header: (&'a [u8], &'a [u8]),
}

/// Writes one batch of one record to partition 0, with this timestamp (-1: none), and checks the answer.
pub(super) fn produce(kafka: &Kafka, topic: &str, timestamp: i64, record: &RawRecord<'_>) {
    send(kafka, topic, &batch(timestamp, 0, &framed(record)));
}

/// The same with the batch compressed by zstd, in a frame that says how large it is when opened.
pub(crate) fn produce_zstd(kafka: &Kafka, topic: &str, record: &RawRecord<'_>) {
    send(kafka, topic, &zstd_batch(record));
}

/// A batch of one record, compressed by zstd.
pub(super) fn zstd_batch(record: &RawRecord<'_>) -> Vec<u8> {
    batch(
        5,
        ZSTD,
        &zstd::bulk::compress(&framed(record), 3).expect("compressed"),
    )
}

/// Writes one batch to partition 0, and checks the answer.
pub(super) fn send(kafka: &Kafka, topic: &str, batch: &[u8]) {
    let mut body = Vec::new();
    body.extend(i16::to_be_bytes(-1)); // no transaction
    body.extend(i16::to_be_bytes(-1)); // acks: all
    body.extend(i32::to_be_bytes(10_000));
    body.extend(i32::to_be_bytes(1)); // topics
    body.extend((topic.len() as i16).to_be_bytes());
    body.extend(topic.as_bytes());
    body.extend(i32::to_be_bytes(1)); // partitions
    body.extend(i32::to_be_bytes(0));
    body.extend((batch.len() as i32).to_be_bytes());
    body.extend(batch);
    let mut request = Vec::new();
    request.extend(i16::to_be_bytes(0)); // Produce
    request.extend(i16::to_be_bytes(7)); // version: the first that takes zstd
    request.extend(i32::to_be_bytes(1)); // correlation
    request.extend(i16::to_be_bytes(-1)); // no client id
    request.extend(&body);

    let mut socket = TcpStream::connect(kafka.bootstrap()).expect("connected");
    socket
        .write_all(&(request.len() as i32).to_be_bytes())
        .expect("written");
    socket.write_all(&request).expect("written");
    let mut length = [0; 4];
    socket.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; i32::from_be_bytes(length) as usize];
    socket.read_exact(&mut answer).expect("an answer");
    // correlation, topics, topic, partitions, partition, then the error.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    assert_eq!(answer[at..at + 2], [0, 0], "kafka refused the batch");
}

/// A batch of the log file: where its parts begin.
pub(super) mod part {
    pub(in super::super) const FORMAT: usize = 16;
    pub(in super::super) const CHECKSUM: usize = 17;
    /// The low byte, of which the lowest three bits are the codec.
    pub(in super::super) const ATTRIBUTES: usize = 22;
    pub(in super::super) const RECORDS: usize = 61;
}

/// Changes the batch of this number, counted from 0, in the file of a broker that is stopped.
pub(super) fn damage(file: &Path, number: usize, change: impl FnOnce(&mut [u8])) {
    let mut log = std::fs::read(file).expect("the segment");
    let from = (0..number).fold(0, |from, _| from + batch_len(&log, from));
    let to = from + batch_len(&log, from);
    change(&mut log[from..to]);
    std::fs::write(file, log).expect("written");
}

/// The number of the batch that begins at an offset, in the file of a broker that is stopped.
pub(super) fn number_of(file: &Path, offset: i64) -> usize {
    let log = std::fs::read(file).expect("the segment");
    let mut from = 0;
    let mut number = 0;
    while log[from..from + 8] != offset.to_be_bytes() {
        from += batch_len(&log, from);
        number += 1;
    }
    number
}

/// The length of the batch that begins here.
fn batch_len(log: &[u8], from: usize) -> usize {
    12 + u32::from_be_bytes(log[from + 8..from + 12].try_into().expect("four bytes")) as usize
}

fn framed(record: &RawRecord<'_>) -> Vec<u8> {
    let mut inner = vec![0]; // attributes
    varint(&mut inner, 0); // timestamp delta
    varint(&mut inner, 0); // offset delta
    varint(&mut inner, -1); // null key
    bytes(&mut inner, record.body);
    varint(&mut inner, 1); // headers
    bytes(&mut inner, record.header.0);
    bytes(&mut inner, record.header.1);
    let mut framed = Vec::new();
    bytes(&mut framed, &inner);
    framed
}

/// A batch of one record, which is given as it stands in the batch.
fn batch(timestamp: i64, codec: i16, record: &[u8]) -> Vec<u8> {
    let mut checked = Vec::new();
    checked.extend(i16::to_be_bytes(codec)); // attributes
    checked.extend(i32::to_be_bytes(0)); // last offset delta
    checked.extend(timestamp.to_be_bytes());
    checked.extend(timestamp.to_be_bytes());
    checked.extend(i64::to_be_bytes(-1)); // no producer id
    checked.extend(i16::to_be_bytes(-1));
    checked.extend(i32::to_be_bytes(-1));
    checked.extend(i32::to_be_bytes(1)); // records
    checked.extend(record);

    let mut batch = Vec::new();
    batch.extend(i64::to_be_bytes(0)); // base offset
    batch.extend((4 + 1 + 4 + checked.len() as i32).to_be_bytes());
    batch.extend(i32::to_be_bytes(-1)); // leader epoch
    batch.push(2); // magic
    batch.extend(crc32c(&checked).to_be_bytes());
    batch.extend(&checked);
    batch
}

fn bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    varint(to, bytes.len() as i64);
    to.extend(bytes);
}

fn varint(to: &mut Vec<u8>, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
    while zigzag >= 0x80 {
        to.push(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    to.push(zigzag as u8);
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg())
        })
    })
}

//! A Produce request by hand, for records that no client library would send.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::Kafka;

/// A record of the wire format, before it is framed.
pub(super) struct RawRecord<'a> {
    pub(super) body: &'a [u8],
    pub(super) header: (&'a [u8], &'a [u8]),
}

/// Writes one batch of one record to partition 0, with this timestamp (-1: none), and checks the answer.
pub(super) fn produce(kafka: &Kafka, topic: &str, timestamp: i64, record: &RawRecord<'_>) {
    let batch = batch(timestamp, record);
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
    body.extend(&batch);
    let mut request = Vec::new();
    request.extend(i16::to_be_bytes(0)); // Produce
    request.extend(i16::to_be_bytes(3)); // version
    request.extend(i32::to_be_bytes(1)); // correlation
    request.extend(i16::to_be_bytes(-1)); // no client id
    request.extend(&body);

    let mut socket = TcpStream::connect(kafka.bootstrap()).expect("connected");
    socket.write_all(&(request.len() as i32).to_be_bytes()).expect("written");
    socket.write_all(&request).expect("written");
    let mut length = [0; 4];
    socket.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; i32::from_be_bytes(length) as usize];
    socket.read_exact(&mut answer).expect("an answer");
    // correlation, topics, topic, partitions, partition, then the error.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    assert_eq!(answer[at..at + 2], [0, 0], "kafka refused the batch");
}

fn batch(timestamp: i64, record: &RawRecord<'_>) -> Vec<u8> {
    let mut inner = vec![0]; // attributes
    varint(&mut inner, 0); // timestamp delta
    varint(&mut inner, 0); // offset delta
    varint(&mut inner, -1); // null key
    bytes(&mut inner, record.body);
    varint(&mut inner, 1); // headers
    bytes(&mut inner, record.header.0);
    bytes(&mut inner, record.header.1);

    let mut checked = Vec::new();
    checked.extend(i16::to_be_bytes(0)); // attributes
    checked.extend(i32::to_be_bytes(0)); // last offset delta
    checked.extend(timestamp.to_be_bytes());
    checked.extend(timestamp.to_be_bytes());
    checked.extend(i64::to_be_bytes(-1)); // no producer id
    checked.extend(i16::to_be_bytes(-1));
    checked.extend(i32::to_be_bytes(-1));
    checked.extend(i32::to_be_bytes(1)); // records
    bytes(&mut checked, &inner);

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
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg()))
    })
}

//! Measures the pure parts without a server: reading delay headers, the bundle format, the heap of the wheel, and the
//! assignment of partitions. `cargo bench --features test-util --bench micro [FILTER]`. Numbers of a busy machine mean
//! nothing.
#![allow(missing_docs, reason = "Criterion's macros write functions")]
#![allow(clippy::expect_used, reason = "a bench that cannot go on panics")]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use postdate::cluster::simulation::assign;
use postdate::domain::testing::route;
use postdate::domain::{
    Entry, Header, HeaderValue, Message, Origin, Partition, Partitions, TargetRef, UnixMs,
};
use postdate::ingress::admit::admit;
use postdate::store::{Bundle, decode, encode};
use postdate::timer::simulation::WheelSimulation;

const NOW: UnixMs = UnixMs(1_800_000_000_000);

/// A record with a 256-byte body, a key and these headers.
fn record(headers: &[(&str, &str)]) -> Message {
    let header = |&(name, value): &(&str, &str)| {
        Header::new(
            name,
            HeaderValue::Bytes(Bytes::copy_from_slice(value.as_bytes())),
        )
    };
    Message {
        origin: Origin::Kafka,
        key: Some(Bytes::from_static(b"customer")),
        body: Some(
            std::iter::repeat_with(|| fastrand::u8(..))
                .take(256)
                .collect::<Vec<u8>>()
                .into(),
        ),
        headers: headers.iter().map(header).collect(),
        properties: None,
    }
}

/// A bundle of so many messages, due within a second. JSON bodies compress, random ones do not.
fn bundle(count: usize, json: bool) -> Bundle {
    let entries = (0..count).map(|n| {
        let mut message = record(&[("type", "reminder")]);
        if json {
            let id = fastrand::u64(..);
            let body = format!(
                r#"{{"order":"{id:016x}","customer":"{:08x}","amount":{}.{:02},"currency":"EUR","kind":"reminder"}}"#,
                id as u32,
                id % 1000,
                id % 100
            );
            message.body = Some(body.into());
        }
        Entry::new(NOW.plus(n as i64 * 1000 / count as i64), message)
    });
    Bundle {
        target: TargetRef::Own,
        entries: Arc::new(entries.collect()),
    }
}

fn admission(criterion: &mut Criterion) {
    let route = route();
    let mut group = criterion.benchmark_group("admit");
    for (name, headers) in [
        (
            "no delay header",
            &[("type", "reminder"), ("trace", "00-1-2-3")][..],
        ),
        (
            "milliseconds",
            &[("x-delay", "90000"), ("type", "reminder")],
        ),
        ("a duration", &[("x-delay", "2h30m"), ("type", "reminder")]),
        (
            "a moment and a name",
            &[
                ("x-deliver-at", "2027-01-16T00:00:00Z"),
                ("x-delay-id", "order-7"),
            ],
        ),
        ("invalid", &[("x-delay", "soon"), ("type", "reminder")]),
    ] {
        let message = record(headers);
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || message.clone(),
                |message| black_box(admit(message, None, Some(NOW), &route, NOW.into())),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    for (name, bundle) in [
        ("one random body", bundle(1, false)),
        ("500 random bodies", bundle(500, false)),
        ("500 JSON bodies", bundle(500, true)),
    ] {
        let blob = encode(&bundle);
        group.throughput(Throughput::Elements(bundle.entries.len() as u64));
        group.bench_function(format!("encode {name}"), |bencher| {
            bencher.iter(|| encode(black_box(&bundle)));
        });
        group.bench_function(format!("decode {name}"), |bencher| {
            bencher.iter_batched(
                || blob.clone(),
                |blob| decode(&blob).expect("a bundle"),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn wheel(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel");
    for (name, bundles, each) in [
        ("10,000 bundles of one", 10_000, 1),
        ("20 bundles of 500", 20, 500),
    ] {
        group.throughput(Throughput::Elements((bundles * each) as u64));
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || WheelSimulation::new(bundles, each),
                |mut simulation| assert_eq!(simulation.play(), bundles * each),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn assignment(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("assignment");
    let names: Vec<String> = (0..20).map(|n| format!("replica-{n}")).collect();
    for (count, replicas) in [(64, 3), (1024, 20)] {
        let partitions = Partitions::new(count).expect("a count");
        let fresh: Vec<(&str, &[Partition])> = names
            .iter()
            .take(replicas)
            .map(|name| (name.as_str(), &[][..]))
            .collect();
        let owners = assign(partitions, &fresh);
        let held: Vec<Vec<Partition>> = (0..replicas)
            .map(|c| {
                partitions
                    .all()
                    .filter(|p| owners[usize::from(p.0)] == c)
                    .collect()
            })
            .collect();
        let mut settled = fresh.clone();
        for (member, held) in settled.iter_mut().zip(&held) {
            member.1 = held;
        }
        group.bench_function(
            format!("{count} partitions, {replicas} replicas, from nothing"),
            |bencher| {
                bencher.iter(|| assign(partitions, black_box(&fresh)));
            },
        );
        // The work of each heartbeat if nothing has changed, then if the last replica is gone.
        group.bench_function(
            format!("{count} partitions, {replicas} replicas, settled"),
            |bencher| {
                bencher.iter(|| assign(partitions, black_box(&settled)));
            },
        );
        group.bench_function(
            format!("{count} partitions, {replicas} replicas, one gone"),
            |bencher| {
                bencher.iter(|| assign(partitions, black_box(&settled[..replicas - 1])));
            },
        );
    }
    group.finish();
}

criterion_group!(pure, admission, codec, wheel, assignment);
criterion_main!(pure);

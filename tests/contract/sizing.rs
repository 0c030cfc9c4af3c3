//! How large an installation must be: the tables of `docs/operate.md`, computed from `docs/benchmarks.json`; what
//! `postdate size` computes with, which is what was measured; and its table in `docs/scaling.md`.

use std::fmt::Write;

use postdate::sizing::{ALONE, IN_COMPANY, Load, MessageCost, NAMED, NEAR_BYTES, size};
use serde_json::Value;

use super::{read, repository};

/// Share of `maxmemory` from which on a route may use only its even share of it.
const FULL_SHARE: f64 = 0.7;
/// Messages that the table gives a `maxmemory` for.
const TABLE_MESSAGES: f64 = 1e6;
/// Bodies of the table, in bytes.
const TABLE_BODIES: [(&str, f64); 4] = [
    ("256 bytes", 256.0),
    ("1 KiB", 1024.0),
    ("4 KiB", 4096.0),
    ("16 KiB", 16384.0),
];

fn benchmarks() -> Value {
    serde_json::from_str(&read(repository("docs/benchmarks.json"))).expect("JSON")
}

fn median(all: &Value, bench: &str, series: &str) -> f64 {
    all[bench]["series"][series]["median"]
        .as_f64()
        .unwrap_or_else(|| panic!("no {bench}: {series}"))
}

/// A number of bytes as people write it.
fn gibibytes(number: f64) -> String {
    let gib = number / f64::from(1 << 30);
    if gib >= 10.0 {
        format!("{gib:.0} GiB")
    } else {
        format!("{gib:.1} GiB")
    }
}

fn memory(all: &Value) -> String {
    let mut table = String::from(
        "| body, not compressible | in company | alone | `maxmemory` for a million, in company | alone |\n\
         |---|---:|---:|---:|---:|\n",
    );
    let million = |each: f64| gibibytes(each * TABLE_MESSAGES / FULL_SHARE);
    for (name, body) in TABLE_BODIES {
        let shared = body + median(all, "memory", "equal.beyond");
        let alone = body + median(all, "memory", "alone.beyond");
        let row = format!(
            "| {name} | {shared:.0} B | {alone:.0} B | {} | {} |",
            million(shared),
            million(alone)
        );
        writeln!(table, "{row}").expect("a String");
    }
    let own = median(all, "memory", "orders.own");
    let each = median(all, "memory", "orders.each");
    writeln!(
        table,
        "\nText compresses: orders as JSON, {own:.0} bytes each with key and headers, took {each:.0} bytes each in \
         company. Alone, little compresses."
    )
    .expect("a String");
    table
}

fn processor(all: &Value) -> String {
    let mut table = String::from(
        "| from and to | Redis, us a message | messages a second with half of a core of Redis | replicas, us a message |\n\
         |---|---:|---:|---:|\n",
    );
    let rows = [
        ("Kafka, delays alike, append-only file", "aof", "aof"),
        (
            "Kafka, delays at random over an hour, ten million waiting",
            "backlog",
            "random 10,000,000",
        ),
        (
            "Kafka, delays alike, ten million waiting",
            "backlog",
            "equal 10,000,000",
        ),
        ("RabbitMQ", "rabbitmq", "relay"),
    ];
    for (name, bench, case) in rows {
        let redis = median(all, bench, &format!("{case}.redis"));
        let replicas = median(all, bench, &format!("{case}.itself"));
        let thousands = 0.5e6 / redis / 1e3;
        writeln!(
            table,
            "| {name} | {redis:.1} | {thousands:.0},000 | {replicas:.1} |"
        )
        .expect("a String");
    }
    table
}

/// A page with the text between the two lines replaced.
fn replaced(page: &str, number: usize, end: &str, made: &str) -> String {
    const BEGIN: &str =
        "<!-- Made from docs/benchmarks.json by UPDATE_DOCS=1 cargo test --test contract. -->\n";
    let at = page
        .match_indices(BEGIN)
        .nth(number)
        .expect("the table's begin")
        .0;
    let (before, rest) = page.split_at(at + BEGIN.len());
    let (_, after) = rest.split_once(end).expect("the table's end");
    format!("{before}\n{made}\n{end}{after}")
}

#[test]
fn the_sizes_of_redis_are_those_that_were_measured() {
    let all = benchmarks();
    let path = repository("docs/operate.md");
    let page = read(&path);
    let made = replaced(&page, 0, "<!-- end of memory -->\n", &memory(&all));
    let made = replaced(&made, 1, "<!-- end of processor -->\n", &processor(&all));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    assert!(
        read(path) == made,
        "docs/operate.md is not fresh: UPDATE_DOCS=1 cargo test --test contract"
    );
}

/// Two pages say the same in prose.
#[test]
fn the_bytes_of_a_message_in_prose_are_those_that_were_measured() {
    let all = benchmarks();
    let shared = median(&all, "memory", "equal.beyond");
    let alone = median(&all, "memory", "alone.beyond");
    for (page, words) in [
        (
            "README.md",
            format!("{shared:.0} to {alone:.0} bytes a message beyond its body"),
        ),
        (
            "docs/comparison.md",
            format!("{alone:.0} bytes beyond its body for a lone message, {shared:.0} in company"),
        ),
    ] {
        assert!(
            read(repository(page)).contains(&words),
            "{page} says no longer: {words}"
        );
    }
}

/// What `postdate size` computes with is what was measured, rounded up.
#[test]
fn the_costs_of_a_message_are_those_that_were_measured() {
    let all = benchmarks();
    let of = |bench: &str, series: &str| median(&all, bench, series);
    let in_company = MessageCost {
        redis_us: of("backlog", "random 10,000,000.redis"),
        replica_us: of("backlog", "random 10,000,000.itself"),
        bytes: of("memory", "equal.beyond"),
    };
    let alone = MessageCost {
        redis_us: of("random", "alone.redis"),
        replica_us: of("random", "alone.itself"),
        bytes: of("memory", "alone.beyond"),
    };
    let named = MessageCost {
        redis_us: of("orders", "orders store.redis") + of("orders", "orders drain.redis"),
        replica_us: of("orders", "orders store.itself") + of("orders", "orders drain.itself"),
        // Those that were measured compress.
        bytes: NAMED.bytes,
    };
    let body = of("orders", "orders memory.body");
    let beyond = |case: &str| of("orders", &format!("{case} memory.each")) - body;
    assert!((beyond("orders")..beyond("orders-apart")).contains(&NAMED.bytes));
    let near = beyond("orders-apart") - NAMED.bytes;
    assert!((near..near * 1.05).contains(&NEAR_BYTES), "{near}");
    for (what, taken, measured) in [
        ("in company", IN_COMPANY, in_company),
        ("alone", ALONE, alone),
        ("named", NAMED, named),
    ] {
        for (unit, taken, measured) in [
            ("us of Redis", taken.redis_us, measured.redis_us),
            ("us of the replicas", taken.replica_us, measured.replica_us),
            ("bytes", taken.bytes, measured.bytes),
        ] {
            assert!(
                (measured..=measured * 1.05 + 0.5).contains(&taken),
                "src/sizing.rs takes {taken} {unit} for a message {what}, and {measured} were measured"
            );
        }
    }
}

fn sizes() -> String {
    let mut table = String::from(
        "| messages a second | waiting, bodies of 400 bytes | names | replicas of 2 cores | masters of Redis | `maxmemory` of each | connections |\n\
         |---:|---:|---|---:|---:|---:|---:|\n",
    );
    for (rate, pending) in [(100.0, 1e6), (1e3, 1e7), (1e4, 1e7), (1e4, 1e8), (1e5, 1e8)] {
        for is_named in [false, true] {
            let load = Load {
                rate,
                pending,
                body: 400.0,
                is_named,
            };
            let size = size(&load);
            writeln!(
                table,
                "| {} | {} million | {} | {} | {} | {} | {} |",
                thousands(rate),
                pending / 1e6,
                if is_named { "yes" } else { "no" },
                size.replicas,
                size.shards,
                gibibytes(size.shard_bytes),
                size.connections
            )
            .expect("a String");
        }
    }
    table
}

fn thousands(n: f64) -> String {
    if n < 1000.0 {
        format!("{n}")
    } else {
        format!("{},000", n / 1000.0)
    }
}

#[test]
fn the_table_of_sizes_is_what_the_command_computes() {
    let path = repository("docs/scaling.md");
    let page = read(&path);
    let made = replaced(&page, 0, "<!-- end of sizes -->\n", &sizes());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    assert!(
        read(path) == made,
        "docs/scaling.md is not fresh: UPDATE_DOCS=1 cargo test --test contract"
    );
}

//! Finds keys that are left in the store at the end of a cycle: only its description may be.

use redis::aio::MultiplexedConnection;

use crate::support::redis::patient;

/// Keys that may stay when nothing waits: descriptions, counts, call numbers, offset marks, delivered names, replicas.
const STAYS: &[&str] = &[
    "calls",
    "counts",
    "sources",
    "rates",
    "delivered",
    "order",
    "replicas",
    "store",
];

/// Keys of this prefix on these servers that should be gone; of each what it holds.
pub(crate) async fn leftovers(
    servers: &[String],
    prefix: &str,
) -> Result<Vec<String>, redis::RedisError> {
    let mut left = Vec::new();
    for server in servers {
        let mut connection = redis::Client::open(server.as_str())?
            .get_multiplexed_async_connection_with_config(&patient())
            .await?;
        for key in keys(&mut connection, &format!("{prefix}:{{*")).await? {
            let kind = key.split_once("}:").map_or("", |(_, kind)| kind);
            if STAYS.contains(&kind) || kind.starts_with("d:") || kind.starts_with("dead:") {
                continue;
            }
            // A blob whose script never ran ends by itself.
            let ends: i64 = redis::cmd("TTL")
                .arg(&key)
                .query_async(&mut connection)
                .await?;
            if ends < 0 && ends != -2 {
                left.push(format!("{key} {}", content(&mut connection, &key).await));
            }
        }
    }
    Ok(left)
}

/// The first lines of what a hash or a sorted set holds, to see what was left.
async fn content(connection: &mut MultiplexedConnection, key: &str) -> String {
    let mut found = redis::cmd("HGETALL")
        .arg(key)
        .query_async::<Vec<String>>(connection)
        .await;
    if found.is_err() {
        found = redis::cmd("ZRANGE")
            .arg(key)
            .arg(0)
            .arg(-1)
            .query_async(connection)
            .await;
    }
    let found = found.unwrap_or_default();
    format!("{:?}", &found[..found.len().min(6)])
}

/// All keys that match.
pub(crate) async fn keys(
    connection: &mut MultiplexedConnection,
    pattern: &str,
) -> Result<Vec<String>, redis::RedisError> {
    let mut cursor = 0_u64;
    let mut all = Vec::new();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(1000);
        let (next, found): (u64, Vec<String>) = scan.query_async(connection).await?;
        all.extend(found);
        cursor = next;
        if cursor == 0 {
            all.sort();
            return Ok(all);
        }
    }
}

//! Measures the cost for Redis of storing and firing without any relay: bare variadic commands, one sorted set entry
//! and one hash field a message, 200 messages a call, one connection.

use redis::aio::MultiplexedConnection;

use crate::load::body;
use crate::measure::redis_cpu;
use crate::support::Redis;
use crate::support::run::now_ms;

/// Messages of a call.
const CALL_MESSAGES: usize = 200;

/// Redis's CPU time of a message by its own count, microseconds: from storing to removal, due times at random over an
/// hour.
pub async fn bare(redis: &Redis, messages: u64) -> anyhow::Result<f64> {
    let mut connection = redis.connection().await?;
    let before = redis_cpu(connection.clone()).await?;
    let mut n = 0;
    while n < messages {
        store(&mut connection, n).await?;
        n += CALL_MESSAGES as u64;
    }
    let mut fired = 0;
    while fired < n {
        fired += fire(&mut connection).await? as u64;
    }
    let used = redis_cpu(connection).await? - before;
    Ok(used * 1e6 / n as f64)
}

async fn store(connection: &mut MultiplexedConnection, from: u64) -> anyhow::Result<()> {
    let mut due = redis::cmd("ZADD");
    let mut bodies = redis::cmd("HSET");
    due.arg("bare:due");
    bodies.arg("bare:bodies");
    let now = now_ms();
    for n in from..from + CALL_MESSAGES as u64 {
        let id = format!("{n:016x}");
        due.arg(now + fastrand::i64(0..3_600_000)).arg(&id);
        // As many bytes beside the body as key and headers have.
        bodies.arg(&id).arg([body().as_slice(), &[0; 44]].concat());
    }
    redis::pipe()
        .add_command(bodies)
        .ignore()
        .add_command(due)
        .ignore()
        .exec_async(connection)
        .await?;
    Ok(())
}

async fn fire(connection: &mut MultiplexedConnection) -> anyhow::Result<usize> {
    let mut heads = redis::cmd("ZRANGE");
    heads
        .arg("bare:due")
        .arg("-inf")
        .arg("+inf")
        .arg("BYSCORE")
        .arg("LIMIT")
        .arg(0)
        .arg(CALL_MESSAGES);
    let ids: Vec<String> = heads.query_async(connection).await?;
    let mut claims = redis::cmd("ZADD");
    let mut taken = redis::cmd("ZREM");
    let mut bodies = redis::cmd("HMGET");
    claims.arg("bare:claims");
    for id in &ids {
        claims.arg(1).arg(id);
    }
    taken.arg("bare:due").arg(&ids);
    bodies.arg("bare:bodies").arg(&ids);
    let mut claim = redis::pipe();
    claim
        .add_command(claims)
        .ignore()
        .add_command(taken)
        .ignore()
        .add_command(bodies);
    claim.query_async::<redis::Value>(connection).await?;
    let mut settle = redis::pipe();
    settle.cmd("ZREM").arg("bare:claims").arg(&ids).ignore();
    settle.cmd("HDEL").arg("bare:bodies").arg(&ids).ignore();
    settle.exec_async(connection).await?;
    Ok(ids.len())
}

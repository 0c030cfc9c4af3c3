//! Checks once at start whether this Redis may be trusted with messages. An evicting policy would lose some of
//! them. Without persistence the next restart would lose all of them. With another partition count or format
//! they would not be found.

use std::time::Duration;

use redis::RedisResult;
use redis::cluster_routing::Slot;
use tracing::warn;

use super::client::ConnectFault;
use super::client::RESPONSE_TIMEOUT;
use super::deadline::RedisWire;
use super::durability::{DurabilityWait, TierError};
use super::node::connect;
use super::rights::{RightsProbe, is_denied};
use super::slot_map::SlotMap;
use super::topology::{client, read_once};
use crate::store::call::keys::Keys;
use crate::store::config::Durability;
use crate::store::{Config, PreflightError};

/// Version of the layout of keys.
const KEY_FORMAT: &str = "2";
/// What to do about a store of an earlier format.
const DRAIN: &str = "let the version that wrote it deliver what waits there (postdate pause ROUTE --only ingress, until \
                     postdate status shows nothing pending), and give this one another redis.prefix";
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a preflight did not pass.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PreflightFailure {
    /// The store is not reachable (yet): try again.
    #[error("{0}")]
    Away(String),
    /// The store is not reachable (yet), and TLS is the reason: try again.
    #[error("{0}")]
    Tls(String),
    /// The store is reachable and may not be used.
    #[error(transparent)]
    Refused(#[from] PreflightError),
}

impl From<ConnectFault> for PreflightFailure {
    fn from(fault: ConnectFault) -> Self {
        let is_tls = fault.is_tls();
        let why = fault.into();
        if is_tls {
            Self::Tls(why)
        } else {
            Self::Away(why)
        }
    }
}

impl PreflightFailure {
    /// The same failure, told of a store by its place.
    fn at(self, place: &str) -> Self {
        let told = |why| format!("redis at {place}: {why}");
        match self {
            Self::Away(why) => Self::Away(told(why)),
            Self::Tls(why) => Self::Tls(told(why)),
            refused @ Self::Refused(_) => refused,
        }
    }
}

/// Checks the store once. Writes its description if it has none and `claim_it` is set.
pub async fn preflight(config: &Config, claim_it: bool) -> Result<(), PreflightFailure> {
    let place = config.place();
    let keys = Keys::new(&config.prefix);
    let map = read_once(config, &keys.slots(config.partitions)).await?;
    if let Some(why) = &map.trouble {
        let failure = if map.is_tls_trouble {
            PreflightFailure::Tls
        } else {
            PreflightFailure::Away
        };
        return Err(failure(why.clone()).at(&place));
    }
    let home = map.node_of(Slot::for_key(keys.meta()));
    for at in 0..map.nodes.len() {
        let checks = node(
            config,
            &map,
            at,
            home == Some(at) && claim_it,
            home == Some(at),
        );
        let checked = match tokio::time::timeout(NODE_TIMEOUT, checks).await {
            Ok(checked) => checked,
            Err(_) => Err(PreflightFailure::Away("no answer in time".to_owned())),
        };
        checked.map_err(|failure| failure.at(&place))?;
    }
    Ok(())
}

/// Checks one master. One of the masters has the store's description.
async fn node(
    config: &Config,
    map: &SlotMap,
    at: usize,
    claim_it: bool,
    describes: bool,
) -> Result<(), PreflightFailure> {
    let client = client(config, &map.nodes[at])?;
    let mut connection = match connect(&client, RESPONSE_TIMEOUT).await {
        Ok(connection) => connection,
        Err(fault) => return Err(client.explain_silence(fault).await.into()),
    };
    policy(config, &mut connection).await?;
    if let Some(rights) = RightsProbe::of(&config.prefix, config.partitions, map, at) {
        rights.check(&mut connection).await.map_err(refused)?;
    }
    tier(config.durability, &mut connection).await?;
    if describes {
        description(config, &mut connection, claim_it).await?;
    }
    Ok(())
}

/// Checks whether the tier is available here. A server without the ability is refused. Missing replicas are
/// waited for.
async fn tier(durability: Durability, connection: &mut RedisWire) -> Result<(), PreflightFailure> {
    DurabilityWait::of(durability, connection)
        .await
        .map_err(|why| match why {
            TierError::Unable(why) => refused(why.to_owned()),
            TierError::Away(error) if is_denied(&error) => {
                refused(format!("{error}: see docs/security.md"))
            }
            TierError::Away(error) => PreflightFailure::Away(error.to_string()),
        })?;
    let Some(wait) = durability.wait().filter(|wait| wait.replicas > 0) else {
        return Ok(());
    };
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let told: String = info
        .query_async(connection)
        .await
        .map_err(|error| PreflightFailure::Away(error.to_string()))?;
    let there = told
        .lines()
        .filter(|line| line.starts_with("slave") && line.contains("state=online"))
        .count();
    if there < wait.replicas as usize {
        return Err(PreflightFailure::Away(format!(
            "{there} replicas follow this master, and durability = {:?} with wait_replicas = {} needs as many",
            durability.name(),
            wait.replicas
        )));
    }
    Ok(())
}

async fn setting(connection: &mut RedisWire, name: &str) -> RedisResult<Option<String>> {
    let found: Vec<String> = redis::cmd("CONFIG")
        .arg("GET")
        .arg(name)
        .query_async(connection)
        .await?;
    Ok(found.into_iter().nth(1))
}

async fn policy(config: &Config, connection: &mut RedisWire) -> Result<(), PreflightFailure> {
    let settings = async {
        let eviction = setting(connection, "maxmemory-policy").await?;
        let aof = setting(connection, "appendonly").await?;
        let rdb = setting(connection, "save").await?;
        RedisResult::Ok((eviction, aof, rdb))
    };
    let (eviction, aof, rdb) = match settings.await {
        Ok(found) => found,
        // `NOPERM` and `ERR unknown command` speak of CONFIG. Any other error speaks of the server.
        Err(why) if !matches!(why.code(), Some("NOPERM" | "ERR")) => {
            return Err(PreflightFailure::Away(why.to_string()));
        }
        Err(why) if config.overrides.unchecked => {
            warn!(error = %why, "cannot check persistence and eviction of redis; unsafe = [\"unchecked\"]");
            return Ok(());
        }
        Err(why) => {
            return Err(refused(format!(
                "CONFIG GET is denied ({why}), so neither eviction nor persistence can be checked; allow it, or \
                 override with redis.unsafe = [\"unchecked\"]"
            )));
        }
    };
    let mut wrong = Vec::new();
    let eviction = eviction.unwrap_or_default();
    if eviction != "noeviction" && !config.overrides.eviction {
        wrong.push(format!(
            "maxmemory-policy is {eviction}: redis would evict messages; set noeviction, or override with \
             redis.unsafe = [\"eviction\"]"
        ));
    }
    let aof = aof.as_deref() == Some("yes");
    let rdb = rdb.is_some_and(|save| !save.is_empty());
    if !aof && !rdb && !config.overrides.no_persistence {
        wrong.push(
            "redis persists nothing: a restart would lose every message; set appendonly yes, or override with \
             redis.unsafe = [\"no_persistence\"]"
                .to_owned(),
        );
    }
    if !wrong.is_empty() {
        return Err(refused(wrong.join("; and ")));
    }
    if !aof && rdb {
        warn!(
            "redis persists by snapshots only: a crash loses all since the last one; appendonly yes is safer"
        );
    }
    Ok(())
}

async fn description(
    config: &Config,
    connection: &mut RedisWire,
    claim_it: bool,
) -> Result<(), PreflightFailure> {
    let meta = Keys::new(&config.prefix).meta();
    let away = |error: redis::RedisError| PreflightFailure::Away(error.to_string());
    let kind: String = redis::cmd("TYPE")
        .arg(&meta)
        .query_async(connection)
        .await
        .map_err(away)?;
    if kind != "hash" && kind != "none" {
        return Err(refused(format!(
            "prefix {:?} is in use by something else ({meta} is a {kind})",
            config.prefix
        )));
    }
    let ours = config.partitions.count().to_string();
    if claim_it {
        let mut pipe = redis::pipe();
        pipe.cmd("HSETNX")
            .arg(&meta)
            .arg("format")
            .arg(KEY_FORMAT)
            .ignore();
        pipe.cmd("HSETNX")
            .arg(&meta)
            .arg("partitions")
            .arg(&ours)
            .ignore();
        pipe.exec_async(connection).await.map_err(away)?;
    }
    let (format, partitions): (Option<String>, Option<String>) = redis::cmd("HMGET")
        .arg(&meta)
        .arg("format")
        .arg("partitions")
        .query_async(connection)
        .await
        .map_err(away)?;
    if let Some(format) = format.filter(|f| f != KEY_FORMAT) {
        let is_earlier = format.as_str() < KEY_FORMAT;
        let advice = if is_earlier {
            format!(": {DRAIN}")
        } else {
            String::new()
        };
        return Err(refused(format!(
            "prefix {:?} holds a store of format {format}; this version reads format {KEY_FORMAT}{advice}",
            config.prefix
        )));
    }
    if let Some(partitions) = partitions.filter(|p| *p != ours) {
        return Err(refused(format!(
            "the store has {partitions} partitions, redis.partitions says {ours}: the count is fixed for a \
             store's life"
        )));
    }
    Ok(())
}

fn refused(why: String) -> PreflightFailure {
    PreflightFailure::Refused(PreflightError(why))
}

//! How large an installation has to be for a load, by what the benches of this repository measured.

/// What one message costs, from its source to its target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageCost {
    /// Time of Redis's one core, microseconds.
    pub redis_us: f64,
    /// Time of the replicas' cores, microseconds.
    pub replica_us: f64,
    /// Memory of Redis beyond its body while it waits, bytes.
    pub bytes: f64,
}

/// A message without a name, delays at random, that shares its bundle. A test compares each of these with
/// `docs/benchmarks.json`.
pub const IN_COMPANY: MessageCost = MessageCost {
    redis_us: 2.3,
    replica_us: 7.7,
    bytes: 37.0,
};
/// A message without a name that is alone in its bundle.
pub const ALONE: MessageCost = MessageCost {
    redis_us: 36.0,
    replica_us: 25.0,
    bytes: 237.0,
};
/// A message with a name that is due later than in two minutes and is not cancelled. An order of 190 bytes as JSON takes 243
/// in all, because it compresses; what does not takes so much: 104 are its name's.
pub const NAMED: MessageCost = MessageCost {
    redis_us: 36.0,
    replica_us: 44.0,
    bytes: 200.0,
};

/// Bytes more that a message with a name takes when it is near, for some minutes: it is alone in its bundle then.
pub const NEAR_BYTES: f64 = 310.0;
/// How long that is at most, seconds.
const NEAR_SECONDS: f64 = 161.0;

/// Messages a second from which on those without a name have company.
pub const COMPANY_RATE: f64 = 1000.0;
/// Share of a core that is used where messages are still on time.
const BUSY_SHARE: f64 = 0.5;
/// Cores of a replica.
pub const REPLICA_CORES: u64 = 2;
/// Fewest replicas: another one takes over.
const MIN_REPLICAS: u64 = 2;
/// Share of `maxmemory` from which on a route may use only its even share of it.
const FULL_SHARE: f64 = 0.7;
/// `maxmemory` of one shard, bytes: a larger one takes minutes to copy to a replica, and to load.
const SHARD_BYTES: f64 = (24_u64 << 30) as f64;
/// Connections of a replica to each master.
const REPLICA_CONNECTIONS: u64 = 6;
/// Shards over which the default number of partitions is spread evenly, and the number for more.
const EVEN_SHARDS: u64 = 4;
const DEFAULT_PARTITIONS: u64 = 64;
const MORE_PARTITIONS: u64 = 512;

/// What is asked of an installation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Messages that come, and leave, a second.
    pub rate: f64,
    /// Messages that wait.
    pub pending: f64,
    /// Bytes of a body.
    pub body: f64,
    /// Set if messages have names.
    pub is_named: bool,
}

impl Load {
    /// What each of its messages costs.
    pub fn cost(&self) -> MessageCost {
        if self.is_named {
            NAMED
        } else if self.rate < COMPANY_RATE {
            ALONE
        } else {
            IN_COMPANY
        }
    }
}

/// What an installation needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Replicas of Postdate, of [`REPLICA_CORES`] each.
    pub replicas: u64,
    /// Masters of Redis.
    pub shards: u64,
    /// `maxmemory` of each of them, bytes.
    pub shard_bytes: f64,
    /// `redis.partitions`.
    pub partitions: u64,
    /// Connections to all masters together.
    pub connections: u64,
    /// Set if memory, and not time, says how many shards there are.
    pub is_by_memory: bool,
}

/// The size for a load.
pub fn size(load: &Load) -> Size {
    let MessageCost {
        redis_us,
        replica_us,
        bytes,
    } = load.cost();
    let cores = |us: f64| load.rate * us / 1e6 / BUSY_SHARE;
    let replicas = (cores(replica_us) / REPLICA_CORES as f64).ceil() as u64;
    let replicas = replicas.max(MIN_REPLICAS);
    let near = if load.is_named {
        load.pending.min(load.rate * NEAR_SECONDS)
    } else {
        0.0
    };
    let all_bytes = (load.pending * (load.body + bytes) + near * NEAR_BYTES) / FULL_SHARE;
    let by_time = (cores(redis_us).ceil() as u64).max(1);
    let by_memory = ((all_bytes / SHARD_BYTES).ceil() as u64).max(1);
    let shards = by_time.max(by_memory);
    let partitions = if shards > EVEN_SHARDS {
        MORE_PARTITIONS.max(shards * 8)
    } else {
        DEFAULT_PARTITIONS
    };
    Size {
        replicas,
        shards,
        shard_bytes: all_bytes / shards as f64,
        partitions,
        connections: replicas * shards * REPLICA_CONNECTIONS,
        is_by_memory: by_memory > by_time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: f64, pending: f64, is_named: bool) -> Load {
        let body = 400.0;
        Load {
            rate,
            pending,
            body,
            is_named,
        }
    }

    #[test]
    fn a_small_load_needs_two_replicas_and_one_redis() {
        let size = size(&load(10.0, 1e6, true));
        assert_eq!((size.replicas, size.shards, size.partitions), (2, 1, 64));
        assert_eq!(size.connections, 12);
        assert!(!size.is_by_memory);
    }

    #[test]
    fn more_of_anything_never_needs_less() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let less = load(rng.f64() * 1e6, rng.f64() * 1e9, rng.bool());
            let more = Load {
                rate: (less.rate * 2.0).max(COMPANY_RATE),
                pending: less.pending * 2.0,
                ..less
            };
            if more.cost() != less.cost() {
                continue;
            }
            let (less, more) = (size(&less), size(&more));
            assert!(more.replicas >= less.replicas && more.shards >= less.shards);
            assert!(less.shard_bytes <= SHARD_BYTES);
        }
    }
}

//! Token buckets: one a limited route, in its home partition, shared by all replicas. See ADR 0015.

use std::time::Duration;

use redis::Value;

use crate::domain::{RateLimit, RouteName};
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::reply::{integer, shape};
use crate::store::call::scripts;
use crate::store::{Store, StoreError};

/// What a lease of tokens brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Tokens that are the caller's now: at most what it wanted. Nobody takes them back; what it does not use
    /// is lost.
    pub granted: u32,
    /// Microseconds until there is another one; at most 0 if there is.
    pub wait_us: i64,
}

impl Lease {
    /// How long until there are `tokens` to be had, if nobody else takes any.
    pub fn until(&self, tokens: u32, rate: RateLimit) -> Duration {
        let more = i64::from(tokens.saturating_sub(1)) * 1_000_000 / i64::from(rate.per_second);
        Duration::from_micros((self.wait_us + more).max(0) as u64)
    }
}

impl Store {
    /// Takes up to `wanted` tokens of a route's bucket. Over any time of `t` seconds all replicas together
    /// are granted at most `capacity + rate * t`. A lost answer loses its tokens.
    pub async fn lease(&self, route: &RouteName, rate: RateLimit, wanted: u32) -> Result<Lease, StoreError> {
        let p = self.home_of(route, "");
        let args: Vec<Arg> =
            vec![route.as_str().into(), rate.per_second.into(), rate.capacity().into(), wanted.into()];
        let keys = vec![self.0.keys.of(p, "rates")];
        let call = Call { script: &scripts::LEASE, op: "lease", keys, args, blobs: Vec::new() };
        let answer = self.0.claims.run_unnumbered(p, &call).await?;
        let Value::Array(parts) = &answer else { return Err(shape("the answer to a lease")) };
        let [granted, wait_us] = &parts[..] else { return Err(shape("the answer to a lease")) };
        Ok(Lease { granted: integer(granted)? as u32, wait_us: integer(wait_us)? })
    }
}

//! Token buckets: one for each route with a rate, in the route's home partition, shared by all replicas. See
//! ADR 0015.

use std::time::Duration;

use redis::Value;

use crate::domain::{RateLimit, RouteName};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::{integer, shape};
use crate::store::call::scripts;
use crate::store::{Store, StoreError};

/// The answer to a request for rate tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateGrant {
    /// Tokens that now belong to the caller: at most as many as it wanted. Nobody takes them back. An unused
    /// token is lost.
    pub granted: u32,
    /// Microseconds until the next token. At most 0 if there is one.
    pub wait_us: i64,
}

impl RateGrant {
    /// How long until `tokens` tokens are available, if nobody else takes any.
    pub fn until(&self, tokens: u32, rate: RateLimit) -> Duration {
        let more = i64::from(tokens.saturating_sub(1)) * 1_000_000 / i64::from(rate.per_second);
        Duration::from_micros((self.wait_us + more).max(0) as u64)
    }
}

impl Store {
    /// Takes up to `wanted` tokens from a route's bucket. Over any time of `t` seconds all replicas together
    /// are granted at most `capacity + rate * t`. A lost answer loses its tokens.
    pub async fn take_tokens(
        &self,
        route: &RouteName,
        rate: RateLimit,
        wanted: u32,
    ) -> Result<RateGrant, StoreError> {
        let p = self.home_of(route, "");
        let args: Vec<ScriptArg> = vec![
            route.as_str().into(),
            rate.per_second.into(),
            rate.capacity().into(),
            wanted.into(),
        ];
        let keys = vec![self.0.keys.of(p, "rates")];
        let call = ScriptCall {
            script: &scripts::TAKE_TOKENS,
            op: "lease",
            keys,
            args,
            blobs: Vec::new(),
        };
        let answer = self.0.claims.run_unnumbered(p, &call).await?;
        let Value::Array(parts) = &answer else {
            return Err(shape("the answer to a lease"));
        };
        let [granted, wait_us] = &parts[..] else {
            return Err(shape("the answer to a lease"));
        };
        Ok(RateGrant {
            granted: integer(granted)? as u32,
            wait_us: integer(wait_us)?,
        })
    }
}

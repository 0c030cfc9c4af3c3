//! Opens a connection to whatever server is there.

use std::time::Duration;

use redis::{AsyncConnectionConfig, ErrorKind};

use super::client::{CONNECT_TIMEOUT, ConnectFault, RedisClient};
use super::deadline::RedisWire;

/// Longest wait for one answer: a server that hangs must not delay the next read.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(800);

/// Connects to whatever server is there, within a deadline.
pub(crate) async fn open(
    client: &RedisClient,
    response: Duration,
) -> Result<RedisWire, ConnectFault> {
    // The wire sets deadlines. Those of the library ignore how many bytes are on their way.
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None);
    let redis = client.open()?;
    let connecting = redis.get_multiplexed_async_connection_with_config(&settings);
    let fault = match tokio::time::timeout(CONNECT_TIMEOUT * 2, connecting).await {
        Ok(Ok(connection)) => return Ok(RedisWire::new(connection, response)),
        Ok(Err(error)) if error.is_timeout() => ConnectFault::silence(error.to_string()),
        // The server understood, and refused.
        Ok(Err(error))
            if error.kind() == ErrorKind::AuthenticationFailed || error.code().is_some() =>
        {
            error.to_string().into()
        }
        Ok(Err(error)) => client.explain(error.to_string().into()).await,
        Err(_) => ConnectFault::silence("no answer in time"),
    };
    Err(fault)
}

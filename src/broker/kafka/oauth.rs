//! Tokens for `sasl.mechanism = OAUTHBEARER`: fetched, kept, and renewed before they end.
//!
//! librdkafka asks for a token on the thread that polls a client. A hanging issuer must not hold up that thread, so a
//! thread of its own fetches. While a token holds, whoever asks gets it at once. librdkafka is told that a token ends
//! after half of what is left of it, so that it asks again while there is time to fetch the next one. All clients of a
//! connection share one token.

mod aws;
mod client_credentials;
mod http;
#[cfg(test)]
mod testing;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rdkafka::client::OAuthToken;
use tracing::{info, warn};

pub use self::aws::{AwsEnvironment, AwsIam};
pub use self::client_credentials::ClientCredentials;
use crate::domain::{Clock, Secret};

/// Longest wait of a client without a token. librdkafka asks again 10 s after a refusal.
const FIRST_TOKEN_WAIT: Duration = Duration::from_secs(2);
/// Longest time for one request to an issuer.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// Most bytes of an issuer's answer.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// Shortest life of a token that is taken: a shorter one would be asked for all the time.
const MIN_LIFE: Duration = Duration::from_secs(5);
/// Longest time for which a token is kept, however long it lives.
const MAX_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Age from which a token that a broker refuses is replaced by another one.
const REFUSED_AGE_US: i64 = 20_000_000;
/// Shortest life that librdkafka is told of.
const MIN_TOLD_MS: i64 = 1000;

/// Who issues the tokens of a connection.
#[derive(Clone, Debug)]
pub enum TokenIssuer {
    /// An OAuth 2 server, by the grant of client credentials.
    ClientCredentials(ClientCredentials),
    /// AWS MSK: the token is a request that is signed with AWS credentials.
    AwsIam(AwsIam),
}

/// A token that was issued.
#[derive(Debug, PartialEq, Eq)]
struct IssuedToken {
    text: Secret,
    /// Time for which it holds, from the moment at which it was asked for.
    life: Duration,
}

impl TokenIssuer {
    /// Gets a token. Blocks, within a deadline for each request. The error is a sentence without any secret.
    fn issue(&self, clock: Clock) -> Result<IssuedToken, String> {
        match self {
            Self::ClientCredentials(credentials) => credentials.issue(),
            Self::AwsIam(iam) => iam.issue(clock.wall()),
        }
    }

    /// Name of the principal. It is only shown: brokers read theirs from the token.
    fn principal(&self) -> &str {
        match self {
            Self::ClientCredentials(credentials) => &credentials.client_id,
            Self::AwsIam(_) => "postdate",
        }
    }
}

/// The tokens of one connection. Clones share them.
#[derive(Clone, Debug)]
pub struct TokenSource(Arc<SharedSource>);

#[derive(Debug)]
struct SharedSource {
    connection: String,
    issuer: TokenIssuer,
    clock: Clock,
    state: Mutex<TokenState>,
    fetched: Condvar,
}

#[derive(Debug, Default)]
struct TokenState {
    token: Option<HeldToken>,
    is_fetching: bool,
    /// Why the last fetch failed.
    failure: Option<String>,
}

/// A token with its life, in monotonic microseconds.
#[derive(Clone, Debug)]
struct HeldToken {
    /// The first one has number 1.
    number: u64,
    text: Secret,
    from_us: i64,
    until_us: i64,
}

impl HeldToken {
    /// Reports whether it is time for the next one: a third of its life is over.
    fn is_to_be_renewed(&self, now_us: i64) -> bool {
        now_us - self.from_us >= (self.until_us - self.from_us) / 3
    }

    /// The milliseconds that librdkafka is told it still holds. `None` if it does not.
    fn told_ms(&self, now_us: i64) -> Option<i64> {
        let left_us = self.until_us - now_us;
        (left_us > 0).then(|| (left_us / 2000).max(MIN_TOLD_MS))
    }
}

impl TokenSource {
    /// Makes the source of a connection's tokens. Nothing is fetched yet.
    pub fn new(connection: &str, issuer: TokenIssuer) -> Self {
        Self(Arc::new(SharedSource {
            connection: connection.to_owned(),
            issuer,
            clock: Clock::start(),
            state: Mutex::default(),
            fetched: Condvar::new(),
        }))
    }

    /// A token for librdkafka. Waits for one if none holds, two seconds at most. The error is a sentence without any secret.
    pub(super) fn token(&self) -> Result<OAuthToken, String> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        let now_us = shared.clock.mono_us();
        let held = state.token.as_ref();
        let is_due = held.is_none_or(|token| token.is_to_be_renewed(now_us));
        let is_held = held.is_some_and(|token| token.told_ms(now_us).is_some());
        if is_due && !state.is_fetching {
            self.start_fetch()?;
            state.is_fetching = true;
        }
        if !is_held {
            let is_fetching = |state: &mut TokenState| state.is_fetching;
            shared
                .fetched
                .wait_while_for(&mut state, is_fetching, FIRST_TOKEN_WAIT);
        }
        let now_us = shared.clock.mono_us();
        let held = state
            .token
            .as_ref()
            .and_then(|token| Some((token, token.told_ms(now_us)?)));
        match held {
            Some((token, told_ms)) => Ok(OAuthToken {
                token: token.text.expose().to_owned(),
                principal_name: shared.issuer.principal().to_owned(),
                lifetime_ms: shared.clock.wall().0 + told_ms,
            }),
            None if state.is_fetching => Err("no token has come yet".to_owned()),
            None => {
                let failure = state.failure.as_deref();
                Err(failure.unwrap_or("the token has ended").to_owned())
            }
        }
    }

    /// Number of the present token; `None` if none holds.
    pub(super) fn number(&self) -> Option<u64> {
        let state = self.0.state.lock();
        let now_us = self.0.clock.mono_us();
        let held = state.token.as_ref();
        let held = held.filter(|token| token.told_ms(now_us).is_some());
        held.map(|token| token.number)
    }

    /// Reports whether there is another token than this one, which a broker refused. Has one fetched if this one is old.
    pub(super) fn has_replaced(&self, refused: u64) -> bool {
        let mut state = self.0.state.lock();
        let now_us = self.0.clock.mono_us();
        let Some(token) = &state.token else {
            return false;
        };
        if token.number != refused {
            return true;
        }
        let is_old = now_us - token.from_us >= REFUSED_AGE_US;
        if is_old && !state.is_fetching {
            // Without a thread it is tried again at the next look.
            state.is_fetching = self.start_fetch().is_ok();
        }
        false
    }

    /// Why there is no token that holds, if a fetch failed.
    pub(super) fn failure(&self) -> Option<String> {
        let state = self.0.state.lock();
        let now_us = self.0.clock.mono_us();
        let held = state.token.as_ref();
        let is_held = held.is_some_and(|token| token.told_ms(now_us).is_some());
        state.failure.clone().filter(|_| !is_held)
    }

    fn start_fetch(&self) -> Result<(), String> {
        let shared = self.0.clone();
        let fetch = move || {
            let fetch = Fetch {
                source: &shared,
                began_us: shared.clock.mono_us(),
            };
            let issued = shared.issuer.issue(shared.clock);
            fetch.end(issued);
        };
        let thread = std::thread::Builder::new().name("kafka-token".to_owned());
        match thread.spawn(fetch) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("no thread for a token: {error}")),
        }
    }
}

/// A fetch that runs. However it ends, another one may begin then.
struct Fetch<'a> {
    source: &'a SharedSource,
    began_us: i64,
}

impl Fetch<'_> {
    fn end(self, issued: Result<IssuedToken, String>) {
        let connection = &self.source.connection;
        let mut state = self.source.state.lock();
        match issued {
            Ok(IssuedToken { text, life }) => {
                if state.failure.take().is_some() {
                    info!(%connection, "tokens for kafka are issued again");
                }
                let life = life.min(MAX_LIFE);
                let former = state.token.as_ref().map_or(0, |token| token.number);
                state.token = Some(HeldToken {
                    number: former + 1,
                    text,
                    from_us: self.began_us,
                    until_us: self.began_us + life.as_micros() as i64,
                });
            }
            Err(why) => {
                if state.failure.as_ref() != Some(&why) {
                    warn!(%connection, error = %why, "no token for kafka is issued");
                }
                state.failure = Some(why);
            }
        }
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        self.source.state.lock().is_fetching = false;
        self.source.fetched.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn librdkafka_asks_again_while_a_token_holds() {
        let life_us = 3_600_000_000;
        let token = HeldToken {
            number: 1,
            text: Secret::new("t"),
            from_us: 0,
            until_us: life_us,
        };
        // It asks after four fifths of what it was told.
        let mut asked_us = 0;
        let mut renewed_us = None;
        for _ in 0..3 {
            asked_us += token.told_ms(asked_us).expect("it holds") * 1000 / 5 * 4;
            if renewed_us.is_none() && token.is_to_be_renewed(asked_us) {
                renewed_us = Some(asked_us);
            }
        }
        assert_eq!(
            renewed_us,
            Some(life_us / 5 * 2),
            "the first ask begins the fetch"
        );
        assert!(asked_us < life_us / 5 * 4, "two more come in good time");
        assert_eq!(token.told_ms(life_us - 1), Some(MIN_TOLD_MS));
        assert_eq!(token.told_ms(life_us), None);
    }
}

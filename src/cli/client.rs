//! The API's client, and `send`, its first command.
//!
//! The token goes to the configured address and nowhere else: no proxy is taken from the environment, and
//! no redirect is followed.

mod pause;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::{Request, Uri};

pub(super) use self::pause::{Pausing, pause};
use crate::domain::{RouteName, Secret};

/// Longest wait for a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for an answer; the API's own deadlines are shorter.
const DEADLINE: Duration = Duration::from_secs(60);
/// The same with `--wait`: the API follows for an hour and a half minute at most.
const WAIT_DEADLINE: Duration = Duration::from_secs(3720);

/// Largest answer, bytes: a dead letter has at most 256 MiB, and base64 adds a third.
const LARGEST: u64 = 512 << 20;

/// Why a command was not done. Its text is a whole sentence for a person.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// Something was asked for that cannot be.
    #[error("{0}")]
    Usage(String),
    /// Nobody answered there.
    #[error("{url} cannot be reached: {why}; does postdate run there? (POSTDATE_URL)")]
    Unreachable {
        /// The address, without any password.
        url: String,
        /// What the system said.
        why: String,
    },
    /// No answer came in time.
    #[error("{url} did not answer in time: {why}")]
    Late {
        /// The address, without any password.
        url: String,
        /// Which deadline passed.
        why: String,
    },
    /// No token, or none that is known there.
    #[error("{url} wants a valid token: set POSTDATE_TOKEN or POSTDATE_TOKEN_FILE (401)")]
    Unauthorized {
        /// The address, without any password.
        url: String,
    },
    /// The API said no.
    #[error("{detail} ({status})")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The API's own sentence.
        detail: String,
        /// What a command came to, in the contract's word.
        result: Option<String>,
    },
    /// No route has a message of this id waiting.
    #[error("no message `{id}` waits on any route{} (404)", nearest.as_ref().map(|n| format!("; did you mean {n}")).unwrap_or_default())]
    UnknownMessage {
        /// The id.
        id: String,
        /// The nearest id that waits on a route, as the API quotes it.
        nearest: Option<String>,
    },
    /// More than one route has a message of this id.
    #[error("`{id}` is a message of more than one route: say --route {}", routes.join(", or --route "))]
    Ambiguous {
        /// The id.
        id: String,
        /// The routes.
        routes: Vec<String>,
    },
    /// It is another server that answers there, or a proxy before it.
    #[error("{url} does not answer as postdate's API does: {why} (POSTDATE_URL)")]
    Stranger {
        /// The address, without any password.
        url: String,
        /// What it answered.
        why: String,
    },
    /// The message was sent and followed, and did not reach its target.
    #[error("the message {id} was not published: {reason}")]
    NotPublished {
        /// Its id.
        id: String,
        /// The contract's reason.
        reason: String,
    },
    /// Not all that was asked for was done; what was not has been told already.
    #[error("{failed} of {all} were not {done}")]
    NotAll {
        /// How many were not done.
        failed: usize,
        /// How many were meant.
        all: usize,
        /// What should have been done.
        done: &'static str,
    },
    /// The answer could not be written out.
    #[error("the answer cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

impl ClientError {
    /// Whether it would be the same for every message: there is no use in going on.
    pub(super) fn is_of_all(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::UnknownMessage { .. } | Self::Ambiguous { .. })
    }

    /// The exit code it stands for.
    pub(super) fn exit_code(&self) -> u8 {
        if matches!(self, Self::Usage(_)) { 64 } else { 1 }
    }
}

/// Speaks to one replica's API.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    base: Secret,
    token: Option<Secret>,
}

/// A status and the body, as it came.
struct Answer {
    status: u16,
    body: String,
}

impl Client {
    /// For the API at `url` (`POSTDATE_URL`), with `token` (`POSTDATE_TOKEN`) if there is one. Does not
    /// connect yet.
    pub(super) fn new(url: &str, token: Option<Secret>) -> Result<Self, ClientError> {
        let base = Secret::new(url.trim_end_matches('/'));
        let parsed = url.parse::<Uri>().ok().filter(|u| matches!(u.scheme_str(), Some("http" | "https")));
        let parsed = parsed.filter(|u| u.query().is_none());
        if parsed.and_then(|u| u.into_parts().authority).is_none_or(|a| a.as_str().contains('@')) {
            let shown = base.redacted_url();
            let why =
                format!("`{shown}` is not http:// or https:// with a host, and maybe a port and a path");
            return Err(ClientError::Usage(format!("{why} (POSTDATE_URL)")));
        }
        if token.as_ref().is_some_and(|t| !t.expose().bytes().all(|b| b.is_ascii_graphic())) {
            let why = "the token holds a space, a line end or another character that none can have";
            return Err(ClientError::Usage(format!("{why} (POSTDATE_TOKEN)")));
        }
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_DEADLINE))
            .user_agent(concat!("postdate/", env!("CARGO_PKG_VERSION")));
        Ok(Self { agent: config.build().new_agent(), base, token })
    }

    fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        deadline: Duration,
    ) -> Result<Answer, ClientError> {
        let url = format!("{}{path}", self.base.expose());
        let mut request = Request::builder().method(method).uri(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.expose()));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(body).map_err(|e| ClientError::Usage(e.to_string()))?;
        let request = self.agent.configure_request(request).timeout_global(Some(deadline)).build();
        let mut response = self.agent.run(request).map_err(|e| self.failed(&e))?;
        let status = response.status().as_u16();
        // Pages of dead letters with their bodies may be large.
        let read = response.body_mut().with_config().limit(LARGEST).read_to_string();
        let body = read.map_err(|e| self.failed(&e))?;
        Ok(Answer { status, body })
    }

    /// Asks for something: the API's body.
    pub(super) fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.accept(&self.call("GET", path, None, DEADLINE)?)
    }

    /// Asks for something to be done: the API's body, or why it was not.
    pub(super) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        self.accept(&self.call(method, path, body, DEADLINE)?)
    }

    fn url(&self) -> String {
        self.base.redacted_url()
    }

    fn failed(&self, error: &ureq::Error) -> ClientError {
        let (url, why) = (self.url(), error.to_string());
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Io(_) => ClientError::Unreachable { url, why },
            ureq::Error::Timeout(_) => ClientError::Late { url, why },
            _ => ClientError::Stranger { url, why },
        }
    }

    /// The body of an answer that says yes; any other as a sentence.
    fn accept(&self, answer: &Answer) -> Result<Value, ClientError> {
        let stranger = |why| ClientError::Stranger { url: self.url(), why };
        let body: Value = serde_json::from_str(&answer.body)
            .map_err(|_| stranger(format!("status {}, and no JSON", answer.status)))?;
        match (answer.status, body["detail"].as_str()) {
            (200..300, _) => Ok(body),
            (401, _) => Err(ClientError::Unauthorized { url: self.url() }),
            (status, Some(detail)) => {
                let result = body["result"].as_str().map(str::to_owned);
                Err(ClientError::Refused { status, detail: detail.to_owned(), result })
            }
            (status, None) => Err(stranger(format!("status {status}, without a reason"))),
        }
    }
}

/// What `send` sends.
#[derive(Clone, Debug, Default)]
pub(super) struct Sending {
    /// The route's name.
    pub(super) route: String,
    /// As `x-delay`.
    pub(super) delay: Option<String>,
    /// As `x-deliver-at`.
    pub(super) at: Option<String>,
    /// The message's name; the API makes one if none is given.
    pub(super) id: Option<String>,
    /// Kafka's record key.
    pub(super) key: Option<String>,
    /// Further headers, each name once.
    pub(super) headers: Vec<(String, String)>,
    /// The body; empty if none is given.
    pub(super) body: Vec<u8>,
    /// Whether to follow it to its target.
    pub(super) wait: bool,
}

impl Sending {
    fn request(&self) -> Result<Value, ClientError> {
        let headers: BTreeMap<_, _> = self.headers.iter().map(|(name, value)| (name, value)).collect();
        if headers.len() < self.headers.len() {
            return Err(ClientError::Usage("each header can be given once".to_owned()));
        }
        let mut request = json!({ "headers": headers, "wait": self.wait });
        match std::str::from_utf8(&self.body) {
            Ok(text) => request["body"] = text.into(),
            Err(_) => request["body_base64"] = STANDARD.encode(&self.body).into(),
        }
        let texts = [("delay", &self.delay), ("at", &self.at), ("id", &self.id), ("key", &self.key)];
        for (name, text) in texts {
            if let Some(text) = text {
                request[name] = text.as_str().into();
            }
        }
        Ok(request)
    }
}

/// Sends a message to a route's own ingress. Prints its id; with `wait` a second line says when it was
/// published and how late. With `json` prints the API's body instead, whatever it says.
pub(super) fn send(
    client: &Client,
    sending: &Sending,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let Some(route) = RouteName::new(&sending.route) else {
        return Err(ClientError::Usage(format!("`{}` is not a route's name", sending.route.escape_debug())));
    };
    let deadline = if sending.wait { WAIT_DEADLINE } else { DEADLINE };
    let answer = client.call(
        "POST",
        &format!("/api/v1/routes/{route}/messages"),
        Some(&sending.request()?),
        deadline,
    )?;
    if json {
        writeln!(out, "{}", answer.body)?;
    }
    let body = client.accept(&answer)?;
    let text = |name: &str| body[name].as_str().unwrap_or("?").to_owned();
    if !json {
        writeln!(out, "{}", text("id"))?;
    }
    if body["result"] == "dead" {
        return Err(ClientError::NotPublished { id: text("id"), reason: text("reason") });
    }
    if let (false, Some(late)) = (json, body["lateness_ms"].as_f64()) {
        writeln!(
            out,
            "published at {}, {late:.1} ms late, attempt {}",
            text("published_at"),
            body["attempt"]
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

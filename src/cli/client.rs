//! The client of the API.
//!
//! The token goes to the configured address and nowhere else: no proxy is taken from the environment, and
//! no redirect is followed.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use ureq::Agent;
use ureq::http::{Request, Uri};
use ureq::tls::TlsConfig;

use crate::api::{BECAUSE_HEADER, Problem};
use crate::domain::{Because, Secret, percent_encoded};
use crate::tls::{ClientFiles, KeyHints, TlsTrouble};

/// Longest wait for a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for an answer; the API's own deadlines are shorter.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(60);
/// Largest answer, bytes: a dead letter has at most 256 MiB, and base64 adds a third.
const MAX_ANSWER_BYTES: u64 = 512 << 20;

/// Failure of a command. Its text is a whole sentence for a person.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// No server answered at the address.
    #[error("{url} cannot be reached: {why}; does postdate run there? (POSTDATE_URL)")]
    Unreachable {
        /// The address, without any password.
        url: String,
        /// Error of the system.
        why: String,
    },
    /// The server and this client do not agree on TLS.
    #[error("{url}: {why}")]
    Tls {
        /// The address, without any password.
        url: String,
        /// The cause, as a sentence.
        why: String,
    },
    /// No answer came in time.
    #[error("{url} did not answer in time: {why}")]
    Late {
        /// The address, without any password.
        url: String,
        /// The deadline that passed.
        why: String,
    },
    /// The token is missing, or not known to the server.
    #[error("{url} wants a valid token: set POSTDATE_TOKEN or POSTDATE_TOKEN_FILE (401)")]
    Unauthorized {
        /// The address, without any password.
        url: String,
    },
    /// The API refused the call.
    #[error("{detail} ({status})")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The API's own sentence.
        detail: String,
        /// Result of a command, in the contract's word.
        result: Option<String>,
    },
    /// More than one route has a message of this id.
    #[error("`{id}` is a message of more than one route: say --route {}", routes.join(", or --route "))]
    Ambiguous {
        /// The id.
        id: String,
        /// The routes.
        routes: Vec<String>,
    },
    /// Another server answers at the address, or a proxy before it.
    #[error("{url} does not answer as postdate's API does: {why} (POSTDATE_URL)")]
    Stranger {
        /// The address, without any password.
        url: String,
        /// Its answer.
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
    /// A part of the request was not done. The command has named each such item already.
    #[error("{failed} of {all} were not {done}")]
    NotAll {
        /// Items that were not done.
        failed: usize,
        /// Items in all.
        all: usize,
        /// The action, as a participle: `redriven`.
        done: &'static str,
    },
    /// The answer could not be written out.
    #[error("the answer cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

impl ClientError {
    /// Reports whether every further message would fail the same way, so that the command should stop.
    pub(super) fn is_of_all(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Ambiguous { .. })
    }

    /// The exit code of this failure.
    pub(super) fn exit_code(&self) -> u8 {
        if matches!(self, Self::Usage(_)) {
            64
        } else {
            1
        }
    }
}

/// ApiClient of one replica's API.
#[derive(Debug)]
pub(super) struct ApiClient {
    agent: Agent,
    base: Secret,
    token: Option<Secret>,
    /// Why its calls are made, percent-encoded.
    because: Option<String>,
}

/// Status and body of an answer, as they came.
pub(super) struct ApiAnswer {
    pub(super) status: u16,
    pub(super) body: String,
}

impl ApiClient {
    /// A client of the API at `url` (`POSTDATE_URL`), with `token` (`POSTDATE_TOKEN`) if there is one. Over https:// it
    /// trusts the authorities in the file `ca`, or else the system's. It does not connect yet.
    pub(super) fn new(
        url: &str,
        token: Option<Secret>,
        ca: Option<PathBuf>,
    ) -> Result<Self, ClientError> {
        let base = Secret::new(url.trim_end_matches('/'));
        let parsed = url
            .parse::<Uri>()
            .ok()
            .filter(|u| matches!(u.scheme_str(), Some("http" | "https")));
        let parsed = parsed.filter(|u| u.query().is_none());
        if parsed
            .and_then(|u| u.into_parts().authority)
            .is_none_or(|a| a.as_str().contains('@'))
        {
            let shown = base.redacted_url();
            let why = format!(
                "`{shown}` is not http:// or https:// with a host, and maybe a port and a path"
            );
            return Err(ClientError::Usage(format!("{why} (POSTDATE_URL)")));
        }
        if token
            .as_ref()
            .is_some_and(|t| !t.expose().bytes().all(|b| b.is_ascii_graphic()))
        {
            let why = "the token holds a space, a line end or another character that none can have";
            return Err(ClientError::Usage(format!("{why} (POSTDATE_TOKEN)")));
        }
        let mut config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_DEADLINE))
            .user_agent(concat!("postdate/", env!("CARGO_PKG_VERSION")));
        if url.starts_with("https://") {
            config = config.tls_config(tls_config(ca)?);
        }
        Ok(Self {
            agent: config.build().new_agent(),
            base,
            token,
            because: None,
        })
    }

    /// The same client, whose calls say why they are made.
    pub(super) fn saying_why(self, because: Option<&Because>) -> Self {
        Self {
            because: because.map(|because| percent_encoded(because.as_str())),
            ..self
        }
    }

    /// Makes one call and returns its answer, whatever its status.
    pub(super) fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<String>,
        deadline: Duration,
    ) -> Result<ApiAnswer, ClientError> {
        let url = format!("{}{path}", self.base.expose());
        let mut request = Request::builder().method(method).uri(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.expose()));
        }
        if let Some(because) = &self.because {
            request = request.header(BECAUSE_HEADER, because);
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request
            .body(body.unwrap_or_default())
            .map_err(|e| ClientError::Usage(e.to_string()))?;
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(Some(deadline))
            .build();
        let mut response = self.agent.run(request).map_err(|e| self.failed(&e))?;
        let status = response.status().as_u16();
        // Pages of dead letters with their bodies may be large.
        let read = response
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER_BYTES)
            .read_to_string();
        let body = read.map_err(|e| self.failed(&e))?;
        Ok(ApiAnswer { status, body })
    }

    /// Reads from the API.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.accept(&self.call("GET", path, None, CALL_DEADLINE)?)
    }

    /// Reads from the API: the body of its answer, as it came.
    pub(super) fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let answer = self.call("GET", path, None, CALL_DEADLINE)?;
        self.accept::<IgnoredAny>(&answer)?;
        Ok(answer.body)
    }

    /// Has the API do something.
    pub(super) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.accept(&self.call("POST", path, Some(json_of(request)?), CALL_DEADLINE)?)
    }

    /// The address of the API, without any password.
    pub(super) fn url(&self) -> String {
        self.base.redacted_url()
    }

    fn failed(&self, error: &ureq::Error) -> ClientError {
        let url = self.url();
        let why = error.to_string();
        let trouble = match error {
            ureq::Error::Io(error) => TlsTrouble::of_io(error),
            ureq::Error::Rustls(error) => Some(TlsTrouble::of(error)),
            _ => None,
        };
        if let Some(trouble) = trouble {
            let sentence = match trouble {
                TlsTrouble::CertificateWanted => {
                    "it wants a certificate of its clients, and this command has none".to_owned()
                }
                trouble => trouble.sentence(&tls_hints()),
            };
            return ClientError::Tls {
                url,
                why: format!("{sentence} ({why})"),
            };
        }
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Io(_) => ClientError::Unreachable { url, why },
            ureq::Error::Timeout(_) => ClientError::Late { url, why },
            _ => ClientError::Stranger { url, why },
        }
    }

    /// What a successful answer says; any other answer as a [`ClientError`].
    pub(super) fn accept<T: DeserializeOwned>(&self, answer: &ApiAnswer) -> Result<T, ClientError> {
        let ApiAnswer { status, body } = answer;
        let stranger = |error: &serde_json::Error, misfit: &str| {
            let why = if error.is_data() {
                misfit
            } else {
                "and no JSON"
            };
            ClientError::Stranger {
                url: self.url(),
                why: format!("status {status}, {why}"),
            }
        };
        if (200..300).contains(status) {
            return serde_json::from_str(body).map_err(|error| {
                let misfit = format!("and another answer ({error})");
                stranger(&error, &misfit)
            });
        }
        let problem: Problem =
            serde_json::from_str(body).map_err(|error| stranger(&error, "without a reason"))?;
        if *status == 401 {
            return Err(ClientError::Unauthorized { url: self.url() });
        }
        Err(ClientError::Refused {
            status: *status,
            detail: problem.detail.into(),
            result: problem.result.map(String::from),
        })
    }
}

/// A request as the body of a call.
pub(super) fn json_of(request: &impl Serialize) -> Result<String, ClientError> {
    serde_json::to_string(request).map_err(|error| ClientError::Usage(error.to_string()))
}

/// TLS that trusts the authorities in a file, or else the system's.
fn tls_config(ca: Option<PathBuf>) -> Result<TlsConfig, ClientError> {
    let files = ClientFiles { ca, identity: None };
    files
        .http_config()
        .map_err(|why| ClientError::Usage(format!("{why} (--ca, POSTDATE_CA)")))
}

/// What a sentence about TLS tells the user of a command.
fn tls_hints() -> KeyHints {
    KeyHints {
        ca: "--ca".to_owned(),
        certificate: String::new(),
        with_tls: "POSTDATE_URL must begin with https://".to_owned(),
        without_tls: "POSTDATE_URL must begin with http://".to_owned(),
    }
}

/// Parameters of a query, as a path takes them.
pub(super) fn query(pairs: &[(&str, String)]) -> String {
    pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", percent_encoded(value)))
        .collect::<Vec<_>>()
        .join("&")
}

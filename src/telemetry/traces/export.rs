//! The exporter: posts what was recorded to the collector, some spans at a time. A collector that is slow, away or
//! refusing loses spans, and nothing else.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tracing::{info, warn};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::Collector;
use super::otlp::{self, Span};
use crate::domain::Secret;

/// Spans of one request at most.
const BATCH_SPANS: usize = 512;
/// Longest time for which a span waits for others.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Longest time for the last requests once the process ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// Most bytes of an answer that are read.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// Sends spans to a collector.
#[derive(Debug)]
pub struct SpanExporter {
    collector: Collector,
    agent: Agent,
    replica: String,
    queued: mpsc::Receiver<Span>,
    lost: Counter,
    /// The last request failed.
    is_failing: bool,
}

impl SpanExporter {
    pub(super) fn new(
        collector: Collector,
        replica: String,
        queued: mpsc::Receiver<Span>,
        lost: Counter,
    ) -> Result<Self, String> {
        let agent = agent(&collector)?;
        Ok(Self { collector, agent, replica, queued, lost, is_failing: false })
    }

    /// Exports until `ends` resolves, and then what has been recorded until then, for a bounded time.
    pub async fn run(mut self, ends: impl Future<Output = ()>) {
        let mut batch = Vec::new();
        tokio::select! {
            () = ends => {}
            () = self.export(&mut batch) => {}
        }
        self.queued.close();
        let flush = async {
            loop {
                self.post(std::mem::take(&mut batch)).await;
                if self.queued.recv_many(&mut batch, BATCH_SPANS).await == 0 {
                    break;
                }
            }
        };
        if tokio::time::timeout(FLUSH_LIMIT, flush).await.is_err() {
            warn!("the collector of traces did not take the last spans in time");
        }
    }

    /// Exports until nobody can record any more. What was gathered and not sent yet is in `batch`.
    async fn export(&mut self, batch: &mut Vec<Span>) {
        while self.gather(batch).await {
            self.post(std::mem::take(batch)).await;
        }
    }

    /// Waits for the first span, and then for others, until there are enough for a request. Answers false if none will
    /// come.
    async fn gather(&mut self, batch: &mut Vec<Span>) -> bool {
        if self.queued.recv_many(batch, BATCH_SPANS).await == 0 {
            return false;
        }
        let mut full = std::pin::pin!(tokio::time::sleep(GATHER_TIME));
        while batch.len() < BATCH_SPANS {
            let room = BATCH_SPANS - batch.len();
            tokio::select! {
                () = &mut full => break,
                came = self.queued.recv_many(batch, room) => if came == 0 { break },
            }
        }
        true
    }

    async fn post(&mut self, batch: Vec<Span>) {
        let count = batch.len();
        if count == 0 {
            return;
        }
        let body = otlp::encode(&self.replica, batch);
        let request = Request {
            agent: self.agent.clone(),
            endpoint: self.collector.endpoint.clone(),
            authorization: self.collector.authorization.clone(),
        };
        let posted = tokio::task::spawn_blocking(move || request.post(&body)).await;
        match posted.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(()) if self.is_failing => info!("the collector of traces takes spans again"),
            Ok(()) => {}
            Err(error) => {
                self.lost.inc_by(count as u64);
                if !self.is_failing {
                    warn!(
                        endpoint = self.collector.endpoint,
                        error, "spans cannot be exported; they are lost"
                    );
                }
                self.is_failing = true;
                return;
            }
        }
        self.is_failing = false;
    }
}

/// One request to the collector.
struct Request {
    agent: Agent,
    endpoint: String,
    authorization: Option<Secret>,
}

impl Request {
    /// Posts the spans. The error is a sentence for a person.
    fn post(&self, body: &[u8]) -> Result<(), String> {
        let mut request = self.agent.post(&self.endpoint).header("content-type", "application/x-protobuf");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization.expose());
        }
        let mut answer = request.send(body).map_err(|error| error.to_string())?;
        let status = answer.status();
        // Reading it to its end lets the connection be used again.
        let text = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec();
        text.map_err(|error| error.to_string())?;
        if status.is_success() { Ok(()) } else { Err(format!("the collector answered {status}")) }
    }
}

/// Makes the HTTP client. Reads the authorities of the collector's certificate if it is asked for one.
fn agent(collector: &Collector) -> Result<Agent, String> {
    let agent = Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .timeout_global(Some(collector.timeout));
    if !collector.endpoint.starts_with("https:") {
        return Ok(agent.build().new_agent());
    }
    let authorities = collector.tls.authority_certificates()?;
    let authorities: Vec<_> = authorities.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&authorities)).build();
    Ok(agent.tls_config(tls).build().new_agent())
}

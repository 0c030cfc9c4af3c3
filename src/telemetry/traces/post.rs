//! One request to the collector, and the meaning of its answer.

use std::io::Read;
use std::time::Duration;

use tracing::debug;
use ureq::Agent;

use super::Collector;
use super::losses::SpanLoss;
use super::otlp;
use crate::domain::{Clock, UnixMs};

/// Most bytes of an answer that are read.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// Characters of the collector's own words that an error keeps.
const MAX_MESSAGE_CHARS: usize = 200;

/// Spans that a collector rejected from a request which it took, with its words about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TakenRequest {
    pub(super) rejected: u64,
    pub(super) message: String,
}

/// Reason why a collector did not take a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PostFailure {
    /// The collector may take the same request later.
    Passing {
        /// Cause of the loss if it never does.
        cause: SpanLoss,
        error: String,
        /// Wait that the collector asked for.
        retry_after: Option<Duration>,
    },
    /// The collector will never take this request.
    Refused(String),
}

/// Result of one try of a request.
pub(super) type PostResult = Result<TakenRequest, PostFailure>;

/// Client of a collector.
#[derive(Debug)]
pub(super) struct CollectorClient {
    collector: Collector,
    agent: Agent,
    clock: Clock,
}

impl CollectorClient {
    /// Makes the client. Reads the authorities of the collector's certificate if it is asked for one.
    pub(super) fn new(collector: Collector, clock: Clock) -> Result<Self, String> {
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_global(Some(collector.timeout));
        let agent = if collector.endpoint.starts_with("https:") {
            let tls = collector.tls.http_config()?;
            config.tls_config(tls).build().new_agent()
        } else {
            config.build().new_agent()
        };
        Ok(Self {
            collector,
            agent,
            clock,
        })
    }

    /// Posts spans, within the collector's timeout. Blocks.
    pub(super) fn post(&self, body: &[u8]) -> PostResult {
        let endpoint = &self.collector.endpoint;
        let mut request = self
            .agent
            .post(endpoint)
            .header("content-type", "application/x-protobuf");
        if let Some(authorization) = &self.collector.authorization {
            let authorization = authorization.current().map_err(away)?;
            request = request.header("authorization", authorization.expose());
        }
        let sent = request.send(body);
        let mut answer = sent.map_err(|error| away(error.to_string()))?;
        let status = answer.status().as_u16();
        let retry_after = answer
            .headers()
            .get("retry-after")
            .and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| wait_of(text, self.clock.wall()));
        // Reading the body to its end lets the connection be used again. The status alone decides if that fails.
        let mut text = Vec::new();
        if let Err(error) = answer
            .body_mut()
            .as_reader()
            .take(MAX_ANSWER_BYTES)
            .read_to_end(&mut text)
        {
            debug!(%error, status, "an answer of the collector of traces cannot be read");
            text.clear();
        }
        meaning_of(status, retry_after, &text)
    }
}

/// The failure of a request that did not reach the collector.
fn away(error: String) -> PostFailure {
    PostFailure::Passing {
        cause: SpanLoss::Away,
        error,
        retry_after: None,
    }
}

/// Judges an answer by its status and body.
fn meaning_of(status: u16, retry_after: Option<Duration>, body: &[u8]) -> PostResult {
    if (200..300).contains(&status) {
        let (rejected, message) = otlp::rejected_spans(body);
        return Ok(TakenRequest {
            rejected,
            message: shortened(&message),
        });
    }
    let message = otlp::status_message(body);
    let error = match shortened(&message).as_str() {
        "" => format!("the collector answered {status}"),
        message => format!("the collector answered {status}: {message}"),
    };
    // The answers that OpenTelemetry's protocol calls retryable.
    match status {
        429 | 502 | 503 | 504 => Err(PostFailure::Passing {
            cause: SpanLoss::Busy,
            error,
            retry_after,
        }),
        _ => Err(PostFailure::Refused(error)),
    }
}

/// Reads the wait from a `Retry-After`: seconds, or a moment by HTTP's calendar.
fn wait_of(text: &str, now: UnixMs) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number beyond `u64` is as good as the largest one: the exporter bounds the wait.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()?;
    let wait_ms = at.as_millisecond().saturating_sub(now.0).max(0);
    Some(Duration::from_millis(wait_ms.unsigned_abs()))
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::traces::testing;

    #[test]
    fn only_the_answers_that_the_protocol_calls_retryable_are_tried_again() {
        let wait = Some(Duration::from_secs(7));
        for status in 200..300 {
            assert_eq!(
                meaning_of(status, wait, b""),
                Ok(TakenRequest::default()),
                "{status}"
            );
        }
        for status in (100..200).chain(300..600) {
            let error = format!("the collector answered {status}");
            let expected = if [429, 502, 503, 504].contains(&status) {
                PostFailure::Passing {
                    cause: SpanLoss::Busy,
                    error,
                    retry_after: wait,
                }
            } else {
                PostFailure::Refused(error)
            };
            assert_eq!(meaning_of(status, wait, b""), Err(expected), "{status}");
        }
    }

    #[test]
    fn the_words_of_an_answer_are_kept_up_to_a_length_and_one_that_cannot_be_read_rejects_nothing()
    {
        let long = "x".repeat(500);
        let taken = meaning_of(200, None, &testing::partial_success(3, &long));
        assert_eq!(
            taken,
            Ok(TakenRequest {
                rejected: 3,
                message: long[..200].to_owned()
            })
        );
        let negative = meaning_of(200, None, &testing::partial_success(-3, ""));
        assert_eq!(negative, Ok(TakenRequest::default()));
        assert_eq!(
            meaning_of(200, None, b"<html>"),
            Ok(TakenRequest::default())
        );
        let refused = meaning_of(400, None, &testing::status("no such tenant"));
        let sentence = "the collector answered 400: no such tenant".to_owned();
        assert_eq!(refused, Err(PostFailure::Refused(sentence)));
        let page = meaning_of(404, None, b"<html>");
        assert_eq!(
            page,
            Err(PostFailure::Refused(
                "the collector answered 404".to_owned()
            ))
        );
    }

    #[test]
    fn a_wait_is_asked_for_in_seconds_or_as_a_moment() {
        // 2026-11-25T23:00:00Z
        let now = UnixMs(1_795_647_600_000);
        let read = |text: &str| wait_of(text, now);
        assert_eq!(read("0"), Some(Duration::ZERO));
        assert_eq!(read(" 120 "), Some(Duration::from_mins(2)));
        assert_eq!(read(&"9".repeat(40)), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(
            read("Wed, 25 Nov 2026 23:00:09 GMT"),
            Some(Duration::from_secs(9))
        );
        assert_eq!(
            read("Wed, 25 Nov 2026 22:59:00 GMT"),
            Some(Duration::ZERO),
            "it is past"
        );
        for none in ["", "soon", "-1", "1.5", "2026-11-25T23:00:09Z"] {
            assert_eq!(read(none), None, "{none}");
        }
    }
}

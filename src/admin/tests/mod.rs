//! Real HTTP against the started server.

mod access;
mod agreement;
mod console;
mod crowd;
mod dead;
mod ending;
mod pausing;
mod probes;
mod sending;
mod skipping;

use super::testing::HttpAnswer;

/// Checks that the answer is an error in the form of RFC 9457, uncached, with a sentence. Returns the sentence.
fn problem(answer: &HttpAnswer, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    guarded(answer);
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json"),
        "{answer:?}"
    );
    let problem = answer.json();
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(problem["status"], status);
    assert!(
        problem["title"].as_str().is_some_and(|t| !t.is_empty()),
        "{answer:?}"
    );
    let detail = problem["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.len() > 10, "{answer:?}");
    detail
}

fn guarded(answer: &HttpAnswer) {
    assert_eq!(
        answer.header("cache-control"),
        Some("no-store"),
        "{answer:?}"
    );
    assert_eq!(
        answer.header("x-content-type-options"),
        Some("nosniff"),
        "{answer:?}"
    );
    assert_eq!(
        answer.header("cross-origin-resource-policy"),
        Some("same-origin"),
        "{answer:?}"
    );
}

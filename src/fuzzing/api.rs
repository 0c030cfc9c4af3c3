//! The API: paths, queries, cursors and bodies.

use crate::admin::fuzzing::Api;

thread_local! {
    static API: Api = Api::new();
}

/// Key of a request that is answered late.
const WAIT: &[u8] = b"\"wait\"";
/// Status of an answer whose call panicked.
const INTERNAL_ERROR: u16 = 500;

/// Any request is answered, and never as an internal error. What is refused is refused with a problem that says why.
///
/// The first line is the method and the URI, as in HTTP; the rest is the body.
///
/// # Panics
/// If a promise is broken.
pub fn api_requests(data: &[u8]) {
    let end = data
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(data.len());
    let (head, body) = data.split_at(end);
    let Ok(head) = std::str::from_utf8(head) else {
        return;
    };
    let Some((method, uri)) = head.split_once(' ') else {
        return;
    };
    let body = body.strip_prefix(b"\n").unwrap_or(body);
    // A call that follows its message waits for seconds.
    if body.windows(WAIT.len()).any(|part| part == WAIT) {
        return;
    }
    let Some(answer) = API.with(|api| api.answer(method, uri, body)) else {
        return;
    };
    let text = String::from_utf8_lossy(&answer.body);
    assert_ne!(answer.status, INTERNAL_ERROR, "{head}: {text}");
    // The answer to HEAD has no body, and that of the probes is of their own form.
    if answer.status >= 400 && !answer.body.is_empty() && uri.starts_with("/api") {
        assert_eq!(
            answer.content_type, "application/problem+json",
            "{head}: {text}"
        );
        let problem = serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap_or_default();
        assert_eq!(problem["status"], answer.status, "{head}: {text}");
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|detail| !detail.is_empty()),
            "{head}: {text}"
        );
    }
}

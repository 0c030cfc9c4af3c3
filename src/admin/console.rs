//! Console: the pages for people, served at `/`. Its files are part of the binary, and every call that its pages make is one
//! of the API's: whoever opens them sees nothing that their token does not allow.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rust_embed::{EmbeddedFile, RustEmbed};

use super::problem::Problem;

/// Rules for a browser: nothing from elsewhere, no script and no style but the console's files, in nobody's frame.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files of the console.
#[derive(RustEmbed)]
#[folder = "src/admin/console"]
struct ConsoleFiles;

/// Reports whether the console has a file for this path.
pub(super) fn has_file(path: &str) -> bool {
    ConsoleFiles::iter().any(|name| name == file_name(path))
}

fn file_name(path: &str) -> &str {
    match path {
        "/" => "index.html",
        path => path.strip_prefix('/').unwrap_or(path),
    }
}

/// Answers a path that no call has: with a file of the console, or that there is nothing.
pub(super) async fn file(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let path = file_name(uri.path());
    match ConsoleFiles::get(path) {
        Some(_) if !matches!(method, Method::GET | Method::HEAD) => {
            let detail = format!("{method} is not for this path");
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail).into_response()
        }
        Some(file) => file_answer(path, file, &headers),
        None => Problem::not_found("there is nothing at this path").into_response(),
    }
}

/// The answer with a file; 304 if the browser has it already.
fn file_answer(path: &str, file: EmbeddedFile, asked: &HeaderMap) -> Response {
    let tag = format!(
        "\"{}\"",
        URL_SAFE_NO_PAD.encode(file.metadata.sha256_hash())
    );
    let is_known = asked
        .get(header::IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let headers: [(HeaderName, HeaderValue); 6] = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static(content_type(path)),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(CONTENT_POLICY),
        ),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
        (
            header::ETAG,
            HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("")),
        ),
    ];
    if is_known {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, Bytes::from(file.data.into_owned())).into_response()
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

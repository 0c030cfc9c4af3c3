//! The OpenAPI document: made from the handlers, then completed with the rules that hold for all of them.

use axum::http::Method;
use serde_json::json;
use utoipa::openapi::OpenApi as Document;
use utoipa::{Modify, OpenApi};

use super::auth::{AccessRole, needed_role};
use super::extract::BODY_REFUSALS;
use super::problem::{PROBLEM_JSON, Problem};

const UNAUTHORIZED: &str =
    "No valid bearer token. Judged before anything else, on unknown paths too.";
const FORBIDDEN_READ: &str =
    "No token is configured, and the request came by a host name other than localhost.";
const FORBIDDEN_WRITE: &str = "The token may only read; or, where no token is configured, the request came \
    by a host name other than localhost.";

const TOO_MANY: &str = "The address has too many connections, each with a call under way.";

/// Parts of the document that no handler describes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Postdate",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        description = "Probes, metrics and the API, on `admin.listen` (default `127.0.0.1:8025`). Under \
            `/api/` a bearer token is needed once one is configured (`admin.read_tokens_file`, \
            `admin.write_tokens_file`); a write token may read. Every error is RFC 9457 \
            `application/problem+json`, with a sentence in `detail`. Nothing may be cached."
    ),
    components(schemas(Problem)),
    security(("bearer" = [])),
    modifiers(&BearerScheme)
)]
pub(super) struct ApiDescription;

struct BearerScheme;

impl Modify for BearerScheme {
    fn modify(&self, document: &mut Document) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("One of `admin.read_tokens` or `admin.write_tokens`."));
        if let Some(components) = &mut document.components {
            components.add_security_scheme("bearer", SecurityScheme::Http(scheme.build()));
        }
    }
}

/// Completes the document as it is served. `x-role`, 401, 403 and 429 follow from the rules of `auth`. An error without content
/// gets the content of a [`Problem`].
pub(super) fn complete(document: &Document) -> serde_json::Result<String> {
    let mut document = serde_json::to_value(document)?;
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    let calls = paths.flat_map(|(path, calls)| {
        calls
            .as_object_mut()
            .into_iter()
            .flatten()
            .map(move |(method, call)| (path, method, call))
    });
    for (path, method, call) in calls {
        let open = call["security"] == json!([{}]) || call["security"] == json!([]);
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap_or_default();
        // A call that shows what a message says declares its role.
        let declares_write = call["x-role"] == "write";
        let role = match needed_role(&method, path) {
            _ if open => "open",
            Some(AccessRole::Write) => "write",
            _ if declares_write => "write",
            _ => "read",
        };
        call["x-role"] = role.into();
        if open {
            call["security"] = json!([]);
        } else {
            let forbidden = if role == "read" {
                FORBIDDEN_READ
            } else {
                FORBIDDEN_WRITE
            };
            call["responses"]["401"] = json!({ "description": UNAUTHORIZED });
            call["responses"]["429"] = json!({ "description": TOO_MANY });
            // A call that refuses more by 403 describes it itself.
            if call["responses"].get("403").is_none() {
                call["responses"]["403"] = json!({ "description": forbidden });
            }
        }
        if call.get("requestBody").is_some() {
            for (status, description) in BODY_REFUSALS {
                call["responses"][status] = json!({ "description": description });
            }
        }
        for (status, answer) in call["responses"].as_object_mut().into_iter().flatten() {
            if status.as_str() >= "400" && answer.get("content").is_none() {
                let schema = json!({ "$ref": "#/components/schemas/Problem" });
                answer["content"] = json!({ PROBLEM_JSON: { "schema": schema } });
            }
        }
    }
    // Tells the trail of what is gone from a dead letter with a trail. Its readers take fields of a later version.
    document["components"]["schemas"]["MessageTrail"]["additionalProperties"] = false.into();
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}

//! The table in `mod.rs`, the handlers and `docs/openapi.json` agree.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::super::router::OPENAPI_DOCUMENT;
use super::super::testing::{DEAD_ID, READ_TOKEN, TestServer, WRITE_TOKEN};

/// A row of the table: method, path, role.
pub(super) struct TableRow {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) role: &'static str,
}

pub(super) fn table() -> Vec<TableRow> {
    let rows = include_str!("../mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `"));
    let rows = rows.map(|row| {
        let (call, rest) = row.split_once("` | ").expect("a call, then a role");
        let (method, path) = call.split_once(' ').expect("a method and a path");
        let (role, _) = rest.split_once(" | ").expect("a role, then an answer");
        TableRow { method, path, role }
    });
    rows.collect()
}

impl TableRow {
    /// The path for a route that is there.
    pub(super) fn concrete(&self) -> String {
        let id = if self.path.starts_with("/api/v1/dead") {
            DEAD_ID
        } else {
            "order-7"
        };
        self.path.replace("{route}", "orders").replace("{id}", id)
    }

    /// A body that the call takes.
    pub(super) fn body(&self) -> String {
        match self.path {
            "/api/v1/dead/redrive" | "/api/v1/dead/drop" => format!("{{\"ids\":[\"{DEAD_ID}\"]}}"),
            "/api/v1/routes/{route}/messages/cancel" => "{\"ids\":[\"order-7\"]}".to_owned(),
            "/api/v1/routes/{route}/skip" => "{\"partition\":0,\"offset\":7}".to_owned(),
            _ if self.method == "PUT" => "{\"body\":\"new\"}".to_owned(),
            _ if matches!(self.method, "POST" | "PATCH") => "{}".to_owned(),
            _ => String::new(),
        }
    }

    /// Reports whether the status shows that the call was let through. There is no store in these tests: a call that asks
    /// the store answers 503.
    pub(super) fn is_answered(&self, status: u16) -> bool {
        let asks = [
            "/messages/{id}",
            "/messages/cancel",
            "v1/messages",
            "/messages/{id}/body",
            "/retries",
            "/trail",
            "/activity",
            "/histogram",
            "/partitions",
            "/audit",
            "/pause",
            "/resume",
            "/purge",
            "/dead",
            "/dead/{id}",
            "/dead/redrive",
            "/dead/drop",
        ];
        if asks.iter().any(|end| self.path.ends_with(end)) {
            status == 503
        } else {
            status < 300
        }
    }
}

fn description() -> Value {
    serde_json::from_str(OPENAPI_DOCUMENT.as_ref().expect("written")).expect("JSON")
}

#[tokio::test]
async fn the_router_has_what_the_table_says_and_nothing_else() {
    let listed: BTreeSet<_> = table().iter().map(|row| row.path).collect();
    let server = TestServer::start().await;
    let rows = table();
    for path in listed {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let is_at = |path| move |row: &&TableRow| (row.method, row.path) == (method, path);
            // A message may be named as the call is.
            let as_message = match path {
                "/api/v1/routes/{route}/messages/cancel" => {
                    Some("/api/v1/routes/{route}/messages/{id}")
                }
                "/api/v1/dead/redrive" | "/api/v1/dead/drop" => Some("/api/v1/dead/{id}"),
                _ => None,
            };
            let mut paths = [Some(path), as_message].into_iter().flatten();
            let row = paths.find_map(|path| rows.iter().find(is_at(path)));
            let of_path = rows.iter().find(|row| row.path == path).expect("listed");
            let concrete = of_path.concrete();
            let body = row.map_or_else(|| "{}".to_owned(), TableRow::body);
            let answer = server
                .call(method, &concrete, Some(WRITE_TOKEN), &body)
                .await;
            assert_eq!(
                answer.status != 405,
                row.is_some(),
                "{method} {path}: {answer:?}"
            );
            assert!(
                row.is_none_or(|row| row.is_answered(answer.status)),
                "{method} {path}: {answer:?}"
            );
        }
    }
    server.end().await;
}

#[tokio::test]
async fn the_roles_of_the_table_hold() {
    let server = TestServer::start().await;
    for row in table() {
        let mut answers = Vec::new();
        for token in [None, Some("wrong"), Some(READ_TOKEN), Some(WRITE_TOKEN)] {
            answers.push(
                server
                    .call(row.method, &row.concrete(), token, &row.body())
                    .await
                    .status,
            );
        }
        let done = answers[3];
        let expected = match row.role {
            "open" => [done; 4],
            "read" => [401, 401, done, done],
            "write" => [401, 401, 403, done],
            role => panic!("{role} is no role"),
        };
        assert_eq!(answers, expected, "{} {}", row.method, row.path);
        assert!(row.is_answered(done), "{} {}: {done}", row.method, row.path);
    }
    server.end().await;
}

#[test]
fn openapi_describes_the_table() {
    let description = description();
    let mut described = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().expect("paths") {
        for (method, call) in methods.as_object().expect("methods") {
            let role = call["x-role"].as_str().expect("a role");
            assert_eq!(
                call["security"] == serde_json::json!([]),
                role == "open",
                "{method} {path}"
            );
            described.insert((method.to_uppercase(), path.clone(), role.to_owned()));
        }
    }
    let listed: BTreeSet<_> = table()
        .iter()
        .map(|row| {
            (
                row.method.to_owned(),
                row.path.to_owned(),
                row.role.to_owned(),
            )
        })
        .collect();
    assert_eq!(described, listed);
    assert_eq!(description["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn answers_have_the_members_that_openapi_promises() {
    let server = TestServer::start().await;
    let schemas = &description()["components"]["schemas"];
    let members = |answer: &Value| {
        answer
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    let promised = |name: &str| members(&schemas[name]["properties"]);
    server.health.part("redis", true).down("connection refused");
    let ready = server.call("GET", "/readyz", None, "").await.json();
    assert_eq!(members(&ready), promised("Readiness"));
    let route = server
        .call("GET", "/api/v1/routes/mail", Some(READ_TOKEN), "")
        .await
        .json();
    assert_eq!(members(&route), promised("Route"));
    let sent = server.send("orders", serde_json::json!({})).await.json();
    assert_eq!(members(&sent), promised("Sent"));
    let problem = server
        .send("orders", serde_json::json!({ "delay": "abc" }))
        .await
        .json();
    assert!(
        members(&problem).is_subset(&promised("Problem")),
        "{problem}"
    );
    server.end().await;
}

#[test]
fn the_description_is_fresh() {
    let made = OPENAPI_DOCUMENT.as_ref().expect("written");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, made).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        &written == made,
        "docs/openapi.json is stale: UPDATE_DOCS=1 cargo test --lib fresh"
    );
}

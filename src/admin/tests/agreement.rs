//! The table in `mod.rs`, `openapi.json`, `docs/api.md` and the router say the same.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::super::router::{DESCRIPTION, calls};
use super::super::testing::{READ, Server, WRITE};

/// A row of the table: method, path, role.
pub(super) struct Row {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) role: &'static str,
}

pub(super) fn table() -> Vec<Row> {
    let rows = include_str!("../mod.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
    let rows = rows.map(|row| {
        let (call, rest) = row.split_once("` | ").expect("a call, then a role");
        let (method, path) = call.split_once(' ').expect("a method and a path");
        let (role, _) = rest.split_once(" | ").expect("a role, then an answer");
        Row { method, path, role }
    });
    rows.collect()
}

impl Row {
    /// The path for a route that is there.
    pub(super) fn concrete(&self) -> String {
        self.path.replace("{route}", "orders")
    }
}

fn description() -> Value {
    serde_json::from_str(DESCRIPTION).expect("JSON")
}

#[tokio::test]
async fn the_router_has_what_the_table_says_and_nothing_else() {
    let listed: BTreeSet<_> = table().iter().map(|row| row.path).collect();
    let routed: BTreeSet<_> = calls().iter().map(|(path, _)| *path).collect();
    assert_eq!(listed, routed);
    let server = Server::start().await;
    let rows = table();
    for path in listed {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let row = rows.iter().find(|row| (row.method, row.path) == (method, path));
            let concrete = path.replace("{route}", "orders");
            let body = if method == "POST" { "{}" } else { "" };
            let answer = server.call(method, &concrete, Some(WRITE), body).await;
            assert_eq!(answer.status != 405, row.is_some(), "{method} {path}: {answer:?}");
            assert!(row.is_none() || answer.status < 300, "{method} {path}: {answer:?}");
        }
    }
    server.end().await;
}

#[tokio::test]
async fn the_roles_of_the_table_hold() {
    let server = Server::start().await;
    for row in table() {
        let body = if row.method == "POST" { "{}" } else { "" };
        let mut answers = Vec::new();
        for token in [None, Some(READ), Some(WRITE)] {
            answers.push(server.call(row.method, &row.concrete(), token, body).await.status);
        }
        let done = answers[2];
        let expected = match row.role {
            "open" => [done, done, done],
            "read" => [401, done, done],
            "write" => [401, 403, done],
            role => panic!("{role} is no role"),
        };
        assert_eq!(answers, expected, "{} {}", row.method, row.path);
        assert!(done < 300, "{} {}: {done}", row.method, row.path);
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
            assert_eq!(call["security"] == serde_json::json!([]), role == "open", "{method} {path}");
            described.insert((method.to_uppercase(), path.clone(), role.to_owned()));
        }
    }
    let listed: BTreeSet<_> =
        table().iter().map(|row| (row.method.to_owned(), row.path.to_owned(), row.role.to_owned())).collect();
    assert_eq!(described, listed);
    assert_eq!(description["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn answers_have_the_members_that_openapi_promises() {
    let server = Server::start().await;
    let schemas = &description()["components"]["schemas"];
    let members =
        |answer: &Value| answer.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
    let promised = |name: &str| members(&schemas[name]["properties"]);
    server.readiness.part("redis", true).down("connection refused");
    let ready = server.call("GET", "/readyz", None, "").await.json();
    assert_eq!(members(&ready), promised("Readiness"));
    let route = server.call("GET", "/api/v1/routes/mail", Some(READ), "").await.json();
    assert_eq!(members(&route), promised("Route"));
    let sent = server.send("orders", serde_json::json!({})).await.json();
    assert_eq!(members(&sent), promised("Sent"));
    let problem = server.send("orders", serde_json::json!({ "delay": "abc" })).await.json();
    assert!(members(&problem).is_subset(&promised("Problem")), "{problem}");
    server.end().await;
}

/// A reference of every `$ref`, followed.
fn resolve<'a>(description: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => description.pointer(name.trim_start_matches('#')).expect("described"),
        None => schema,
    }
}

fn fields(page: &mut String, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else { return };
    writeln!(page, "\n| field | type | meaning |\n|---|---|---|").expect("into a string");
    for (name, field) in properties {
        let kind = match &field["type"] {
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
            kind => kind.as_str().unwrap_or_default().to_owned(),
        };
        let meaning = field["description"].as_str().unwrap_or_default();
        writeln!(page, "| `{name}` | {kind} | {meaning} |").expect("into a string");
    }
}

fn reference(description: &Value) -> String {
    let mut page = format!(
        "# The API\n\nGenerated from `src/admin/openapi.json`, which a running replica serves at \
         `/api/v1/openapi.json`;\n`UPDATE_DOCS=1 cargo test --lib fresh` writes it anew.\n\n{}\n",
        description["info"]["description"].as_str().expect("a description")
    );
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for (path, methods) in description["paths"].as_object().expect("paths") {
        for (method, call) in methods.as_object().expect("methods") {
            let (method, role, summary) =
                (method.to_uppercase(), text(&call["x-role"]), text(&call["summary"]));
            write!(page, "\n## `{method} {path}`\n\n{summary}. Role: {role}.").expect("into a string");
            if let Some(more) = call["description"].as_str() {
                write!(page, " {more}").expect("into a string");
            }
            page.push('\n');
            let body = &call["requestBody"]["content"]["application/json"]["schema"];
            fields(&mut page, resolve(description, body));
            writeln!(page, "\n| status | answer |\n|---|---|").expect("into a string");
            for (status, answer) in call["responses"].as_object().expect("responses") {
                let schema =
                    answer["content"].as_object().and_then(|c| c.values().next()).map(|c| &c["schema"]);
                let name = schema.and_then(|s| s["$ref"].as_str()).and_then(|r| r.rsplit('/').next());
                let link = name.map(|n| format!(" [{n}](#{})", n.to_lowercase())).unwrap_or_default();
                writeln!(page, "| {status} | {}{link} |", text(&answer["description"]))
                    .expect("into a string");
            }
        }
    }
    for (name, schema) in description["components"]["schemas"].as_object().expect("schemas") {
        if name != "Send" {
            write!(page, "\n## {name}\n").expect("into a string");
            fields(&mut page, schema);
        }
    }
    page
}

#[test]
fn the_reference_is_fresh() {
    let page = reference(&description());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/api.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/api.md is stale: UPDATE_DOCS=1 cargo test --lib fresh");
}

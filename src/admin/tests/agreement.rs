//! The table in `mod.rs`, the handlers, `docs/openapi.json` and `docs/api.md` agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
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

/// Checks that a committed document is as it is made now. With `UPDATE_DOCS` set it is written first.
fn is_fresh(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, made).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == made,
        "docs/{name} is stale: UPDATE_DOCS=1 cargo test --lib fresh"
    );
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
            let as_message = path
                .ends_with("/messages/cancel")
                .then_some("/api/v1/routes/{route}/messages/{id}");
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

/// The schema that a `$ref` names, or the schema itself.
fn resolve<'a>(description: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => description
            .pointer(name.trim_start_matches('#'))
            .expect("described"),
        None => schema,
    }
}

fn one_line(text: &Value) -> String {
    text.as_str().unwrap_or_default().replace('\n', " ")
}

fn link(reference: &str) -> String {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    format!("[{name}](#{})", name.to_lowercase())
}

/// Writes the fields of a part of a schema, or where they stand.
fn fields_of_part(page: &mut String, part: &Value) {
    let optional = part["oneOf"]
        .as_array()
        .and_then(|kinds| kinds.iter().find(|kind| kind["$ref"].is_string()));
    let named = optional.unwrap_or(part);
    let Some(reference) = named["$ref"].as_str() else {
        return fields(page, "", part);
    };
    let or_none = if optional.is_some() {
        ", or none of them"
    } else {
        ""
    };
    let why = if named["description"].is_string() {
        ": "
    } else {
        "."
    };
    writeln!(
        page,
        "\nIt has all fields of {}{or_none}{why}{}",
        link(reference),
        one_line(&named["description"])
    )
    .expect("into a string");
}

/// Writes what a schema of this name has.
fn fields(page: &mut String, name: &str, schema: &Value) {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<_> = values
            .iter()
            .filter_map(Value::as_str)
            .map(|v| format!("`{v}`"))
            .collect();
        writeln!(
            page,
            "\n{} One of {}.",
            one_line(&schema["description"]),
            values.join(", ")
        )
        .expect("into a string");
    }
    if let Some(kinds) = schema["oneOf"].as_array() {
        let kind = |kind: &Value| {
            Some(format!(
                "{}: {}",
                link(kind["$ref"].as_str()?),
                one_line(&kind["description"])
            ))
        };
        let kinds: Vec<_> = kinds.iter().filter_map(kind).collect();
        if !kinds.is_empty() {
            let text = one_line(&schema["description"]);
            return writeln!(page, "\n{text} {}", kinds.join(" ")).expect("into a string");
        }
    }
    if let Some(parts) = schema["allOf"].as_array() {
        writeln!(page, "\n{}", one_line(&schema["description"])).expect("into a string");
        return parts.iter().for_each(|part| fields_of_part(page, part));
    }
    let Some(properties) = schema["properties"].as_object() else {
        if schema["enum"].is_null() && !schema.is_null() {
            writeln!(page, "\n{}", one_line(&schema["description"])).expect("into a string");
        }
        return;
    };
    writeln!(page, "\n| field | type | meaning |\n|---|---|---|").expect("into a string");
    for (field_name, field) in properties {
        let kind = kind_of(field, name.strip_prefix("Page_"));
        let meaning = one_line(&field["description"]);
        writeln!(page, "| `{field_name}` | {kind} | {meaning} |").expect("into a string");
    }
}

/// The type of a field in words. `item` names what a page has, which its schema describes in place.
fn kind_of(field: &Value, item: Option<&str>) -> String {
    if let Some(name) = field["$ref"].as_str() {
        return link(name);
    }
    let types = match &field["type"] {
        Value::Array(kinds) => kinds
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(" or "),
        kind => kind.as_str().unwrap_or_default().to_owned(),
    };
    match (&field["items"], item) {
        (Value::Object(_), Some(item)) => format!("{types} of {}", link(item)),
        (items @ Value::Object(_), None) => format!("{types} of {}", kind_of(items, None)),
        _ => types,
    }
}

fn parameters(page: &mut String, parameters: &Value) {
    let Some(parameters) = parameters
        .as_array()
        .filter(|all| all.iter().any(|p| p["in"] != "path"))
    else {
        return;
    };
    writeln!(page, "\n| parameter | meaning |\n|---|---|").expect("into a string");
    for parameter in parameters {
        let name = parameter["name"].as_str().expect("a name");
        writeln!(
            page,
            "| `{name}` | {} |",
            one_line(&parameter["description"])
        )
        .expect("into a string");
    }
}

fn reference(description: &Value) -> String {
    let mut page = format!(
        "# The API\n\nGenerated from [openapi.json](openapi.json), which a running replica serves at \
         `/api/v1/openapi.json`;\n`UPDATE_DOCS=1 cargo test --lib fresh` writes it anew.\n\n{}\n",
        description["info"]["description"]
            .as_str()
            .expect("a description")
    );
    let text = one_line;
    for (path, methods) in description["paths"].as_object().expect("paths") {
        for (method, call) in methods.as_object().expect("methods") {
            let method = method.to_uppercase();
            let role = text(&call["x-role"]);
            let summary = text(&call["summary"]);
            write!(page, "\n## `{method} {path}`\n\n{summary}. Role: {role}.")
                .expect("into a string");
            if call["description"].is_string() {
                write!(page, " {}", text(&call["description"])).expect("into a string");
            }
            page.push('\n');
            parameters(&mut page, &call["parameters"]);
            let body = &call["requestBody"]["content"]["application/json"]["schema"];
            fields(&mut page, "", resolve(description, body));
            writeln!(page, "\n| status | answer |\n|---|---|").expect("into a string");
            for (status, answer) in call["responses"].as_object().expect("responses") {
                let schema = answer["content"]
                    .as_object()
                    .and_then(|c| c.values().next())
                    .map(|c| &c["schema"]);
                let name = schema.and_then(|s| s["$ref"].as_str());
                let link = name.map(|n| format!(" {}", link(n))).unwrap_or_default();
                writeln!(
                    page,
                    "| {status} | {}{link} |",
                    text(&answer["description"])
                )
                .expect("into a string");
            }
        }
    }
    // The schemas of requests are shown with their calls.
    let sent = ["Send", "Reschedule"];
    for (name, schema) in description["components"]["schemas"]
        .as_object()
        .expect("schemas")
    {
        if !sent.contains(&name.as_str()) {
            write!(page, "\n## {name}\n").expect("into a string");
            fields(&mut page, name, schema);
        }
    }
    page
}

#[test]
fn the_description_is_fresh() {
    is_fresh("openapi.json", OPENAPI_DOCUMENT.as_ref().expect("written"));
}

#[test]
fn the_reference_is_fresh() {
    is_fresh("api.md", &reference(&description()));
}

#[test]
fn the_reference_tells_each_field_of_each_schema() {
    fn names(schema: &Value, told: &mut BTreeSet<String>) {
        told.extend(
            schema["properties"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone()),
        );
        for part in schema["allOf"].as_array().into_iter().flatten() {
            names(part, told);
        }
    }
    let description = description();
    let page = reference(&description);
    let sections: BTreeMap<&str, &str> = page
        .split("\n## ")
        .filter_map(|section| section.split_once('\n'))
        .collect();
    for (name, schema) in description["components"]["schemas"]
        .as_object()
        .expect("schemas")
    {
        let Some(section) = sections.get(name.as_str()) else {
            continue;
        };
        let mut told = BTreeSet::new();
        names(schema, &mut told);
        let missing: Vec<_> = told
            .iter()
            .filter(|field| !section.contains(&format!("| `{field}` |")))
            .collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
        let says = section.contains('`') || section.contains("](#") || schema["type"].is_array();
        assert!(says, "{name} says nothing: {section}");
        assert!(
            !section.contains("| array |"),
            "{name}: an array of what? {section}"
        );
    }
}

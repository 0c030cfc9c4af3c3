//! The page of the API, from `docs/openapi.json`. A test beside the handlers keeps that fresh.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value;

use crate::{read, repository};

pub(super) fn description() -> Value {
    serde_json::from_str(&read(repository("docs/openapi.json"))).expect("JSON")
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

/// The page: each call with what it takes and answers, then each schema.
pub(super) fn page(description: &Value) -> String {
    let mut page = format!(
        "# The API\n\nA running replica serves the same as OpenAPI at `/api/v1/openapi.json`.\n\n{}\n",
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
    let page = page(&description);
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

/// The names in a schema, and those in the tables in it: `retry.max`.
fn names_in(description: &Value, schema: &Value, path: &str, names: &mut BTreeSet<String>) {
    let optional = schema["oneOf"]
        .as_array()
        .and_then(|kinds| kinds.iter().find(|kind| kind["$ref"].is_string()));
    let schema = resolve(description, optional.unwrap_or(schema));
    for (name, part) in schema["properties"].as_object().into_iter().flatten() {
        let name = format!("{path}{name}");
        names_in(description, part, &format!("{name}."), names);
        names.insert(name);
    }
}

#[test]
fn a_route_is_shown_with_every_key_that_it_may_have() {
    let description = description();
    let policy = &description["components"]["schemas"]["Policy"];
    let mut shown = BTreeSet::new();
    names_in(&description, policy, "", &mut shown);
    let schema: Value = serde_json::from_str(&postdate::config::schema()).expect("JSON");
    let mut keys = BTreeSet::new();
    let defaults = &schema["properties"]["defaults"];
    names_in(&schema, defaults, "", &mut keys);
    let is_end = |key: &str| {
        let table = key.split('.').next().unwrap_or(key);
        ["from", "to", "allow_targets", "dead_letter_to"].contains(&table)
    };
    keys.retain(|key| !is_end(key));
    assert!(keys.len() > 30, "{keys:?}");
    assert_eq!(shown, keys);
}

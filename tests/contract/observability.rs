//! Names in alerts, dashboards and runbooks exist: metrics and labels of the registry, entries of the runbooks,
//! commands of the binary.

use std::collections::{BTreeMap, BTreeSet};

use postdate::telemetry::process::FIGURES;
use serde_json::Value;

use super::pages::{made, metrics};
use super::{files, read, repository};

/// Labels that Prometheus adds to each sample of a scrape, and those of its own metrics.
const SCRAPE_LABELS: &[&str] = &["job", "instance", "namespace"];
/// Metrics that Prometheus makes itself, with their labels.
const PROMETHEUS_METRICS: &[(&str, &[&str])] =
    &[("up", &[]), ("ALERTS", &["alertname", "alertstate"])];
/// Endings of the series of a histogram.
const HISTOGRAM_SERIES: &[&str] = &["_bucket", "_sum", "_count"];
const RUNBOOKS: &str = "https://github.com/postdate/postdate/blob/main/docs/runbooks.md#";

/// A metric of the registry.
struct Metric {
    is_histogram: bool,
    labels: BTreeSet<String>,
}

fn registry() -> BTreeMap<String, Metric> {
    let all = metrics::registry().into_iter().map(|described| {
        let labels = described.labels.split(',').map(ToOwned::to_owned);
        let metric = Metric {
            is_histogram: described.kind == "histogram",
            labels: labels.filter(|label| !label.is_empty()).collect(),
        };
        (described.name, metric)
    });
    let of_process = FIGURES.iter().map(|figure| {
        let suffix = if figure.grows { "_total" } else { "" };
        let metric = Metric {
            is_histogram: false,
            labels: BTreeSet::new(),
        };
        (format!("{}{suffix}", figure.name), metric)
    });
    all.chain(of_process).collect()
}

/// Words of a query with what follows each: names, functions and keywords. Texts in quotes are left out.
fn words(query: &str) -> Vec<(&str, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '$');
    let mut words = Vec::new();
    let mut rest = query;
    while let Some(start) = rest.find(|c| is_name(c) || c == '"') {
        rest = &rest[start..];
        if let Some(text) = rest.strip_prefix('"') {
            rest = text.split_once('"').expect("a closing quote").1;
            continue;
        }
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        words.push((&rest[..end], rest[end..].trim_start()));
        rest = &rest[end..];
    }
    words
}

/// Matchers of a series, each with its value: `route="a", part=~"b|c"` after an opening brace.
fn matchers(rest: &str) -> Vec<(&str, &str)> {
    let Some(mut rest) = rest.strip_prefix('{') else {
        return Vec::new();
    };
    let mut all = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if rest.starts_with('}') {
            return all;
        }
        let (label, value) = rest.split_once(['=', '!']).expect("a matcher");
        let (_, value) = value.split_once('"').expect("a value");
        let (value, after) = value.split_once('"').expect("its end");
        all.push((label.trim(), value));
        rest = after;
    }
}

/// Labels of the grouping of a query: those between the parentheses behind `by`, `on`, `ignoring` and `without`.
fn grouping_labels(query: &str) -> BTreeSet<&str> {
    let groups = words(query)
        .into_iter()
        .filter(|(word, _)| matches!(*word, "by" | "on" | "ignoring" | "without"));
    let lists = groups.map(|(word, rest)| {
        let list = rest
            .strip_prefix('(')
            .unwrap_or_else(|| panic!("{word} without labels in {query}"));
        list.split_once(')').expect("its end").0
    });
    lists
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .collect()
}

/// Fixed words in the source, by which matchers can be checked: each stands there in quotes.
fn source() -> String {
    files("src")
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "rs"))
        .map(read)
        .collect()
}

/// Checks queries against the registry. Recorded series are metrics too.
struct QueryCheck {
    registry: BTreeMap<String, Metric>,
    recorded: BTreeSet<String>,
    source: String,
}

impl QueryCheck {
    fn new() -> Self {
        let recorded = rules()
            .filter_map(|rule| rule["record"].as_str().map(str::to_owned))
            .collect();
        Self {
            registry: registry(),
            recorded,
            source: source(),
        }
    }

    /// Labels of a series; `None` if there is no such series.
    fn labels(&self, series: &str) -> Option<BTreeSet<&str>> {
        if let Some((_, labels)) = PROMETHEUS_METRICS.iter().find(|(name, _)| *name == series) {
            return Some(labels.iter().copied().collect());
        }
        if self.recorded.contains(series) {
            return Some(BTreeSet::from(["route"]));
        }
        if let Some(metric) = self
            .registry
            .get(series)
            .filter(|metric| !metric.is_histogram)
        {
            return Some(metric.labels.iter().map(String::as_str).collect());
        }
        let (ending, histogram) = HISTOGRAM_SERIES
            .iter()
            .find_map(|ending| Some((*ending, self.registry.get(series.strip_suffix(ending)?)?)))?;
        let mut labels: BTreeSet<&str> = histogram.labels.iter().map(String::as_str).collect();
        if ending == "_bucket" {
            labels.insert("le");
        }
        histogram.is_histogram.then_some(labels)
    }

    /// All that is wrong with a query.
    fn findings(&self, place: &str, query: &str) -> Vec<String> {
        let mut findings = Vec::new();
        let mut known: BTreeSet<&str> = SCRAPE_LABELS.iter().copied().collect();
        let mut series = 0;
        for (word, rest) in words(query) {
            let is_series = word.starts_with("postdate_")
                || word.contains(':')
                || PROMETHEUS_METRICS.iter().any(|(name, _)| *name == word);
            if !is_series {
                continue;
            }
            series += 1;
            let Some(labels) = self.labels(word) else {
                findings.push(format!("{place}: there is no metric {word}"));
                continue;
            };
            for (label, value) in matchers(rest) {
                if !labels.contains(label) && !SCRAPE_LABELS.contains(&label) {
                    findings.push(format!("{place}: {word} has no label {label}"));
                }
                if matches!(
                    label,
                    "reason" | "cause" | "op" | "what" | "result" | "policy"
                ) {
                    let missing = value
                        .split('|')
                        .filter(|word| !self.source.contains(&format!("\"{word}\"")));
                    findings
                        .extend(missing.map(|word| format!("{place}: {label} is never {word}")));
                }
            }
            known.extend(labels);
        }
        if series == 0 {
            findings.push(format!("{place}: no metric in {query}"));
        }
        let unknown = grouping_labels(query)
            .into_iter()
            .filter(|label| !known.contains(label));
        findings.extend(
            unknown.map(|label| format!("{place}: no metric of {query} has the label {label}")),
        );
        findings
    }
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(repository(path)))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The rules of `deploy/prometheus/alerts.yaml`.
fn rules() -> impl Iterator<Item = Value> {
    let file = yaml("deploy/prometheus/alerts.yaml");
    let rules: Vec<_> = list(&file["groups"])
        .flat_map(|group| list(&group["rules"]))
        .cloned()
        .collect();
    assert!(rules.len() > 10, "the rules were not found");
    rules.into_iter()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// Queries of the dashboards with their places: of panels, annotations and variables.
fn dashboard_queries() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for file in files("deploy/grafana") {
        let dashboard: Value = serde_json::from_str(&read(&file)).expect("JSON");
        let title = text(&dashboard, "title").to_owned();
        for panel in list(&dashboard["panels"]) {
            let place = format!("{title}, {}", text(panel, "title"));
            all.extend(
                list(&panel["targets"])
                    .map(|target| (place.clone(), text(target, "expr").to_owned())),
            );
        }
        let annotations = list(&dashboard["annotations"]["list"]);
        all.extend(annotations.map(|a| {
            (
                format!("{title}, {}", text(a, "name")),
                text(a, "expr").to_owned(),
            )
        }));
        for variable in
            list(&dashboard["templating"]["list"]).filter(|variable| variable["type"] == "query")
        {
            let definition = text(variable, "definition");
            let series = definition
                .strip_prefix("label_values(")
                .and_then(|rest| rest.rsplit_once(", "));
            let (series, label) = series.expect("label_values(SERIES, LABEL)");
            let query = format!("sum by ({}) ({series})", label.trim_end_matches(')'));
            all.push((format!("{title}, ${}", text(variable, "name")), query));
        }
    }
    assert!(all.len() > 50, "the dashboards were not found");
    all
}

#[test]
fn the_check_of_queries_finds_what_is_wrong() {
    let check = QueryCheck::new();
    for (query, expected) in [
        (
            "max by (route) (postdate_pending{job=~\"$job\", route=\"a\"}) > 1",
            None,
        ),
        (
            "rate(postdate_lateness_seconds_bucket{le=\"1.0\"}[5m])",
            None,
        ),
        ("route:postdate_late:ratio_rate5m > 1 and up == 1", None),
        (
            "postdate_ingress_paused{reason=~\"store|store_memory\"}",
            None,
        ),
        (
            "postdate_ingress_paused{reason=\"tired\"}",
            Some("reason is never tired"),
        ),
        (
            "rate(postdate_published[5m])",
            Some("there is no metric postdate_published"),
        ),
        (
            "postdate_lateness_seconds > 1",
            Some("there is no metric postdate_lateness_seconds"),
        ),
        (
            "postdate_pending_bucket",
            Some("there is no metric postdate_pending_bucket"),
        ),
        (
            "postdate_pending{reason=\"store\"}",
            Some("postdate_pending has no label reason"),
        ),
        (
            "sum by (route, part) (postdate_pending)",
            Some("has the label part"),
        ),
        (
            "route:postdate_late:ratio_rate9m",
            Some("there is no metric route:postdate_late:ratio_rate9m"),
        ),
        ("vector(1)", Some("no metric in")),
    ] {
        let findings = check.findings("here", query).join("\n");
        match expected {
            None => assert_eq!(findings, "", "{query}"),
            Some(expected) => assert!(findings.contains(expected), "{query}: {findings}"),
        }
    }
}

#[test]
fn alerts_and_dashboards_name_only_metrics_and_labels_of_the_registry() {
    let check = QueryCheck::new();
    let mut findings = Vec::new();
    for rule in rules() {
        let name = rule["alert"]
            .as_str()
            .or(rule["record"].as_str())
            .expect("a name");
        findings.extend(check.findings(name, text(&rule, "expr")));
    }
    for (place, query) in dashboard_queries() {
        findings.extend(check.findings(&place, &query));
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn runbooks_name_only_metrics_of_the_registry() {
    let registry = registry();
    let page = read(repository("docs/runbooks.md"));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut named = 0;
    for (at, _) in page.match_indices("postdate_") {
        let name = page[at..].split(|c| !is_name(c)).next().expect("a name");
        assert!(registry.contains_key(name), "docs/runbooks.md names {name}");
        let matchers = matchers(&page[at + name.len()..]);
        for (label, _) in matchers {
            assert!(
                registry[name].labels.contains(label),
                "docs/runbooks.md: {name} has no label {label}"
            );
        }
        named += 1;
    }
    assert!(named > 20, "{named}");
}

/// Anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| {
        line.trim_start_matches('#')
            .strip_prefix(' ')
            .filter(|_| line.starts_with('#'))
    });
    headings
        .map(|heading| heading.to_lowercase().replace(' ', "-"))
        .collect()
}

#[test]
fn each_alert_is_complete_and_has_an_entry_in_the_runbooks() {
    let page = read(repository("docs/runbooks.md"));
    let anchors = anchors(&page);
    let mut names = BTreeSet::new();
    for alert in rules().filter(|rule| rule["alert"].is_string()) {
        let name = text(&alert, "alert");
        let annotations = &alert["annotations"];
        let severity = text(&alert["labels"], "severity");
        assert!(
            matches!(severity, "critical" | "warning"),
            "{name}: {severity}"
        );
        let shown = format!(
            "{}{}",
            text(annotations, "summary"),
            text(annotations, "description")
        );
        let shows_value =
            shown.contains("$value") || matches!(name, "PostdateGone" | "PostdateRoutePaused");
        assert!(shows_value, "{name}: the description has no value");
        let anchor = text(annotations, "runbook_url")
            .strip_prefix(RUNBOOKS)
            .expect("the runbooks");
        assert_eq!(anchor, name.to_lowercase());
        assert!(
            anchors.contains(anchor),
            "docs/runbooks.md has no entry {name}"
        );
        let entry = page
            .split(&format!("\n## {name}\n\n"))
            .nth(1)
            .expect("its entry");
        let said = if severity == "critical" {
            "**Critical.**"
        } else {
            "**Warning.**"
        };
        assert!(
            entry.starts_with(said),
            "the entry {name} begins with {said}"
        );
        assert!(names.insert(name.to_owned()), "{name} stands twice");
    }
    let entries = page
        .lines()
        .filter_map(|line| line.strip_prefix("## Postdate"));
    let entries: BTreeSet<_> = entries.map(|rest| format!("Postdate{rest}")).collect();
    assert_eq!(entries, names, "each entry has its alert");
}

#[test]
fn each_alert_is_tested_firing_and_not_firing() {
    let tests = yaml("deploy/prometheus/alerts.test.yaml");
    let cases: Vec<_> = list(&tests["tests"])
        .flat_map(|test| list(&test["alert_rule_test"]))
        .collect();
    for alert in rules().filter(|rule| rule["alert"].is_string()) {
        let name = text(&alert, "alert");
        let of_alert = || cases.iter().filter(|case| case["alertname"] == name);
        let fires = |case: &&Value| list(&case["exp_alerts"]).count() > 0;
        assert!(
            of_alert().any(&fires),
            "{name} never fires in alerts.test.yaml"
        );
        assert!(
            of_alert().any(|case| !fires(case)),
            "{name} always fires in alerts.test.yaml"
        );
    }
}

#[test]
fn links_to_the_runbooks_lead_to_an_entry() {
    let anchors = anchors(&read(repository("docs/runbooks.md")));
    let mut links = 0;
    for document in ["metrics.md", "kubernetes.md", "faults.md", "runbooks.md"] {
        let page = made(document).unwrap_or_else(|| read(repository("docs").join(document)));
        let own = if document == "runbooks.md" {
            "](#"
        } else {
            "](runbooks.md#"
        };
        for (at, _) in page.match_indices(own) {
            let anchor = page[at + own.len()..].split(')').next().expect("its end");
            assert!(
                anchors.contains(anchor),
                "docs/{document} leads to #{anchor}, which is not there"
            );
            links += 1;
        }
    }
    assert!(links > 50, "{links}");
}

/// Commands in the runbooks are commands of this binary, with these options.
#[test]
fn commands_of_the_runbooks_exist() {
    let page = read(repository("docs/runbooks.md"));
    let mut typed: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (at, _) in page.match_indices("postdate ") {
        let before = page[..at].chars().next_back();
        let is_command = matches!(before, Some('`' | '\n')) || page[..at].ends_with("-- ");
        let line = page[at..]
            .split(['`', '\n', '#', ';'])
            .next()
            .expect("a line");
        if is_command {
            typed.insert(line.split_whitespace().skip(1).collect());
        }
    }
    assert!(typed.len() > 10, "{typed:?}");
    for words in typed {
        let is_word = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase());
        // Of `dead list` both words are the command, of `resume orders` the first.
        let length = if words[0] == "dead" { 2 } else { 1 };
        let command: Vec<_> = words.iter().take(length).filter(is_word).copied().collect();
        assert_eq!(command.len(), length, "{words:?}");
        let help = super::command::help_of(&command);
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(
                help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n")),
                "{words:?}: {help}"
            );
        }
    }
}

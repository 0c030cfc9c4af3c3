//! Dashboards for Grafana, in short; `deploy/grafana` has them in full. `UPDATE_DOCS=1 cargo test --test contract` writes
//! them there.

mod overview;
mod panel;
mod redis;
mod replicas;
mod route;
mod targets;

use serde_json::{Value, json};

use self::panel::{Panel, Row};
use super::{read, repository};

/// Labels that choose the installations of a dashboard. `@` stands for them in the queries below.
const SELECTOR: &str = r#"namespace=~"$namespace", job=~"$job""#;

/// Version of the dashboards' form: that of Grafana 12.
const SCHEMA_VERSION: u32 = 41;

const RUNBOOKS: &str = "https://github.com/postdate/postdate/blob/main/docs/runbooks.md";

/// A dashboard in short.
struct Dashboard {
    /// File name, and the end of its id.
    name: &'static str,
    title: &'static str,
    description: &'static str,
    /// True if a variable chooses the route.
    one_route: bool,
    rows: Vec<Row>,
}

fn dashboards() -> [Dashboard; 5] {
    [
        overview::dashboard(),
        route::dashboard(),
        targets::dashboard(),
        redis::dashboard(),
        replicas::dashboard(),
    ]
}

/// A data source that a variable chooses.
fn data_source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

impl Dashboard {
    /// A query with its labels filled in.
    fn query(&self, short: &str) -> String {
        let route = if self.one_route {
            r#", route=~"$route""#
        } else {
            ""
        };
        short.replace('@', &format!("{SELECTOR}{route}"))
    }

    fn in_full(&self) -> Value {
        json!({
            "uid": format!("postdate-{}", self.name),
            "title": format!("Postdate / {}", self.title),
            "description": self.description,
            "tags": ["postdate"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": true,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": { "from": "now-3h", "to": "now" },
            "timezone": "browser",
            "links": links(),
            "templating": { "list": self.variables() },
            "annotations": { "list": annotations() },
            "panels": self.panels(),
        })
    }

    fn variables(&self) -> Vec<Value> {
        let mut variables = vec![
            json!({
                "type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus",
                "refresh": 1, "hide": 0, "includeAll": false, "multi": false, "regex": "", "options": [], "current": {},
            }),
            variable(
                "namespace",
                "Namespace",
                "label_values(postdate_build_info, namespace)",
                true,
            ),
            variable(
                "job",
                "Job",
                r#"label_values(postdate_build_info{namespace=~"$namespace"}, job)"#,
                true,
            ),
        ];
        if self.one_route {
            let routes = format!("label_values(postdate_pending{{{SELECTOR}}}, route)");
            variables.push(variable("route", "Route", &routes, false));
        }
        variables
    }

    /// Panels from left to right, as many to a line as fit into its 24 columns, under the titles of their rows.
    fn panels(&self) -> Vec<Value> {
        let mut all = Vec::new();
        let mut top = 0;
        for row in &self.rows {
            let place = json!({ "x": 0, "y": top, "w": 24, "h": 1 });
            all.push(json!({
                "id": all.len() + 1, "type": "row", "title": row.title, "collapsed": false, "panels": [], "gridPos": place,
            }));
            top += 1;
            let mut left = 0;
            let mut height = 0;
            for panel in &row.panels {
                if left + panel.width > 24 {
                    top += height;
                    left = 0;
                    height = 0;
                }
                let place = json!({ "x": left, "y": top, "w": panel.width, "h": panel.height });
                all.push(panel.in_full(all.len() + 1, &place, self));
                left += panel.width;
                height = height.max(panel.height);
            }
            top += height;
        }
        all
    }
}

/// A variable whose values are those of a label. `.*` also chooses what has no such label.
fn variable(name: &str, label: &str, query: &str, many: bool) -> Value {
    json!({
        "type": "query", "name": name, "label": label, "datasource": data_source(), "definition": query,
        "query": { "qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery" },
        "refresh": 2, "sort": 1, "hide": 0, "includeAll": many, "multi": many, "allValue": if many { json!(".*") } else { Value::Null },
        "regex": "", "options": [], "current": {},
    })
}

fn links() -> Value {
    json!([
        {
            "type": "dashboards", "title": "Postdate", "tags": ["postdate"], "asDropdown": false, "includeVars": true,
            "keepTime": true, "targetBlank": false, "icon": "external link", "tooltip": "", "url": "",
        },
        {
            "type": "link", "title": "Runbooks", "tags": [], "asDropdown": false, "includeVars": false, "keepTime": false,
            "targetBlank": true, "icon": "doc", "tooltip": "What to do when something is wrong", "url": RUNBOOKS,
        },
    ])
}

/// Marks over all time series: what was down, and, when switched on, which alerts fired.
fn annotations() -> Value {
    let down = format!("min by (part) (postdate_part_up{{{SELECTOR}}}) == 0");
    json!([
        {
            "name": "Down", "enable": true, "hide": false, "iconColor": "red", "datasource": data_source(),
            "expr": down, "step": "30s", "titleFormat": "{{part}} is down", "tagKeys": "part",
        },
        {
            "name": "Alerts", "enable": false, "hide": false, "iconColor": "orange", "datasource": data_source(),
            "expr": r#"ALERTS{alertname=~"Postdate.+", alertstate="firing"}"#, "step": "30s",
            "titleFormat": "{{alertname}}", "textFormat": "{{route}} {{part}} {{instance}}", "tagKeys": "severity",
        },
    ])
}

#[test]
fn dashboards_are_fresh() {
    for dashboard in dashboards() {
        let path = repository("deploy/grafana").join(format!("{}.json", dashboard.name));
        let full = serde_json::to_string_pretty(&dashboard.in_full()).expect("JSON") + "\n";
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &full).expect("written");
        }
        assert!(
            std::fs::read_to_string(&path).is_ok_and(|written| written == full),
            "{} is not fresh: UPDATE_DOCS=1 cargo test --test contract",
            path.display()
        );
    }
    let files = super::files("deploy/grafana");
    assert_eq!(files.len(), dashboards().len(), "one file each: {files:?}");
}

#[test]
fn each_panel_says_what_it_shows_and_in_which_unit() {
    for dashboard in dashboards() {
        assert!(!dashboard.description.is_empty());
        for panel in dashboard.rows.iter().flat_map(|row| &row.panels) {
            let Panel {
                title,
                description,
                unit,
                width,
                queries,
                ..
            } = panel;
            assert!(description.ends_with('.'), "{title}: {description}");
            assert!(!unit.is_empty() && !queries.is_empty(), "{title}");
            assert!((1..=24).contains(width), "{title}");
            let titles = dashboard
                .rows
                .iter()
                .flat_map(|row| &row.panels)
                .filter(|other| other.title == *title);
            assert_eq!(
                titles.count(),
                1,
                "{title} stands twice on {}",
                dashboard.name
            );
        }
    }
}

#[test]
fn dashboards_lead_to_the_runbooks() {
    assert!(read(repository("docs/runbooks.md")).starts_with("# Runbooks\n"));
    assert!(RUNBOOKS.ends_with("/docs/runbooks.md"));
}

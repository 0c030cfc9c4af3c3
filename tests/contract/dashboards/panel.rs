//! A panel in short, and in full as Grafana reads it.

use serde_json::{Value, json};

use super::{Dashboard, data_source};

/// Panels under one title.
pub(super) struct Row {
    pub(super) title: &'static str,
    pub(super) panels: Vec<Panel>,
}

/// Form of a panel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PanelKind {
    /// Lines over time.
    TimeSeries,
    /// One number each.
    Stat,
    /// The latest samples, one a row.
    Table,
    /// 0 and 1 over time, as bars in two colours.
    StateTimeline,
    /// Buckets of a histogram over time.
    Heatmap,
}

/// A panel in short.
pub(super) struct Panel {
    kind: PanelKind,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    /// Unit in Grafana's words: `s`, `bytes`, `mps` (messages a second), `percentunit`, `short`.
    pub(super) unit: &'static str,
    /// Queries, each with the name of its lines.
    pub(super) queries: Vec<(&'static str, &'static str)>,
    /// Columns of 24.
    pub(super) width: u32,
    pub(super) height: u32,
    stacked: bool,
    /// Names of 0 and 1, and true if 1 is the bad one.
    states: ([&'static str; 2], bool),
    /// Values from which on the colour is yellow, and red.
    limits: Option<(f64, f64)>,
    /// Text that stands there without data.
    no_value: &'static str,
    /// True if a line leads to the dashboard of its route.
    leads_to_route: bool,
}

impl Panel {
    fn new(
        kind: PanelKind,
        title: &'static str,
        unit: &'static str,
        description: &'static str,
    ) -> Self {
        Self {
            kind,
            title,
            description,
            unit,
            queries: Vec::new(),
            width: 12,
            height: 8,
            stacked: false,
            states: (["down", "up"], false),
            limits: None,
            no_value: "no data",
            leads_to_route: false,
        }
    }

    pub(super) fn time_series(
        title: &'static str,
        unit: &'static str,
        description: &'static str,
    ) -> Self {
        Self::new(PanelKind::TimeSeries, title, unit, description)
    }

    pub(super) fn stat(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self {
            width: 4,
            height: 4,
            ..Self::new(PanelKind::Stat, title, unit, description)
        }
    }

    pub(super) fn table(title: &'static str, description: &'static str) -> Self {
        Self::new(PanelKind::Table, title, "short", description)
    }

    pub(super) fn state_timeline(title: &'static str, description: &'static str) -> Self {
        Self::new(PanelKind::StateTimeline, title, "short", description)
    }

    pub(super) fn heatmap(
        title: &'static str,
        unit: &'static str,
        description: &'static str,
    ) -> Self {
        Self::new(PanelKind::Heatmap, title, unit, description)
    }

    /// Adds a query. `@` in it stands for the labels that the dashboard's variables choose.
    pub(super) fn query(mut self, query: &'static str, legend: &'static str) -> Self {
        self.queries.push((query, legend));
        self
    }

    pub(super) fn width(self, width: u32) -> Self {
        Self { width, ..self }
    }

    pub(super) fn stacked(self) -> Self {
        Self {
            stacked: true,
            ..self
        }
    }

    /// Yellow from the first, red from the second value on.
    pub(super) fn limits(self, yellow: f64, red: f64) -> Self {
        Self {
            limits: Some((yellow, red)),
            ..self
        }
    }

    /// Names of 0 and 1 of a state that is bad at 1.
    pub(super) fn bad_state(self, names: [&'static str; 2]) -> Self {
        Self {
            states: (names, true),
            ..self
        }
    }

    pub(super) fn no_value(self, no_value: &'static str) -> Self {
        Self { no_value, ..self }
    }

    pub(super) fn leads_to_route(self) -> Self {
        Self {
            leads_to_route: true,
            ..self
        }
    }

    pub(super) fn in_full(&self, id: usize, place: &Value, dashboard: &Dashboard) -> Value {
        let kind = match self.kind {
            PanelKind::TimeSeries => "timeseries",
            PanelKind::Stat => "stat",
            PanelKind::Table => "table",
            PanelKind::StateTimeline => "state-timeline",
            PanelKind::Heatmap => "heatmap",
        };
        json!({
            "id": id,
            "type": kind,
            "title": self.title,
            "description": self.description,
            "gridPos": place,
            "datasource": data_source(),
            "fieldConfig": { "defaults": self.defaults(), "overrides": [] },
            "options": self.options(),
            "targets": self.targets(dashboard),
            "transformations": self.transformations(),
        })
    }

    fn targets(&self, dashboard: &Dashboard) -> Vec<Value> {
        let latest = self.kind == PanelKind::Table;
        let format = match self.kind {
            PanelKind::Table => "table",
            PanelKind::Heatmap => "heatmap",
            _ => "time_series",
        };
        let target = |(id, (query, legend)): (char, &(&str, &str))| {
            json!({
                "refId": id.to_string(), "datasource": data_source(), "editorMode": "code", "expr": dashboard.query(query),
                "legendFormat": legend, "format": format, "instant": latest, "range": !latest,
            })
        };
        ('A'..).zip(&self.queries).map(target).collect()
    }

    fn defaults(&self) -> Value {
        let mut defaults = json!({
            "unit": self.unit,
            "noValue": self.no_value,
            "color": { "mode": "palette-classic" },
            "thresholds": self.thresholds(),
            "links": self.links(),
        });
        match self.kind {
            PanelKind::TimeSeries => {
                let stacking = if self.stacked { "normal" } else { "none" };
                let style = if self.limits.is_some() { "line" } else { "off" };
                defaults["custom"] = json!({
                    "drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 1, "fillOpacity": 10,
                    "showPoints": "auto", "spanNulls": false, "axisSoftMin": 0, "stacking": { "mode": stacking, "group": "A" },
                    "thresholdsStyle": { "mode": style },
                });
            }
            PanelKind::Stat => defaults["color"] = json!({ "mode": "thresholds" }),
            PanelKind::StateTimeline => {
                defaults["color"] = json!({ "mode": "thresholds" });
                defaults["custom"] = json!({ "lineWidth": 0, "fillOpacity": 80 });
                let ([zero, one], bad) = self.states;
                let [of_zero, of_one] = if bad {
                    ["green", "red"]
                } else {
                    ["red", "green"]
                };
                defaults["mappings"] = json!([{ "type": "value", "options": {
                    "0": { "text": zero, "color": of_zero, "index": 0 },
                    "1": { "text": one, "color": of_one, "index": 1 },
                } }]);
            }
            PanelKind::Table | PanelKind::Heatmap => {}
        }
        defaults
    }

    fn thresholds(&self) -> Value {
        let mut steps = vec![json!({ "value": null, "color": "green" })];
        if let Some((yellow, red)) = self.limits {
            // A step of the same value hides the one before.
            if yellow < red {
                steps.push(json!({ "value": yellow, "color": "yellow" }));
            }
            steps.push(json!({ "value": red, "color": "red" }));
        }
        json!({ "mode": "absolute", "steps": steps })
    }

    fn links(&self) -> Value {
        if !self.leads_to_route {
            return json!([]);
        }
        let variables = "${datasource:queryparam}&${namespace:queryparam}&${job:queryparam}&${__url_time_range}";
        let url = format!("/d/postdate-route?var-route=${{__field.labels.route}}&{variables}");
        json!([{ "title": "The route ${__field.labels.route}", "url": url, "targetBlank": false }])
    }

    fn options(&self) -> Value {
        let tooltip = json!({ "mode": "multi", "sort": "desc" });
        match self.kind {
            PanelKind::TimeSeries => json!({
                "legend": { "displayMode": "table", "placement": "bottom", "showLegend": true, "calcs": ["lastNotNull", "max"] },
                "tooltip": tooltip,
            }),
            PanelKind::Stat => json!({
                "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
                "wideLayout": true, "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
            }),
            PanelKind::Table => json!({
                "showHeader": true, "cellHeight": "sm", "footer": { "show": false, "reducer": ["sum"], "countRows": false, "fields": "" },
            }),
            PanelKind::StateTimeline => json!({
                "mergeValues": true, "showValue": "never", "alignValue": "left", "rowHeight": 0.8,
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true }, "tooltip": tooltip,
            }),
            PanelKind::Heatmap => json!({
                "calculate": false, "cellGap": 1, "showValue": "never", "legend": { "show": true },
                "yAxis": { "axisPlacement": "left", "unit": self.unit, "reverse": false },
                "color": { "mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "exponent": 0.5, "steps": 64, "reverse": false },
                "rowsFrame": { "layout": "auto" }, "filterValues": { "le": 1e-9 }, "exemplars": { "color": "rgba(255,0,255,0.7)" },
                "tooltip": { "mode": "single", "yHistogram": false, "showColorScale": false },
            }),
        }
    }

    /// A table shows labels, and neither the time nor what is the same in each row.
    fn transformations(&self) -> Value {
        if self.kind != PanelKind::Table {
            return json!([]);
        }
        let without = json!({ "Time": true, "Value": true, "__name__": true, "alertstate": true });
        json!([{ "id": "organize", "options": { "excludeByName": without, "indexByName": {}, "renameByName": {} } }])
    }
}

//! The replicas: who is there, and is the work shared?

use super::Dashboard;
use super::panel::{Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    let there = vec![
        Panel::table("Versions", "Replicas that Prometheus reaches now, with their versions.")
            .query("postdate_build_info{@}", "")
            .no_value("none"),
        Panel::state_timeline("Answers to Prometheus", "Replicas of the last day; red while one did not answer.")
            .query("up{@} and on (namespace, job, instance) max_over_time(postdate_build_info{@}[1d])", "{{instance}}"),
        Panel::time_series("Parts down by replica", "short", "Parts of /readyz that are down at each replica. One replica alone: its network or its node.")
            .query("count by (instance) (postdate_part_up{@} == 0) or 0 * count by (instance) (postdate_build_info{@})", "{{instance}}"),
        Panel::time_series("Clocks", "s", "Clock of each replica minus that of Redis. Messages are late by the difference.")
            .query("postdate_clock_skew_seconds{@}", "{{instance}}"),
    ];
    let work = vec![
        Panel::time_series("Partitions by replica", "short", "Partitions of the store that each replica serves. They should be shared within one of even.")
            .query("postdate_partitions_owned{@}", "{{instance}}")
            .stacked(),
        Panel::time_series("In flight by replica", "short", "Messages that each replica has claimed and not settled yet.")
            .query("sum by (instance) (postdate_in_flight{@})", "{{instance}}")
            .stacked(),
        Panel::time_series("Read by replica", "mps", "Messages that each replica reads. A Kafka topic with fewer partitions than replicas leaves some without any.")
            .query("sum by (instance) (rate(postdate_admitted_total{@}[$__rate_interval]))", "{{instance}}")
            .stacked(),
        Panel::time_series("Confirmed by replica", "mps", "Delayed messages of each replica that their target confirmed.")
            .query("sum by (instance) (rate(postdate_published_total{@}[$__rate_interval]))", "{{instance}}")
            .stacked(),
    ];
    let trouble = vec![
        Panel::time_series("Stale claims", "short", "Claims that another replica had taken over, in total. The replica named here was stopped or slow.")
            .query("postdate_stale_claims_total{@}", "{{instance}}")
            .limits(1.0, 1.0),
        Panel::time_series("Refused calls of the API", "reqps", "Calls and connections that the API refused, by reason.")
            .query("sum by (reason) (rate(postdate_admin_refused_total{@}[$__rate_interval]))", "{{reason}}")
            .no_value("none yet"),
        Panel::time_series("Lost trail events and spans", "short", "Events of the trail and spans of traces that were not kept, in total. No message is concerned.")
            .query("sum(postdate_trail_lost_total{@})", "trail")
            .query("sum(postdate_spans_lost_total{@})", "spans"),
        Panel::time_series("Unknown routes", "short", "Routes with messages in the store that no configuration names. Nobody publishes these.")
            .query("max(postdate_unknown_routes{@})", "routes")
            .limits(1.0, 1.0),
        Panel::time_series("Bundles of a later version", "ops", "Bundles put off because a later version had written them. Expected while an upgrade is rolled out.")
            .query("sum by (instance) (rate(postdate_unknown_versions_total{@}[$__rate_interval]))", "{{instance}}"),
    ];
    Dashboard {
        name: "replicas",
        title: "Replicas",
        description: "The replicas: who is there, is the work shared, and which one is in trouble?",
        one_route: false,
        rows: vec![
            Row {
                title: "Who is there?",
                panels: there,
            },
            Row {
                title: "Is the work shared?",
                panels: work,
            },
            Row {
                title: "Trouble",
                panels: trouble,
            },
        ],
    }
}

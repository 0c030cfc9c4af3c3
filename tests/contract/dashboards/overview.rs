//! Is all well, and if not, where?

use super::Dashboard;
use super::panel::{Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "overview",
        title: "Overview",
        description: "All routes and replicas: is all well, and if not, where?",
        one_route: false,
        rows: vec![now(), trouble(), in_time(), flow()],
    }
}

/// Zero, but nothing at all where no replica is scraped.
macro_rules! or_zero {
    ($query:literal) => {
        concat!($query, " or 0 * count(postdate_build_info{@})")
    };
}

fn now() -> Row {
    let panels = vec![
        Panel::stat("Replicas", "short", "Replicas that Prometheus reaches now.")
            .query("count(postdate_build_info{@})", "")
            .no_value("none"),
        Panel::stat("Parts down", "short", "Parts of /readyz that are down at one replica or more. The table below names them.")
            .query(or_zero!("count(min by (part) (postdate_part_up{@}) == 0)"), "")
            .limits(1.0, 1.0),
        Panel::stat("Oldest overdue", "s", "How long ago the oldest message that is not yet delivered should have been. Paused routes count too.")
            .query("max(postdate_oldest_overdue_seconds{@})", "")
            .limits(3.0, 60.0),
        Panel::stat("Late within the last hour", "percentunit", "Share of the delayed messages of the last hour that came more than a second late. The objective allows 1 %.")
            .query(
                r#"1 - sum(increase(postdate_lateness_seconds_bucket{@, le="1.0"}[1h])) / (sum(increase(postdate_lateness_seconds_count{@}[1h])) > 0)"#,
                "",
            )
            .limits(0.01, 0.144)
            .no_value("no messages"),
        Panel::stat("Dead letters", "short", "Dead letters kept, of all routes. Somebody should redrive or drop them.")
            .query("sum(max by (namespace, job, route) (postdate_dead{@}))", "")
            .limits(1.0, 1000.0),
        Panel::stat("Redis memory", "percentunit", "Memory that Redis uses of its maxmemory, of the fullest master. From 70 % on routes are held to their share, from 85 % on ingress waits.")
            .query("max(postdate_store_memory_bytes{@} / (postdate_store_memory_limit_bytes{@} > 0))", "")
            .limits(0.7, 0.85)
            .no_value("no maxmemory"),
    ];
    Row {
        title: "Now",
        panels,
    }
}

fn trouble() -> Row {
    let panels = vec![
        Panel::table(
            "What is down",
            "Parts of /readyz that are down now, by replica. /readyz of that replica says why.",
        )
        .query("postdate_part_up{@} == 0", "")
        .no_value("all parts are up"),
        Panel::table(
            "Firing alerts",
            "Alerts of Postdate that fire now. Each has an entry in the runbooks.",
        )
        .query(
            r#"ALERTS{alertname=~"Postdate.+", alertstate="firing"}"#,
            "",
        )
        .no_value("none"),
        Panel::state_timeline(
            "Parts",
            "Parts of /readyz over time; red where one replica or more had it down.",
        )
        .query("min by (part) (postdate_part_up{@})", "{{part}}")
        .width(24),
    ];
    Row {
        title: "What is wrong",
        panels,
    }
}

fn in_time() -> Row {
    let panels = vec![
        Panel::time_series("Oldest overdue by route", "s", "How long ago the oldest message of each route that is not yet delivered should have been. Rises steadily: nothing leaves.")
            .query("max by (route) (postdate_oldest_overdue_seconds{@})", "{{route}}")
            .leads_to_route(),
        Panel::time_series("Lateness", "s", "From due time to the target's confirm, of all delayed messages: half of them, 99 % and 99.9 % are at most this late.")
            .query("histogram_quantile(0.5, sum by (le) (rate(postdate_lateness_seconds_bucket{@}[$__rate_interval])))", "p50")
            .query("histogram_quantile(0.99, sum by (le) (rate(postdate_lateness_seconds_bucket{@}[$__rate_interval])))", "p99")
            .query("histogram_quantile(0.999, sum by (le) (rate(postdate_lateness_seconds_bucket{@}[$__rate_interval])))", "p99.9")
            .no_value("no messages"),
    ];
    Row {
        title: "In time?",
        panels,
    }
}

fn flow() -> Row {
    let panels = vec![
        Panel::time_series("In", "mps", "Messages read from the sources, and what became of them: stored, or passed through without a delay.")
            .query("sum(rate(postdate_admitted_total{@}[$__rate_interval]))", "read")
            .query("sum(rate(postdate_stored_total{@}[$__rate_interval]))", "stored")
            .query("sum(rate(postdate_passed_through_total{@}[$__rate_interval]))", "passed through"),
        Panel::time_series("Out by route", "mps", "Delayed messages that their target confirmed.")
            .query("sum by (route) (rate(postdate_published_total{@}[$__rate_interval]))", "{{route}}")
            .stacked()
            .leads_to_route(),
        Panel::time_series("Pending by route", "short", "Messages that wait in Redis. They are its memory.")
            .query("max by (route) (postdate_pending{@})", "{{route}}")
            .stacked()
            .leads_to_route(),
        Panel::time_series("Ingress lag by route", "short", "Records in Kafka's ingress topics that are still to be read. RabbitMQ's queues show in RabbitMQ's own metrics.")
            .query("sum by (route) (postdate_ingress_lag{@})", "{{route}}")
            .leads_to_route(),
        Panel::time_series("What went wrong", "mps", "Publishes that failed or may repeat an earlier one, and messages that were refused, dropped or became dead letters.")
            .query("sum(rate(postdate_publish_failures_total{@}[$__rate_interval]))", "publishes failed")
            .query("sum(rate(postdate_redelivered_total{@}[$__rate_interval]))", "possible repeats")
            .query("sum(rate(postdate_invalid_total{@}[$__rate_interval]))", "invalid")
            .query("sum(rate(postdate_dead_letters_total{@}[$__rate_interval]))", "dead letters")
            .query("sum(rate(postdate_dropped_total{@}[$__rate_interval]))", "dropped")
            .no_value("nothing yet"),
        Panel::state_timeline("Paused routes", "Routes whose ingress waits, for any reason, or whose publishing is paused by hand.")
            .query("max by (route) (postdate_ingress_paused{@})", "{{route}} ingress")
            .query("max by (route) (postdate_publishing_paused{@})", "{{route}} publishing")
            .bad_state(["runs", "waits"])
            .leads_to_route(),
    ];
    Row {
        title: "Flow",
        panels,
    }
}

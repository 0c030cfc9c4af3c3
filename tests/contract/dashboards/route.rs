//! One route, from its source to its target.

use super::Dashboard;
use super::panel::{Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "route",
        title: "Route",
        description: "One route, from its source to its target.",
        one_route: true,
        rows: vec![now(), in_time(), ingress(), egress(), lost()],
    }
}

fn now() -> Row {
    let panels = vec![
        Panel::stat("Pending", "short", "Messages that wait in Redis.")
            .query("sum(max by (namespace, job, route) (postdate_pending{@}))", ""),
        Panel::stat("In flight", "short", "Messages that replicas have claimed and not settled yet.")
            .query("sum(postdate_in_flight{@})", ""),
        Panel::stat("Oldest overdue", "s", "How long ago the oldest message that is not yet delivered should have been.")
            .query("max(postdate_oldest_overdue_seconds{@})", "")
            .limits(3.0, 60.0),
        Panel::stat("Ingress lag", "short", "Records in Kafka's ingress topic that are still to be read.")
            .query("sum(postdate_ingress_lag{@})", "")
            .limits(1000.0, 100_000.0),
        Panel::stat("Dead letters", "short", "Dead letters kept. At the route's limit its ingress pauses.")
            .query("sum(max by (namespace, job, route) (postdate_dead{@}))", "")
            .limits(1.0, 1000.0),
        Panel::stat("Late within the last hour", "percentunit", "Share of the delayed messages of the last hour that came more than a second late. The objective allows 1 %.")
            .query(
                r#"1 - sum(increase(postdate_lateness_seconds_bucket{@, le="1.0"}[1h])) / (sum(increase(postdate_lateness_seconds_count{@}[1h])) > 0)"#,
                "",
            )
            .limits(0.01, 0.144)
            .no_value("no messages"),
    ];
    Row {
        title: "Now",
        panels,
    }
}

fn in_time() -> Row {
    let panels = vec![
        Panel::time_series("Lateness", "s", "From due time to the target's confirm: half of the messages, 99 % and 99.9 % are at most this late.")
            .query("histogram_quantile(0.5, sum by (le) (rate(postdate_lateness_seconds_bucket{@}[$__rate_interval])))", "p50")
            .query("histogram_quantile(0.99, sum by (le) (rate(postdate_lateness_seconds_bucket{@}[$__rate_interval])))", "p99")
            .query("histogram_quantile(0.999, sum by (le) (rate(postdate_lateness_seconds_bucket{@}[$__rate_interval])))", "p99.9")
            .no_value("no messages"),
        Panel::heatmap("Lateness of each message", "s", "How many messages were how late. Two bands: two causes.")
            .query("sum by (le) (increase(postdate_lateness_seconds_bucket{@}[$__rate_interval]))", "{{le}}")
            .no_value("no messages"),
        Panel::time_series("Oldest overdue over time", "s", "How long ago the oldest message that is not yet delivered should have been. Rises steadily: nothing leaves.")
            .query("max by (route) (postdate_oldest_overdue_seconds{@})", "{{route}}")
            .limits(3.0, 60.0),
        Panel::time_series("Waiting and in flight", "short", "Messages in Redis, and those of them that a replica has claimed. In flight and no confirm: the target does not answer.")
            .query("max by (route) (postdate_pending{@})", "pending")
            .query("sum by (route) (postdate_in_flight{@})", "in flight"),
    ];
    Row {
        title: "In time?",
        panels,
    }
}

fn ingress() -> Row {
    let panels = vec![
        Panel::time_series("In", "mps", "Messages read from the source, and what became of them.")
            .query("sum(rate(postdate_admitted_total{@}[$__rate_interval]))", "read")
            .query("sum(rate(postdate_stored_total{@}[$__rate_interval]))", "stored")
            .query("sum(rate(postdate_passed_through_total{@}[$__rate_interval]))", "passed through")
            .query("sum(rate(postdate_duplicates_total{@}[$__rate_interval]))", "duplicates"),
        Panel::time_series("Still to be read, and read and not yet safe", "short", "Lag of Kafka's consumers, and records that were read and are neither stored nor published yet. The second high and still: the store or a target is slow.")
            .query("sum(postdate_ingress_lag{@})", "lag")
            .query("sum(postdate_ingress_unresolved{@})", "read, not yet safe"),
        Panel::state_timeline("Why ingress waits", "Reasons for which the source is not read, and publishing that is paused by hand. The runbook on ingress lag says what to do about each.")
            .query("max by (reason) (postdate_ingress_paused{@})", "ingress: {{reason}}")
            .query("max(postdate_publishing_paused{@})", "publishing: paused")
            .bad_state(["runs", "waits"]),
        Panel::time_series("Invalid by reason", "mps", "Messages whose headers or size were refused, and the policy that decided what became of them.")
            .query("sum by (reason, policy) (rate(postdate_invalid_total{@}[$__rate_interval]))", "{{reason}}: {{policy}}")
            .no_value("none yet"),
        Panel::time_series("Commands by result", "mps", "Cancels, reschedules and purges. Many that are unknown or too late: they come too late, or with the wrong id.")
            .query("sum by (op, result) (rate(postdate_commands_total{@}[$__rate_interval]))", "{{op}}: {{result}}")
            .no_value("none yet"),
    ];
    Row {
        title: "From the source",
        panels,
    }
}

fn egress() -> Row {
    let panels = vec![
        Panel::time_series("Out", "mps", "Delayed messages that the target confirmed, and those put back to be tried again.")
            .query("sum(rate(postdate_published_total{@}[$__rate_interval]))", "confirmed")
            .query("sum(rate(postdate_retries_total{@}[$__rate_interval]))", "put back"),
        Panel::time_series("The target's answer", "s", "From hand-over to the broker's confirm. High: the target is slow.")
            .query("histogram_quantile(0.5, sum by (le) (rate(postdate_confirm_seconds_bucket{@}[$__rate_interval])))", "p50")
            .query("histogram_quantile(0.99, sum by (le) (rate(postdate_confirm_seconds_bucket{@}[$__rate_interval])))", "p99")
            .no_value("no messages"),
        Panel::time_series("Failed publishes by reason", "mps", "Publishes that were refused, returned or not confirmed.")
            .query("sum by (reason) (rate(postdate_publish_failures_total{@}[$__rate_interval]))", "{{reason}}")
            .no_value("none yet"),
        Panel::time_series("Possible repeats by cause", "mps", "Publishes that may repeat an earlier one: an upper bound of what consumers see twice.")
            .query("sum by (cause) (rate(postdate_redelivered_total{@}[$__rate_interval]))", "{{cause}}"),
    ];
    Row {
        title: "To the target",
        panels,
    }
}

fn lost() -> Row {
    let panels = vec![
        Panel::time_series("Dead letters by reason", "mps", "Messages that became dead letters. They are kept until somebody redrives or drops them.")
            .query("sum by (reason) (rate(postdate_dead_letters_total{@}[$__rate_interval]))", "{{reason}}")
            .no_value("none yet"),
        Panel::time_series("Dropped by reason", "mps", "Messages that a policy dropped, or that an operator skipped. These are gone.")
            .query("sum by (reason) (rate(postdate_dropped_total{@}[$__rate_interval]))", "{{reason}}")
            .no_value("none yet"),
        Panel::time_series("Deleted before they were read", "short", "Records that left the ingress topic unread, or that could not be opened (an upper bound), in total. These are gone.")
            .query("sum(postdate_source_lost_total{@})", "lost")
            .limits(1.0, 1.0),
        Panel::time_series("Came back from the target", "short", "Messages that went round in a loop, in total.")
            .query("sum(postdate_loops_total{@})", "loops")
            .limits(1.0, 1.0),
    ];
    Row {
        title: "What did not arrive",
        panels,
    }
}

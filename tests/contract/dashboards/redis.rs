//! The store: has it room, does it answer, is it whole?

use super::Dashboard;
use super::panel::{Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    let room = vec![
        Panel::time_series("Memory", "bytes", "Memory that Redis uses, and its maxmemory, of the fullest master. At 0 it has no limit: set one.")
            .query("max(postdate_store_memory_bytes{@})", "used")
            .query("max(postdate_store_memory_limit_bytes{@})", "maxmemory"),
        Panel::time_series("Share of maxmemory", "percentunit", "From 70 % on routes are held to their share of it, from 85 % on all ingress waits.")
            .query("max(postdate_store_memory_bytes{@} / (postdate_store_memory_limit_bytes{@} > 0))", "used")
            .limits(0.7, 0.85)
            .no_value("no maxmemory"),
        Panel::time_series("What waits in it", "short", "Pending messages of each route.")
            .query("max by (route) (postdate_pending{@})", "{{route}}")
            .stacked()
            .leads_to_route(),
        Panel::time_series("Dead letters in it", "short", "Dead letters of each route.")
            .query("max by (route) (postdate_dead{@})", "{{route}}")
            .stacked()
            .leads_to_route(),
    ];
    let answers = vec![
        Panel::state_timeline("Redis", "The connection (redis), whether it is the store that was used before (store), and whether it takes messages in (store:room); red where one replica or more had it down.")
            .query(r#"min by (part) (postdate_part_up{@, part=~"redis|store|store:room"})"#, "{{part}}"),
        Panel::state_timeline("Routes that wait for it", "Routes whose ingress waits for Redis: away, full or not confirming (store), or above their share of its memory (store_memory).")
            .query(r#"max by (route, reason) (postdate_ingress_paused{@, reason=~"store|store_memory"})"#, "{{route}}: {{reason}}")
            .bad_state(["runs", "waits"])
            .no_value("none yet"),
        Panel::time_series("Round trips, 99 %", "s", "Time of a call to Redis, by transition: 99 % took at most this long. All of them rise: Redis or the network is slow.")
            .query("histogram_quantile(0.99, sum by (le, op) (rate(postdate_store_seconds_bucket{@}[$__rate_interval])))", "{{op}}"),
        Panel::time_series("Round trips, mean", "s", "Time of a call to Redis, by transition, on average.")
            .query(
                "sum by (op) (rate(postdate_store_seconds_sum{@}[$__rate_interval])) / (sum by (op) (rate(postdate_store_seconds_count{@}[$__rate_interval])) > 0)",
                "{{op}}",
            ),
        Panel::time_series("Calls", "ops", "Calls to Redis, by transition.")
            .query("sum by (op) (rate(postdate_store_seconds_count{@}[$__rate_interval]))", "{{op}}")
            .stacked(),
        Panel::time_series("Clocks", "s", "Clock of each replica minus that of Redis. Messages are late by the difference.")
            .query("postdate_clock_skew_seconds{@}", "{{instance}}"),
    ];
    let whole = vec![
        Panel::time_series("Rolled back, wiped or replaced", "short", "Times the store was found to be another one, in total, by replica.")
            .query("postdate_store_changes_total{@}", "{{instance}}")
            .limits(1.0, 1.0),
        Panel::time_series("Damage", "short", "Keys that the scrub found damaged, in total. Another program writes there, or Redis lost something.")
            .query("sum by (what) (postdate_store_damage_total{@})", "{{what}}")
            .limits(1.0, 1.0)
            .no_value("none yet"),
    ];
    Dashboard {
        name: "redis",
        title: "Redis",
        description: "The store: has it room, does it answer, is it whole?",
        one_route: false,
        rows: vec![
            Row {
                title: "Has it room?",
                panels: room,
            },
            Row {
                title: "Does it answer?",
                panels: answers,
            },
            Row {
                title: "Is it whole?",
                panels: whole,
            },
        ],
    }
}

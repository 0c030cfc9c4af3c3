//! The store against real Redis: every transition and its refusals, all orders, random histories against a
//! pure model, and the races and damages it must hold against.
//!
//! The known races of the whole relay, by the numbers that test names carry, and where each is tested (files without a
//! folder are here, the model is `tests/model`, whose names are those of its settings and planted faults):
//!
//! | race | what | where |
//! |---|---|---|
//! | 1 | calls on the wire at once, one fails, a later one succeeds | `lost_replies::interleaving_06_an_overtaken_store_changes_nothing_and_leaves_no_blob`; `late_copies` (every answer); `flow/commands.rs`; model: planted `RefusalForgotten`, and `no_history_by_dice_breaks_a_rule` sees a late copy of every answer |
//! | 2 | a re-read batch is cut otherwise than before | `promises/no_unexplained_duplicate.rs::kill_9_between_storing_and_committing` |
//! | 3 | what waits for company is overtaken by a later record | `ingress/ledger.rs::only_the_resolved_prefix_is_released_and_gaps_do_not_matter`; model: `crash` |
//! | 4 | a record that goes straight out, between stored ones | `promises/never_lost.rs::kill_9_in_mid_flow_and_a_restart_lose_nothing_and_explain_each_duplicate` |
//! | 5 | commands and suppressed records are read again | `outage/rereads.rs::a_cancelled_message_that_is_read_again_with_its_cancel_stays_cancelled`; model: `three_of_a_name` |
//! | 6 | a refused or repeated store and its blobs | `lost_replies::interleaving_06_*` |
//! | 7 | an acknowledgement of more than is stored, or on another channel | `rabbitmq/ingress.rs::what_is_resolved_is_acknowledged_and_the_rest_comes_again_flagged` |
//! | 8 | a script touches what it did not declare, or fails half way | `declared::interleaving_08_*`, `damage` |
//! | 9 | the store goes back | `lost_replies::a_wiped_store_is_noticed_and_goes_on`; model: the tier async |
//! | 10 | a wait for a replica that proves nothing | `late_copies::interleaving_10_*` (what writes, with any server), `topology/tiers.rs::interleaving_10_*`; model: `failover`, and planted `NoWait`, `MarkWithoutWait` |
//! | 11 | a topic made anew, under marks of the old one | `outage/rereads.rs::a_topic_made_anew_under_its_old_name_is_read_from_its_first_record` |
//! | 12 | a cancelled message, claimed by one who dies | `races::interleaving_12_*`; model: planted `GoneCleared` |
//! | 13 | which clock says due, and what is a step of it | `domain/clock/tests.rs`, `timer/maintenance/expiry_pause.rs`; model: `slow_store`, `slow_holder`, planted `Early`, `OwnClock`, `DriftIsAStep`; chaos: F36 |
//! | 14 | settling and commands at `maxmemory` | `races::interleaving_14_*` |
//! | 15 | one confirm that never comes | `outage/brokers.rs::what_was_split_off_leaves_no_name_behind`, `flow/lanes.rs::a_missing_target_delays_only_its_own_messages_which_arrive_once_it_is_there`; model: `hanging` |
//! | 16 | deadlines under a clock that moved | `races::interleaving_16_*`, `large::interleaving_16_*`; when nothing may expire, and for how long: `timer/maintenance/expiry_pause.rs`; model: planted `HoldForEver`, `NoAllowance` |
//! | 17 | a claim of what its caller cannot serve | `races::interleaving_17_*`, `large::unserved_heads_are_read_once_*`, `unreadable::a_relay_puts_what_a_later_version_wrote_off_*`, `flow/policies.rs` |
//! | 18 | an owner who lives and does nothing | `cluster/takeover.rs::a_process_that_lives_and_whose_shard_hangs_is_no_owner`; model: a timer that never moves again is one of its schedules |
//! | 19 | what no script broke and none repairs | `scrub`, `matrix`, `large::interleaving_19_*`, `unreadable` (keys outside of the partitions) |
//! | 20 | a slot on its way to another node | `topology/cluster.rs::slots_migrate_under_load` |
//! | 21 | gaps in the offsets | `kafka/ingress.rs::gaps_in_the_offsets_stop_nothing_and_aborted_records_are_never_seen` |
//! | 22 | the deadline as the token | `races::interleaving_22_*`, `lost_replies::interleaving_22_*`; model: planted `DeadlineToken` |
//! | 23 | what was stored is read again and is due by now | `outage/rereads.rs::a_rewound_group_repeats_with_a_cause_and_recognises_pending_names`, `transitions::interleaving_23_*` |
//! | 24 | a store whose answer is lost | `lost_replies::interleaving_24_*`, `random` behind a wire that loses replies; model: planted `Unnumbered` |
//! | 25 | a claim whose answer is lost | `lost_replies::interleaving_25_*`; after the store went back: `registry::interleaving_25_*`, `cluster/lost.rs`; model: `give_back`, `two_timers_and_a_failover` |
//! | 26 | a poison message among innocents | `races::interleaving_26_*`, `transitions::a_bundle_is_opened_until_*`, `quick_kills`, `unreadable::interleaving_26_*`; model: `apart` |
//! | 27 | no commit, and marks from before | `kafka/ingress.rs::a_topic_re_created_while_nobody_reads_is_read_from_its_first_record` |
//! | 28 | a name whose message is in flight, or comes back | `races::interleaving_28_*`; model: `three_of_a_name`, `remembered` |
//! | 29 | a `~` id after a retry | `races::interleaving_29_*` |
//! | 30 | a later message of a key while an earlier one waits | `order`, `ordered`, `topology/ordered.rs` |
//! | 31 | a refused record among those that pass through | `flow/lanes.rs::what_passes_through_waits_in_order_for_a_missing_target`, `ingress/pass_through.rs` |
//! | 32 | the memory of what was cancelled | `races::interleaving_32_*` |
//! | 33 | full graves, and two redrives of one | `flow/dead.rs::full_graves_pause_their_route_lose_nothing_and_redriven_ones_arrive`, `dead::interleaving_33_*`; model: `dead` |
//! | 34 | due already and named, beside a pending one | `flow/commands.rs::commands_and_duplicates_in_order_of_delivery` |
//! | 35 | one message of a bundle is suppressed, replaced or moved | `races::interleaving_35_*`, `lost_replies::interleaving_35_*`; model: `cancel`, `command` |
//! | F30 | a burst, or a backlog in bytes | `outage/bytes.rs`, `outage/queued_bytes.rs`, `bytes`; chaos: F30 |
//! | | a source that is lost or restarted while it waits | `waiting`; model: `waiting`, planted `SubscribeWhileWaiting` |
#![allow(unreachable_pub, reason = "one binary, one module of tests")]
#![allow(clippy::expect_used, reason = "a test that cannot go on panics")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests have no end to come to in order"
)]

mod absurd;
mod blocking;
mod bytes;
mod damage;
mod dead;
mod declared;
mod dedupe;
mod driver;
mod expired;
pub mod fixture;
mod growing;
mod invariants;
mod large;
mod late;
mod late_copies;
mod looking;
mod lost_replies;
mod matrix;
#[path = "../../model/store.rs"]
#[allow(dead_code, reason = "some of it is for the search in tests/model")]
mod model;
mod ordered;
mod orders;
mod pauses;
mod plain_bytes;
mod preflight;
mod proxy;
mod quick_kills;
mod races;
mod random;
mod rates;
mod registry;
mod scanning;
mod scrub;
mod trail;
mod transitions;
mod unreadable;

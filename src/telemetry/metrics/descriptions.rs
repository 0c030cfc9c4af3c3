//! Each metric in words: name, unit, meaning, and what an operator does when it moves. The site's page
//! of metrics is made from this list.

/// A metric in words.
#[derive(Clone, Copy, Debug)]
pub struct MetricDescription {
    /// Name without the prefix `postdate_` and without `_total`.
    pub name: &'static str,
    /// Unit of a value; empty for a yes or no.
    pub unit: &'static str,
    /// Help text of the exposition, without a final stop.
    pub meaning: &'static str,
    /// Advice for when the metric moves, in whole sentences.
    pub action: &'static str,
    /// Heading of the entry in `docs/runbooks.md`, as an anchor.
    pub runbook: &'static str,
}

macro_rules! descriptions {
    ($($constant:ident { $($field:ident: $text:literal,)+ })+) => {
        $(pub(in crate::telemetry) const $constant: MetricDescription = MetricDescription { $($field: $text),+ };)+
        /// All metrics.
        pub const ALL: &[MetricDescription] = &[$($constant),+];
    };
}

descriptions! {
    ADMITTED {
        name: "admitted",
        unit: "messages",
        meaning: "Messages read from the ingress topic or queue, all of them",
        action: "At 0 while producers send: see what `ingress_paused` and the part `source:R` say.",
        runbook: "ingress-lag-grows",
    }
    PASSED_THROUGH {
        name: "passed_through",
        unit: "messages",
        meaning: "Messages without a delay header, published at once",
        action: "If these should be delayed: the producer's header has another name than the route reads.",
        runbook: "a-message-came-at-once",
    }
    INVALID {
        name: "invalid",
        unit: "messages",
        meaning: "Messages whose headers or size were refused, by reason and policy",
        action: "Mend the producer: `postdate dead list --reason REASON` shows what it sent.",
        runbook: "dead-letters-grow",
    }
    STORED {
        name: "stored",
        unit: "messages",
        meaning: "Messages put into the store",
        action: "At 0 while `admitted` rises: the store takes nothing in, or nothing has a delay.",
        runbook: "ingress-lag-grows",
    }
    DUPLICATES {
        name: "duplicates",
        unit: "messages",
        meaning: "Named messages suppressed or replaced because the name was pending, or (dedupe) in flight or remembered",
        action: "Expected where producers repeat a name. Otherwise find the producer that reuses an `x-delay-id`.",
        runbook: "a-message-is-missing",
    }
    COMMANDS {
        name: "commands",
        unit: "commands",
        meaning: "Commands (cancel, reschedule, replace, purge: one a message) by result",
        action: "Many `unknown`, `too_late` or `in_flight`: commands come too late, or with the wrong id.",
        runbook: "a-message-is-missing",
    }
    PUBLISHED {
        name: "published",
        unit: "messages",
        meaning: "Delayed messages confirmed by their target",
        action: "At 0 while `oldest_overdue_seconds` rises: messages are late.",
        runbook: "messages-are-late",
    }
    PUBLISH_FAILURES {
        name: "publish_failures",
        unit: "publishes",
        meaning: "Publishes refused, returned or unconfirmed",
        action: "Mend the target: the part `target:C:T` and `postdate pending --route R` show the last error.",
        runbook: "messages-are-late",
    }
    RETRIES {
        name: "retries",
        unit: "messages",
        meaning: "Messages put back to be published again later",
        action: "Mend the target before the attempts run out: then they are dead letters.",
        runbook: "messages-are-late",
    }
    EXPIRED {
        name: "expired",
        unit: "messages",
        meaning: "Messages that were not published, since they were not wanted any more (`x-delay-expires`, `max_lateness`)",
        action: "Find out what made them late: `postdate status` names the route's troubles. They are dead letters, unless `on_expired` drops them.",
        runbook: "postdatemessagesexpire",
    }
    LOOPS {
        name: "loops",
        unit: "messages",
        meaning: "Messages without a delay header that came back with the marks of an earlier delivery, and contents that came a thousand times within ten seconds",
        action: "Remove the binding, or the relay, that leads the target back to the source.",
        runbook: "postdateloop",
    }
    TRAIL_LOST {
        name: "trail_lost",
        unit: "events",
        meaning: "Events of the trail that were not kept; at most so many",
        action: "Messages are not concerned: `postdate show` cannot tell the end of some. The log says why: Redis was slow, away or full.",
        runbook: "postdatetraillost",
    }
    REDELIVERED {
        name: "redelivered",
        unit: "publishes",
        meaning: "Publishes that may repeat an earlier one, by cause (an upper bound)",
        action: "Expected after a kill or an outage. Otherwise go by the cause.",
        runbook: "a-message-came-twice",
    }
    DEAD_LETTERS {
        name: "dead_letters",
        unit: "messages",
        meaning: "Messages that became dead letters",
        action: "See the reason, mend it, redrive them.",
        runbook: "dead-letters-grow",
    }
    DROPPED {
        name: "dropped",
        unit: "messages",
        meaning: "Messages dropped by policy, or skipped by an operator",
        action: "These are gone. If they should not be: change `on_invalid`, `on_refused` or `dead_letters` of the route.",
        runbook: "a-message-is-missing",
    }
    PENDING {
        name: "pending",
        unit: "messages",
        meaning: "Messages waiting in the store, over all replicas; those in flight at other replicas included",
        action: "Rises with load and delays. Near `max_pending`: raise it if Redis has room, or purge.",
        runbook: "redis-is-full",
    }
    IN_FLIGHT {
        name: "in_flight",
        unit: "messages",
        meaning: "Messages claimed by this replica and not yet settled",
        action: "High while `published` stands still: the target does not answer.",
        runbook: "messages-are-late",
    }
    DEAD {
        name: "dead",
        unit: "messages",
        meaning: "Dead letters kept, over all replicas",
        action: "Redrive or drop them before `dead_letters.max` is reached: then ingress pauses.",
        runbook: "dead-letters-grow",
    }
    OLDEST_OVERDUE {
        name: "oldest_overdue_seconds",
        unit: "seconds",
        meaning: "Age of the due time of the oldest message that is not yet delivered: waiting, put back after a failure, or claimed by any replica",
        action: "Above some seconds: the part `route:R` of `/readyz` names the cause.",
        runbook: "messages-are-late",
    }
    INGRESS_PAUSED {
        name: "ingress_paused",
        unit: "",
        meaning: "1 while the route's ingress is paused, by reason",
        action: "Go by the reason.",
        runbook: "ingress-lag-grows",
    }
    INGRESS_LAG {
        name: "ingress_lag",
        unit: "messages",
        meaning: "Messages in the ingress topic that are not yet stored, published or dropped, those of open transactions apart",
        action: "Find out why the source is not read before its retention deletes records.",
        runbook: "ingress-lag-grows",
    }
    INGRESS_UNRESOLVED {
        name: "ingress_unresolved",
        unit: "messages",
        meaning: "Messages read from the ingress topic or queue and not yet stored, published or dropped",
        action: "High and still: the store or a target is slow; the part `source:R` says which.",
        runbook: "ingress-lag-grows",
    }
    SOURCE_LOST {
        name: "source_lost",
        unit: "messages",
        meaning: "Messages that were deleted from the ingress topic before they were read, or that the Kafka client could not open and passed over (an upper bound)",
        action: "These are gone. Raise the topic's `retention.ms`, and mend what kept them from being read.",
        runbook: "postdatesourcelost",
    }
    PUBLISHING_PAUSED {
        name: "publishing_paused",
        unit: "",
        meaning: "1 while the route's publishing is paused by hand",
        action: "Somebody paused it: `postdate resume ROUTE` when the reason is over.",
        runbook: "postdateroutepaused",
    }
    LATENESS {
        name: "lateness_seconds",
        unit: "seconds",
        meaning: "Broker's confirm minus due time, delayed messages",
        action: "Rises: compare with `confirm_seconds` (the target) and `store_seconds` (Redis).",
        runbook: "messages-are-late",
    }
    CONFIRM {
        name: "confirm_seconds",
        unit: "seconds",
        meaning: "From hand-over to the broker's confirm",
        action: "Rises: the target broker is slow, or its quorum, its disk, or the network to it.",
        runbook: "messages-are-late",
    }
    STORE_SECONDS {
        name: "store_seconds",
        unit: "seconds",
        meaning: "Round trips to the store, by transition",
        action: "Rises: Redis is busy, its disk is slow, or the network is. Look at Redis's `SLOWLOG` and CPU.",
        runbook: "messages-are-late",
    }
    STALE_CLAIMS {
        name: "stale_claims",
        unit: "claims",
        meaning: "Claims that another replica had taken over before this one finished; above 0 a replica was paused or slow",
        action: "Find out who stopped that replica: a starved node, a suspended guest, a throttled CPU.",
        runbook: "postdatestaleclaims",
    }
    SPANS_LOST {
        name: "spans_lost",
        unit: "spans",
        meaning: "Spans of traces that were recorded and not exported, by cause: queue_full, away, busy, refused, rejected, shutdown",
        action: "Messages are not concerned. The cause and the log say why: the collector is away, refuses or is slow.",
        runbook: "postdatetraillost",
    }
    STORE_DAMAGE {
        name: "store_damage",
        unit: "keys",
        meaning: "Damage that the scrub found: mended, restored, lost, unreadable, in quarantine",
        action: "Keep other programs away from the prefix. Replay what was lost.",
        runbook: "postdatestoredamaged",
    }
    PARTITIONS_OWNED {
        name: "partitions_owned",
        unit: "partitions",
        meaning: "Partitions that this replica serves",
        action: "Uneven, or changing again and again: a replica is gone or flaps.",
        runbook: "a-replica-is-gone",
    }
    STORE_CHANGES {
        name: "store_changes",
        unit: "changes",
        meaning: "Times the store was found to be rolled back, wiped or replaced",
        action: "Messages may be lost: replay what Kafka still has.",
        runbook: "postdatestorechanged",
    }
    CLOCK_SKEW {
        name: "clock_skew_seconds",
        unit: "seconds",
        meaning: "Local wall clock minus the store's",
        action: "Synchronise the clocks: messages are late by the difference.",
        runbook: "postdateclockskew",
    }
    UNKNOWN_ROUTES {
        name: "unknown_routes",
        unit: "routes",
        meaning: "Routes with messages in the store that this configuration does not know",
        action: "Put the route back into the configuration: nobody publishes its messages.",
        runbook: "postdateunknownroute",
    }
    UNKNOWN_VERSIONS {
        name: "unknown_versions",
        unit: "bundles",
        meaning: "Times a bundle was put off because a later version had written it",
        action: "Expected while an upgrade is rolled out. Otherwise finish it: older replicas cannot read these messages.",
        runbook: "messages-are-late",
    }
    PART_UP {
        name: "part_up",
        unit: "",
        meaning: "1 while a part of /readyz is up: connections, sources, targets, routes that deliver in time",
        action: "At 0: `/readyz` says why, in a sentence.",
        runbook: "postdatepartdown",
    }
    KAFKA_QUEUED_MESSAGES {
        name: "kafka_queued_messages",
        unit: "messages",
        meaning: "Messages in a Kafka client: given to a producer and not answered by the brokers, or fetched by the consumer of a group and not taken yet",
        action: "A producer's rises: its brokers are slow or away. A group's is high for long: reading is held up, see `ingress_paused`.",
        runbook: "messages-are-late",
    }
    KAFKA_QUEUED_BYTES {
        name: "kafka_queued_bytes",
        unit: "bytes",
        meaning: "Bytes of the messages in a Kafka client",
        action: "Part of the replica's memory. Bounded by `queue.buffering.max.kbytes` and `queued.max.messages.kbytes` of the connection.",
        runbook: "messages-are-late",
    }
    KAFKA_UNSENT_REQUESTS {
        name: "kafka_unsent_requests",
        unit: "requests",
        meaning: "Requests of a Kafka client that wait to be sent to a broker",
        action: "Above 0 for long: the broker is away, or the network to it is too slow.",
        runbook: "messages-are-late",
    }
    KAFKA_UNANSWERED_REQUESTS {
        name: "kafka_unanswered_requests",
        unit: "requests",
        meaning: "Requests of a Kafka client that were sent to a broker and not answered yet",
        action: "Rises: the broker is slow. One or two of a group are its long polls.",
        runbook: "messages-are-late",
    }
    KAFKA_ROUND_TRIP {
        name: "kafka_round_trip_seconds",
        unit: "seconds",
        meaning: "Time from a Kafka client's request to the broker's answer, the median and 99 % of the last seconds; a group's requests include the time for which the broker waits for records, half a second at most",
        action: "A producer's rises at one broker: that broker is slow, its disk, its followers or its network. At all of them: the network, or this replica is starved.",
        runbook: "messages-are-late",
    }
    ADMIN_REFUSED {
        name: "admin_refused",
        unit: "calls",
        meaning: "Calls and connections that the admin listener refused: without a valid token (unauthorized), without the right (forbidden), too many of one address (address), too many in all (full), no TLS where TLS is spoken, or a handshake that failed (tls)",
        action: "Many: a client has an old token, or somebody tries. The log names its address.",
        runbook: "postdateadminrefused",
    }
    STORE_MEMORY {
        name: "store_memory_bytes",
        unit: "bytes",
        meaning: "Memory that Redis uses, of the fullest master",
        action: "From 70 % of its limit on routes are held to their share, from 85 % on ingress waits: make room before.",
        runbook: "redis-is-full",
    }
    STORE_MEMORY_LIMIT {
        name: "store_memory_limit_bytes",
        unit: "bytes",
        meaning: "That master's maxmemory; 0: it has none",
        action: "At 0: set `maxmemory` below the memory of the machine, so that Redis refuses before it is killed.",
        runbook: "redis-is-full",
    }
    BUILD_INFO {
        name: "build_info",
        unit: "",
        meaning: "The running version",
        action: "Two versions for long: an upgrade has not ended. None: no replica is scraped.",
        runbook: "a-replica-is-gone",
    }
}

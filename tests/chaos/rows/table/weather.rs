//! Foul weather: drift, bytes, slow links, sources that wait, refusals, long outages.

use super::super::{Row, bytes, clocks, links, targets, waiting};

pub(super) const ROWS: &[Row] = &[
    Row {
        id: "F36",
        version: 2,
        fault: "the clock of Redis drifts against those of the replicas, by 20, 100 or 500 us a second, ahead or behind, as the \
                seed says; meanwhile kill -9 of one of three replicas, started again after 1 to 6 s, again and again on one \
                stage: twenty times in ten minutes",
        precondition: "50 messages or more were claimed by the victim",
        limit: "no replica calls it a step; what was due waits no longer than `timer.claim` + 3 s",
        differs: "the clock of the process, as F28",
        cycles: 20,
        at_once: 20,
        short: false,
        play: |scale| Box::pin(clocks::drift(scale)),
    },
    Row {
        id: "F38",
        version: 1,
        fault: "10,000 messages of a megabyte, a quarter of each of four routes, due in one second, over a link to Redis of \
                20 MiB/s",
        precondition: "all were sent before",
        limit: "the replica never has more than 400 MB resident, nor Redis more than 64 MiB in its output buffers; no claim \
              expires; no duplicate",
        differs: "one replica: the bounds are those of a process",
        cycles: 1,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(bytes::backlog(scale)),
    },
    Row {
        id: "F39",
        version: 1,
        fault: "a link to Redis of 5 ms there and back and 20 MiB/s, which two messages of 60 MiB and 320 of 256 KiB cross \
                beside the load, and kill -9 of one of three replicas, started again after 1 to 6 s",
        precondition: "50 messages or more were claimed by the victim",
        limit: "what was due waits no longer than 20 s: `timer.claim` + 3 s, and the time that the large ones take of the \
              link; nothing late 30 s after",
        differs: "a row of our own; delay and rate by the proxy",
        cycles: 20,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(links::far(scale)),
    },
    Row {
        id: "F40",
        version: 1,
        fault: "quorum queues with a delivery limit of 3 whose ingress waits, paused by hand or with Redis hanging, as the \
                seed says; meanwhile, in an order that the seed decides, both replicas are stopped by SIGTERM twice and \
                killed twice, and RabbitMQ is killed once, each started again",
        precondition: "50 messages or more waited in each queue",
        limit: "each SIGTERM ends with 0 within 15 s, or while Redis hangs within 25 s: what is in hand cannot be settled then; \
              nothing late 30 s after the sources go on",
        differs: "a row of our own; RabbitMQ 3.10",
        cycles: 20,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(waiting::delivery_limits(scale)),
    },
    Row {
        id: "F41",
        version: 1,
        fault: "the ingress of all routes waits, paused by hand or at `max_pending`, with partitions of 30 MB to read; \
                meanwhile partitions go to a third replica and back, or all replicas hang for longer than their sessions \
                live, or all are stopped by SIGTERM and then killed, as the seed says",
        precondition: "225 records or more waited in the topic that was filled",
        limit: "each SIGTERM ends with 0 within 15 s; nothing late 40 s after the sources go on",
        differs: "a row of our own; no message passes through",
        cycles: 20,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(waiting::gone_meanwhile(scale)),
    },
    Row {
        id: "F42",
        version: 1,
        fault: "48 messages that their target refuses for what they are, each among twelve healthy ones of its key that are \
                due with it: above `max.message.bytes` of the topic, headers above RabbitMQ's frame, unroutable",
        precondition: "as many publishes were refused",
        limit: "those and no others are dead letters; p99 of lateness of all others is two seconds at most",
        differs: "a row of our own",
        cycles: 20,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(targets::content(scale)),
    },
    Row {
        id: "F43",
        version: 1,
        fault: "all targets are away for 30 s, with three attempts a message that last a second together; two of four routes \
                with `order = \"key\"`",
        precondition: "messages of every route were late",
        limit: "no message becomes a dead letter; none of an ordered route comes after a later one of its key; nothing late \
              60 s after the targets are back: a key's messages leave one by one",
        differs: "a row of our own; 30 s with short attempts for an hour with long ones",
        cycles: 20,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(targets::outage(scale)),
    },
    Row {
        id: "F45",
        version: 1,
        fault: "one of three partitions of each Kafka target has no leader for 30 s, with three attempts a message that last \
                a second together",
        precondition: "the log names the partition, and messages to Kafka were late",
        limit: "no message becomes a dead letter; nothing late 60 s after the partition has a leader again",
        differs: "a row of our own; 30 s with short attempts for an hour with long ones",
        cycles: 20,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(targets::leaderless(scale)),
    },
    Row {
        id: "F46",
        version: 1,
        fault: "a queue of the default exchange, which all routes to RabbitMQ publish to, confirms nothing for 40 s, with 60 \
                messages for it",
        precondition: "publishes to it were not confirmed in time",
        limit: "no message for another queue comes twice, and p99 of their lateness is two seconds at most; no message \
                becomes a dead letter",
        differs: "a row of our own; the process of a classic queue is suspended",
        cycles: 20,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(targets::no_confirm(scale)),
    },
    Row {
        id: "F47",
        version: 1,
        fault: "a hundred lost channels of a quorum queue with a delivery limit of 3, while the target of what passes through \
                is away",
        precondition: "50 messages or more waited in the queue or left it for the store",
        limit: "nothing late 60 s after the target is back",
        differs: "a row of our own; RabbitMQ 3.10; the proxy resets the connection",
        cycles: 20,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(waiting::lost_channels(scale)),
    },
];

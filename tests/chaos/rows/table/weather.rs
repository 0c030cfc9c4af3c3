//! Foul weather: drift, bytes, slow links, sources that wait, refusals, long outages.

use super::super::{Row, bytes, clocks};

pub(super) const ROWS: &[Row] = &[
    Row {
        id: "F36",
        version: 1,
        fault: "the clock of Redis loses 20, 100 or 500 us a second against those of the replicas, as the seed says, and kill -9 of \
                one of three replicas, started again after 1 to 6 s",
        bites: "50 messages or more were claimed by the victim",
        bar: "no replica calls it a step; what was due waits no longer than `timer.claim` + 3 s",
        differs: "the clock of the process, as F28",
        cycles: 3,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(clocks::drift(scale)),
    },
    Row {
        id: "F38",
        version: 1,
        fault: "10,000 messages of a megabyte, a quarter of each of four routes, due in one second, over a link to Redis of \
                20 MiB/s",
        bites: "all were sent before",
        bar: "the replica never has more than 400 MB resident, nor Redis more than 64 MiB in its output buffers; no claim \
              expires; no duplicate",
        differs: "one replica: the bounds are those of a process",
        cycles: 1,
        at_once: 1,
        short: false,
        play: |scale| Box::pin(bytes::backlog(scale)),
    },
];

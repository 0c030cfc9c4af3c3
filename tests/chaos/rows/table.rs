//! The table of the rows: the fault matrix as it is played here.

mod links;
mod load;
mod replicas;
mod store;
mod weather;

use super::Row;

/// The rows of each file, in order.
const TABLE: &[&[Row]] = &[
    replicas::ROWS,
    store::ROWS,
    links::ROWS,
    load::ROWS,
    weather::ROWS,
];

/// All rows, in order.
pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().copied().flatten()
}

/// Rows that are not played here: id, fault, and what stands for it.
pub(crate) const NOT_PLAYED: &[(&str, &str, &str)] = &[
    (
        "F00",
        "no fault, 10 million messages",
        "`scripts/bench steady` and `lateness`; every row's load before its fault",
    ),
    (
        "F07",
        "a rolling restart between two versions",
        "there is one version yet; blobs of all formats that were are \
        golden files of `src/store/model/codec`, refused formats are in `tests/it/store/preflight.rs`",
    ),
    (
        "F17",
        "the disk of the append-only file is full",
        "F16: what is refused there is refused in the same way",
    ),
];

//! Labels of the metrics. Their values come from the configuration and from fixed words, never from messages; the trace
//! of an exemplar is none of them.

use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteLabel {
    pub(super) route: String,
}

macro_rules! labels {
    ($($name:ident { $($field:ident),+ }),+ $(,)?) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub(super) struct $name {
            pub(super) route: String,
            $(pub(super) $field: &'static str),+
        }
    )+};
}
labels! {
    InvalidLabels { reason, policy },
    CommandLabels { op, result },
    ReasonLabels { reason },
    CauseLabels { cause },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OpLabel {
    pub(super) op: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct WhatLabel {
    pub(super) what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RefusalLabel {
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VersionLabel {
    pub(super) version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PartLabel {
    pub(super) part: String,
}

/// The trace of an observed message, for those whose trace is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TraceLabel {
    pub(super) trace_id: String,
}

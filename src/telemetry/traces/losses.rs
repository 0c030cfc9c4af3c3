//! Counts of spans that were recorded and not exported, by cause.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// Cause for which a span was not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanLoss {
    /// The queue of spans was full.
    QueueFull,
    /// The collector could not be reached, or did not answer in time, until the tries ended.
    Away,
    /// The collector said that it was busy (429, 502, 503, 504) until the tries ended.
    Busy,
    /// The collector refused the request.
    Refused,
    /// The collector took the request, but not all of its spans.
    Rejected,
    /// The process ended before the collector had the span.
    Shutdown,
}

impl SpanLoss {
    const ALL: [Self; 6] = [
        Self::QueueFull,
        Self::Away,
        Self::Busy,
        Self::Refused,
        Self::Rejected,
        Self::Shutdown,
    ];

    /// The value of the label `cause`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Away => "away",
            Self::Busy => "busy",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
            Self::Shutdown => "shutdown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::telemetry) struct LossLabel {
    cause: &'static str,
}

/// `spans_lost_total`: spans that were recorded and not exported.
#[derive(Clone, Debug)]
pub struct SpanLosses(Family<LossLabel, Counter>);

impl Default for SpanLosses {
    /// All causes, at 0.
    fn default() -> Self {
        let losses = Self(Family::default());
        for cause in SpanLoss::ALL {
            losses.add(cause, 0);
        }
        losses
    }
}

impl SpanLosses {
    /// Counts spans that are lost.
    pub fn add(&self, cause: SpanLoss, spans: u64) {
        self.0
            .get_or_create(&LossLabel {
                cause: cause.as_str(),
            })
            .inc_by(spans);
    }

    /// The counter of each cause, for the registry.
    pub(in crate::telemetry) fn family(&self) -> &Family<LossLabel, Counter> {
        &self.0
    }

    #[cfg(test)]
    pub(super) fn total(&self) -> u64 {
        SpanLoss::ALL
            .into_iter()
            .map(|cause| self.count(cause))
            .sum()
    }

    #[cfg(test)]
    pub(super) fn count(&self, cause: SpanLoss) -> u64 {
        self.0
            .get_or_create(&LossLabel {
                cause: cause.as_str(),
            })
            .get()
    }
}

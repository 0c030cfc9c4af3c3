//! Refusals of the listener: each is counted, and told in one log line a burst.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::telemetry::{BurstLog, Metrics};

/// Why a call or a connection was refused, as `admin_refused_total{reason}` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalReason {
    /// No valid token (401).
    Unauthorized,
    /// A token, or a host name, that may not do this (403).
    Forbidden,
    /// Too many connections of one address.
    Address,
    /// Too many connections in all.
    Full,
    /// No TLS where TLS is spoken, or a handshake that failed.
    Tls,
}

impl RefusalReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Address => "address",
            Self::Full => "full",
            Self::Tls => "tls",
        }
    }
}

/// Counts refusals and tells of them.
#[derive(Clone)]
pub(super) struct Refusals {
    metrics: Arc<Metrics>,
    bursts: Arc<BurstLog>,
}

impl Refusals {
    pub(super) fn new(metrics: Arc<Metrics>, bursts: Arc<BurstLog>) -> Self {
        Self { metrics, bursts }
    }

    /// Notes one refusal of this peer.
    pub(super) fn note(&self, reason: RefusalReason, peer: SocketAddr) {
        self.metrics.admin_refused(reason.as_str());
        self.bursts
            .note_caller("admin refused a caller", reason.as_str(), peer.ip());
    }
}

/// Mark of a request on a connection that may ask for probes and metrics only: its address has too many connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbesOnly(pub(super) bool);

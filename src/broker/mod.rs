//! What ingress and egress share for one technology, and nothing more: connection, TLS, errors.

pub mod kafka;
pub mod rabbitmq;

//! Code that ingress and egress share for one technology, and nothing more: connections, TLS, errors.

pub mod kafka;
pub mod rabbitmq;

//! The whole flow, from outside: the real binary between real servers. What producers send, in all its
//! forms, and what must come out, as the contract says it.

mod bounds;
mod commands;
mod contents;
mod dead;
mod dialects;
mod directions;
mod expiry;
pub(crate) mod fixture;
mod forms;
mod growing;
mod inputs;
mod invalid;
mod lanes;
mod loops;
mod ordered;
pub(crate) mod policies;
mod refused;
mod replaced;
mod retries;
mod topics;
pub(crate) mod wire;

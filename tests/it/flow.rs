//! The whole flow, from outside: the real binary between real servers. What producers send, in all its
//! forms, and what must come out, as the contract says it.

mod bounds;
mod commands;
mod contents;
mod dead;
mod directions;
mod forms;
mod inputs;
mod invalid;
mod lanes;
mod loops;
mod ordered;
mod policies;
mod refused;
mod site;
mod wire;

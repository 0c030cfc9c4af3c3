//! The store against real Redis: every transition and its refusals, all orders, random histories against a
//! pure model, and the races and damages it must hold against.
#![allow(unreachable_pub, reason = "one binary, one room of tests")]
#![allow(clippy::expect_used, reason = "a test that cannot go on panics")]
#![allow(clippy::disallowed_methods, reason = "tests have no end to come to in order")]

mod audit;
mod damage;
mod dead;
mod declared;
mod dedupe;
mod driver;
mod invariants;
mod looking;
mod lost_replies;
mod model;
mod orders;
mod pauses;
mod preflight;
mod proxy;
mod races;
mod random;
mod rates;
mod room;
mod transitions;

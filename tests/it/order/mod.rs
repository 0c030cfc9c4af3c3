//! `order = "key"`: each key's messages leave in the order of their due times, ties as they came, whatever fails.
#![allow(unreachable_pub, reason = "one binary, one module of tests")]

mod fixture;
mod histories;
mod keys;
mod rules;

//! The Helm chart: rendered, refused, its configuration judged by the binary; in `cluster`, installed on a
//! real API server. `scripts/test-chart` fetches the tools and runs this; a plain `cargo test` does not.
#![allow(clippy::expect_used, reason = "a test that cannot go on panics")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and the environment as their users do"
)]
#![allow(clippy::print_stdout, reason = "shown when the test fails")]

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod keys;
mod manifests;
mod pods;
mod refusals;
mod render;
mod scaling;
mod server;
mod tls;
mod tools;
mod values;

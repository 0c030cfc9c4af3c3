//! Entry points of the fuzzers in `fuzz/`: each takes any bytes, and panics where a promise about such bytes is broken.
//!
//! Compiled only with the feature `fuzzing`. `scripts/fuzz` builds and runs them, `docs/fuzzing.md` names the promises.
//! What a fuzzer finds becomes an ordinary test beside the code that broke.

#[cfg(not(debug_assertions))]
compile_error!("the feature `fuzzing` opens what is private: it is not for release builds");

mod api;
mod bundles;
mod configuration;
mod frames;
mod headers;
mod input;
mod mapping;
mod names;

pub use api::api_requests;
pub use bundles::bundles;
pub use configuration::{configuration, configuration_yaml};
pub use frames::amqp_frames;
pub use headers::delay_headers;
pub use mapping::mapping;
pub use names::store_names;

//! The grammar of the delay headers.

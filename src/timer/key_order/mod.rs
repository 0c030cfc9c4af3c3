//! Routes whose keys leave in order (`order = "key"`): whose turn it is, claiming as the only holder, and settling.

pub(super) mod claim;
pub(super) mod rules;
pub(super) mod settle;

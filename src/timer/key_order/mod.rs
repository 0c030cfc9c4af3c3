//! Routes whose keys leave in order (`order = "key"`): the rules, exclusive claims, and settling.

pub(super) mod claim;
pub(super) mod rules;
pub(super) mod settle;

//! Routes whose keys leave in order (`order = "key"`): the rules, exclusive claims, and settling. A route is held by one
//! replica in each partition. If that dies, its claims expire and are swept; the next claimer takes the route over, with the
//! keys that are held back (`claim.lua`).

pub(super) mod claim;
pub(super) mod rules;
pub(super) mod settle;

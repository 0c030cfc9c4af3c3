//! The readiness part of a connection, shared by all of its roles.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::health::{Health, Part};

/// The part `rabbitmq:<name>`: up while every role that was opened is up.
#[derive(Debug)]
pub(super) struct RoleHealth {
    part: Part,
    /// The trouble of each role, if any.
    roles: Mutex<BTreeMap<&'static str, Option<String>>>,
}

impl RoleHealth {
    pub(super) fn new(connection: &str, health: &Health) -> Self {
        let part = health.part(format!("rabbitmq:{connection}"), false);
        Self {
            part,
            roles: Mutex::default(),
        }
    }

    /// Counts a role that is not up, for this reason. Changes nothing if the role is up.
    pub(super) fn announce(&self, role: &'static str, why: &str) {
        let is_up = self.roles.lock().get(role).is_some_and(Option::is_none);
        if !is_up {
            self.report(role, Some(why.to_owned()));
        }
    }

    /// Sets the trouble of a role. Reports whether the role has become well or ill by that.
    pub(super) fn report(&self, role: &'static str, trouble: Option<String>) -> bool {
        let mut roles = self.roles.lock();
        let ill = trouble.is_some();
        let before = roles.insert(role, trouble);
        let worst = roles
            .iter()
            .find_map(|(role, t)| t.as_ref().map(|t| format!("{role}: {t}")));
        match worst {
            Some(why) => self.part.down(why),
            None => self.part.up(),
        };
        before.is_none_or(|t| t.is_some() != ill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_up_only_while_both_its_roles_are() {
        let health = Health::default();
        let roles = RoleHealth::new("main", &health);
        roles.announce("consume", "waits");
        roles.announce("consume", "not reached");
        roles.report("publish", None);
        assert!(
            format!("{:?}", health.parts()).contains("consume: not reached"),
            "it waits no longer"
        );
        roles.report("consume", Some("refused".into()));
        assert!(!health.is_ready(), "one role was never up");
        assert!(roles.report("consume", None), "news");
        assert!(!roles.report("consume", None), "no news");
        assert!(health.is_ready());
        roles.report("publish", Some("blocked".into()));
        assert!(health.is_ready(), "lost later is degraded, not unready");
        assert!(format!("{:?}", health.parts()).contains("publish: blocked"));
    }
}

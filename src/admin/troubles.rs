//! The troubles of the process as answers tell them, and why a route's messages do not arrive. What is known is
//! [`crate::health`]'s.

use super::context::Admin;
use super::times::rfc3339;
use crate::api::TroubleView;
use crate::domain::route::describe;
use crate::domain::{Route, RouteName, Target, UnixMs};
use crate::health::{Trouble, Troubles};
use crate::store::{StoredMessage, StoredState};

/// Lateness from which on a message counts as late, ms.
const LATE_FROM_MS: i64 = 1000;

/// How late a message is, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Late {
    pub(super) by_ms: i64,
    pub(super) why: String,
}

/// The troubles of the process, one for each cause.
pub(super) fn trouble_views(admin: &Admin, troubles: &Troubles) -> Vec<TroubleView> {
    let mut views = Vec::new();
    for trouble in troubles.all() {
        views.push(TroubleView {
            since: rfc3339(trouble.since),
            command: command(admin, &trouble.part),
            runbook: runbook(&trouble.part).to_owned(),
            part: trouble.part.clone(),
            why: Some(trouble.why.clone()),
            follows: trouble.follows.clone(),
        });
    }
    views
}

/// The heading in `docs/runbooks.md` about a part, as an anchor.
fn runbook(part: &str) -> &'static str {
    match part.split(':').next().unwrap_or(part) {
        "redis" | "store" => "postdatestoredown",
        "route" => "messages-are-late",
        "source" => "ingress-lag-grows",
        _ => "postdatepartdown",
    }
}

/// A command that shows more of the trouble of a part, or that mends it.
fn command(admin: &Admin, part: &str) -> String {
    let (kind, name) = part.split_once(':').unwrap_or((part, ""));
    let route = match kind {
        "route" | "source" => RouteName::new(name),
        _ => None,
    };
    let Some(health) = route.map(|route| admin.state.health.route(&route)) else {
        let command = match (kind, name) {
            ("admin", _) => "postdate check",
            ("store", "room") => "postdate status",
            _ => "postdate check --connect",
        };
        return command.to_owned();
    };
    let waits = health.waits_for();
    let is_paused = match kind {
        "route" => health.pause().publishing.is_some(),
        _ => health.pause().ingress.is_some(),
    };
    if is_paused {
        format!("postdate resume {name}")
    } else if kind == "route" {
        format!("postdate pending --route {name}")
    } else if waits.contains(&"undecodable") {
        format!("postdate skip --route {name} --partition P --offset O")
    } else if waits.contains(&"dead_letters") {
        format!("postdate dead list --route {name}")
    } else {
        "postdate check --connect".to_owned()
    }
}

/// The troubles that concern a route, in words.
pub(super) fn of_route(admin: &Admin, route: &Route) -> Vec<String> {
    let source = format!("source:{}", route.name);
    in_words(
        admin,
        route,
        route.targets().map(|target| &**target),
        Some(source),
    )
}

/// What is known to keep the route's messages from arriving, in words.
pub(super) fn obstacles(admin: &Admin, route: &Route) -> Vec<String> {
    let mut found = Vec::new();
    let health = admin.state.health.route(&route.name);
    if let Some(pause) = health.publishing_pause() {
        found.push(format!("publishing of the route is {pause}"));
    }
    let ingress = health.waits_for();
    if !ingress.is_empty() {
        let reasons = ingress.join(", ");
        found.push(format!("ingress of the route waits ({reasons})"));
    }
    found.extend(of_route(admin, route));
    found
}

/// How late a message is, and why; `None` if it is not late.
pub(super) fn lateness(admin: &Admin, route: &Route, found: &StoredMessage) -> Option<Late> {
    let clock = admin.store().ok()?.clock().clone();
    let now = clock.now();
    let by_ms = now.since(found.entry.asked_due());
    if by_ms < LATE_FROM_MS || found.state == StoredState::Published {
        return None;
    }
    let why = why_late(admin, route, found, now);
    Some(Late { by_ms, why })
}

fn why_late(admin: &Admin, route: &Route, found: &StoredMessage, now: UnixMs) -> String {
    let mut causes = Vec::new();
    if let Some(pause) = admin.state.health.route(&route.name).publishing_pause() {
        causes.push(format!("publishing of the route is {pause}"));
    }
    let failed = found.entry.history.last();
    if let Some(failure) = failed.filter(|_| found.entry.due > now) {
        let wait_s = found.entry.due.since(now) / 1000;
        causes.push(format!(
            "its last publish failed ({}: {}); the next try is in {wait_s} s",
            failure.reason, failure.error
        ));
    }
    let own = route
        .configured_target(&found.target)
        .map(|target| &**target);
    causes.extend(in_words(admin, route, own.into_iter(), None));
    if causes.is_empty() {
        causes.push(
            match found.state {
                StoredState::InFlight => {
                    "no trouble is known: it is claimed, and its target has not confirmed it yet"
                }
                _ if route.policy.ordered && found.entry.message.key.is_some() => {
                    "no trouble is known: it may wait behind an earlier message of its key"
                }
                _ => "no trouble is known: it waits to be claimed",
            }
            .to_owned(),
        );
    }
    causes.join("; ")
}

/// The troubles of the store, of the route's delivery, of these targets and of this part, in words.
fn in_words<'a>(
    admin: &Admin,
    route: &Route,
    targets: impl Iterator<Item = &'a Target>,
    part: Option<String>,
) -> Vec<String> {
    let delivery = format!("route:{}", route.name);
    let mut names = vec!["store:room".to_owned()];
    names.extend(targets.map(|target| format!("target:{}", describe(target))));
    names.extend(part);
    let troubles = admin.state.health.troubles();
    // The delivery of the route may be late because of a target that is no concern of who asks.
    let of_delivery = troubles
        .all()
        .iter()
        .filter(|trouble| trouble.part == delivery);
    let concerning = troubles.concerning(names).into_iter();
    concerning
        .chain(of_delivery)
        .map(|Trouble { part, why, .. }| format!("{part}: {why}"))
        .collect()
}

//! How each route's targets stand, for `/readyz`: a topic that is missing, an exchange that refuses. It never
//! closes readiness: a target in trouble costs its own messages only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::{Route, Target, route};
use crate::egress::Lanes;
use crate::lifecycle::{Part, Readiness, Shutdown, Tasks, tick};

/// Lanes are asked this often.
const LOOK: Duration = Duration::from_secs(1);

/// Announces a part per target and keeps it true until the lanes end.
pub(super) fn start(
    routes: &[Arc<Route>],
    lanes: Arc<dyn Lanes>,
    readiness: &Readiness,
    tasks: &Tasks,
    shutdown: Shutdown,
) {
    let targets = routes.iter().flat_map(|route| route.targets());
    let parts: BTreeMap<String, (Part, Arc<Target>)> = targets
        .map(|target| (format!("target:{}", route::describe(target)), target))
        .map(|(name, target)| (name.clone(), (readiness.part(name, false), target.clone())))
        .collect();
    // A lane is in no trouble before its first message.
    for (part, _) in parts.values() {
        part.up();
    }
    tasks.spawn("egress:targets", async move {
        loop {
            tokio::select! {
                () = shutdown.draining() => return,
                () = tick(LOOK) => {}
            }
            for (part, target) in parts.values() {
                match lanes.lane(target).trouble() {
                    None => part.up(),
                    Some(why) => part.down(why),
                };
            }
        }
    });
}

//! The keeper: returns the claims of dead holders, drops dead letters that are too old, and audits what no transition
//! makes.
//!
//! Three tasks of a shard, each with deadlines of its own, beside the flow and never in its way: an audit that is slow
//! holds up no sweep. A sweep of all of a shard's partitions each second ([`sweep`]), a look for old dead letters
//! ([`expire_dead`]), an audit of each partition about once a minute ([`scrub`]).

mod expire_dead;
mod expiry_pause;
mod scrub;
mod sweep;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Shard;
use crate::domain::Partition;
use crate::lifecycle::{Tasks, tick};

/// How often each of the three looks whether there is something to do.
const ROUND: Duration = Duration::from_secs(1);

/// Partitions that wait for nobody's turn: those that refused to be swept are audited at once, and lost indexes are
/// made again before that.
#[derive(Debug, Default)]
struct Refused {
    swept: Mutex<BTreeSet<Partition>>,
    indexes: Mutex<BTreeSet<Partition>>,
}

/// What one of the three does once a round. It may be dropped in the middle.
trait Duty: Send + 'static {
    fn round(&mut self) -> impl Future<Output = ()> + Send;
}

/// Starts the tasks of one shard, which run until draining begins.
pub(super) fn start(shard: &Arc<Shard>, tasks: &Tasks) {
    let (number, refused) = (shard.number, Arc::new(Refused::default()));
    let sweeper = sweep::Sweeper::new(shard.clone(), refused.clone());
    tasks.spawn(&format!("timer:sweeper:{number}"), run(shard.clone(), sweeper));
    let expirer = expire_dead::Expirer::new(shard.clone());
    tasks.spawn(&format!("timer:expirer:{number}"), run(shard.clone(), expirer));
    let auditor = scrub::Auditor::new(shard.clone(), refused);
    tasks.spawn(&format!("timer:auditor:{number}"), run(shard.clone(), auditor));
}

async fn run(shard: Arc<Shard>, mut duty: impl Duty) {
    let rounds = async {
        loop {
            if !shard.store.is_replaced() {
                duty.round().await;
            }
            tick(ROUND).await;
        }
    };
    tokio::select! {
        () = shard.shutdown.draining() => {}
        () = rounds => {}
    }
}

/// The partitions that a shard's keeper looks after now.
fn kept(shard: &Shard) -> Vec<Partition> {
    let owned = shard.cluster.owned();
    shard.partitions.iter().copied().filter(|&p| owned.keeps(p)).collect()
}

impl Refused {
    fn note(&self, p: Partition) {
        self.swept.lock().insert(p);
    }

    fn take(&self) -> Option<Partition> {
        self.swept.lock().pop_first()
    }

    fn note_indexes(&self, partitions: Vec<Partition>) {
        self.indexes.lock().extend(partitions);
    }

    fn take_indexes(&self) -> BTreeSet<Partition> {
        std::mem::take(&mut *self.indexes.lock())
    }
}

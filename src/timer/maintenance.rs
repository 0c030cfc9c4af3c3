//! Maintenance of the store by the timer: returns expired claims, spreads growing bundles, drops old dead letters, and scrubs partitions.
//!
//! Each shard runs four tasks, each with its own deadlines and outside of the message flow. They are separate so
//! that a slow scrub does not delay a sweep. [`sweep`] sweeps all partitions of the shard once a second,
//! [`spread`] spreads growing bundles, [`drop_old_dead`] looks for old dead letters, and [`scrub`] scrubs each partition about once a minute.

mod drop_old_dead;
mod expiry_pause;
mod scrub;
mod spread;
mod sweep;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Shard;
use crate::domain::Partition;
use crate::lifecycle::{Tasks, tick};

/// Time between two rounds of each task.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Partitions that are scrubbed out of turn. Partitions that refused to be swept are scrubbed at once; lost indexes
/// are rebuilt before that.
#[derive(Debug, Default)]
struct PriorityPartitions {
    refused: Mutex<BTreeSet<Partition>>,
    indexes: Mutex<BTreeSet<Partition>>,
}

/// One of the four tasks. A round may be dropped in the middle.
trait MaintenanceTask: Send + 'static {
    fn round(&mut self) -> impl Future<Output = ()> + Send;
}

/// Starts the tasks of one shard. They run until draining begins.
pub(super) fn start(shard: &Arc<Shard>, tasks: &Tasks) {
    let number = shard.number;
    let priority = Arc::new(PriorityPartitions::default());
    let sweeper = sweep::Sweeper::new(shard.clone(), priority.clone());
    tasks.spawn(
        &format!("timer:sweeper:{number}"),
        run(shard.clone(), sweeper),
    );
    let expirer = drop_old_dead::DeadLetterDropper::new(shard.clone());
    tasks.spawn(
        &format!("timer:expirer:{number}"),
        run(shard.clone(), expirer),
    );
    tasks.spawn(
        &format!("timer:spreader:{number}"),
        run(shard.clone(), spread::Spreader::new(shard.clone())),
    );
    let scrubber = scrub::Scrubber::new(shard.clone(), priority);
    tasks.spawn(
        &format!("timer:scrubber:{number}"),
        run(shard.clone(), scrubber),
    );
}

async fn run(shard: Arc<Shard>, mut task: impl MaintenanceTask) {
    let rounds = async {
        loop {
            if !shard.store.is_replaced() {
                task.round().await;
            }
            tick(ROUND_INTERVAL).await;
        }
    };
    tokio::select! {
        () = shard.shutdown.draining() => {}
        () = rounds => {}
    }
}

/// The partitions that this shard maintains now.
fn maintained(shard: &Shard) -> Vec<Partition> {
    let owned = shard.cluster.owned();
    shard
        .partitions
        .iter()
        .copied()
        .filter(|&p| owned.maintains(p))
        .collect()
}

impl PriorityPartitions {
    fn note_refused(&self, p: Partition) {
        self.refused.lock().insert(p);
    }

    fn take_refused(&self) -> Option<Partition> {
        self.refused.lock().pop_first()
    }

    fn note_indexes(&self, partitions: Vec<Partition>) {
        self.indexes.lock().extend(partitions);
    }

    fn take_indexes(&self) -> BTreeSet<Partition> {
        std::mem::take(&mut *self.indexes.lock())
    }
}

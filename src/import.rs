//! `import`: moves what waits in another program's delay queue into a route's store. Relays and the other program may
//! run meanwhile.
//!
//! Each entry is stored first, under a name that follows from the entry, and then removed from its queue if it is there
//! unchanged. So no entry is ever nowhere, and a run that was cut off is begun again: what it stored is known by its name.
//! If the other program has taken an entry between the two steps, the stored message is called back. A message leaves no
//! earlier than five seconds after its entry was read, which is the time for that.
//!
//! A name is known to the store until its message has left. Before a batch is stored, the store is therefore told the
//! names of the batch. A run that finds such names asks what became of their messages: they wait, or the trail says that
//! they have left.

pub mod foreign;
mod judge;
mod mover;
mod note;
mod types;

use std::sync::Arc;

use anyhow::Context;

pub use self::foreign::ForeignServer;
pub use self::types::{
    BodyCodec, EntryForm, ImportOutcome, ImportPreview, ImportQueue, ImportRequest, ImportTally,
    ImportWait, ImportWatcher, RefusalReason, RefusedEntries, ScoreUnit,
};

use self::foreign::{ForeignPhase, ForeignQueue, QueueSize};
use self::judge::{AcceptedEntry, EntryJudge};
use self::mover::{EntryMover, refused_unread, take_lock};
use crate::app::runtime;
use crate::app::storing::StoringRooms;
use crate::config::Config;

/// Log filter unless another one is configured.
const DEFAULT_LOG_FILTER: &str = "warn,lapin=off,rdkafka=error,librdkafka=error";
/// Bytes of an entry beside its body: the id and the lengths that Redisson packs.
const ENTRY_OVERHEAD_BYTES: usize = 1 << 10;

/// Imports a queue.
pub fn import(
    config: &Config,
    request: &ImportRequest,
    watcher: &Arc<dyn ImportWatcher>,
) -> anyhow::Result<ImportOutcome> {
    runtime::run_to_end(
        &runtime::log_as_text(config, Some(DEFAULT_LOG_FILTER)),
        run_import(config, request, watcher),
    )
}

async fn run_import(
    config: &Config,
    request: &ImportRequest,
    watcher: &Arc<dyn ImportWatcher>,
) -> anyhow::Result<ImportOutcome> {
    let rooms = StoringRooms::begin(config, &request.route, !request.dry_run, true).await?;
    let limit = request
        .route
        .policy
        .max_size
        .saturating_add(ENTRY_OVERHEAD_BYTES);
    let queue = ForeignQueue::connect(&request.server, request.queue.keys(), limit).await?;
    let size = queue.size().await?;
    if request.dry_run {
        return look(&rooms, request, &queue, size, watcher).await;
    }
    let subject = request.queue.to_string();
    let audit = rooms
        .audit("postdate import", &subject, request.because.as_ref())
        .await?;
    let moved = match take_lock(&queue, watcher).await {
        Ok(()) => move_all(config, &rooms, request, &queue, size, watcher).await,
        Err(why) => {
            audit.end(&format!("{why:#}")).await?;
            return Err(why);
        }
    };
    let unlocked = queue.unlock().await;
    let result = match &moved {
        Ok(tally) => format!("{} messages moved", tally.moved),
        Err(why) => format!("{why:#}"),
    };
    let audited = audit.end(&result).await;
    let tally = moved?;
    audited?;
    unlocked.context("all is moved, but the lock could not be ended; it ends by itself")?;
    let left = queue.size().await?;
    Ok(ImportOutcome {
        tally,
        remaining: left.due_times,
        delivered: left.delivered,
        preview: None,
    })
}

/// Judges all entries, and changes nothing.
async fn look(
    rooms: &StoringRooms,
    request: &ImportRequest,
    queue: &ForeignQueue,
    size: QueueSize,
    watcher: &Arc<dyn ImportWatcher>,
) -> anyhow::Result<ImportOutcome> {
    let judge = EntryJudge::new(request);
    let mut tally = ImportTally::default();
    let mut preview: Option<ImportPreview> = None;
    // The store's clock is known once Redis has answered.
    rooms
        .store
        .import_note(&request.route.name, &queue.name())
        .await?;
    for &phase in queue.phases() {
        let mut rank = 0;
        loop {
            let entries = queue.read(phase, rank).await?;
            if entries.is_empty() {
                break;
            }
            rank += entries.len();
            let arrival = rooms.store.clock().arrival();
            for entry in entries {
                match entry {
                    // Elements are judged by their due times, in the other phase.
                    Ok(_) if phase == ForeignPhase::Elements => {}
                    Ok(entry) => match judge.judge(&entry, arrival) {
                        Ok(accepted) => {
                            tally.moved += 1;
                            tally.overdue += u64::from(accepted.is_overdue);
                            let due = accepted.message.due;
                            let preview = preview.get_or_insert_with(|| preview_of(&accepted));
                            preview.last_due = preview.last_due.max(due);
                        }
                        Err((reason, why)) => {
                            tally.refuse(reason, || judge::shown(&entry.member, &why));
                        }
                    },
                    Err((problem, member)) => refused_unread(&mut tally, phase, problem, &member),
                }
            }
            if phase == ForeignPhase::DueTimes {
                watcher.looked(rank as u64, size.due_times.max(rank as u64));
            }
        }
    }
    Ok(ImportOutcome {
        tally,
        remaining: size.due_times,
        delivered: size.delivered,
        preview,
    })
}

fn preview_of(first: &AcceptedEntry) -> ImportPreview {
    let body = first.message.message.body.as_deref().unwrap_or_default();
    ImportPreview {
        first_due: first.message.due,
        last_due: first.message.due,
        first_size: body.len(),
        first_body: judge::shown(body, ""),
    }
}

async fn move_all(
    config: &Config,
    rooms: &StoringRooms,
    request: &ImportRequest,
    queue: &ForeignQueue,
    size: QueueSize,
    watcher: &Arc<dyn ImportWatcher>,
) -> anyhow::Result<ImportTally> {
    let mut mover = EntryMover::begin(config, rooms, request, queue, size, watcher).await?;
    for &phase in queue.phases() {
        mover.run(phase).await?;
    }
    mover.finish().await
}

//! Operations that read before they write. A pending message moves to another moment, or another one takes its place, by
//! leaving its bundle for one of its own. A cancel with a condition cancels a message only if it is the intended one.

use std::sync::Arc;

use tracing::error;

use super::growing::GrowthPlan;
use super::plan::{AlikePlaces, WritePlan};
use super::{NAME_READS, PartitionWriter, never_settles, split};
use crate::domain::{RouteName, Text, UnixMs};
use crate::store::call::names::name_key;
use crate::store::call::numbered::{CallTurn, ScriptArg, ScriptCall};
use crate::store::call::reply::{behind, shape, text};
use crate::store::call::scripts::{self, ScriptVariant, ScriptVariants};
use crate::store::model::bundle::BundleId;
use crate::store::model::view::version_of;
use crate::store::query::find::{MessagePlace, PlaceReading, read_until_stable};
use crate::store::{
    Bundle, IntendedMessage, StoreError, StoredState, WriteOp, WriteResult, decode, encode,
};

/// What becomes of the pending message of a name.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    /// It moves to another moment.
    Move {
        due: UnixMs,
        /// One entry: the message to be stored if the name is unknown.
        fallback: Option<&'a Bundle>,
    },
    /// Another one takes its place.
    Replace {
        /// One entry: the new message.
        bundle: &'a Bundle,
        /// It is stored if the name is unknown.
        or_store: bool,
    },
}

impl PartitionWriter {
    /// Changes the pending message of a name, which leaves its bundle for one of its own.
    pub(super) async fn change(
        &self,
        turn: &mut CallTurn<'_>,
        route: &RouteName,
        id: &Text,
        of: Option<&IntendedMessage>,
        change: Change<'_>,
    ) -> Result<WriteResult, StoreError> {
        let p = self.partition;
        let name = name_key(route, id);
        let with = ScriptVariant {
            remembers: self.delivered_names.remembers(route.as_str()),
            ordered: self.order.has(route.as_str()),
        };
        let due = change.due();
        for _ in 0..NAME_READS {
            let found = read_until_stable(self.calls.link(), &self.keys, p, &name).await?;
            let (place, pending) = match found {
                Some((place, reading)) => {
                    let pending = pending(&reading);
                    (Some(place), pending)
                }
                None => (None, PendingMessage::No(None)),
            };
            if let PendingMessage::Unreadable(why) = &pending {
                error!(%route, %id, error = why, "a message cannot be changed: its bundle cannot be read");
            }
            let mut planned = match change.plan(pending, of) {
                Ok(planned) => planned,
                Err(result) => return Ok(result),
            };
            move_to(&mut planned.bundle, id, due);
            let fresh = self.order.id(&self.ids, route, due, 1, None);
            let call = self.change_call(change, &planned, &name, &fresh, place.as_ref(), with);
            let answer = text(&turn.run(p, call).await?)?;
            if let Some(given) = behind(&answer)? {
                self.order.seen(given);
                continue;
            }
            let result = match answer.as_str() {
                "CHANGED" => {
                    self.free_malformed(std::slice::from_ref(&name)).await?;
                    continue;
                }
                "r" => change.done(),
                "s" => WriteResult::Stored,
                "l" => return Ok(WriteResult::TooLate),
                _ => return Err(shape("the answer to a change")),
            };
            self.wake.stored(p, due);
            return Ok(result);
        }
        Err(never_settles())
    }

    /// The call that stores the changed message in a bundle of its own, and takes it out of the place where it was found.
    fn change_call(
        &self,
        change: Change<'_>,
        planned: &PlannedChange,
        name: &str,
        fresh: &BundleId,
        place: Option<&MessagePlace>,
        with: ScriptVariant,
    ) -> ScriptCall {
        let p = self.partition;
        let mut keys = self.keys.fixed_of(p, with);
        keys.push(self.keys.blob(p, fresh));
        keys.push(self.keys.due(p, fresh.due_set()));
        let mut saw = String::new();
        let mut said = String::new();
        if let Some(place) = place {
            keys.push(self.keys.blob(p, &place.bundle));
            keys.push(self.keys.due(p, place.bundle.due_set()));
            if place.listed {
                saw = place.text();
            } else {
                said = place.text();
            }
        }
        let mut args: Vec<ScriptArg> = vec![
            name.to_owned().into(),
            saw.into(),
            planned.mode.into(),
            fresh.as_str().into(),
            change.due().0.into(),
            ScriptArg::Blob(encode(&planned.bundle)),
            said.into(),
        ];
        if with.ordered {
            args.push(fresh.sequence().into());
        }
        ScriptCall {
            script: planned.script.of(with),
            op: change.op(),
            keys,
            args,
            blobs: Vec::new(),
        }
    }
}

/// A change that the store is to carry out.
struct PlannedChange {
    script: &'static ScriptVariants,
    /// `m`: the pending message leaves its place. `n`: there is none.
    mode: &'static str,
    /// The message that is stored, in a bundle of its own.
    bundle: Bundle,
}

impl Change<'_> {
    /// The name of its call.
    fn op(self) -> &'static str {
        match self {
            Self::Move { .. } => "reschedule",
            Self::Replace { .. } => "replace",
        }
    }

    /// The moment at which the message is due then.
    fn due(self) -> UnixMs {
        match self {
            Self::Move { due, .. } => due,
            Self::Replace { bundle, .. } => bundle.first_due(),
        }
    }

    /// What the store is to do about the pending message, or the result if it has nothing to do. With `of`, only that
    /// message is changed.
    fn plan(
        self,
        pending: PendingMessage,
        of: Option<&IntendedMessage>,
    ) -> Result<PlannedChange, WriteResult> {
        let (script, mode, bundle) = match (pending, self) {
            (PendingMessage::Yes(found), _) if of.is_some_and(|of| !is_meant(&found, of)) => {
                return Err(WriteResult::Unknown);
            }
            (PendingMessage::Yes(_), Self::Replace { bundle, .. }) => {
                (&scripts::RESCHEDULE, "m", bundle.clone())
            }
            (PendingMessage::Yes(mut found), Self::Move { due, .. }) => {
                if !move_expiry(&mut found, due) {
                    return Err(WriteResult::TooLate);
                }
                (&scripts::MOVE, "m", found)
            }
            (
                PendingMessage::No(_),
                Self::Move {
                    fallback: Some(bundle),
                    ..
                }
                | Self::Replace {
                    bundle,
                    or_store: true,
                },
            ) => (&scripts::RESCHEDULE, "n", bundle.clone()),
            (PendingMessage::No(None), _) => return Err(WriteResult::Unknown),
            (PendingMessage::No(Some(_)) | PendingMessage::Unreadable(_), _) => {
                return Err(WriteResult::TooLate);
            }
        };
        Ok(PlannedChange {
            script,
            mode,
            bundle,
        })
    }

    /// The result when it is done.
    fn done(self) -> WriteResult {
        match self {
            Self::Move { .. } => WriteResult::Rescheduled,
            Self::Replace { .. } => WriteResult::Replaced,
        }
    }
}

impl PartitionWriter {
    /// Cancels a name while its message is the intended one. `ops` is the cancel alone. The script refuses the
    /// call if the name means another bundle by then.
    pub(super) async fn cancel_of(
        &self,
        turn: &mut CallTurn<'_>,
        route: &RouteName,
        id: &Text,
        of: &IntendedMessage,
        ops: &[&WriteOp],
    ) -> Result<WriteResult, StoreError> {
        let p = self.partition;
        let name = name_key(route, id);
        for _ in 0..NAME_READS {
            let found = read_until_stable(self.calls.link(), &self.keys, p, &name).await?;
            let Some((place, reading)) = found else {
                return Ok(WriteResult::Unknown);
            };
            match pending(&reading) {
                PendingMessage::Yes(bundle) if is_meant(&bundle, of) => {}
                PendingMessage::Yes(_) | PendingMessage::No(None) => {
                    return Ok(WriteResult::Unknown);
                }
                PendingMessage::No(Some(StoredState::Published)) => {
                    return Ok(WriteResult::Published);
                }
                PendingMessage::No(Some(_)) => return Ok(WriteResult::InFlight),
                PendingMessage::Unreadable(why) => {
                    error!(%route, %id, error = why, "a message cannot be cancelled: its bundle cannot be read");
                    return Ok(WriteResult::InFlight);
                }
            }
            let plan = WritePlan::new(
                self,
                ops,
                &[place.bundle],
                &AlikePlaces::new(),
                &GrowthPlan::default(),
            );
            let letters = text(&turn.run(p, plan.call).await?)?;
            if letters != "CHANGED" {
                return split(ops, &letters)?
                    .concat()
                    .pop()
                    .ok_or_else(|| shape("the answer to a cancel"));
            }
        }
        Err(never_settles())
    }
}

/// Reports whether a bundle of one is the intended message.
fn is_meant(bundle: &Bundle, of: &IntendedMessage) -> bool {
    bundle.entries.first().is_some_and(|entry| match of {
        IntendedMessage::ReadAt(position) => entry.position == Some(*position),
        IntendedMessage::Seen(version) => version_of(entry, entry.message.body_len()) == *version,
    })
}

/// The message of a name, as one read showed it.
enum PendingMessage {
    /// The message is due some time.
    Yes(Bundle),
    /// The message is not pending (any more). Its state, if it still exists.
    No(Option<StoredState>),
    /// The message is pending, and cannot be read. Its claim will find out and keep it for a person.
    Unreadable(String),
}

/// The message at a place, as a bundle of one, if it is pending. The script judges finally.
fn pending(reading: &PlaceReading) -> PendingMessage {
    if reading.state != Some(StoredState::Pending) {
        return PendingMessage::No(reading.state);
    }
    let Some(blob) = &reading.blob else {
        return PendingMessage::Unreadable("its blob is not there".to_owned());
    };
    let bundle = match decode(blob) {
        Ok(bundle) => bundle,
        Err(why) => return PendingMessage::Unreadable(why.to_string()),
    };
    match bundle.entries.get(reading.index) {
        Some(entry) => PendingMessage::Yes(Bundle {
            target: bundle.target.clone(),
            entries: Arc::new(vec![entry.clone()]),
        }),
        None => {
            PendingMessage::Unreadable("its name points behind the end of its bundle".to_owned())
        }
    }
}

/// Moves what moves with the due time of a message that is pending. Returns false if it is not wanted any more then.
fn move_expiry(bundle: &mut Bundle, due: UnixMs) -> bool {
    for entry in Arc::make_mut(&mut bundle.entries) {
        if let Some(request) = &mut entry.request {
            match request.moved_to(due) {
                Some(moved) => *request = moved,
                None => return false,
            }
        }
    }
    true
}

/// Sets the new due time and the id by which the message is known: a `~` id stays with its message when that
/// leaves its bundle.
fn move_to(bundle: &mut Bundle, id: &Text, due: UnixMs) {
    for entry in Arc::make_mut(&mut bundle.entries) {
        entry.id.get_or_insert_with(|| id.clone());
        entry.due = due;
        entry.asked = None;
    }
}

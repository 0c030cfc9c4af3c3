//! What reads before it writes: moving a pending message to another moment, for it leaves its bundle for one
//! of its own; and cancelling one only if it is the message that was meant.

use std::sync::Arc;

use tracing::error;

use super::plan::Plan;
use super::{LOOKS, PartitionWriter, name_key, never_settles, split};
use crate::domain::{RouteName, Text, UnixMs};
use crate::store::call::numbered::{Arg, Call, Turn};
use crate::store::call::reply::{shape, text};
use crate::store::call::scripts::{self, With};
use crate::store::query::find::{Look, Place, look_until_still};
use crate::store::{Bundle, Meant, MessageState, StoreError, WriteOp, WriteResult, decode, encode};

impl PartitionWriter {
    pub(super) async fn reschedule(
        &self,
        turn: &mut Turn<'_>,
        (route, id): (&RouteName, &Text),
        of: Option<&Meant>,
        due: UnixMs,
        fallback: Option<&Bundle>,
    ) -> Result<WriteResult, StoreError> {
        let (p, name) = (self.partition, name_key(route, id));
        let with = With { remembers: self.memory.has(route.as_str()), ..With::default() };
        for _ in 0..LOOKS {
            let found = look_until_still(self.lane.link(), &self.keys, p, &name).await?;
            let (place, pending) = match found {
                Some((place, look)) => {
                    let pending = pending(&place, &look);
                    (Some(place), pending)
                }
                None => (None, Pending::No(None)),
            };
            let is_other = |bundle: &Bundle| {
                of.zip(place.as_ref()).is_some_and(|(of, place)| !is_meant(place, bundle, of))
            };
            let (script, mode, mut entry) = match (pending, fallback) {
                (Pending::Yes(other), _) if is_other(&other) => return Ok(WriteResult::Unknown),
                (Pending::Yes(moved), _) => (&scripts::MOVE, "m", moved),
                (Pending::No(_), Some(fallback)) => (&scripts::RESCHEDULE, "n", fallback.clone()),
                (Pending::No(None), None) => return Ok(WriteResult::Unknown),
                (Pending::No(Some(_)), None) => return Ok(WriteResult::TooLate),
                (Pending::Unreadable(why), _) => {
                    error!(%route, %id, error = why, "a message cannot be moved: its bundle cannot be read");
                    return Ok(WriteResult::TooLate);
                }
            };
            move_to(&mut entry, id, due);
            let fresh = self.order.id(&self.ids, route, due, 1, None);
            let mut keys = self.keys.fixed_of(p, with);
            keys.push(self.keys.blob(p, &fresh));
            keys.push(self.keys.due(p, fresh.shelf()));
            let (mut saw, mut said) = (String::new(), String::new());
            if let Some(place) = &place {
                keys.push(self.keys.blob(p, &place.bundle));
                keys.push(self.keys.due(p, place.bundle.shelf()));
                *(if place.listed { &mut saw } else { &mut said }) = place.text();
            }
            let args: Vec<Arg> = vec![
                name.clone().into(),
                saw.into(),
                mode.into(),
                fresh.as_str().into(),
                due.0.into(),
                Arg::Blob(encode(&entry)),
                said.into(),
            ];
            let script = script.of(with);
            let call = Call { script, op: "reschedule", keys, args, blobs: Vec::new() };
            let answer = text(&turn.run(self.partition, call).await?)?;
            let result = match answer.as_str() {
                "CHANGED" => continue,
                "r" => WriteResult::Rescheduled,
                "s" => WriteResult::Stored,
                "l" => return Ok(WriteResult::TooLate),
                _ => return Err(shape("the answer to a reschedule")),
            };
            self.wake.stored(self.partition, due);
            return Ok(result);
        }
        Err(never_settles())
    }
}

impl PartitionWriter {
    /// Cancels a name while its message is the one that is meant: `ops` is the cancel alone. The call
    /// is refused if the name means another bundle by then.
    pub(super) async fn cancel_of(
        &self,
        turn: &mut Turn<'_>,
        (route, id): (&RouteName, &Text),
        of: &Meant,
        ops: &[&WriteOp],
    ) -> Result<WriteResult, StoreError> {
        let (p, name) = (self.partition, name_key(route, id));
        for _ in 0..LOOKS {
            let found = look_until_still(self.lane.link(), &self.keys, p, &name).await?;
            let Some((place, look)) = found else { return Ok(WriteResult::Unknown) };
            match pending(&place, &look) {
                Pending::Yes(bundle) if is_meant(&place, &bundle, of) => {}
                Pending::Yes(_) | Pending::No(None) => return Ok(WriteResult::Unknown),
                Pending::No(Some(_)) => return Ok(WriteResult::InFlight),
                Pending::Unreadable(why) => {
                    error!(%route, %id, error = why, "a message cannot be cancelled: its bundle cannot be read");
                    return Ok(WriteResult::Unknown);
                }
            }
            let plan = Plan::new(self, ops, &[place.bundle]);
            let letters = text(&turn.run(p, plan.call).await?)?;
            if letters != "CHANGED" {
                return split(ops, &letters)?.concat().pop().ok_or_else(|| shape("the answer to a cancel"));
            }
        }
        Err(never_settles())
    }
}

/// Whether the bundle of one that lies at this place is the message that is meant.
fn is_meant(place: &Place, bundle: &Bundle, of: &Meant) -> bool {
    match of {
        Meant::ReadAt(position) => bundle.entries.first().is_some_and(|e| e.position == Some(*position)),
        Meant::Seen(version) => place.version() == *version,
    }
}

/// What a look at a name's message showed.
enum Pending {
    /// It is due some time: this is it.
    Yes(Bundle),
    /// It is not (any more); where it stands instead, if anywhere.
    No(Option<MessageState>),
    /// It is, and cannot be read; the claim will find out and keep it for a person.
    Unreadable(String),
}

/// The message at a place, as a bundle of one, if it is due some time (the script judges for good).
fn pending(place: &Place, look: &Look) -> Pending {
    if look.state != Some(MessageState::Pending) {
        return Pending::No(look.state);
    }
    let Some(blob) = &look.blob else { return Pending::Unreadable("its blob is not there".to_owned()) };
    let bundle = match decode(blob) {
        Ok(bundle) => bundle,
        Err(why) => return Pending::Unreadable(why.to_string()),
    };
    match bundle.entries.get(place.index as usize) {
        Some(entry) => {
            Pending::Yes(Bundle { target: bundle.target.clone(), entries: Arc::new(vec![entry.clone()]) })
        }
        None => Pending::Unreadable("its name points behind the end of its bundle".to_owned()),
    }
}

/// Under the id that it is known by: a `~` id stays with its message when that leaves its bundle.
fn move_to(bundle: &mut Bundle, id: &Text, due: UnixMs) {
    for entry in Arc::make_mut(&mut bundle.entries) {
        entry.id.get_or_insert_with(|| id.clone());
        entry.due = due;
        entry.asked = None;
    }
}

//! Entry points for fuzzing: what the store reads in Redis before it is known to be its own.

use bytes::Bytes;

use super::call::keys::Keys;
use super::call::names::parse_place;
use super::model::bundle::{due_set_at, from_base36, place_in, place_of, slice_start};
use super::model::codec::{is_whole, later_version, plain_lengths, read_dues, read_trail};
use super::{BundleId, CodecError, DeadId, HeldKey, ReplicaStatus, UnopenedBundle, decode};
use crate::domain::limits::BUNDLE_MESSAGES;
use crate::domain::{RouteName, UnixMs};

/// Bytes before the checksum of a blob, and behind it.
const CHECKSUM: std::ops::Range<usize> = 4..8;

/// Longest id that a trail may hold, bytes.
const MAX_TRAIL_ID: usize = 1024;

/// Makes a blob of these bytes whose checksum is right.
pub fn with_checksum(bytes: &[u8]) -> Bytes {
    let mut blob = bytes.to_vec();
    if blob.len() >= CHECKSUM.end {
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&blob[..CHECKSUM.start]);
        checksum.update(&blob[CHECKSUM.end..]);
        blob[CHECKSUM].copy_from_slice(&checksum.finalize().to_le_bytes());
    }
    blob.into()
}

/// Reads the parts of a blob that are read by themselves.
///
/// # Panics
/// If they say anything else than the bundle as a whole.
pub fn read_parts(blob: &Bytes) {
    let dues = read_dues(blob);
    let lengths = plain_lengths(blob);
    let later = later_version(blob);
    if let Some(unopened) = UnopenedBundle::read(blob) {
        assert!(unopened.count() <= unopened.skip.len());
        drop(unopened.open());
    }
    drop(read_trail(blob, |id, _| assert!(id.len() <= MAX_TRAIL_ID)));
    match decode(blob) {
        Ok(bundle) => {
            assert!(is_whole(blob) && later.is_none());
            assert_eq!(
                dues,
                Ok(bundle.entries.iter().map(|entry| entry.due).collect())
            );
            let bodies = bundle
                .entries
                .iter()
                .map(|entry| entry.message.body_len())
                .sum::<usize>();
            assert_eq!(lengths.map(|lengths| lengths.bodies), Some(bodies));
        }
        Err(CodecError::Checksum) => assert!(!is_whole(blob)),
        Err(_) => {}
    }
}

/// Reads a text as each of the names and members that stand in Redis.
///
/// # Panics
/// If one that was read is not the one that would be written, or names more messages than a bundle has.
pub fn read_names(route: &RouteName, text: &str) {
    if let Some(id) = BundleId::parse(text) {
        assert_eq!(id.as_str(), text);
        assert!((1..=BUNDLE_MESSAGES).contains(&id.count()), "{id}");
        assert!(
            RouteName::new(id.route()).is_some() && id.due_set().starts_with(id.route()),
            "{id}"
        );
        let _sequence: u64 = id.sequence();
    }
    if let Some((partition, bundle, index)) = place_in(route, text) {
        assert!(
            (index as usize) < bundle.count(),
            "{text:?} lies in {bundle}"
        );
        assert_eq!(BundleId::parse(bundle.as_str()), Some(bundle.clone()));
        let due = text[1..]
            .split('.')
            .next()
            .and_then(from_base36)
            .unwrap_or_default();
        let again = bundle.message_id(partition, index as usize, UnixMs(due as i64));
        assert_eq!(
            place_in(route, again.as_str()),
            Some((partition, bundle, index)),
            "{text:?}"
        );
    }
    if let Some((id, index)) = parse_place(text) {
        assert_eq!(parse_place(&format!("{id} {index}")), Some((id, index)));
    }
    if let Some(id) = DeadId::parse(text) {
        assert_eq!(id.as_str(), text);
        assert!(
            id.queue().starts_with(id.route()) && text.contains(id.reason().as_str()),
            "{id}"
        );
    }
    if let Some(held) = HeldKey::parse(text) {
        assert_eq!(HeldKey::parse(&held.text()), Some(held));
    }
    if let Some((due_set, due)) = due_set_at(text) {
        assert!(
            place_of(&due_set, due.0 as f64).contains('/'),
            "{due_set:?}"
        );
    }
    if let Some(number) = from_base36(text) {
        assert!(slice_start(number) >= UnixMs(0));
    }
    let key = format!("postdate:{{{text}");
    let split = Keys::new("postdate").split(&key);
    assert!(split.is_none_or(|(_, name)| text.ends_with(name)));
    if let Ok(status) = serde_json::from_str::<ReplicaStatus>(text) {
        let written = match serde_json::to_string(&status) {
            Ok(written) => written,
            Err(error) => panic!("{status:?} cannot be written: {error}"),
        };
        assert!(
            serde_json::from_str::<ReplicaStatus>(&written).is_ok(),
            "{written}"
        );
    }
}

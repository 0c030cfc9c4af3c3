//! One message by its name or its `~` id: its place, its state, and its content.

use bytes::Bytes;

use crate::domain::{Partition, RouteName};
use crate::store::call::keys::Keys;
use crate::store::call::names::{name_key, parse_place};
use crate::store::call::scripts;
use crate::store::connection::link::StoreLink;
use crate::store::model::bundle::{BundleId, place_in};
use crate::store::model::codec::GrowingElements;
use crate::store::model::view::version_of;
use crate::store::{
    BundleOutline, CodecError, Store, StoreError, StoredMessage, StoredState, decode,
    decode_outline,
};

/// Reads of a name before giving up. Others move the name too, but not this often.
const NAME_READS: usize = 50;
/// Reads of a message whose blob is missing.
const BLOB_READS: usize = 3;

/// The place of a message, as its name gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct MessagePlace {
    pub(in crate::store) bundle: BundleId,
    pub(in crate::store) index: u32,
    /// Set if `names` has an entry for it. Otherwise the `~` id itself names the place.
    pub(in crate::store) listed: bool,
}

impl MessagePlace {
    /// The place of a name (`route/id`). `listed` is its entry in this partition's `names`.
    pub(in crate::store) fn of(p: Partition, name: &str, listed: Option<&str>) -> Option<Self> {
        if let Some(listed) = listed {
            let (bundle, index) = parse_place(listed)?;
            return Some(Self {
                bundle,
                index,
                listed: true,
            });
        }
        let (route, id) = name.split_once('/')?;
        let (partition, bundle, index) = place_in(&RouteName::new(route)?, id)?;
        (partition == p).then_some(Self {
            bundle,
            index,
            listed: false,
        })
    }

    /// The place as an entry of `names`.
    pub(in crate::store) fn text(&self) -> String {
        format!("{} {}", self.bundle, self.index)
    }
}

/// One read of a place: the state at one moment, and the blob if it was still there right after.
pub(in crate::store) struct PlaceReading {
    pub(in crate::store) state: Option<StoredState>,
    pub(in crate::store) blob: Option<Bytes>,
    /// The place of the message in that blob: of a growing bundle, the message alone is read.
    pub(in crate::store) index: usize,
}

/// Reads a place. `None` if the name means another place by now.
pub(in crate::store) async fn read_place(
    link: &StoreLink,
    keys: &Keys,
    p: Partition,
    name: &str,
    place: &MessagePlace,
) -> Result<Option<PlaceReading>, StoreError> {
    let connected = link.reach(Keys::slot(p)).await?;
    let mut connection = connected.connection.clone();
    let mut script = scripts::FIND.prepare_invoke();
    for key in ["names", "claims", "gone", "done"] {
        script.key(keys.of(p, key));
    }
    script
        .key(keys.due(p, place.bundle.due_set()))
        .arg(name)
        .arg(place.bundle.as_str());
    let (listed, due, claimed, gone, done): (Bytes, String, String, Bytes, Bytes) = script
        .invoke_async(&mut connection)
        .await
        .map_err(|error| link.judge(&connected, &error))?;
    let listed = String::from_utf8_lossy(&listed);
    if MessagePlace::of(p, name, Some(&*listed).filter(|l| !l.is_empty())).as_ref() != Some(place) {
        return Ok(None);
    }
    let key = keys.blob(p, &place.bundle);
    let (blob, index) = if place.bundle.is_growing() {
        element(link, p, key, place.index).await?.unzip()
    } else {
        let blobs = link.get_blobs(Keys::slot(p), vec![key]).await?;
        let blob = blobs.into_iter().next().flatten();
        (blob, Some(place.index as usize))
    };
    let index = index.unwrap_or_default();
    let is_set = |map: &[u8]| map.get(place.index as usize) == Some(&b'1');
    let state = match (!due.is_empty(), !claimed.is_empty()) {
        (false, false) => None,
        _ if is_set(&gone) => None,
        _ if is_set(&done) => Some(StoredState::Published),
        (true, _) => Some(StoredState::Pending),
        (false, true) => Some(StoredState::InFlight),
    };
    Ok(Some(PlaceReading { state, blob, index }))
}

/// One message of a growing bundle, and its place in what was read. `None`: it has gone meanwhile, or the key holds another
/// type.
async fn element(
    link: &StoreLink,
    p: Partition,
    key: String,
    index: u32,
) -> Result<Option<(Bytes, usize)>, StoreError> {
    let lindex = |index: u32| {
        let mut lindex = redis::cmd("LINDEX");
        lindex.arg(&key).arg(index);
        (Keys::slot(p), lindex)
    };
    let mut elements = Vec::with_capacity(2);
    for answer in link.gather(vec![lindex(0), lindex(index)]).await {
        match answer {
            Ok(redis::Value::BulkString(element)) => elements.push(element.into()),
            Ok(_) | Err(StoreError::Damaged(_)) => return Ok(None),
            Err(why) => return Err(why),
        }
    }
    Ok(GrowingElements(elements).alone(1))
}

/// The current place of a name's message.
pub(in crate::store) async fn place_of(
    link: &StoreLink,
    keys: &Keys,
    p: Partition,
    name: &str,
) -> Result<Option<MessagePlace>, StoreError> {
    let connected = link.reach(Keys::slot(p)).await?;
    let mut connection = connected.connection.clone();
    let mut hget = redis::cmd("HGET");
    hget.arg(keys.of(p, "names")).arg(name);
    let listed: Option<Bytes> = hget
        .query_async(&mut connection)
        .await
        .map_err(|error| link.judge(&connected, &error))?;
    let listed = listed.map(|listed| String::from_utf8_lossy(&listed).into_owned());
    Ok(MessagePlace::of(p, name, listed.as_deref()))
}

/// Reads until the name does not change during one read. `None`: the message is not in the store.
pub(in crate::store) async fn read_until_stable(
    link: &StoreLink,
    keys: &Keys,
    p: Partition,
    name: &str,
) -> Result<Option<(MessagePlace, PlaceReading)>, StoreError> {
    for n in 0..NAME_READS {
        let Some(place) = place_of(link, keys, p, name).await? else {
            return Ok(None);
        };
        let Some(reading) = read_place(link, keys, p, name, &place).await? else {
            continue;
        };
        // The message may have left between the state and the blob. A blob that stays away is damage.
        if reading.state.is_none() || reading.blob.is_some() || n >= BLOB_READS {
            return Ok(Some((place, reading)));
        }
    }
    Err(StoreError::Damaged(format!(
        "a name changed its meaning {NAME_READS} times between two reads"
    )))
}

impl Store {
    /// One message by its name, or by its `~` id, without its body. `None`: it is not in the store (any more). A confirmed
    /// message is `Published` only until its bundle has left. Waits while the store is away.
    pub async fn find(
        &self,
        route: &RouteName,
        id: &str,
    ) -> Result<Option<StoredMessage>, StoreError> {
        let Some((state, blob, index)) = self.stable_blob(route, id).await? else {
            return Ok(None);
        };
        let outline = decode_outline(&blob).map_err(|why| unreadable(id, &why))?;
        stored_message(route, id, state, &outline, index).map(Some)
    }

    /// The same with its body. Opens the message's whole bundle: to be called by few at a time.
    pub async fn find_whole(
        &self,
        route: &RouteName,
        id: &str,
    ) -> Result<Option<StoredMessage>, StoreError> {
        let Some((state, blob, index)) = self.stable_blob(route, id).await? else {
            return Ok(None);
        };
        let bundle = decode(&blob).map_err(|why| unreadable(id, &why))?;
        let outline = BundleOutline::with_bodies(bundle);
        stored_message(route, id, state, &outline, index).map(Some)
    }

    /// The state and the bundle of a message that the store has, and its place in what was read.
    async fn stable_blob(
        &self,
        route: &RouteName,
        id: &str,
    ) -> Result<Option<(StoredState, Bytes, usize)>, StoreError> {
        let p = self.locate(route, id, self.home_of(route, id)).await?;
        let name = name_key(route, &id.into());
        let found = read_until_stable(&self.0.browse, &self.0.keys, p, &name).await?;
        Ok(found.and_then(|(_, reading)| {
            let blob = reading.blob.unwrap_or_default();
            Some((reading.state?, blob, reading.index))
        }))
    }
}

fn unreadable(id: &str, why: &CodecError) -> StoreError {
    StoreError::Damaged(format!(
        "the bundle of `{}` cannot be read: {why}",
        id.escape_debug()
    ))
}

/// The message at this place of a bundle.
fn stored_message(
    route: &RouteName,
    id: &str,
    state: StoredState,
    outline: &BundleOutline,
    index: usize,
) -> Result<StoredMessage, StoreError> {
    let entries = &outline.bundle.entries;
    let found = entries.get(index).zip(outline.sizes.get(index));
    let (entry, &size) = found.ok_or_else(|| {
        StoreError::Damaged("a name points behind the end of its bundle".to_owned())
    })?;
    Ok(StoredMessage {
        route: route.as_str().to_owned(),
        id: id.into(),
        state,
        version: version_of(entry, size),
        target: outline.bundle.target.clone(),
        size,
        entry: entry.clone(),
    })
}

//! The contents of listed messages: opened as far as a budget of bytes allows, most without their bodies.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::domain::Partition;
use crate::store::claim::blobs::BlobHead;
use crate::store::model::bundle::BundleId;
use crate::store::model::view::version_of;
use crate::store::{
    BrowseKey, BrowseQuery, BundleOutline, MessageFilter, Store, StoreError, StoredMessage,
    StoredState, decode, decode_outline,
};

/// A message that may be on the page.
pub(super) struct Listed {
    pub(super) key: BrowseKey,
    /// Its content, if it was read with its place, and its place in that.
    pub(super) content: Option<(Bytes, usize)>,
}

impl Listed {
    fn place(&self) -> ContentPlace<'_> {
        let alone = self.content.as_ref().map(|_| self.key.index);
        (self.key.partition, &self.key.bundle, alone)
    }

    fn bundle(&self) -> Option<BundleId> {
        BundleId::parse(&self.key.bundle)
    }

    /// The message, without its body, if it is in what was opened and the filter lets it through.
    fn message(&self, outline: &BundleOutline, filter: &MessageFilter) -> Option<StoredMessage> {
        let key = &self.key;
        let bundle = self.bundle()?;
        let index = match &self.content {
            Some((_, place)) => *place,
            None => key.index as usize,
        };
        let mut entry = outline.bundle.entries.get(index)?.clone();
        let size = *outline.sizes.get(index)?;
        let id = entry
            .id
            .clone()
            .unwrap_or_else(|| bundle.message_id(key.partition, key.index as usize, entry.due));
        if !filter.lets_through(id.as_str(), &entry) {
            return None;
        }
        if let Some(body) = &mut entry.message.body {
            *body = Bytes::new();
        }
        Some(StoredMessage {
            route: bundle.route().to_owned(),
            id,
            state: StoredState::Pending,
            version: version_of(&entry, size),
            target: outline.bundle.target.clone(),
            size,
            entry,
        })
    }
}

/// What has a message's content: its bundle, or it alone by its index in that.
type ContentPlace<'a> = (Partition, &'a str, Option<u32>);

/// The content at a place: its key, empty if it was read with the place, and its size.
struct StoredHead {
    key: String,
    head: BlobHead,
}

/// The places of the contents that the budget allows to open, at least one, and how many messages they are enough for.
fn within_budget<'a>(
    listed: &'a [Listed],
    heads: &BTreeMap<ContentPlace<'a>, StoredHead>,
    with_bodies: bool,
    budget: &mut usize,
) -> (BTreeSet<ContentPlace<'a>>, usize) {
    let mut wanted = BTreeSet::new();
    for (taken, one) in listed.iter().enumerate() {
        let place = one.place();
        if wanted.contains(&place) {
            continue;
        }
        let size = heads
            .get(&place)
            .map_or(0, |stored| stored.head.opened_len(with_bodies));
        if size > *budget && taken > 0 {
            *budget = 0;
            return (wanted, taken);
        }
        *budget = budget.saturating_sub(size);
        wanted.insert(place);
    }
    (wanted, listed.len())
}
impl Store {
    /// Reads these messages, as many as the budget and the query allow, at least one. Returns how many it went through. What
    /// is found has no body: it is opened only where a search looks into it.
    pub(super) async fn contents(
        &self,
        listed: &[Listed],
        query: &BrowseQuery,
        budget: &mut usize,
        found: &mut Vec<StoredMessage>,
    ) -> Result<usize, StoreError> {
        let with_bodies = query.filter.needs_bodies();
        let heads = self.heads_of(listed).await?;
        let (wanted, taken) = within_budget(listed, &heads, with_bodies, budget);
        let outlines = self.open_contents(wanted, &heads, with_bodies).await?;
        for (n, one) in listed[..taken].iter().enumerate() {
            if found.len() >= query.limit {
                return Ok(n);
            }
            let outline = outlines.get(&one.place());
            let message = outline.and_then(|outline| one.message(outline, &query.filter));
            // A bundle that was put off stands later than its messages are due.
            found.extend(
                message.filter(|message| (query.from..=query.to).contains(&message.entry.due)),
            );
        }
        Ok(taken)
    }

    /// The sizes of what holds the content of these messages.
    async fn heads_of<'a>(
        &self,
        listed: &'a [Listed],
    ) -> Result<BTreeMap<ContentPlace<'a>, StoredHead>, StoreError> {
        let mut places: Vec<_> = listed
            .iter()
            .filter(|one| one.content.is_none() && one.bundle().is_some())
            .map(Listed::place)
            .collect();
        places.sort_unstable();
        places.dedup();
        let blob_keys: Vec<_> = places
            .iter()
            .filter_map(|&(p, bundle, _)| Some((p, self.0.keys.blob(p, &BundleId::parse(bundle)?))))
            .collect();
        let measured = self.0.browse.measure_blobs_of(&blob_keys).await?;
        let mut heads = BTreeMap::new();
        for ((place, (_, key)), head) in places.into_iter().zip(blob_keys).zip(measured) {
            if let Some(head) = head {
                heads.insert(place, StoredHead { key, head });
            }
        }
        for one in listed {
            if let Some((content, _)) = &one.content {
                let head = StoredHead {
                    key: String::new(),
                    head: BlobHead::whole(content.clone()),
                };
                heads.insert(one.place(), head);
            }
        }
        Ok(heads)
    }

    /// Opens the contents at these places. An unreadable bundle is reported by its scrub and its claim. A bundle that
    /// has left meanwhile is not shown.
    async fn open_contents<'a>(
        &self,
        wanted: BTreeSet<ContentPlace<'a>>,
        heads: &BTreeMap<ContentPlace<'a>, StoredHead>,
        with_bodies: bool,
    ) -> Result<BTreeMap<ContentPlace<'a>, BundleOutline>, StoreError> {
        let mut places = Vec::with_capacity(wanted.len());
        let mut there = Vec::with_capacity(wanted.len());
        for place in wanted {
            if let Some(StoredHead { key, head }) = heads.get(&place) {
                places.push(place);
                there.push((place.0, key.clone(), head.clone()));
            }
        }
        let blobs = self.0.browse.read_blobs_of(&there).await?;
        let mut outlines = BTreeMap::new();
        for (place, blob) in places.into_iter().zip(blobs) {
            let outline = blob.and_then(|blob| {
                let outline = if with_bodies {
                    decode(&blob).map(BundleOutline::with_bodies)
                } else {
                    decode_outline(&blob)
                };
                outline.ok()
            });
            if let Some(outline) = outline {
                outlines.insert(place, outline);
            }
        }
        Ok(outlines)
    }
}

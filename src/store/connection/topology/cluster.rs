//! Asks the nodes of a cluster which of them serves which slot.
//!
//! All known nodes, seeds and replicas included, are asked each second and at once after a `MOVED`. For each
//! slot the owner that most of them name counts. A node that was paused and replaced, or cut off, has an old
//! view and is outvoted. A slot that most nodes call unserved belongs to nobody: its partitions wait, the
//! others do not.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures_util::future::join_all;
use redis::Value;
use redis::cluster_routing::Slot;
use tracing::debug;

use crate::store::Config;
use crate::store::config::{Address, Login, Topology};
use crate::store::connection::client::{ConnectFault, RedisClient, RedisServer};
use crate::store::connection::deadline::RedisWire;
use crate::store::connection::open::{ANSWER_TIMEOUT, open};
use crate::store::connection::slot_map::{RedisNode, SlotMap};

/// Most nodes that one read asks. Those of a large cluster are drawn by lot.
const ASKED_NODES: usize = 9;
/// Slots of every cluster.
const SLOT_COUNT: u16 = 16384;

pub(super) struct ClusterNodes {
    config: Box<Config>,
    seeds: Vec<Address>,
    /// Slots that the store uses. Only these are missed.
    wanted: Vec<Slot>,
    known: BTreeMap<Address, Option<RedisWire>>,
}

/// One node's view: ranges of slots with their masters, ranges whose master it has no address of, and all nodes that it
/// named.
#[derive(Debug, Default, PartialEq)]
struct NodeView {
    ranges: Vec<(u16, u16, Address)>,
    unnamed: Vec<(u16, u16)>,
    nodes: BTreeSet<Address>,
}

impl NodeView {
    /// Reports whether somebody serves this slot of whom the view has no address.
    fn has_unnamed(&self, slot: u16) -> bool {
        self.unnamed
            .iter()
            .any(|(first, last)| *first <= slot && slot <= *last)
    }
}

impl ClusterNodes {
    pub(super) fn new(seeds: &[Address], wanted: &[Slot], config: &Config) -> Self {
        let known = seeds.iter().map(|seed| (seed.clone(), None)).collect();
        Self {
            config: Box::new(config.clone()),
            seeds: seeds.to_vec(),
            wanted: wanted.to_vec(),
            known,
        }
    }

    /// The current map, or the map before while no node answers.
    pub(super) async fn read(&mut self, before: &SlotMap) -> SlotMap {
        let mut drawn: Vec<Address> = self.known.keys().cloned().collect();
        fastrand::shuffle(&mut drawn);
        drawn.truncate(ASKED_NODES);
        let config = &self.config;
        let is_start = before.nodes.is_empty();
        let asked = self
            .known
            .iter_mut()
            .filter(|(address, _)| drawn.contains(address));
        let views =
            join_all(asked.map(|(address, connection)| ask(address, connection, config, is_start)))
                .await;
        let mut why = None;
        let views = views
            .into_iter()
            .filter_map(|view| view.map_err(|silent| why = Some(silent)).ok());
        let views: Vec<NodeView> = views.collect();
        if views.is_empty() {
            if is_start {
                return SlotMap::unreached(
                    "no node of the cluster reports its slots",
                    why.as_ref(),
                );
            }
            return before.clone();
        }
        let named: BTreeSet<Address> = views
            .iter()
            .flat_map(|view| view.nodes.iter().cloned())
            .collect();
        self.known
            .retain(|address, _| named.contains(address) || self.seeds.contains(address));
        for address in named {
            self.known.entry(address).or_default();
        }
        let mut map = merge(&views, before);
        let missing: Vec<Slot> = self
            .wanted
            .iter()
            .copied()
            .filter(|slot| map.node_of(*slot).is_none())
            .collect();
        if !missing.is_empty() {
            let unnamed = views.iter().flat_map(|view| &view.unnamed);
            let unnamed = unnamed.into_iter().find(|(first, last)| {
                let mut slots = (*first..=*last).filter_map(Slot::new);
                slots.any(|slot| missing.contains(&slot))
            });
            map.trouble = Some(match unnamed {
                Some((first, last)) => format!(
                    "the cluster names no address for the node that serves slots {first} to {last}: set \
                     cluster-announce-hostname"
                ),
                None => format!("{} slots that the store uses are not served", missing.len()),
            });
        }
        map
    }
}

/// Asks a node for its view. At the start a node that does not answer is asked why.
async fn ask(
    address: &Address,
    connection: &mut Option<RedisWire>,
    config: &Config,
    is_start: bool,
) -> Result<NodeView, ConnectFault> {
    let asked = tokio::time::timeout(ANSWER_TIMEOUT, try_ask(address, connection, config)).await;
    let mut view = asked.unwrap_or_else(|_| Err(ConnectFault::silence("no answer")));
    if is_start && let Err(fault) = view {
        view = Err(client_of(address, config).explain_silence(fault).await);
    }
    view.map_err(|why| {
        *connection = None;
        debug!(node = %address, error = %why, "a node of the cluster does not report its slots");
        why.at(address)
    })
}

async fn try_ask(
    address: &Address,
    connection: &mut Option<RedisWire>,
    config: &Config,
) -> Result<NodeView, ConnectFault> {
    let connection = match connection {
        Some(connection) => connection,
        none => none.insert(open(&client_of(address, config), ANSWER_TIMEOUT).await?),
    };
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let answer: Value = slots
        .query_async(connection)
        .await
        .map_err(|error| error.to_string())?;
    read_slots(&answer, address)
        .ok_or_else(|| ConnectFault::from("an answer of an unexpected shape".to_owned()))
}

fn client_of(address: &Address, config: &Config) -> RedisClient {
    let login = match &config.topology {
        Topology::Cluster { login, .. } => login.clone(),
        _ => Login::default(),
    };
    RedisClient::new(RedisServer::Node(address.clone(), login), config)
}

/// Reads `CLUSTER SLOTS`: per range its first and last slot, its master, its replicas.
fn read_slots(answer: &Value, asked: &Address) -> Option<NodeView> {
    let Value::Array(rows) = answer else {
        return None;
    };
    let mut view = NodeView::default();
    view.nodes.insert(asked.clone());
    for row in rows {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = row.as_slice() else {
            return None;
        };
        let nodes: Option<Vec<NodeName>> = nodes.iter().map(|node| node_at(node, asked)).collect();
        let nodes = nodes?;
        let fits = 0 <= *first && first <= last && *last < i64::from(SLOT_COUNT);
        let (first, last) = (*first as u16, *last as u16);
        match nodes.first().filter(|_| fits)? {
            NodeName::At(master) => view.ranges.push((first, last, master.clone())),
            NodeName::Unknown => view.unnamed.push((first, last)),
        }
        view.nodes
            .extend(nodes.into_iter().filter_map(|node| match node {
                NodeName::At(address) => Some(address),
                NodeName::Unknown => None,
            }));
    }
    Some(view)
}

/// How a view names a node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeName {
    At(Address),
    /// The node that was asked has not heard of an address of it.
    Unknown,
}

/// Reads `[host, port, id, metadata]`. Without a host it is the node that was asked. The host `?` is not known to that
/// node, which may know another name of it: the metadata has pairs `ip` or `hostname` and its value.
fn node_at(node: &Value, asked: &Address) -> Option<NodeName> {
    let Value::Array(node) = node else {
        return None;
    };
    let [host, Value::Int(port), rest @ ..] = node.as_slice() else {
        return None;
    };
    let port = u16::try_from(*port).ok()?;
    let host = match host {
        Value::Nil => String::new(),
        host => word(host)?,
    };
    let host = match host.as_str() {
        "" => Some(asked.host.clone()),
        "?" => rest.get(1).and_then(other_name),
        _ => Some(host),
    };
    Some(host.map_or(NodeName::Unknown, |host| {
        NodeName::At(Address { host, port })
    }))
}

/// Another name of a node, by its metadata.
fn other_name(metadata: &Value) -> Option<String> {
    let pairs: Vec<(String, String)> = match metadata {
        Value::Array(words) => words
            .chunks_exact(2)
            .filter_map(|pair| Some((word(&pair[0])?, word(&pair[1])?)))
            .collect(),
        Value::Map(pairs) => pairs
            .iter()
            .filter_map(|(key, value)| Some((word(key)?, word(value)?)))
            .collect(),
        _ => return None,
    };
    ["ip", "hostname"].iter().find_map(|wanted| {
        let (_, name) = pairs.iter().find(|(key, _)| key == wanted)?;
        Some(name.clone()).filter(|name| !name.is_empty() && name != "?")
    })
}

fn word(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(word) => String::from_utf8(word.clone()).ok(),
        Value::SimpleString(word) => Some(word.clone()),
        _ => None,
    }
}

/// For each slot the owner that most views name. Among equals it is the owner of before. A view that has no name for the
/// owner has no vote.
fn merge(views: &[NodeView], before: &SlotMap) -> SlotMap {
    let ranges = || views.iter().flat_map(|view| &view.ranges);
    let mut bounds: BTreeSet<u16> = ranges()
        .flat_map(|(first, last, _)| [*first, last + 1])
        .collect();
    bounds.insert(0);
    bounds.insert(SLOT_COUNT);
    let bounds: Vec<u16> = bounds.into_iter().collect();
    let owners: BTreeSet<&Address> = ranges().map(|(.., owner)| owner).collect();
    let mut nodes: Vec<RedisNode> = owners
        .into_iter()
        .map(|owner| RedisNode::At(owner.clone()))
        .collect();
    let mut slots: HashMap<Slot, usize> = HashMap::new();
    for piece in bounds.windows(2) {
        let from = piece[0];
        let to = piece[1];
        let had = Slot::new(from)
            .and_then(|slot| before.node_of(slot))
            .and_then(|at| before.nodes.get(at));
        let mut votes: BTreeMap<Option<&Address>, usize> = BTreeMap::new();
        for view in views.iter().filter(|view| !view.has_unnamed(from)) {
            let owner = view
                .ranges
                .iter()
                .find(|(first, last, _)| *first <= from && from <= *last);
            *votes.entry(owner.map(|(.., owner)| owner)).or_default() += 1;
        }
        let most = votes
            .into_iter()
            .max_by_key(|(owner, count)| (*count, is_same(*owner, had), *owner));
        let Some((Some(owner), _)) = most else {
            continue;
        };
        let Some(at) = nodes
            .iter()
            .position(|node| matches!(node, RedisNode::At(a) if a == owner))
        else {
            continue;
        };
        slots.extend((from..to).filter_map(Slot::new).map(|slot| (slot, at)));
    }
    // A node that only a minority calls a master needs no connection.
    let used: BTreeSet<usize> = slots.values().copied().collect();
    let places: HashMap<usize, usize> = used
        .iter()
        .enumerate()
        .map(|(new, old)| (*old, new))
        .collect();
    nodes = used.iter().map(|at| nodes[*at].clone()).collect();
    for at in slots.values_mut() {
        *at = places[at];
    }
    SlotMap {
        nodes,
        slots: Some(slots),
        ..SlotMap::default()
    }
}

/// Reports whether this is the owner of before.
fn is_same(owner: Option<&Address>, before: Option<&RedisNode>) -> bool {
    if let Some(owner) = owner
        && let Some(RedisNode::At(before)) = before
    {
        owner == before
    } else {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address {
            host: "h".to_owned(),
            port,
        }
    }

    fn view(ranges: &[(u16, u16, u16)]) -> NodeView {
        let ranges = ranges
            .iter()
            .map(|(first, last, port)| (*first, *last, address(*port)))
            .collect();
        NodeView {
            ranges,
            ..NodeView::default()
        }
    }

    fn owner(map: &SlotMap, slot: u16) -> Option<u16> {
        let at = map.node_of(Slot::new(slot).expect("a slot"))?;
        let RedisNode::At(address) = &map.nodes[at] else {
            panic!("an address")
        };
        Some(address.port)
    }

    #[test]
    fn each_slot_is_whose_most_say() {
        let before = merge(
            &[view(&[(0, 8191, 1), (8192, 16383, 2)])],
            &SlotMap::default(),
        );
        assert_eq!(
            (owner(&before, 0), owner(&before, 16383)),
            (Some(1), Some(2))
        );
        // Node 1 was paused, and 3 took over: the old view of 1 is outvoted.
        let new = || view(&[(0, 8191, 3), (8192, 16383, 2)]);
        let old = || view(&[(0, 8191, 1), (8192, 16383, 2)]);
        let after = merge(&[old(), new(), new()], &before);
        assert_eq!(owner(&after, 0), Some(3));
        assert_eq!(after.nodes.len(), 2, "nobody needs node 1");
        // Nobody has the majority: the map stays as it was.
        assert_eq!(owner(&merge(&[old(), new()], &before), 0), Some(1));
        assert_eq!(owner(&merge(&[old(), new()], &after), 0), Some(3));
        // One slot is unserved, its neighbours are not.
        let holed = || view(&[(0, 99, 1), (101, 8191, 1), (8192, 16383, 2)]);
        let hole = merge(&[holed(), holed(), old()], &before);
        assert_eq!(
            (owner(&hole, 99), owner(&hole, 100), owner(&hole, 101)),
            (Some(1), None, Some(1))
        );
    }

    #[test]
    fn a_view_is_read_and_an_unknown_host_is_the_one_asked() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let row = |nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(0), Value::Int(16383)], nodes].concat())
        };
        let answer = Value::Array(vec![row(vec![node(Value::Nil, 1), node(text("r"), 2)])]);
        let view = read_slots(&answer, &address(7)).expect("a view");
        assert_eq!(view.ranges, [(0, 16383, address(1))]);
        assert_eq!(view.nodes.len(), 3);
        assert_eq!(
            read_slots(&Value::Array(vec![row(vec![])]), &address(7)),
            None,
            "a range without a node"
        );
        assert_eq!(read_slots(&Value::Int(1), &address(7)), None);
    }

    #[test]
    fn a_host_that_a_node_does_not_know_is_taken_from_the_metadata_or_from_the_views_of_others() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let view = |host: &str, metadata: &[&str]| {
            let metadata = Value::Array(metadata.iter().map(|word| text(word)).collect());
            let node = Value::Array(vec![text(host), Value::Int(1), text("id"), metadata]);
            let row = Value::Array(vec![Value::Int(0), Value::Int(16383), node]);
            read_slots(&Value::Array(vec![row]), &address(7)).expect("a view")
        };
        for (metadata, host) in [
            (&["ip", "127.0.0.2"][..], Some("127.0.0.2")),
            (&["hostname", "n"], Some("n")),
            (&["hostname", "n", "ip", "127.0.0.2"], Some("127.0.0.2")),
            (&["ip", ""], None),
            (&["ip", "?"], None),
            (&["other", "n"], None),
            (&["ip"], None),
            (&[], None),
        ] {
            let view = view("?", metadata);
            let owner = view.ranges.first().map(|(.., owner)| owner.host.as_str());
            assert_eq!(owner, host, "{metadata:?}");
            assert_eq!(view.has_unnamed(0), host.is_none(), "{metadata:?}");
            let asked = usize::from(host.is_some()) + 1;
            assert_eq!(view.nodes.len(), asked, "{metadata:?}");
        }
        let blind = || view("?", &[]);
        let map = merge(&[blind(), blind(), view("h", &[])], &SlotMap::default());
        assert_eq!(owner(&map, 0), Some(1), "the one that knows it is enough");
        let map = merge(&[blind()], &SlotMap::default());
        assert_eq!(owner(&map, 0), None);
    }
}

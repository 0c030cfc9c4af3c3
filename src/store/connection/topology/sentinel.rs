//! Asks the sentinels for the master.
//!
//! All sentinels are asked each second, at once. The address that most of the answering ones name counts.
//! Between equals the one with the highest configuration epoch counts (each failover raises it). Two sentinels
//! thus outvote a dead one, one that was cut off with the old master, or one that is wrong. The named server is
//! used only if it calls itself a master too. Its own word alone would not do: a master that was paused and
//! replaced calls itself a master for 8 s after it continues.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use redis::RedisResult;
use tracing::warn;

use crate::store::Config;
use crate::store::config::{Address, Login};
use crate::store::connection::client::{ConnectFault, RedisClient, RedisServer};
use crate::store::connection::deadline::RedisWire;
use crate::store::connection::open::{ANSWER_TIMEOUT, open};
use crate::store::connection::slot_map::{RedisNode, SlotMap};

pub(super) struct Sentinels {
    master: String,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    address: Address,
    client: RedisClient,
    connection: Option<RedisWire>,
    /// Why it did not name the master when it was last asked: it did not answer, or did not know the master.
    silent: Option<ConnectFault>,
}

/// Host and port of the master, if the sentinel knows it.
type MasterAddress = Option<(String, u16)>;

/// The vote of one sentinel: the master's address, and its configuration epoch.
type SentinelVote = (Address, u64);

impl Sentinels {
    pub(super) fn new(nodes: &[Address], master: &str, login: &Login, config: &Config) -> Self {
        let mut sentinels = Vec::with_capacity(nodes.len());
        for address in nodes {
            let server = RedisServer::Node(address.clone(), login.clone());
            sentinels.push(Sentinel {
                address: address.clone(),
                client: RedisClient::new(server, config),
                connection: None,
                silent: None,
            });
        }
        Self {
            master: master.to_owned(),
            sentinels,
        }
    }

    /// The current master, or the one before while no sentinel answers.
    pub(super) async fn read(&mut self, before: &SlotMap) -> SlotMap {
        let master = self.master.as_str();
        let is_start = before.nodes.is_empty();
        let votes = join_all(
            self.sentinels
                .iter_mut()
                .map(|sentinel| sentinel.ask(master, is_start)),
        )
        .await;
        match elect(votes.into_iter().flatten()) {
            Some(address) => SlotMap::of_one(RedisNode::At(address)),
            None if is_start => {
                let silent = self
                    .sentinels
                    .iter()
                    .find_map(|s| Some(s.silent.as_ref()?.at(&s.address)));
                let why = format!("no sentinel names the master of {master:?}");
                SlotMap::unreached(&why, silent.as_ref())
            }
            None => before.clone(),
        }
    }
}

/// The address that most votes name. Among equals it is that of the highest epoch.
fn elect(ballots: impl Iterator<Item = SentinelVote>) -> Option<Address> {
    let mut votes: BTreeMap<Address, (usize, u64)> = BTreeMap::new();
    for (address, epoch) in ballots {
        let (count, highest) = votes.entry(address).or_default();
        *count += 1;
        *highest = epoch.max(*highest);
    }
    votes
        .into_iter()
        .max_by_key(|(_, votes)| *votes)
        .map(|(address, _)| address)
}

impl Sentinel {
    /// Asks for the master. At the start a sentinel that does not answer is asked why.
    async fn ask(&mut self, master: &str, is_start: bool) -> Option<SentinelVote> {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.try_ask(master)).await;
        let mut vote = asked.unwrap_or_else(|_| Err(ConnectFault::silence("no answer in time")));
        if is_start && let Err(fault) = vote {
            vote = Err(self.client.explain_silence(fault).await);
        }
        match vote {
            Ok(vote) => {
                self.silent = None;
                Some(vote)
            }
            Err(why) => {
                // Connect anew next time: an answer that still comes on this connection belongs to an earlier
                // question.
                self.connection = None;
                if self.silent.is_none() {
                    warn!(sentinel = %self.address, error = %why, "a sentinel does not name the master");
                }
                self.silent = Some(why);
                None
            }
        }
    }

    async fn try_ask(&mut self, master: &str) -> Result<SentinelVote, ConnectFault> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(open(&self.client, ANSWER_TIMEOUT).await?),
        };
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(master);
        pipe.cmd("SENTINEL").arg("MASTER").arg(master);
        let answers: RedisResult<(MasterAddress, Vec<String>)> = pipe.query_async(connection).await;
        let (address, fields) = answers.map_err(|error| error.to_string())?;
        let (host, port) = address.ok_or_else(|| format!("it does not know {master:?}"))?;
        let epoch = fields.chunks(2).find(|pair| pair[0] == "config-epoch");
        let epoch = epoch
            .and_then(|pair| pair.get(1)?.parse().ok())
            .unwrap_or(0);
        Ok((Address { host, port }, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(host: &str, epoch: u64) -> SentinelVote {
        (
            Address {
                host: host.to_owned(),
                port: 6379,
            },
            epoch,
        )
    }

    #[test]
    fn most_voices_count_and_among_equals_the_highest_epoch() {
        let elected = |votes: &[SentinelVote]| elect(votes.iter().cloned()).map(|a| a.host);
        assert_eq!(elected(&[]), None);
        assert_eq!(elected(&[vote("old", 1)]).as_deref(), Some("old"));
        assert_eq!(
            elected(&[vote("new", 2), vote("old", 1)]).as_deref(),
            Some("new")
        );
        assert_eq!(
            elected(&[vote("old", 1), vote("new", 2)]).as_deref(),
            Some("new")
        );
        let one_lies = [vote("old", 1), vote("elsewhere", 99), vote("old", 1)];
        assert_eq!(elected(&one_lies).as_deref(), Some("old"));
        let one_is_cut_off = [vote("new", 2), vote("new", 2), vote("old", 1)];
        assert_eq!(elected(&one_is_cut_off).as_deref(), Some("new"));
    }
}

//! A Redis Cluster of three masters, each with a replica or none, as child processes.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use postdate::store::config::{Address, Login, Topology};

use super::eventually::{PATIENCE, within};
use super::redis::LEAST_LOGIN;
use super::{Redis, eventually, ports};

/// Slots of every cluster.
pub const SLOTS: u16 = 16384;

/// Longest wait for one node's word.
const ANSWER: Duration = Duration::from_millis(500);

/// Nodes by number: 0, 1, 2 are masters at first, 3, 4, 5 replicas of them.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
}

impl Cluster {
    /// Three masters and three replicas; a slot without a node does not stop the others.
    pub async fn start() -> Self {
        Self::start_with("redis-server", 1).await
    }

    /// With another program (`redis::valkey()`), or without replicas.
    pub async fn start_with(program: &str, replicas: usize) -> Self {
        Self::start_as(program, replicas, &[]).await
    }

    /// With further options of each node, such as those of a [`Tls`](super::Tls).
    pub async fn start_as(program: &str, replicas: usize, more: &[&str]) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 * (1 + replicas) {
            let bus = ports::free().to_string();
            let mut options = vec!["--cluster-enabled", "yes", "--cluster-port", &bus];
            options.extend([
                "--cluster-node-timeout",
                "1500",
                "--cluster-require-full-coverage",
                "no",
            ]);
            options.extend([
                "--cluster-allow-replica-migration",
                "no",
                "--repl-diskless-sync-delay",
                "0",
            ]);
            options.extend(more);
            nodes.push(Redis::start_with(program, &options).await);
        }
        let addresses = nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()));
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(addresses);
        create.args(["--cluster-yes", "--cluster-replicas", &replicas.to_string()]);
        if let Some(authority) = nodes[0].authority() {
            create.args(["--tls", "--cacert", authority]);
        }
        let made = tokio::task::spawn_blocking(move || create.output()).await;
        let made = made.expect("not cancelled").expect("redis-cli");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stdout)
        );
        let cluster = Self { nodes };
        cluster.settled(replicas).await;
        cluster
    }

    /// Waits until every node sees every slot served, and each master has so many replicas that follow it.
    pub async fn settled(&self, replicas: usize) {
        eventually("the cluster is whole", async || {
            let masters = self.masters().await?;
            anyhow::ensure!(masters.len() == 3, "masters: {masters:?}");
            for (n, node) in self.nodes.iter().enumerate() {
                let info: String = node.command(&["CLUSTER", "INFO"]).await?;
                anyhow::ensure!(
                    info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384"),
                    "{info}"
                );
                let table: String = node.command(&["CLUSTER", "NODES"]).await?;
                anyhow::ensure!(table.lines().count() == self.nodes.len(), "{table}");
                let info: String = node.command(&["INFO", "replication"]).await?;
                let online = info.matches("state=online").count();
                anyhow::ensure!(!masters.contains_key(&n) || online >= replicas, "{info}");
            }
            anyhow::Ok(())
        })
        .await;
    }

    /// The keys of `[redis]` that lead here: two of the nodes, whatever they are now.
    pub fn lines(&self) -> String {
        let nodes: Vec<_> = self
            .addresses()
            .iter()
            .take(2)
            .map(|a| format!("\"{a}\""))
            .collect();
        format!(
            "topology = \"cluster\"\nnodes = [{}]\n{LEAST_LOGIN}",
            nodes.join(", ")
        )
    }

    /// The same as the store's own configuration has it.
    pub fn topology(&self) -> Topology {
        let nodes = self
            .addresses()
            .iter()
            .take(2)
            .filter_map(|a| Address::parse(a))
            .collect();
        Topology::Cluster {
            nodes,
            login: Login::default(),
        }
    }

    /// Where the nodes listen: `127.0.0.1:PORT`.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect()
    }

    /// Where a key lives; of partition 3 for example `{3}`.
    pub async fn slot(&self, key: &str) -> u16 {
        self.nodes[0]
            .command(&["CLUSTER", "KEYSLOT", key])
            .await
            .expect("a slot")
    }

    /// A node.
    pub fn node(&self, node: usize) -> &Redis {
        &self.nodes[node]
    }

    /// Masters that serve slots now, as the first node that answers has it: node -> its id.
    pub async fn masters(&self) -> anyhow::Result<BTreeMap<usize, String>> {
        let table = self.table().await?;
        let mut masters = BTreeMap::new();
        for line in table.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            if words.len() > 8 && words[2].contains("master") && !words[2].contains("fail") {
                masters.insert(self.numbered(words[1]), words[0].to_owned());
            }
        }
        Ok(masters)
    }

    /// The master of a slot, once all nodes that answer say the same.
    pub async fn master_of(&self, slot: u16) -> usize {
        eventually(&format!("a master of slot {slot}"), async || {
            self.views(slot)
                .await?
                .into_iter()
                .reduce(|one, other| if one == other { one } else { None })
                .flatten()
                .ok_or_else(|| anyhow::anyhow!("nobody serves it, or they differ"))
        })
        .await
    }

    /// Waits until all nodes that answer say that this one serves the slot, or that nobody does.
    pub async fn agreed(&self, slot: u16, master: Option<usize>) {
        eventually(
            &format!("slot {slot} is served by {master:?}"),
            async || {
                let views = self.views(slot).await?;
                anyhow::ensure!(views.iter().all(|view| *view == master), "{views:?}");
                anyhow::Ok(())
            },
        )
        .await;
    }

    /// Node that serves a slot, as each node that answers has it.
    async fn views(&self, slot: u16) -> anyhow::Result<Vec<Option<usize>>> {
        let mut views = Vec::new();
        for node in &self.nodes {
            // One that is stopped does not answer.
            let asked = node.command::<String>(&["CLUSTER", "NODES"]);
            let Ok(Ok(table)) = tokio::time::timeout(ANSWER, asked).await else {
                continue;
            };
            let owner = table.lines().find(|line| {
                line.split_whitespace().skip(8).any(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    first.parse().is_ok_and(|first: u16| first <= slot)
                        && last.parse().is_ok_and(|last: u16| slot <= last)
                })
            });
            let address = owner.and_then(|line| line.split(' ').nth(1));
            views.push(address.map(|address| self.numbered(address)));
        }
        anyhow::ensure!(!views.is_empty(), "no node answers");
        Ok(views)
    }

    /// A replica of this master.
    pub async fn replica_of(&self, master: usize) -> usize {
        eventually(&format!("a replica of node {master}"), async || {
            let table = self.table().await?;
            let port = format!(":{}@", self.nodes[master].port());
            let row = |line: &&str| line.contains(&port);
            let id = table
                .lines()
                .find(row)
                .and_then(|line| line.split(' ').next());
            let id = id.ok_or_else(|| anyhow::anyhow!("unknown"))?;
            let follows =
                |line: &&str| line.split(' ').nth(3) == Some(id) && !line.contains("fail");
            let replica = table
                .lines()
                .find(follows)
                .and_then(|line| line.split(' ').nth(1));
            replica
                .map(|address| self.numbered(address))
                .ok_or_else(|| anyhow::anyhow!("{table}"))
        })
        .await
    }

    async fn table(&self) -> anyhow::Result<String> {
        let mut last = anyhow::anyhow!("no nodes");
        for node in &self.nodes {
            let asked = node.command(&["CLUSTER", "NODES"]);
            match tokio::time::timeout(ANSWER, asked).await {
                Ok(Ok(table)) => return Ok(table),
                Ok(Err(error)) => last = error.into(),
                Err(_) => last = anyhow::anyhow!("no answer"),
            }
        }
        Err(last)
    }

    /// `127.0.0.1:PORT@BUS` -> the node's number.
    fn numbered(&self, address: &str) -> usize {
        let port = address
            .split('@')
            .next()
            .and_then(|a| a.rsplit(':').next())
            .expect("a port");
        self.nodes
            .iter()
            .position(|n| n.port().to_string() == port)
            .expect("a node of ours")
    }

    async fn id(&self, node: usize) -> redis::RedisResult<String> {
        self.nodes[node].command(&["CLUSTER", "MYID"]).await
    }

    /// SIGKILL.
    pub async fn kill9(&mut self, node: usize) {
        self.nodes[node].kill9().await;
    }

    /// Starts a killed node again; it comes back into its cluster.
    pub async fn restart(&mut self, node: usize) {
        self.nodes[node].restart().await;
    }

    /// SIGSTOP: it hangs with its connections open.
    pub fn stop(&mut self, node: usize) {
        self.nodes[node].stop();
    }

    /// SIGCONT.
    pub fn cont(&mut self, node: usize) {
        self.nodes[node].cont();
    }

    /// An orderly hand-over of a master's slots to its replica; `how` is nothing, `FORCE` or `TAKEOVER`.
    /// Answers the new master, once it is one; the others may not have heard of it.
    pub async fn failover(&self, master: usize, how: Option<&str>) -> usize {
        let replica = self.replica_of(master).await;
        let mut command = vec!["CLUSTER", "FAILOVER"];
        command.extend(how);
        let end = Instant::now() + PATIENCE;
        loop {
            self.nodes[replica]
                .command::<()>(&command)
                .await
                .expect("CLUSTER FAILOVER");
            // A server gives up by itself what the other masters have not voted for in five seconds, and wants to be
            // asked anew; asked sooner, it begins from the start.
            match within(Duration::from_secs(6), async || {
                self.is_master(replica).await
            })
            .await
            {
                Ok(()) => return replica,
                Err(last) => assert!(Instant::now() < end, "node {replica} is no master: {last}"),
            }
        }
    }

    /// Waits until this node is a master.
    pub async fn promoted(&self, node: usize) {
        eventually(&format!("node {node} is a master"), async || {
            self.is_master(node).await
        })
        .await;
    }

    async fn is_master(&self, node: usize) -> anyhow::Result<()> {
        let info: String = self.nodes[node].command(&["INFO", "replication"]).await?;
        anyhow::ensure!(info.contains("role:master"), "{info}");
        Ok(())
    }

    /// Moves one slot with its keys, step by step as `redis-cli --cluster reshard` does.
    pub async fn migrate(&self, slot: u16, to: usize) -> redis::RedisResult<()> {
        let from = self.master_of(slot).await;
        if from == to {
            return Ok(());
        }
        self.begin_migration(slot, from, to).await?;
        self.move_keys(slot, from, to).await?;
        self.end_migration(slot, from, to).await
    }

    /// The slot is importing and migrating: from here on its keys are in two places.
    pub async fn begin_migration(
        &self,
        slot: u16,
        from: usize,
        to: usize,
    ) -> redis::RedisResult<()> {
        let text = slot.to_string();
        let source = self.id(from).await?;
        let target = self.id(to).await?;
        self.nodes[to]
            .command::<()>(&["CLUSTER", "SETSLOT", &text, "IMPORTING", &source])
            .await?;
        self.nodes[from]
            .command::<()>(&["CLUSTER", "SETSLOT", &text, "MIGRATING", &target])
            .await
    }

    /// Moves its keys, ten at a time.
    pub async fn move_keys(&self, slot: u16, from: usize, to: usize) -> redis::RedisResult<()> {
        let text = slot.to_string();
        let port = self.nodes[to].port().to_string();
        loop {
            let keys: Vec<String> = self.nodes[from]
                .command(&["CLUSTER", "GETKEYSINSLOT", &text, "10"])
                .await?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            self.nodes[from].command::<()>(&migrate).await?;
        }
    }

    /// The slot is the target's.
    pub async fn end_migration(&self, slot: u16, from: usize, to: usize) -> redis::RedisResult<()> {
        let text = slot.to_string();
        let target = self.id(to).await?;
        // The target first: only it may raise its epoch for it.
        for node in [to, from] {
            self.nodes[node]
                .command::<()>(&["CLUSTER", "SETSLOT", &text, "NODE", &target])
                .await?;
        }
        self.agreed(slot, Some(to)).await;
        Ok(())
    }

    /// Nobody serves this slot any more: every running node forgets who did. Its keys stay where they are.
    pub async fn uncover(&self, slot: u16) {
        let text = slot.to_string();
        eventually(&format!("slot {slot} is uncovered"), async || {
            for node in &self.nodes {
                // One that did not know it as served refuses, and one that is down does not answer.
                drop(node.command::<()>(&["CLUSTER", "DELSLOTS", &text]).await);
            }
            // A word of its old owner may have been on its way.
            let views = self.views(slot).await?;
            anyhow::ensure!(views.iter().all(Option::is_none), "{views:?}");
            anyhow::Ok(())
        })
        .await;
    }

    /// The slot is served by this node.
    pub async fn cover(&self, slot: u16, node: usize) {
        let text = slot.to_string();
        self.nodes[node]
            .command::<()>(&["CLUSTER", "ADDSLOTS", &text])
            .await
            .expect("ADDSLOTS");
        self.agreed(slot, Some(node)).await;
    }
}

//! What becomes of a source while it waits.

use std::time::Duration;

use futures_util::future::join_all;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::left_out;
use super::site::{COUNT, Cause, LEADER, PARTITIONS, Path, Room, Source};
use crate::support::process::Signal;
use crate::support::{Kafka, Rabbitmq, eventually};

/// How often what spends a delivery each time happens: once more than the quorum queues allow.
const OFTEN: usize = 4;
/// Longer than Kafka's session (10 s) and RabbitMQ's (two heartbeats of 2 s).
const SESSION: Duration = Duration::from_secs(13);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Kafka: a rebalance takes partitions away and brings them back. RabbitMQ: the connection is closed.
    Lost,
    /// The relay is stopped (SIGSTOP) for longer than its sessions live.
    Stopped,
    /// The queue is deleted and made anew.
    Anew,
    /// The broker is killed and starts again.
    Broker,
    /// Of three nodes of Kafka, the one that leads all partitions is killed and comes back.
    Leader,
    /// The relay is stopped by SIGTERM and starts again.
    Terminated,
    /// The relay is killed and starts again.
    Killed,
}

impl Fate {
    pub(super) const ALL: [Self; 7] =
        [Self::Lost, Self::Stopped, Self::Anew, Self::Broker, Self::Leader, Self::Terminated, Self::Killed];
}

/// One fate, with every cause and source.
pub(super) async fn play(fate: Fate) {
    let mut world = World::open(fate).await;
    let (kafka, rabbitmq) = world.servers();
    let open = Cause::GROUPS.map(|causes| {
        let wanted = move |cause, source| left_out(cause, fate, source).is_none();
        Room::open(causes, wanted, (kafka, rabbitmq))
    });
    let mut rooms = join_all(open).await;
    join_all(rooms.iter_mut().map(|room| room.wait(kafka, rabbitmq))).await;
    world.strike(fate, &mut rooms).await;
    let (_, rabbitmq) = world.servers();
    join_all(rooms.iter_mut().map(|room| room.go_on(rabbitmq))).await;
    join_all(rooms.iter().map(Room::delivered)).await;
    join_all(rooms.iter_mut().map(Room::terminate)).await;
}

/// The brokers: of the test's own where something is done to them.
enum World {
    Shared(&'static Kafka, &'static Rabbitmq),
    Own(Box<(Kafka, Rabbitmq)>),
    /// Three nodes of Kafka.
    Three(Box<Kafka>, &'static Rabbitmq),
}

impl World {
    async fn open(fate: Fate) -> Self {
        match fate {
            Fate::Lost | Fate::Broker => Self::Own(Box::new(tokio::join!(Kafka::start(), Rabbitmq::start()))),
            Fate::Leader => {
                let (kafka, rabbitmq) = tokio::join!(Kafka::start_three(), Rabbitmq::shared());
                Self::Three(Box::new(kafka), rabbitmq)
            }
            _ => {
                let (kafka, rabbitmq) = tokio::join!(Kafka::shared(), Rabbitmq::shared());
                Self::Shared(kafka, rabbitmq)
            }
        }
    }

    fn servers(&self) -> (&Kafka, &Rabbitmq) {
        match self {
            Self::Shared(kafka, rabbitmq) => (kafka, rabbitmq),
            Self::Own(own) => (&own.0, &own.1),
            Self::Three(kafka, rabbitmq) => (kafka, rabbitmq),
        }
    }

    async fn strike(&mut self, fate: Fate, rooms: &mut [Room]) {
        match fate {
            Fate::Lost => {
                let paths = rooms.iter().flat_map(|room| &room.paths);
                let rebalances = paths.filter(|path| path.source == Source::Kafka);
                join_all(rebalances.map(|path| self.rebalance(path))).await;
                for _ in 0..OFTEN {
                    self.servers().1.ctl(&["close_all_connections", "the test"]).await;
                }
            }
            Fate::Stopped => {
                for room in &mut *rooms {
                    room.relay.signal(Signal::STOP);
                }
                tokio::time::sleep(SESSION).await;
                for room in &mut *rooms {
                    room.relay.signal(Signal::CONT);
                }
            }
            Fate::Anew => join_all(rooms.iter_mut().map(|room| self.make_anew(room))).await.clear(),
            Fate::Broker => {
                let Self::Own(own) = self else { panic!("brokers of its own") };
                tokio::join!(own.0.restart(), own.1.restart());
            }
            Fate::Leader => {
                let Self::Three(kafka, _) = self else { panic!("three nodes") };
                let topics: Vec<_> =
                    rooms.iter().flat_map(|room| &room.paths).map(|path| &*path.from).collect();
                lose_leader(kafka, &topics).await;
            }
            Fate::Terminated => join_all(rooms.iter_mut().map(terminate)).await.clear(),
            Fate::Killed => join_all(rooms.iter_mut().map(kill)).await.clear(),
        }
    }

    /// Another member of the group comes, is given a partition, and goes.
    async fn rebalance(&self, path: &Path) {
        let mut config = self.servers().0.client();
        config.set("group.id", &path.from).set("partition.assignment.strategy", "cooperative-sticky");
        let (topic, name) = (path.from.clone(), path.from.clone());
        let polling = tokio::task::spawn_blocking(move || {
            let consumer: BaseConsumer = config.create().expect("a consumer");
            consumer.subscribe(&[&topic]).expect("subscribed");
            let end = std::time::Instant::now() + Duration::from_secs(30);
            while consumer.assignment().expect("its assignment").count() == 0 {
                assert!(std::time::Instant::now() < end, "{topic}: it is given none");
                drop(consumer.poll(Duration::from_millis(100)));
            }
        });
        polling.await.unwrap_or_else(|_| panic!("{name}: no rebalance"));
        self.servers().0.shared_out(&path.from, &path.from, 1).await;
    }

    /// What waits in a queue goes with it; what comes into the next one of its name is delivered.
    async fn make_anew(&self, room: &mut Room) {
        let (kafka, rabbitmq) = self.servers();
        let lost = room.run.ledger().missing();
        for id in lost {
            room.run.ledger().park(id);
        }
        for path in room.paths.iter().filter(|path| path.source != Source::Kafka) {
            rabbitmq.delete_queue(&path.from).await;
            path.make_queue(rabbitmq).await;
        }
        join_all(room.paths.iter().map(|path| path.send(kafka, rabbitmq, &room.run, COUNT))).await;
    }
}

/// Kills the node that leads all partitions, waits until others have taken all of them over, and starts it again.
async fn lose_leader(kafka: &mut Kafka, topics: &[&str]) {
    let partitions: Vec<_> =
        topics.iter().flat_map(|topic| (0..PARTITIONS).map(move |partition| (*topic, partition))).collect();
    for (topic, partition) in &partitions {
        assert_eq!(kafka.leader(topic, *partition).await, LEADER, "{topic}/{partition}");
    }
    kafka.kill9_node(LEADER).await;
    for (topic, partition) in &partitions {
        eventually(&format!("{topic}/{partition} has another leader"), async || {
            let leader = kafka.leader(topic, *partition).await;
            if leader == LEADER { Err("the one that was killed still") } else { Ok(()) }
        })
        .await;
    }
    kafka.start_again().await;
}

/// What is refused must be delivered to be tried: each start spends one of it.
fn starts(room: &Room) -> usize {
    if room.causes.contains(&Cause::Through) { 1 } else { OFTEN }
}

/// Waits until a relay that was started again can be told to stop, whether it is ready or not.
async fn listens(room: &Room) {
    eventually("the relay listens", async || room.relay.get("/livez").await.map(drop)).await;
}

async fn terminate(room: &mut Room) {
    for _ in 0..starts(room) {
        listens(room).await;
        room.terminate().await;
        room.relay.spawn_again();
    }
}

async fn kill(room: &mut Room) {
    for _ in 0..starts(room) {
        listens(room).await;
        room.relay.kill9().await;
        room.relay.spawn_again();
    }
}

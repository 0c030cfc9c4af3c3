//! Plays the fates of a source while it waits.

use std::time::Duration;

use futures_util::future::join_all;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::fixture::{COUNT, Cause, LEADER, PARTITIONS, Path, Source, WaitingFixture};
use super::left_out;
use crate::support::eventually::PATIENCE;
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
    pub(super) const ALL: [Self; 7] = [
        Self::Lost,
        Self::Stopped,
        Self::Anew,
        Self::Broker,
        Self::Leader,
        Self::Terminated,
        Self::Killed,
    ];
}

/// One fate, with every cause and source.
pub(super) async fn play(fate: Fate) {
    let mut brokers = Brokers::open(fate).await;
    let (kafka, rabbitmq) = brokers.servers();
    let open = Cause::GROUPS.map(|causes| {
        let wanted = move |cause, source| left_out(cause, fate, source).is_none();
        WaitingFixture::open(causes, wanted, (kafka, rabbitmq))
    });
    let mut fixtures = join_all(open).await;
    join_all(
        fixtures
            .iter_mut()
            .map(|fixture| fixture.wait(kafka, rabbitmq)),
    )
    .await;
    brokers.inject(fate, &mut fixtures).await;
    let (_, rabbitmq) = brokers.servers();
    join_all(fixtures.iter_mut().map(|fixture| fixture.go_on(rabbitmq))).await;
    join_all(fixtures.iter().map(WaitingFixture::delivered)).await;
    join_all(fixtures.iter().map(WaitingFixture::accounted)).await;
    join_all(fixtures.iter_mut().map(WaitingFixture::terminate)).await;
}

/// The brokers: of the test's own where something is done to them.
enum Brokers {
    Shared(&'static Kafka, &'static Rabbitmq),
    Own(Box<(Kafka, Rabbitmq)>),
    /// Three nodes of Kafka.
    Three(Box<Kafka>, &'static Rabbitmq),
}

impl Brokers {
    async fn open(fate: Fate) -> Self {
        match fate {
            Fate::Lost | Fate::Broker => {
                Self::Own(Box::new(tokio::join!(Kafka::start(), Rabbitmq::start())))
            }
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

    async fn inject(&mut self, fate: Fate, fixtures: &mut [WaitingFixture]) {
        match fate {
            Fate::Lost => {
                let paths = fixtures.iter().flat_map(|fixture| &fixture.paths);
                let rebalances = paths.filter(|path| path.source == Source::Kafka);
                join_all(rebalances.map(|path| self.rebalance(path))).await;
                for _ in 0..OFTEN {
                    self.servers()
                        .1
                        .ctl(&["close_all_connections", "the test"])
                        .await;
                }
            }
            Fate::Stopped => {
                for fixture in &mut *fixtures {
                    fixture.relay.signal(Signal::STOP);
                }
                tokio::time::sleep(SESSION).await;
                for fixture in &mut *fixtures {
                    fixture.relay.signal(Signal::CONT);
                }
            }
            Fate::Anew => self.make_anew(fixtures).await,
            Fate::Broker => {
                let Self::Own(own) = self else {
                    panic!("brokers of its own")
                };
                tokio::join!(own.0.restart(), own.1.restart());
            }
            Fate::Leader => {
                let Self::Three(kafka, _) = self else {
                    panic!("three nodes")
                };
                let topics: Vec<_> = fixtures
                    .iter()
                    .flat_map(|fixture| &fixture.paths)
                    .map(|path| &*path.from)
                    .collect();
                lose_leader(kafka, &topics).await;
            }
            Fate::Terminated => join_all(fixtures.iter_mut().map(terminate)).await.clear(),
            Fate::Killed => join_all(fixtures.iter_mut().map(kill)).await.clear(),
        }
    }

    /// Another member of the group comes, is given a partition, and goes.
    async fn rebalance(&self, path: &Path) {
        let mut config = self.servers().0.client();
        config
            .set("group.id", &path.from)
            .set("partition.assignment.strategy", "cooperative-sticky");
        let topic = path.from.clone();
        let name = path.from.clone();
        let polling = tokio::task::spawn_blocking(move || {
            let consumer: BaseConsumer = config.create().expect("a consumer");
            consumer.subscribe(&[&topic]).expect("subscribed");
            let end = std::time::Instant::now() + PATIENCE;
            while consumer.assignment().expect("its assignment").count() == 0 {
                assert!(std::time::Instant::now() < end, "{topic}: it is given none");
                drop(consumer.poll(Duration::from_millis(100)));
            }
        });
        polling
            .await
            .unwrap_or_else(|_| panic!("{name}: no rebalance"));
        self.servers().0.shared_out(&path.from, &path.from, 1).await;
    }

    /// Deletes the queues and declares them anew. Messages in a queue go with it; later ones are delivered.
    async fn make_anew(&self, fixtures: &[WaitingFixture]) {
        let (kafka, rabbitmq) = self.servers();
        for fixture in fixtures {
            let lost = fixture.run.ledger().missing();
            for id in lost {
                fixture.run.ledger().park(id);
            }
        }
        let queues = || {
            let paths = fixtures.iter().flat_map(|fixture| &fixture.paths);
            paths.filter(|path| path.source != Source::Kafka)
        };
        join_all(queues().map(|path| rabbitmq.delete_queue(&path.from))).await;
        // A consumer whose channel hears of this once the new queue is there gets nothing from RabbitMQ 3, and is replaced
        // after a long silence only.
        rabbitmq.flush_channels().await;
        join_all(queues().map(|path| path.make_queue(rabbitmq))).await;
        let sending = fixtures.iter().flat_map(|fixture| {
            let paths = fixture.paths.iter();
            paths.map(move |path| path.send(kafka, rabbitmq, &fixture.run, COUNT))
        });
        join_all(sending).await;
    }
}

/// Kills the node that leads all partitions, waits until others have taken all of them over, and starts it again.
async fn lose_leader(kafka: &mut Kafka, topics: &[&str]) {
    let partitions: Vec<_> = topics
        .iter()
        .flat_map(|topic| (0..PARTITIONS).map(move |partition| (*topic, partition)))
        .collect();
    for (topic, partition) in &partitions {
        assert_eq!(
            kafka.leader(topic, *partition).await,
            LEADER,
            "{topic}/{partition}"
        );
    }
    kafka.kill9_node(LEADER).await;
    for (topic, partition) in &partitions {
        eventually(
            &format!("{topic}/{partition} has another leader"),
            async || {
                let leader = kafka.leader(topic, *partition).await;
                if leader == LEADER {
                    Err("the one that was killed still")
                } else {
                    Ok(())
                }
            },
        )
        .await;
    }
    kafka.start_again().await;
}

/// Waits until a relay that was started again can be told to stop, whether it is ready or not.
async fn listens(fixture: &WaitingFixture) {
    eventually("the relay listens", async || {
        fixture.relay.get("/livez").await.map(drop)
    })
    .await;
}

async fn terminate(fixture: &mut WaitingFixture) {
    for _ in 0..OFTEN {
        listens(fixture).await;
        fixture.holds_or_has_stored().await;
        fixture.terminate().await;
        fixture.relay.spawn_again();
    }
}

async fn kill(fixture: &mut WaitingFixture) {
    for _ in 0..OFTEN {
        listens(fixture).await;
        fixture.holds_or_has_stored().await;
        fixture.relay.kill9().await;
        fixture.relay.spawn_again();
    }
}

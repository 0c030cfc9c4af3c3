//! The trail on a real Redis: what was recorded is found by its id, and the bounds of count, age and bytes hold.

use std::sync::{Arc, LazyLock};

use postdate::domain::{
    Actor, Clock, DeadReason, KafkaPosition, RouteName, Target, TrailLimits, TrailWord, UnixMs,
};
use postdate::health::Health;
use postdate::lifecycle::{Shutdown, Tasks};
use postdate::store::{
    ClaimRequest, DeadFilter, Delivered, Division, RouteTrail, SettleAnswer, Store, TrailCause,
    TrailEvent, WriteOp,
};
use postdate::telemetry::Metrics;
use redis::aio::MultiplexedConnection;

use super::fixture::{
    LONG, P, bundle, config, dead_letter, far, keep, named, names_in, past, route,
};
use crate::support::{Redis, eventually, names};

/// A store whose route has a trail, with a raw connection beside it.
struct TrailFixture {
    store: Store,
    metrics: Arc<Metrics>,
    key: String,
    raw: MultiplexedConnection,
    shutdown: Shutdown,
    _readiness: Health,
}

impl Drop for TrailFixture {
    fn drop(&mut self) {
        self.shutdown.force();
    }
}

fn limits(keep_ms: i64, max_events: u64) -> TrailLimits {
    TrailLimits {
        keep_ms,
        max_events,
    }
}

fn target() -> Arc<Target> {
    Arc::new(Target::Kafka {
        connection: "main".into(),
        topic: "orders".into(),
    })
}

fn delivered(late_ms: i64, attempt: u32, landed: Option<KafkaPosition>) -> Delivered<'static> {
    static TARGET: LazyLock<Arc<Target>> = LazyLock::new(target);
    Delivered {
        late_ms,
        attempt,
        target: &TARGET,
        landed,
    }
}

impl TrailFixture {
    async fn shared(limits: TrailLimits) -> Self {
        Self::on(Redis::shared().await, limits).await
    }

    async fn on(redis: &Redis, limits: TrailLimits) -> Self {
        let config = config(&redis.url(), &names::unique("store"), 1);
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let health = Health::default();
        let metrics = Metrics::new(
            &mut prometheus_client::registry::Registry::default(),
            [route()],
        );
        let dependencies = postdate::store::StoreDependencies {
            config: &config,
            clock: Clock::start(),
            metrics: metrics.clone(),
            health: &health,
            tasks: &tasks,
            shutdown: &shutdown,
            remembers: [(route(), 0)].into(),
            trails: [(route(), limits)].into(),
            growing: std::collections::BTreeSet::new(),
            ordered: std::collections::BTreeSet::new(),
            shards: 1,
        };
        let store = Store::start(&dependencies).expect("a good url");
        eventually("every node is reached", async || {
            health.is_ready().then_some(()).ok_or("not yet")
        })
        .await;
        let key = format!("{}:{{0}}:trail:orders", config.prefix);
        let raw = redis.connection().await.expect("connected");
        Self {
            store,
            metrics,
            key,
            raw,
            shutdown,
            _readiness: health,
        }
    }

    fn trail(&self) -> &RouteTrail {
        self.store.trail(&route()).expect("a trail")
    }

    /// Writes what was recorded, as the end of the process does.
    async fn write(&self) {
        let ended = Shutdown::default();
        ended.begin();
        self.store.write_trails(&ended).await;
    }

    async fn events(&self, id: &str) -> Vec<TrailEvent> {
        self.store
            .trail_of(&route(), id)
            .await
            .expect("read")
            .expect("a trail")
            .events
    }

    async fn words(&self, id: &str) -> Vec<TrailWord> {
        self.events(id)
            .await
            .into_iter()
            .map(|event| event.word)
            .collect()
    }

    async fn since(&self) -> Option<UnixMs> {
        self.store
            .trail_of(&route(), "nobody")
            .await
            .expect("read")
            .expect("a trail")
            .since
    }

    fn lost(&self) -> u64 {
        self.metrics
            .route(&route())
            .expect("a route")
            .trail_lost
            .get()
    }

    async fn command<T: redis::FromRedisValue>(&self, parts: &[&str]) -> T {
        let mut command = redis::cmd(parts[0]);
        command.arg(&parts[1..]);
        command
            .query_async(&mut self.raw.clone())
            .await
            .unwrap_or_else(|error| panic!("{parts:?}: {error}"))
    }
}

#[tokio::test]
async fn what_was_recorded_is_found_by_its_id_oldest_first() {
    let fixture = TrailFixture::shared(limits(3_600_000, 1000)).await;
    assert_eq!(
        (fixture.words("a").await, fixture.since().await),
        (vec![], None),
        "an empty trail"
    );
    let trail = fixture.trail();
    let position = Some(KafkaPosition {
        partition: 3,
        offset: 1881,
    });
    trail.moved(
        "a",
        UnixMs(1000),
        UnixMs(9000),
        TrailCause::Actor(&Actor::new("ann")),
    );
    trail.delivered("b", UnixMs(1001), &delivered(7, 1, None));
    fixture.write().await;
    let landed = Some(KafkaPosition {
        partition: 1,
        offset: 70_000,
    });
    trail.delivered("a", UnixMs(9002), &delivered(2, 3, landed));
    trail.deduplicated("a", UnixMs(9500), position);
    fixture.write().await;
    // As another replica writes later what happened before.
    trail.replaced("a", UnixMs(2000), TrailCause::Namesake(position));
    fixture.write().await;

    let events = fixture.events("a").await;
    let told: Vec<(i64, TrailWord)> = events
        .iter()
        .map(|event| (event.at.0, event.word))
        .collect();
    let expected = [
        (1000, TrailWord::Moved),
        (2000, TrailWord::Replaced),
        (9002, TrailWord::Delivered),
        (9500, TrailWord::Deduplicated),
    ];
    assert_eq!(told, expected);
    assert_eq!(
        (
            events[0].due,
            events[0].by.as_ref().map(postdate::domain::Text::as_str)
        ),
        (Some(UnixMs(9000)), Some("ann"))
    );
    assert_eq!((events[2].late_ms, events[2].attempt), (Some(2), Some(3)));
    assert_eq!(events[2].position, landed);
    let to = events[2].target.as_ref().expect("a target");
    assert_eq!(
        (to.is_kafka, to.connection.as_str(), to.name.as_str()),
        (true, "main", "orders")
    );
    assert_eq!(
        (events[3].position, fixture.words("b").await),
        (position, vec![TrailWord::Delivered])
    );
    assert_eq!(fixture.words("c").await, []);
    assert_eq!(fixture.since().await, Some(UnixMs(1000)));
    assert_eq!(
        fixture
            .store
            .trail_of(&RouteName::new("other").expect("a name"), "a")
            .await
            .expect("read"),
        None
    );
    // Of many events of one message the newest are told.
    for n in 0..100 {
        trail.moved("m", UnixMs(n), UnixMs(n), TrailCause::Header(None));
    }
    fixture.write().await;
    let moves: Vec<i64> = fixture
        .events("m")
        .await
        .iter()
        .map(|event| event.at.0)
        .collect();
    assert_eq!(moves, (80..100).collect::<Vec<_>>());
    assert_eq!(fixture.lost(), 0);
}

#[tokio::test]
async fn a_route_without_a_history_has_no_trail_and_writes_nothing() {
    let fixture = TrailFixture::shared(TrailLimits::OFF).await;
    assert!(fixture.store.trail(&route()).is_none());
    fixture.write().await;
    assert_eq!(
        fixture.store.trail_of(&route(), "a").await.expect("read"),
        None
    );
    assert_eq!(fixture.command::<i64>(&["EXISTS", &fixture.key]).await, 0);
}

#[tokio::test]
async fn of_too_many_events_the_oldest_give_way() {
    let fixture = TrailFixture::shared(limits(3_600_000, 64)).await;
    for round in 0..30 {
        for n in 0..10 {
            let at = UnixMs(round * 10 + n);
            fixture
                .trail()
                .cancelled(&format!("m{}", at.0), at, None, TrailCause::Header(None));
        }
        fixture.write().await;
        let known: Vec<i64> = fixture
            .command::<Vec<Vec<u8>>>(&["LRANGE", &fixture.key, "0", "-1"])
            .await
            .iter()
            .map(|element| count(element))
            .collect();
        let kept: i64 = known.iter().sum();
        let all = (round + 1) * 10;
        assert!(
            kept <= 64 && kept >= all.min(60),
            "{kept} of {all}: {known:?}"
        );
    }
    assert_eq!(fixture.words("m299").await, [TrailWord::Cancelled]);
    assert_eq!(fixture.words("m240").await, [TrailWord::Cancelled]);
    assert_eq!(fixture.words("m230").await, []);
    assert!(
        fixture
            .since()
            .await
            .is_some_and(|since| (236..=240).contains(&since.0))
    );
    // More at once than the trail keeps.
    for n in 1000..2000 {
        fixture
            .trail()
            .cancelled(&format!("m{n}"), UnixMs(n), None, TrailCause::Header(None));
    }
    fixture.write().await;
    assert_eq!(
        (
            fixture.words("m1999").await.len(),
            fixture.words("m299").await.len()
        ),
        (1, 0)
    );
    assert_eq!(fixture.lost(), 0, "what gives way is not lost");
}

/// The number of events of an element.
fn count(element: &[u8]) -> i64 {
    let text = String::from_utf8_lossy(element);
    text.split(' ')
        .nth(3)
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{text}"))
}

#[tokio::test]
async fn what_is_too_old_gives_way_and_the_trail_of_an_idle_route_vanishes() {
    let fixture = TrailFixture::shared(limits(3000, 1000)).await;
    fixture
        .trail()
        .cancelled("old", UnixMs(1), None, TrailCause::Header(None));
    fixture.write().await;
    assert_eq!(fixture.words("old").await.len(), 1);
    let until = fixture.store.clock().now().plus(3001);
    // Something new each time keeps the key alive.
    while fixture.store.clock().now() <= until {
        fixture
            .trail()
            .cancelled("new", UnixMs(2), None, TrailCause::Header(None));
        fixture.write().await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    fixture
        .trail()
        .cancelled("new", UnixMs(2), None, TrailCause::Header(None));
    fixture.write().await;
    assert_eq!(
        fixture.words("old").await,
        [],
        "it is older than the history"
    );
    assert!(!fixture.words("new").await.is_empty());
    let left: i64 = fixture.command(&["PTTL", &fixture.key]).await;
    assert!((1..=3000).contains(&left), "{left}");
    eventually("it vanishes", async || {
        let there: i64 = fixture.command(&["EXISTS", &fixture.key]).await;
        (there == 0).then_some(()).ok_or("not yet")
    })
    .await;
    assert_eq!(fixture.since().await, None);
}

#[tokio::test]
async fn a_long_trail_is_read_in_steps_whole_and_while_it_grows() {
    let fixture = TrailFixture::shared(limits(3_600_000, 1_000_000)).await;
    fixture
        .trail()
        .cancelled("first", UnixMs(0), None, TrailCause::Header(None));
    for round in 0..40 {
        for n in 0..500 {
            let id = format!("{:016x}-{round}-{n}", fastrand::u64(..));
            fixture
                .trail()
                .delivered(&id, UnixMs(round * 500 + n), &delivered(1, 1, None));
        }
        fixture.write().await;
    }
    let growing = async {
        for n in 0..40 {
            fixture.trail().cancelled(
                &format!("late-{n}"),
                UnixMs(1 << 40),
                None,
                TrailCause::Header(None),
            );
            fixture.write().await;
        }
    };
    let reading = async {
        for _ in 0..10 {
            assert_eq!(fixture.words("first").await, [TrailWord::Cancelled]);
        }
    };
    tokio::join!(growing, reading);
    assert_eq!(fixture.since().await, Some(UnixMs(0)));
    let bytes: i64 = fixture
        .command(&["MEMORY", "USAGE", &fixture.key, "SAMPLES", "0"])
        .await;
    println!("{} bytes an event with random ids", bytes / 20_000);
    assert!(bytes / 20_000 <= 128, "{bytes}");
}

#[tokio::test]
async fn a_key_of_a_wrong_type_is_quarantined_by_whoever_finds_it() {
    let fixture = TrailFixture::shared(limits(3_600_000, 1000)).await;
    let quarantined = async || {
        let glob = format!(
            "{}:{{0}}:quarantine:trail:orders:*",
            fixture.key.split(":{").next().expect("a prefix")
        );
        fixture.command::<Vec<String>>(&["KEYS", &glob]).await.len()
    };
    let spoil = async || {
        fixture
            .command::<()>(&["SET", &fixture.key, "nonsense"])
            .await;
    };
    spoil().await;
    assert_eq!(fixture.words("a").await, [], "a reader finds it");
    assert_eq!(quarantined().await, 1);
    spoil().await;
    fixture
        .trail()
        .cancelled("a", UnixMs(1), None, TrailCause::Header(None));
    fixture.write().await;
    assert_eq!(
        (quarantined().await, fixture.lost()),
        (2, 1),
        "the writer finds it, and loses what it had"
    );
    fixture
        .trail()
        .cancelled("a", UnixMs(1), None, TrailCause::Header(None));
    fixture.write().await;
    assert_eq!(fixture.words("a").await.len(), 1);
    fixture.command::<()>(&["DEL", &fixture.key]).await;
    spoil().await;
    eventually("a scrub finds it", async || {
        let report = fixture.store.scrub(P).await.expect("scrubbed");
        report
            .quarantined
            .contains(&"trail:orders".to_owned())
            .then_some(())
            .ok_or(format!("{:?}", report.quarantined))
    })
    .await;
    // Elements that are not ours stop nothing and give way.
    for junk in ["junk", "1 2 3 4", "99999999 99999999 99999999999999 1 PT"] {
        fixture.command::<()>(&["RPUSH", &fixture.key, junk]).await;
        fixture
            .trail()
            .cancelled("b", UnixMs(1), None, TrailCause::Header(None));
        fixture.write().await;
        assert!(!fixture.words("b").await.is_empty(), "{junk}");
    }
    assert_eq!(fixture.lost(), 1);
}

#[tokio::test]
async fn dead_letters_are_recorded_by_the_store_and_so_is_what_is_done_with_them() {
    let fixture = TrailFixture::shared(limits(3_600_000, 1000)).await;
    let letter = dead_letter(named("a", far(), "body"));
    fixture
        .store
        .write(P, vec![WriteOp::DeadLetter(letter)])
        .await
        .expect("written");
    fixture.write().await;
    let events = fixture.events("a").await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].reason, Some(DeadReason::Attempts.as_str().into()));
    let page = fixture
        .store
        .dead_page(&DeadFilter::default(), None, 10)
        .await
        .expect("listed");
    let id = page.marks[0].id.clone();
    assert_eq!(events[0].dead_id, Some(id.as_str().into()));

    let again = bundle(vec![named("a", far(), "body")]);
    let redriven = [
        fixture
            .store
            .redrive_by(&id, &again, &Actor::new("somebody"))
            .await,
        fixture
            .store
            .redrive_by(&id, &again, &Actor::new("late"))
            .await,
    ];
    assert_eq!(redriven, [Ok(true), Ok(false)]);
    fixture.write().await;
    let events = fixture.events("a").await;
    assert_eq!(
        events.iter().map(|event| event.word).collect::<Vec<_>>(),
        [TrailWord::Dead, TrailWord::Redriven]
    );
    assert_eq!(
        (&events[1].by, &events[1].dead_id),
        (&Some("somebody".into()), &Some(id.as_str().into()))
    );

    let letter = dead_letter(named("b", far(), "body"));
    fixture
        .store
        .write(P, vec![WriteOp::DeadLetter(letter)])
        .await
        .expect("written");
    let page = fixture
        .store
        .dead_page(&DeadFilter::default(), None, 10)
        .await
        .expect("listed");
    let id = page.marks[0].id.clone();
    let dropped = fixture
        .store
        .drop_dead_by(&[id.clone(), id.clone()], &Actor::new("somebody"))
        .await
        .expect("dropped");
    assert_eq!(dropped, [true, false]);
    fixture.write().await;
    let events = fixture.events("b").await;
    assert_eq!(
        events.iter().map(|event| event.word).collect::<Vec<_>>(),
        [TrailWord::Dead, TrailWord::Dropped]
    );
    assert_eq!(
        (&events[1].by, &events[1].dead_id),
        (&Some("somebody".into()), &Some(id.as_str().into()))
    );
}

#[tokio::test]
async fn a_message_that_dies_while_it_is_claimed_is_recorded_with_its_dead_letter() {
    let fixture = TrailFixture::shared(limits(3_600_000, 1000)).await;
    let store = &fixture.store;
    store
        .write(P, vec![keep(vec![named("a", past(), "body")])])
        .await
        .expect("written");
    let until = UnixMs(i64::MAX / 4);
    let seen = store
        .due_heads(&[P], until, until, &|_| true)
        .await
        .expect("looked");
    let due_sets = seen
        .heads
        .into_iter()
        .map(|head| (head.due_set, 1000))
        .collect();
    let request = ClaimRequest {
        partition: P,
        due_sets,
        lookahead_ms: 250,
        lease_ms: LONG,
        max_bundles: 1,
    };
    let claimed = store.claim(&request).await.expect("claimed").remove(0);
    let division = Division {
        claim: claimed.claim.clone(),
        confirmed: vec![false],
        delivered: Vec::new(),
        freed: names_in(&claimed),
        remainders: Vec::new(),
        dead: vec![dead_letter(named("a", past(), "body"))],
        held_keys: Vec::new(),
    };
    assert_eq!(
        store.divide(&division).await.expect("divided"),
        SettleAnswer::Applied(Vec::new())
    );
    assert_eq!(
        store.divide(&division).await.expect("answered"),
        SettleAnswer::Stale,
        "no second one"
    );
    fixture.write().await;
    let page = store
        .dead_page(&DeadFilter::default(), None, 10)
        .await
        .expect("listed");
    let ids: Vec<&str> = page.marks.iter().map(|mark| mark.id.as_str()).collect();
    let events = fixture.events("a").await;
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| event.dead_id.as_ref())
        .map(postdate::domain::Text::as_str)
        .collect();
    assert_eq!((told, events.len()), (ids, 1));
}

#[tokio::test]
async fn a_redis_that_is_full_or_hangs_costs_events_and_no_wait_for_it() {
    let mut redis = Redis::start().await;
    let fixture = TrailFixture::on(&redis, limits(3_600_000, 1000)).await;
    fixture
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    fixture
        .trail()
        .cancelled("a", UnixMs(1), None, TrailCause::Header(None));
    fixture.write().await;
    assert_eq!(fixture.lost(), 1, "it takes no memory of messages");
    fixture
        .command::<()>(&["CONFIG", "SET", "maxmemory", "0"])
        .await;
    fixture
        .trail()
        .cancelled("b", UnixMs(2), None, TrailCause::Header(None));
    fixture.write().await;
    assert_eq!(
        (
            fixture.words("a").await.len(),
            fixture.words("b").await.len()
        ),
        (0, 1)
    );
    redis.stop();
    fixture
        .trail()
        .cancelled("c", UnixMs(3), None, TrailCause::Header(None));
    fixture.write().await;
    assert_eq!(fixture.lost(), 2, "the last round ends without an answer");
    redis.cont();
}

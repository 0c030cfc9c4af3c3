//! Reads `[defaults]` and `[routes.NAME]`.

use std::sync::Arc;

use super::connections::{DeclaredConnections, named};
use super::section::SectionReader;
use super::tls::Reported;
use crate::domain::route::{
    ConsumerRetry, DeadLetterLimits, DelayFrom, Dialects, HeaderNames, OnDuplicate, OnExpired,
    OnInvalid, OnRefused, OnUndecodable, OnUnroutable, RateLimit, RetryPolicy, RoutePolicy,
    TrailLimits, split_exchange,
};
use crate::domain::{Endpoint, Route, RouteName, RoutingKey, Target, nearest};

/// Most bytes of a message that the configuration may allow: Redis and both brokers take little more.
const MAX_MESSAGE_BYTES: u64 = 256 << 20;
/// Highest `max_pending`, messages: JSON and Lua hold no larger number without loss.
const MAX_PENDING: u64 = (1 << 53) - 1;
/// Highest `rate` and `burst`, messages.
const MAX_RATE: u64 = 1_000_000;
/// Most times that consumers may give a message back: its count has nine digits.
const MAX_GIVEN_BACK: u64 = 999_999_999;
/// Highest factor by which a wait grows.
const MAX_RETRY_FACTOR: u64 = 1000;
/// Most events that a route's trail may keep: a look at it reads all of them.
const MAX_TRAIL_EVENTS: u64 = 1_000_000;
/// Most bytes that a route may keep in Redis: no Redis is larger.
const MAX_QUOTA_BYTES: u64 = 1 << 40;

/// Checks `[defaults]` by itself, so that a mistake there is reported once, under its own key.
pub(super) fn defaults(section: &SectionReader<'_>) -> Option<()> {
    section.table("from", |from| {
        group(from);
        prefetch(from).map(drop)
    });
    section.texts("allow_targets");
    section
        .value("dead_letter_to")
        .map(|_| section.text("dead_letter_to"));
    policy(section, DelayFrom::Arrival).map(drop)
}

/// Reads all routes. Leaves out routes with a problem, which is reported.
pub(super) fn read(all: &SectionReader<'_>, connections: &DeclaredConnections) -> Vec<Arc<Route>> {
    let mut routes = Vec::new();
    all.each("routes", Some("defaults"), |name, section| {
        named(section, "route");
        let from = required(section, "from", |table| from(table, connections));
        let to = required(section, "to", |table| to(table, connections));
        let allow_targets = to.as_ref().map(|to| allowed(section, to));
        let dead_letter_to = to.as_ref().and_then(|to| dead_letter_to(section, to));
        let delay_from = match from {
            Some(Endpoint::Rabbitmq { .. }) => DelayFrom::Arrival,
            _ => DelayFrom::Produced,
        };
        let policy = policy(section, delay_from);
        if let Some(Endpoint::Rabbitmq { .. }) = from
            && section.is_set("on_undecodable")
        {
            section.report("on_undecodable", "is not a key of a route from RabbitMQ");
        }
        if let (Some(Endpoint::Kafka { .. }), Some(Target::Rabbitmq { routing_key: RoutingKey::Preserve, .. })) =
            (&from, &to)
        {
            section.report(
                "to",
                "routing_key = \"preserve\" needs a source in RabbitMQ: a Kafka record has none; take \"key\" or a text",
            );
        }
        if let (Some(name), Some(from), Some(to), Some(allow_targets), Some(policy)) =
            (RouteName::new(name), from, to, allow_targets, policy)
        {
            routes.push(Arc::new(Route { name, from, to: Arc::new(to), allow_targets, dead_letter_to, policy }));
        }
    });
    routes
}

fn required<'a, T>(
    section: &SectionReader<'a>,
    key: &'static str,
    read: impl FnOnce(&SectionReader<'a>) -> Option<T>,
) -> Option<T> {
    if section.has(key) {
        section.table(key, read)
    } else {
        section.missing(key)
    }
}

fn from(table: &SectionReader<'_>, connections: &DeclaredConnections) -> Option<Endpoint> {
    match technology(
        table,
        connections,
        &["topic", "group"],
        &["queue", "prefetch"],
    )? {
        BrokerTechnology::Kafka => {
            let connection = table.text("kafka");
            let topic = table.parsed("topic", topic);
            let group = group(table);
            Some(Endpoint::Kafka {
                connection: connection?,
                topic: topic?,
                group: group?,
            })
        }
        BrokerTechnology::Rabbitmq => {
            let connection = table.text("rabbitmq");
            let queue = table.parsed("queue", |text| short("a queue", text));
            let prefetch = prefetch(table);
            Some(Endpoint::Rabbitmq {
                connection: connection?,
                queue: queue?,
                prefetch: prefetch?,
            })
        }
    }
}

fn to(table: &SectionReader<'_>, connections: &DeclaredConnections) -> Option<Target> {
    match technology(table, connections, &["topic"], &["exchange", "routing_key"])? {
        BrokerTechnology::Kafka => {
            let connection = table.text("kafka");
            let topic = table.parsed("topic", topic);
            Some(Target::Kafka {
                connection: connection?,
                topic: topic?,
            })
        }
        BrokerTechnology::Rabbitmq => {
            let connection = table.text("rabbitmq");
            let exchange = table.parsed("exchange", |text| match text {
                "" => Ok(String::new()),
                _ => short("an exchange", text),
            });
            let routing_key = table.parsed("routing_key", |text| match text {
                "preserve" => Ok(RoutingKey::Preserve),
                "key" => Ok(RoutingKey::Key),
                "" => Ok(RoutingKey::Fixed(String::new())),
                _ => short("a routing key", text).map(RoutingKey::Fixed),
            });
            let connection = connection?;
            let exchange = exchange?;
            let routing_key = routing_key?;
            if exchange.is_empty() && routing_key == RoutingKey::Fixed(String::new()) {
                table.report(
                    "routing_key",
                    "on the default exchange it is the name of a queue and cannot be empty",
                );
            }
            Some(Target::Rabbitmq {
                connection,
                exchange,
                routing_key,
            })
        }
    }
}

enum BrokerTechnology {
    Kafka,
    Rabbitmq,
}

/// The technology of a table with `kafka` or `rabbitmq` in it. Reports keys of the other technology as problems.
fn technology(
    table: &SectionReader<'_>,
    connections: &DeclaredConnections,
    kafka: &[&'static str],
    rabbitmq: &[&'static str],
) -> Option<BrokerTechnology> {
    let what = table.key();
    let (technology, foreign, name) = match (table.has("kafka"), table.has("rabbitmq")) {
        (true, false) => (BrokerTechnology::Kafka, rabbitmq, "Kafka"),
        (false, true) => (BrokerTechnology::Rabbitmq, kafka, "RabbitMQ"),
        (both, _) => {
            for key in kafka.iter().chain(rabbitmq) {
                table.has(key);
            }
            table.report_self(if both {
                format!("`{what}` has both `kafka` and `rabbitmq`; one of the two must go")
            } else {
                format!("`{what}` needs a connection: `kafka = \"NAME\"` or `rabbitmq = \"NAME\"`")
            });
            return None;
        }
    };
    for key in foreign {
        if table.has(key) {
            table.report(
                key,
                format!("is not a key of {name}, which this `{what}` is"),
            );
        }
    }
    let (key, names): (_, Vec<&str>) = match technology {
        BrokerTechnology::Kafka => (
            "kafka",
            connections.kafka.keys().map(String::as_str).collect(),
        ),
        BrokerTechnology::Rabbitmq => (
            "rabbitmq",
            connections.rabbitmq.keys().map(String::as_str).collect(),
        ),
    };
    let connection = table.value(key).and_then(|value| value.as_str());
    if let Some(connection) = connection.filter(|connection| !names.contains(connection)) {
        let hint = match nearest(connection, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None if names.is_empty() => format!("there is no `[{key}.NAME]` at all"),
            None => format!("known: {}", names.join(", ")),
        };
        table.report(key, format!("unknown connection {connection:?}; {hint}"));
    }
    Some(technology)
}

/// Reads `allow_targets`: targets on the connection of `to`.
fn allowed(section: &SectionReader<'_>, to: &Target) -> Vec<Arc<Target>> {
    let mut targets = Vec::new();
    for text in section.texts("allow_targets").unwrap_or_default() {
        match allowed_target(&text, to) {
            Ok(target) => targets.push(Arc::new(target)),
            Err(message) => section.report("allow_targets", message),
        }
    }
    targets
}

/// Reads `dead_letter_to`: a target on the connection of `to`.
fn dead_letter_to(section: &SectionReader<'_>, to: &Target) -> Option<Arc<Target>> {
    section.value("dead_letter_to")?;
    section
        .parsed("dead_letter_to", |text| allowed_target(text, to))
        .map(Arc::new)
}

fn allowed_target(text: &str, to: &Target) -> Result<Target, String> {
    match to {
        Target::Kafka { connection, .. } => Ok(Target::Kafka {
            connection: connection.clone(),
            topic: topic(text)?,
        }),
        Target::Rabbitmq { connection, .. } => {
            let Some((exchange, key)) = split_exchange(text) else {
                return Err(format!(
                    "{text:?} is not `exchange/routing-key` (`/queue` = the default exchange)"
                ));
            };
            if exchange.is_empty() && key.is_empty() {
                return Err(format!("{text:?} names neither an exchange nor a queue"));
            }
            if exchange.len() > 255 || key.len() > 255 {
                return Err(format!("{text:?} has a part of more than 255 bytes"));
            }
            let routing_key = RoutingKey::Fixed(key.to_owned());
            Ok(Target::Rabbitmq {
                connection: connection.clone(),
                exchange: exchange.to_owned(),
                routing_key,
            })
        }
    }
}

fn group(table: &SectionReader<'_>) -> Option<String> {
    table.parsed("group", |text| short("a consumer group", text))
}

fn prefetch(table: &SectionReader<'_>) -> Option<u16> {
    table
        .integer("prefetch", 1..=u64::from(u16::MAX))
        .map(|prefetch| prefetch as u16)
}

fn topic(text: &str) -> Result<String, String> {
    let fits = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    match text {
        "." | ".." => Err(format!("{text:?} cannot be a topic")),
        _ if fits && (1..=249).contains(&text.len()) => Ok(text.to_owned()),
        _ => Err(format!(
            "{text:?} cannot be a topic: 1 to 249 of the characters A-Z a-z 0-9 . _ -"
        )),
    }
}

fn short(what: &str, text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err(format!("{what} needs a name")),
        1..=255 => Ok(text.to_owned()),
        _ => Err(format!("{what} has at most 255 bytes")),
    }
}

fn policy(section: &SectionReader<'_>, delay_from: DelayFrom) -> Option<RoutePolicy> {
    let max_delay_ms = section.millis("max_delay");
    let max_size = section.size("max_size", MAX_MESSAGE_BYTES);
    let max_headers = section.size("max_headers", MAX_MESSAGE_BYTES);
    let max_pending = section.integer("max_pending", 1..=MAX_PENDING);
    let max_pending_bytes = section.size("max_pending_bytes", MAX_QUOTA_BYTES);
    let commands = section.truth("commands");
    let copies = section.truth("copies");
    let on_invalid = section.choice(
        "on_invalid",
        &[
            ("dead_letter", OnInvalid::DeadLetter),
            ("pass_through", OnInvalid::PassThrough),
            ("drop", OnInvalid::Drop),
        ],
    );
    let on_undecodable = section.choice(
        "on_undecodable",
        &[("wait", OnUndecodable::Wait), ("skip", OnUndecodable::Skip)],
    );
    let on_refused = section.choice(
        "on_refused",
        &[
            ("retry", OnRefused::Retry),
            ("wait", OnRefused::Wait),
            ("dead_letter", OnRefused::DeadLetter),
            ("drop", OnRefused::Drop),
        ],
    );
    let max_lateness_ms = section.millis_or_none("max_lateness");
    let on_expired = section.choice(
        "on_expired",
        &[
            ("dead_letter", OnExpired::DeadLetter),
            ("drop", OnExpired::Drop),
        ],
    );
    let on_unroutable = section.choice(
        "on_unroutable",
        &[
            ("retry", OnUnroutable::Retry),
            ("dead_letter", OnUnroutable::DeadLetter),
            ("drop", OnUnroutable::Drop),
        ],
    );
    let on_duplicate = section.choice(
        "on_duplicate",
        &[
            ("keep", OnDuplicate::Keep),
            ("replace", OnDuplicate::Replace),
        ],
    );
    let delay_from = match section.value("delay_from") {
        None => Some(delay_from),
        Some(_) => section.choice(
            "delay_from",
            &[
                ("produced", DelayFrom::Produced),
                ("arrival", DelayFrom::Arrival),
            ],
        ),
    };
    let dedupe_ms = section.millis_or_none("dedupe");
    let rate = rate(section);
    let jitter_ms = section.millis_or_none("jitter");
    let ordered = section.choice("order", &[("none", false), ("key", true)]);
    if ordered == Some(true) && jitter_ms.is_some_and(|jitter| jitter > 0) {
        let key = if section.is_set("order") {
            "order"
        } else {
            "jitter"
        };
        section.report(key, "`jitter` would put the messages of one key out of the order that `order = \"key\"` keeps; one of the two must go");
    }
    let trail = trail(section);
    let retry = section.table("retry", retry);
    let consumer_retry = consumer_retry(section, max_delay_ms);
    let headers = section.table("headers", headers);
    let dialects = dialects(section);
    let dead_letters = section.table("dead_letters", dead_letters);
    if let (Some(size), Some(letters)) = (max_size, dead_letters)
        && size > letters.max_message
    {
        section.report(
            "max_size",
            "is above `dead_letters.max_message`: what fails could not be kept",
        );
    }
    Some(RoutePolicy {
        headers: headers?,
        dialects: dialects?,
        delay_from: delay_from?,
        max_delay_ms: max_delay_ms?,
        max_size: max_size?,
        max_headers: max_headers?,
        max_pending: max_pending?,
        max_pending_bytes: max_pending_bytes? as u64,
        commands: commands?,
        copies: copies?,
        on_invalid: on_invalid?,
        on_undecodable: on_undecodable?,
        on_refused: on_refused?,
        on_unroutable: on_unroutable?,
        consumer_retry: consumer_retry.ok()?,
        max_lateness_ms: max_lateness_ms?,
        on_expired: on_expired?,
        on_duplicate: on_duplicate?,
        dedupe_ms: dedupe_ms?,
        rate: Some(rate?).filter(|rate| rate.per_second > 0),
        jitter_ms: jitter_ms?,
        ordered: ordered?,
        retry: retry?,
        dead_letters: dead_letters?,
        trail: trail?,
    })
}

/// Reads `rate` and `burst`, messages a second. A rate of 0 means no limit.
fn rate(section: &SectionReader<'_>) -> Option<RateLimit> {
    let rate = section.integer("rate", 0..=MAX_RATE);
    let burst = section.integer("burst", 0..=MAX_RATE);
    let per_second = rate? as u32;
    let burst = burst? as u32;
    if per_second == 0 && burst > 0 {
        let key = if section.is_set("burst") {
            "burst"
        } else {
            "rate"
        };
        section.report(key, "`burst` without `rate` limits nothing: set `rate` too");
    }
    Some(RateLimit { per_second, burst })
}

/// Reads `history` and `history_max`. A history of 0 means no trail.
fn trail(section: &SectionReader<'_>) -> Option<TrailLimits> {
    let keep_ms = section.millis_or_none("history");
    let max_events = section.integer("history_max", 1..=MAX_TRAIL_EVENTS);
    Some(TrailLimits {
        keep_ms: keep_ms?,
        max_events: max_events?,
    })
}

fn dead_letters(section: &SectionReader<'_>) -> Option<DeadLetterLimits> {
    let max = section.integer("max", 1..=100_000_000);
    let (max_bytes, max_message) = (
        section.size("max_bytes", MAX_QUOTA_BYTES),
        section.size("max_message", MAX_MESSAGE_BYTES),
    );
    let keep_ms = section.millis("keep");
    let max_bytes = max_bytes?;
    let max_message = max_message?;
    if max_message > max_bytes {
        let key = if section.is_set("max_message") {
            "max_message"
        } else {
            "max_bytes"
        };
        section.report(key, "`max_message` is above `max_bytes`");
    }
    Some(DeadLetterLimits {
        max: max?,
        max_bytes: max_bytes as u64,
        max_message,
        keep_ms: keep_ms?,
    })
}

fn retry(section: &SectionReader<'_>) -> Option<RetryPolicy> {
    let attempts = section.integer("attempts", 1..=1_000_000);
    let initial = section.millis("initial");
    let max = section.millis("max");
    let initial_ms = initial?;
    let max_ms = max?;
    if initial_ms > max_ms {
        let key = if section.is_set("initial") {
            "initial"
        } else {
            "max"
        };
        section.report(key, "`initial` is above `max`");
    }
    Some(RetryPolicy {
        attempts: attempts? as u32,
        initial_ms,
        max_ms,
    })
}

/// Reads `consumer_retry`, if it is there. What it does not say has a default of its own: the table as a whole has none.
fn consumer_retry(
    section: &SectionReader<'_>,
    max_delay_ms: Option<i64>,
) -> Result<Option<ConsumerRetry>, Reported> {
    const KEY: &str = "consumer_retry";
    if section.value(KEY).is_none() {
        return Ok(None);
    }
    let retry = section.table(KEY, |table| {
        let or = |key, default, read: &dyn Fn() -> Option<i64>| match table.value(key) {
            None => Some(default),
            Some(_) => read(),
        };
        let integer = |key, most| table.integer(key, 1..=most).map(|number| number as i64);
        let attempts = or("attempts", 5, &|| integer("attempts", MAX_GIVEN_BACK));
        let initial_ms = or("initial", 10_000, &|| table.millis("initial"));
        let factor = or("factor", 3, &|| integer("factor", MAX_RETRY_FACTOR));
        let max_ms = or("max", 3_600_000, &|| table.millis("max"));
        let retry = ConsumerRetry {
            attempts: attempts? as u32,
            initial_ms: initial_ms?,
            factor: factor? as u32,
            max_ms: max_ms?,
        };
        if retry.initial_ms > retry.max_ms {
            table.report("initial", "`initial` is above `max`");
        }
        if max_delay_ms.is_some_and(|most| retry.max_ms > most) {
            table.report("max", "is above the route's `max_delay`");
        }
        Some(retry)
    });
    retry.map(Some).ok_or(Reported)
}

fn headers(section: &SectionReader<'_>) -> Option<HeaderNames> {
    const HEADER_ROLES: [&str; 6] = ["delay", "deliver_at", "id", "op", "target", "expires"];
    let mut names: Vec<Option<String>> = Vec::new();
    for role in HEADER_ROLES {
        let name = section.parsed(role, |text| header(role, text));
        let twice = name
            .as_ref()
            .and_then(|_| names.iter().position(|other| *other == name));
        if let Some(twice) = twice {
            section.report(
                role,
                format!("is the same header as `{}`", HEADER_ROLES[twice]),
            );
        }
        names.push(name);
    }
    let mut names = names.into_iter();
    let mut next = || names.next().flatten();
    Some(HeaderNames {
        delay: next()?,
        deliver_at: next()?,
        id: next()?,
        op: next()?,
        target: next()?,
        expires: next()?,
    })
}

/// The dialects of a route, each by its name.
fn dialects(section: &SectionReader<'_>) -> Option<Dialects> {
    const KEY: &str = "dialects";
    let mut dialects = Dialects::default();
    for name in section.texts(KEY)? {
        match name.as_str() {
            "amqp10" => dialects.amqp10 = true,
            "celery" => dialects.celery = true,
            _ => {
                section.report(
                    KEY,
                    format!("{name:?} is no dialect: \"amqp10\" and \"celery\" are"),
                );
                return None;
            }
        }
    }
    Some(dialects)
}

fn header(role: &str, text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    if name.is_empty() || name.len() > 255 || !name.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(format!(
            "{text:?} cannot be a header: 1 to 255 visible ASCII characters"
        ));
    }
    let taken = match name.as_str() {
        "x-delay-due" | "x-delay-attempt" | "x-delay-retry" => true,
        "x-delay-id" => role != "id",
        _ => false,
    };
    if taken {
        return Err(format!(
            "{text:?} is a header that Postdate sets on what it publishes"
        ));
    }
    Ok(name)
}

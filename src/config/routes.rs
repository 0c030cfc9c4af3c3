//! Reads `[defaults]` and `[routes.NAME]`.

use std::sync::Arc;

use super::connections::{DeclaredConnections, SameBroker, named};
use super::ends::{allowed, dead_letter_to, from, group, prefetch, start, to};
use super::section::SectionReader;
use super::tls::Reported;
use crate::domain::route::{
    ConsumerRetry, DeadLetterLimits, DelayFrom, Dialects, HeaderNames, RateLimit, RetryPolicy,
    RoutePolicy, TrailLimits,
};
use crate::domain::topics::DerivedTargets;
use crate::domain::{
    Endpoint, OnInvalid, OwnTarget, Route, RouteName, RoutingKey, Target, TopicPattern,
    TopicTemplate, Topics,
};

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
        start(from);
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
    let mut routes: Vec<(Route, Option<TopicTemplate>)> = Vec::new();
    all.each("routes", Some("defaults"), |name, section| {
        named(section, "route");
        let from = required(section, "from", |table| from(table, connections));
        let pattern = from.as_ref().and_then(pattern_of);
        let to = required(section, "to", |table| to(table, connections, pattern));
        let (to, template) = to.unzip();
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
            let route = Route {
                name,
                from,
                source_topic: None,
                to: Arc::new(to),
                own_target: OwnTarget::Fixed,
                allow_targets,
                dead_letter_to,
                policy,
            };
            routes.push((route, template.flatten()));
        }
    });
    let sources: Vec<Endpoint> = routes.iter().map(|(route, _)| route.from.clone()).collect();
    let mut finished = Vec::with_capacity(routes.len());
    for (mut route, template) in routes {
        if let Some(template) = template {
            let at = route.to.connection().to_owned();
            let read = topics_at(&at, &sources, connections);
            route.own_target =
                OwnTarget::PerTopic(Arc::new(DerivedTargets::new(at, template, read)));
        }
        finished.push(Arc::new(route));
    }
    finished
}

/// The pattern by which the topics of a source are found.
fn pattern_of(from: &Endpoint) -> Option<&TopicPattern> {
    match from {
        Endpoint::Kafka { topics, .. } => topics.pattern(),
        Endpoint::Rabbitmq { .. } => None,
    }
}

/// The topics that are read in the cluster of a connection.
fn topics_at(connection: &str, sources: &[Endpoint], connections: &impl SameBroker) -> Vec<Topics> {
    let mut read = Vec::new();
    for source in sources {
        if let Endpoint::Kafka {
            connection: other,
            topics,
            ..
        } = source
            && connections.same_kafka(connection, other)
        {
            read.push(topics.clone());
        }
    }
    read
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

fn policy(section: &SectionReader<'_>, delay_from: DelayFrom) -> Option<RoutePolicy> {
    let max_delay_ms = section.millis("max_delay");
    let max_size = section.size("max_size", MAX_MESSAGE_BYTES);
    let max_headers = section.size("max_headers", MAX_MESSAGE_BYTES);
    let max_pending = section.integer("max_pending", 1..=MAX_PENDING);
    let max_pending_bytes = section.size("max_pending_bytes", MAX_QUOTA_BYTES);
    let commands = section.truth("commands");
    let copies = section.truth("copies");
    let on_invalid = section.choice("on_invalid");
    let on_undecodable = section.choice("on_undecodable");
    let on_refused = section.choice("on_refused");
    let max_lateness_ms = section.millis_or_none("max_lateness");
    let on_expired = section.choice("on_expired");
    let on_unroutable = section.choice("on_unroutable");
    let on_duplicate = section.choice("on_duplicate");
    let delay_from = match section.value("delay_from") {
        None => Some(delay_from),
        Some(_) => section.choice("delay_from"),
    };
    let dedupe_ms = section.millis_or_none("dedupe");
    let rate = rate(section);
    let jitter_ms = section.millis_or_none("jitter");
    let ordered = section.one_of("order", &[("none", false), ("key", true)]);
    report_disorder(section, ordered, jitter_ms);
    let trail = trail(section);
    let retry = section.table("retry", retry);
    let consumer_retry = consumer_retry(section, max_delay_ms);
    if on_invalid == Some(OnInvalid::PassThrough) && matches!(consumer_retry, Ok(Some(_))) {
        section.report(
            section.blamed("on_invalid", "consumer_retry"),
            "`on_invalid = \"pass_through\"` and `consumer_retry` do not go together: an invalid message that its consumer \
             rejects would come back at once, again and again",
        );
    }
    let headers = section.table("headers", headers);
    let dialects = dialects(section);
    let dead_letters = section.table("dead_letters", |table| {
        let letters = dead_letters(table)?;
        if max_size.is_some_and(|size| size > letters.max_message) {
            report_unkept(section, table);
        }
        Some(letters)
    });
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

/// Reports that `max_size` is above `dead_letters.max_message`, under the one of the two that is set.
fn report_unkept(section: &SectionReader<'_>, letters: &SectionReader<'_>) {
    let has_own_limit = section.has("dead_letters") && letters.is_set("max_message");
    if section.is_set("max_size") || !has_own_limit && section.is_set_anywhere("max_size") {
        section.report(
            "max_size",
            "is above `dead_letters.max_message`: what fails could not be kept",
        );
    } else {
        letters.report(
            "max_message",
            "is below `max_size`: what fails could not be kept",
        );
    }
}

/// Jitter does not go with an order of keys.
fn report_disorder(section: &SectionReader<'_>, ordered: Option<bool>, jitter_ms: Option<i64>) {
    if ordered == Some(true) && jitter_ms.is_some_and(|jitter| jitter > 0) {
        let key = section.blamed("order", "jitter");
        section.report(key, "`jitter` would put the messages of one key out of the order that `order = \"key\"` keeps; one of the two must go");
    }
}

/// Reads `rate` and `burst`, messages a second. A rate of 0 means no limit.
fn rate(section: &SectionReader<'_>) -> Option<RateLimit> {
    let rate = section.integer("rate", 0..=MAX_RATE);
    let burst = section.integer("burst", 0..=MAX_RATE);
    let per_second = rate? as u32;
    let burst = burst? as u32;
    if per_second == 0 && burst > 0 {
        let key = section.blamed("burst", "rate");
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
        let key = section.blamed("max_message", "max_bytes");
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
        section.report(section.blamed("initial", "max"), "`initial` is above `max`");
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
            table.report(table.blamed("initial", "max"), "`initial` is above `max`");
        }
        if max_delay_ms.is_some_and(|most| retry.max_ms > most) {
            report_unreachable(section, table);
        }
        Some(retry)
    });
    retry.map(Some).ok_or(Reported)
}

/// Reports that `consumer_retry.max` is above `max_delay`, under the one of the two that is set.
fn report_unreachable(section: &SectionReader<'_>, retry: &SectionReader<'_>) {
    let has_own_max = section.has("consumer_retry") && retry.is_set("max");
    if has_own_max || !section.is_set("max_delay") && retry.is_set_anywhere("max") {
        retry.report("max", "is above the route's `max_delay`");
    } else {
        section.report(
            "max_delay",
            "is below `consumer_retry.max`, which is 1h unless it is set",
        );
    }
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

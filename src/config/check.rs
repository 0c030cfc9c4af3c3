//! Judging the merged layers: the rooms that are no routes and no connections, and the whole.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::layers::Layers;
use super::section::{Context, Section, root};
use super::sources::{SEARCHED, Sources, read_secret};
use super::{Config, Problem, Problems, connections, graph, routes, storage};
use crate::domain::Secret;
use crate::{admin, cluster, telemetry, timer};

/// What `cluster.heartbeat` may be.
const HEARTBEATS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// The checked configuration, or everything that is wrong with it.
pub(super) fn check(layers: &Layers, sources: &Sources, problems: Vec<Problem>) -> Result<Config, Problems> {
    let context = Context { layers, file: sources.label(), problems: RefCell::new(problems) };
    let config = root(&context, |all| whole(all, sources));
    let problems = context.problems.into_inner();
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(Problems(problems)),
    }
}

fn whole(all: &Section<'_>, sources: &Sources) -> Option<Config> {
    let shutdown_timeout = all.duration("shutdown_timeout");
    let redis = all.table("redis", storage::read);
    let connections = connections::read(all);
    let timer = all.table("timer", timer);
    let admin = all.table("admin", admin);
    let listen = admin.as_ref().map(|admin| admin.listen);
    let own_name = default_replica_name(&sources.host_name, listen);
    let cluster = all.table("cluster", |section| members(section, &own_name));
    let log = all.table("log", |section| log(section, sources));
    all.table("defaults", routes::defaults);
    let routes = routes::read(all, &connections);
    graph::check(all.context, &routes, &connections);
    if all.is_empty("routes") {
        let looked = match sources.file {
            Some(_) => String::new(),
            None => format!(" (there is no configuration file: looked for {})", SEARCHED.join(" and ")),
        };
        all.report("routes", format!("no routes: a route is `[routes.NAME]` with `from` and `to`{looked}"));
    }
    let (kafka, rabbitmq) = connections.checked();
    Some(Config {
        shutdown_timeout: shutdown_timeout?,
        redis: redis?,
        kafka,
        rabbitmq,
        cluster: cluster?,
        timer: timer?,
        admin: admin?,
        log: log?,
        routes,
    })
}

/// A secret, from its key or from the file that its other key names; not from both.
pub(super) fn secret(
    section: &Section<'_>,
    key: &'static str,
    file: &'static str,
    check: impl Fn(&str) -> Result<(), String>,
) -> Option<Secret> {
    if !section.has(file) {
        return section.parsed(key, |text| check(text).map(|()| Secret::new(text)));
    }
    section.value(key);
    not_both(section, key, file)?;
    section.parsed(file, |path| {
        let text = read_secret(Path::new(path))?;
        check(&text).map(|()| Secret::new(text)).map_err(|message| format!("what {path} holds {message}"))
    })
}

/// A key and its file: one of them only.
pub(super) fn not_both(section: &Section<'_>, key: &'static str, file: &'static str) -> Option<()> {
    if section.is_set(key) {
        section.report(file, format!("`{key}` is set too; one of the two must go"));
        return None;
    }
    Some(())
}

/// The name of a replica that was given none: its host and the port of its admin listener, so that two replicas on
/// one host differ. Without a listener (it is wrong in the configuration) the host alone.
pub(super) fn default_replica_name(host_name: &str, listen: Option<SocketAddr>) -> String {
    listen.map_or_else(|| host_name.to_owned(), |listen| format!("{host_name}:{}", listen.port()))
}

fn members(section: &Section<'_>, default_name: &str) -> Option<cluster::Config> {
    let name = section.parsed("name", |text| match text {
        "" => Ok(default_name.to_owned()),
        _ if text.len() > 255 || text.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Err(format!("{text:?} must be at most 255 bytes without spaces"))
        }
        _ => Ok(text.to_owned()),
    });
    let heartbeat = section.duration("heartbeat");
    if heartbeat.is_some_and(|every| !HEARTBEATS.contains(&every)) {
        section.report("heartbeat", "must be within 100ms and 1m");
    }
    let max_clock_skew = section.duration("max_clock_skew");
    Some(cluster::Config { name: name?, heartbeat: heartbeat?, max_clock_skew: max_clock_skew? })
}

fn timer(section: &Section<'_>) -> Option<timer::Config> {
    let (lookahead, claim) = (section.duration("lookahead"), section.duration("claim"));
    let (lookahead, claim) = (lookahead?, claim?);
    if lookahead >= claim {
        let key = if section.is_set("lookahead") { "lookahead" } else { "claim" };
        section.report(
            key,
            "`lookahead` must be below `claim`: what is claimed ahead must still be held when due",
        );
    }
    Some(timer::Config { lookahead, claim })
}

fn admin(section: &Section<'_>) -> Option<admin::Config> {
    let listen = section.parsed("listen", |text| {
        text.parse::<SocketAddr>().map_err(|_| {
            format!(
                "{text:?} is not an IP address and a port, such as \"127.0.0.1:8025\" or \"0.0.0.0:8025\""
            )
        })
    });
    let read_tokens = tokens(section, "read_tokens", "read_tokens_file");
    let write_tokens = tokens(section, "write_tokens", "write_tokens_file");
    let (listen, read_tokens, write_tokens) = (listen?, read_tokens?, write_tokens?);
    if !listen.ip().is_loopback() && read_tokens.is_empty() && write_tokens.is_empty() {
        section.report(
            "listen",
            format!(
                "{listen} is not loopback and needs a token: set `write_tokens_file` or `read_tokens_file`"
            ),
        );
    }
    Some(admin::Config { listen, read_tokens, write_tokens })
}

fn tokens(section: &Section<'_>, key: &'static str, file: &'static str) -> Option<Vec<Secret>> {
    let (place, texts) = if section.has(file) {
        section.value(key);
        not_both(section, key, file)?;
        let text = section.parsed(file, |path| read_secret(Path::new(path)))?;
        (file, text.lines().map(str::to_owned).collect())
    } else {
        (key, section.texts(key)?)
    };
    let mut tokens = Vec::new();
    for (index, text) in texts.into_iter().enumerate() {
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            section.report(
                place,
                format!("token {} is empty or has other than visible ASCII characters", index + 1),
            );
        }
        tokens.push(Secret::new(text));
    }
    Some(tokens)
}

fn log(section: &Section<'_>, sources: &Sources) -> Option<telemetry::Config> {
    use telemetry::Format::{Auto, Json, Text};
    let format = section.choice("format", &[("auto", Auto), ("text", Text), ("json", Json)]);
    let filter = sources.variable("POSTDATE_LOG").map(str::to_owned);
    if let Some(Err(error)) = filter.as_ref().map(tracing_subscriber::EnvFilter::try_new) {
        let source = "environment POSTDATE_LOG".to_owned();
        section.context.report(source, String::new(), format!("is not a tracing filter: {error}"));
    }
    Some(telemetry::Config { format: format?, filter })
}

//! Checks the merged layers: all sections together, and here those of `[cluster]`, `[timer]`, `[admin]` and `[log]`.
//! Routes, connections and `[redis]` have files of their own.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::key_kinds::KeyKinds;
use super::layers::MergedLayers;
use super::secrets::{secret, tokens};
use super::section::{CheckContext, SectionReader, root};
use super::sources::{ConfigSources, LOG_VARIABLE, SEARCHED_FILES};
use super::tls::{client_files, server_files};
use super::{Config, ConfigProblem, ConfigProblems, connections, graph, routes, storage};
use crate::telemetry::config::{Collector, TracesConfig};
use crate::{admin, cluster, telemetry, timer};

/// Values that `cluster.heartbeat` may have.
const HEARTBEAT_RANGE: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);

/// Checks everything at once. Returns the configuration, or every problem of it.
pub(super) fn check(
    layers: &MergedLayers,
    sources: &ConfigSources,
    problems: Vec<ConfigProblem>,
) -> Result<Config, ConfigProblems> {
    let context = CheckContext::new(layers, sources.label(), problems);
    let config = root(&context, |all| build(all, sources));
    let problems = context.problems.into_inner();
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(ConfigProblems(problems)),
    }
}

/// Kinds of all keys that the check reads of these layers, whatever is wrong with them.
pub(super) fn kinds(layers: &MergedLayers, sources: &ConfigSources) -> KeyKinds {
    let context = CheckContext::new(layers, sources.label(), Vec::new());
    root(&context, |all| build(all, sources));
    context.kinds.into_inner()
}

fn build(all: &SectionReader<'_>, sources: &ConfigSources) -> Option<Config> {
    let shutdown_timeout = all.duration("shutdown_timeout");
    let redis = all.table("redis", storage::read);
    let connections = connections::read(all);
    let timer = all.table("timer", timer);
    let admin = all.table("admin", admin);
    let listen = admin.as_ref().map(|admin| admin.listen);
    let own_name = sources.default_replica_name(listen);
    let cluster = all.table("cluster", |section| members(section, &own_name));
    let log = all.table("log", |section| log(section, sources));
    let traces = all.table("traces", traces);
    all.table("defaults", routes::defaults);
    let routes = routes::read(all, &connections);
    graph::check(all.context, &routes, &connections);
    if all.is_empty("routes") {
        let looked = match sources.file {
            Some(_) => String::new(),
            None => format!(
                " (there is no configuration file: looked for {})",
                SEARCHED_FILES.join(" and ")
            ),
        };
        all.report(
            "routes",
            format!("no routes: a route is `[routes.NAME]` with `from` and `to`{looked}"),
        );
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
        traces: traces?,
        routes,
    })
}

fn traces(section: &SectionReader<'_>) -> Option<TracesConfig> {
    let timeout = section.duration("timeout");
    let tls = client_files(section);
    let has_authorization = section.has("authorization") | section.has("authorization_file");
    let authorization = if has_authorization {
        secret(section, "authorization", "authorization_file", header_fault).map(Some)
    } else {
        Some(None)
    };
    if !section.has("endpoint") {
        return Some(TracesConfig { collector: None });
    }
    let endpoint = section.parsed("endpoint", |text| {
        collector_url(text).map(|()| text.to_owned())
    });
    let endpoint = endpoint?;
    let authorization = authorization?;
    let tls = tls?;
    let timeout = timeout?;
    Some(TracesConfig {
        collector: Some(Collector {
            endpoint,
            authorization,
            tls,
            timeout,
        }),
    })
}

/// Checks the address of a collector. A path is part of it: `/v1/traces` is the usual one.
fn collector_url(text: &str) -> Result<(), String> {
    let host = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let (host, path) = host
        .and_then(|rest| rest.split_once('/'))
        .unwrap_or_default();
    if host.is_empty()
        || host.contains('@')
        || path.is_empty()
        || text.contains(char::is_whitespace)
    {
        let example = "http://otel-collector:4318/v1/traces";
        return Err(format!(
            "must be a URL with a path and without a password, such as {example:?}"
        ));
    }
    Ok(())
}

/// Checks the value of a header.
fn header_fault(text: &str) -> Result<(), String> {
    let fits = !text.is_empty() && text.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
    if fits {
        Ok(())
    } else {
        Err("must be printable ASCII".to_owned())
    }
}

fn members(section: &SectionReader<'_>, default_name: &str) -> Option<cluster::Config> {
    let name = section.parsed("name", |text| match text {
        "" => Ok(default_name.to_owned()),
        _ if text.len() > 255 || text.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Err(format!("{text:?} must be at most 255 bytes without spaces"))
        }
        _ => Ok(text.to_owned()),
    });
    let heartbeat = section.duration("heartbeat");
    if heartbeat.is_some_and(|every| !HEARTBEAT_RANGE.contains(&every)) {
        section.report("heartbeat", "must be within 100ms and 1m");
    }
    let max_clock_skew = section.duration("max_clock_skew");
    Some(cluster::Config {
        name: name?,
        heartbeat: heartbeat?,
        max_clock_skew: max_clock_skew?,
    })
}

fn timer(section: &SectionReader<'_>) -> Option<timer::Config> {
    let lookahead = section.duration("lookahead");
    let claim = section.duration("claim");
    let lookahead = lookahead?;
    let claim = claim?;
    if lookahead >= claim {
        section.report(
            section.blamed("lookahead", "claim"),
            "`lookahead` must be below `claim`: a claim must last until its messages are due",
        );
    }
    Some(timer::Config { lookahead, claim })
}

fn admin(section: &SectionReader<'_>) -> Option<admin::Config> {
    let address = |key| {
        section.parsed(key, |text| {
            text.parse::<SocketAddr>().map_err(|_| {
                format!(
                    "{text:?} is not an IP address and a port, such as \"127.0.0.1:8025\" or \"0.0.0.0:8025\""
                )
            })
        })
    };
    let listen = address("listen");
    let probe_listen = if section.has("probe_listen") {
        address("probe_listen").map(Some)
    } else {
        Some(None)
    };
    let read_tokens = tokens(section, "read_tokens", "read_tokens_file");
    let write_tokens = tokens(section, "write_tokens", "write_tokens_file");
    let tls = server_files(section);
    let listen = listen?;
    let probe_listen = probe_listen?;
    let tls = tls.ok()?;
    let read_tokens = read_tokens?;
    let write_tokens = write_tokens?;
    if !listen.ip().is_loopback() && read_tokens.tokens.is_empty() && write_tokens.tokens.is_empty()
    {
        section.report(
            "listen",
            format!(
                "{listen} is not loopback and needs a token: set `write_tokens_file` or `read_tokens_file`"
            ),
        );
    }
    report_short_tokens(
        section,
        &read_tokens,
        listen,
        "read_tokens",
        "read_tokens_file",
    );
    report_short_tokens(
        section,
        &write_tokens,
        listen,
        "write_tokens",
        "write_tokens_file",
    );
    let shared = read_tokens.tokens.iter().position(|read| {
        let mut written = write_tokens.tokens.iter();
        written.any(|written| written.token == read.token)
    });
    if let Some(index) = shared {
        let key = if section.has("read_tokens_file") {
            "read_tokens_file"
        } else {
            "read_tokens"
        };
        section.report(
            key,
            format!(
                "token {} is a write token too; one of the two must go",
                index + 1
            ),
        );
    }
    if probe_listen.is_some_and(|probes| probes == listen) {
        section.report(
            "probe_listen",
            format!("{listen} is `listen`; the probes need an address of their own"),
        );
    }
    Some(admin::Config {
        listen,
        probe_listen,
        tls,
        read_tokens,
        write_tokens,
    })
}

/// Reports tokens that can be guessed from the network.
fn report_short_tokens(
    section: &SectionReader<'_>,
    list: &admin::config::TokenList,
    listen: SocketAddr,
    key: &'static str,
    file: &'static str,
) {
    let given_by = if section.has(file) { file } else { key };
    for (index, token) in list.tokens.iter().enumerate() {
        if let Some(fault) = token.length_fault(listen) {
            section.report(given_by, format!("token {} {fault}", index + 1));
        }
    }
}

fn log(section: &SectionReader<'_>, sources: &ConfigSources) -> Option<telemetry::Config> {
    use telemetry::LogFormat::{Auto, Json, Text};
    let format = section.one_of("format", &[("auto", Auto), ("text", Text), ("json", Json)]);
    let filter = sources.variable(LOG_VARIABLE).and_then(OsStr::to_str);
    if let Some(Err(error)) = filter.map(tracing_subscriber::EnvFilter::try_new) {
        let source = format!("environment {LOG_VARIABLE}");
        section.context.report(
            source,
            String::new(),
            format!("is not a tracing filter: {error}"),
        );
    }
    Some(telemetry::Config {
        format: format?,
        filter: filter.map(str::to_owned),
    })
}

//! Reads `[redis]`.

use std::collections::BTreeSet;
use std::path::Path;

use figment::value::Value;

use super::clients;
use super::secrets::{not_both, secret};
use super::section::SectionReader;
use super::tls::client_files;
use crate::credential::Credential;
use crate::domain::Partitions;
use crate::store;
use crate::store::config::{Address, Durability, Login, Overrides, ReplicaWait, Topology};
use crate::tls::ClientFiles;

/// Most replicas of Redis that `wait_replicas` may ask for.
const MAX_WAIT_REPLICAS: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum TopologyKind {
    Standalone,
    Sentinel,
    Cluster,
}

/// Reads the whole section.
pub(super) fn read(section: &SectionReader<'_>) -> Option<store::Config> {
    let tls = tls(section);
    let is_tls = tls.as_ref().map(|(is_on, _)| *is_on);
    let topology = topology(section, is_tls);
    let prefix = section.parsed("prefix", |text| {
        let fits = text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b));
        match text.len() {
            1..=64 if fits => Ok(text.to_owned()),
            _ => Err(format!(
                "{text:?} must be 1 to 64 of the characters A-Z a-z 0-9 . _ : -"
            )),
        }
    });
    let partitions = section.integer("partitions", 1..=4096);
    let durability = durability(section);
    let growing_bundles = section.truth("growing_bundles");
    let mut overrides = Overrides::default();
    for name in section.texts("unsafe").unwrap_or_default() {
        match name.as_str() {
            "eviction" => overrides.eviction = true,
            "no_persistence" => overrides.no_persistence = true,
            "unchecked" => overrides.unchecked = true,
            _ => section.report(
                "unsafe",
                format!("{name:?} is not one of \"eviction\", \"no_persistence\", \"unchecked\""),
            ),
        }
    }
    let partitions = Partitions::new(partitions? as u16)?;
    Some(store::Config {
        topology: topology?,
        prefix: prefix?,
        partitions,
        durability: durability?,
        growing_bundles: growing_bundles?,
        overrides,
        tls: tls?.1,
    })
}

/// Reads `tls`: whether TLS is spoken, or the files that it is spoken by.
fn tls(section: &SectionReader<'_>) -> Option<(bool, ClientFiles)> {
    match section.value("tls") {
        Some(Value::Dict(..)) => Some((true, client_files(section)?)),
        _ => Some((section.truth("tls")?, ClientFiles::default())),
    }
}

/// Reports a key that says what a standalone server's URL says.
fn report_tls_beside_url(section: &SectionReader<'_>, url: Option<&Credential>) {
    match section.value("tls") {
        Some(Value::Dict(..))
            if url.is_none_or(|url| url.configured().expose().starts_with("rediss://")) => {}
        Some(Value::Dict(..)) => {
            section.report(
                "tls",
                "names files, but TLS is spoken only if `url` begins with rediss://",
            );
        }
        _ if section.differs("tls") => {
            section.report(
                "tls",
                "says that TLS is spoken; a standalone server has that in `url`: rediss://",
            );
        }
        _ => {}
    }
}

fn topology(section: &SectionReader<'_>, is_tls: Option<bool>) -> Option<Topology> {
    use TopologyKind::{Cluster, Sentinel, Standalone};
    let kinds = [
        ("standalone", Standalone),
        ("sentinel", Sentinel),
        ("cluster", Cluster),
    ];
    let kind = section.one_of("topology", &kinds);
    let url = secret(section, "url", "url_file", clients::redis_url);
    let nodes = nodes(section);
    let master = section.parsed("master", |text| Ok(text.to_owned()));
    let own = login(section, "username", "password", "password_file");
    let sentinels = login(
        section,
        "sentinel_username",
        "sentinel_password",
        "sentinel_password_file",
    );
    let with_tls = |login: Option<Login>| {
        Some(Login {
            tls: is_tls?,
            ..login?
        })
    };
    let own = with_tls(own);
    let sentinels = with_tls(sentinels);
    let kind = kind?;
    if kind == Standalone {
        report_tls_beside_url(section, url.as_ref());
    }
    report_keys_of_others(section, kind);
    if kind != Standalone && nodes.as_ref().is_some_and(Vec::is_empty) {
        let of = if kind == Sentinel {
            "the sentinels"
        } else {
            "some nodes of the cluster"
        };
        section.report("nodes", format!("name {of}, such as [\"redis-0:6379\"]"));
    }
    if kind == Sentinel && master.as_ref().is_some_and(String::is_empty) {
        section.report("master", "is missing: what the sentinels call the master");
    }
    Some(match kind {
        Standalone => Topology::Standalone(url?),
        Sentinel => Topology::Sentinel {
            nodes: nodes?,
            master: master?,
            login: own?,
            sentinel_login: sentinels?,
        },
        Cluster => Topology::Cluster {
            nodes: nodes?,
            login: own?,
        },
    })
}

/// Reports keys that are set and belong to another topology.
fn report_keys_of_others(section: &SectionReader<'_>, kind: TopologyKind) {
    use TopologyKind::{Cluster, Sentinel, Standalone};
    let rules: [(&[&'static str], &[TopologyKind], &str); 3] = [
        (
            &["url", "url_file"],
            &[Standalone],
            "is for a standalone server; here `nodes` says where it is",
        ),
        (
            &["nodes", "username", "password", "password_file"],
            &[Sentinel, Cluster],
            "goes with `topology` \"sentinel\" or \"cluster\"; a standalone server has all of it in `url`",
        ),
        (
            &[
                "master",
                "sentinel_username",
                "sentinel_password",
                "sentinel_password_file",
            ],
            &[Sentinel],
            "goes with `topology = \"sentinel\"`",
        ),
    ];
    for (keys, of, why) in rules {
        for key in keys {
            if !of.contains(&kind) && section.differs(key) {
                section.report(key, why);
            }
        }
    }
}

fn nodes(section: &SectionReader<'_>) -> Option<Vec<Address>> {
    let mut nodes = BTreeSet::new();
    for text in section.texts("nodes")? {
        match Address::parse(&text) {
            Some(address) => {
                if !nodes.insert(address) {
                    section.report("nodes", format!("{text:?} appears more than once"));
                }
            }
            // The message leaves out the text: it may be a URL with a password.
            None if text.contains("://") || text.contains('@') => {
                section.report("nodes", "a node is `host:port`, without a scheme or a user");
            }
            None => section.report("nodes", format!("{text:?} is not `host:port`")),
        }
    }
    Some(nodes.into_iter().collect())
}

fn login(
    section: &SectionReader<'_>,
    user: &'static str,
    password: &'static str,
    file: &'static str,
) -> Option<Login> {
    let username = section.text(user);
    let password = if section.has(file) {
        section.value(password);
        not_both(section, password, file)
            .and_then(|()| section.parsed(file, |path| Credential::from_file(Path::new(path))))
    } else {
        section.text(password).map(Credential::inline)
    };
    let username = username?;
    let password = password?;
    Some(Login {
        username: (!username.is_empty()).then_some(username),
        password: (!password.configured().expose().is_empty()).then_some(password),
        tls: false,
    })
}

fn durability(section: &SectionReader<'_>) -> Option<Durability> {
    let tier = section.one_of(
        "durability",
        &[("async", 0), ("replicated", 1), ("fsynced", 2)],
    );
    let replicas = section.integer("wait_replicas", 0..=MAX_WAIT_REPLICAS);
    let timeout = section.duration("wait_timeout");
    let wait = ReplicaWait {
        replicas: replicas? as u32,
        timeout: timeout?,
    };
    let tier = match tier? {
        0 => Durability::Async,
        1 => Durability::Replicated(wait),
        _ => Durability::Fsynced(wait),
    };
    match tier {
        Durability::Replicated(ReplicaWait { replicas: 0, .. }) => {
            section.report(
                "wait_replicas",
                "must be at least 1 with `durability = \"replicated\"`",
            );
        }
        Durability::Async | Durability::Replicated(_) | Durability::Fsynced(_) => {}
    }
    if wait.timeout > std::time::Duration::from_secs(10) {
        section.report(
            "wait_timeout",
            "is more than 10s: so long nothing else would be stored or claimed",
        );
    }
    Some(tier)
}

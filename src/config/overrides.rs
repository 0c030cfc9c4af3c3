//! Environment variables and `--set`: the key that each of them means.
//!
//! Both change what the file has. Neither makes a new route or connection, so that a slip in a name is told and not
//! taken for a new one. A variable that is most likely meant for this program, and is no key, is told as well.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;

use figment::value::{Dict, Value};

use super::key_kinds::{KeyKind, KeyKinds};
use super::layers::{MergedLayers, NAMED_TABLES};
use super::problem::ConfigProblem;
use super::schema::key_kinds;
use super::sources::{self, ConfigSources, FILE_VARIABLE, LOG_VARIABLE, VARIABLE_PREFIX};
use super::values::join_property;
use crate::domain::nearest;

/// Most slips in a variable's name with which it is taken for a key.
const MAX_SLIPS: usize = 2;

/// A value that an environment variable or a `--set` gives to a key.
struct Override<'a> {
    /// The source, for a reader.
    label: String,
    /// The key, by its parts.
    path: Vec<String>,
    /// The value, not parsed yet.
    text: &'a str,
}

/// Puts the environment and each `--set` over the file. Returns the problems of single ones, which are left out.
pub(super) fn apply(sources: &ConfigSources, layers: &mut MergedLayers) -> Vec<ConfigProblem> {
    let mut found = Vec::new();
    for (name, value) in &sources.environment {
        found.push(Override::of_variable(name, value, layers.file()));
    }
    for set in &sources.set {
        found.push(Override::of_option(set, layers.file()));
    }
    let kinds = LazyCell::new(key_kinds);
    let mut problems = Vec::new();
    for found in found {
        match found {
            Ok(None) => {}
            Ok(Some(Override { label, path, text })) => {
                let value = shaped(&kinds, &path, text);
                layers.put(label, &path, value);
            }
            Err(problem) => problems.push(problem),
        }
    }
    problems
}

/// Parses a text into what its key takes. The value of a text key stays text, even if it looks like a number. So does one
/// that the key does not take: the check tells that.
fn shaped(kinds: &KeyKinds, path: &[String], text: &str) -> Value {
    let mut path = path.to_vec();
    if path.len() > 1 && NAMED_TABLES.contains(&path[0].as_str()) {
        // The samples' own name.
        "main".clone_into(&mut path[1]);
    }
    let parsed = kinds.get(&path).into_iter().flatten().find_map(|kind| {
        Some(match kind {
            KeyKind::Integer(_) => Value::from(text.replace('_', "").parse::<u64>().ok()?),
            KeyKind::Truth => Value::from(text.parse::<bool>().ok()?),
            KeyKind::Texts => list(text)?,
            _ => return None,
        })
    });
    parsed.unwrap_or_else(|| Value::from(text))
}

/// A list, as TOML writes it.
fn list(text: &str) -> Option<Value> {
    let Ok(Value::Dict(_, mut dict)) = sources::toml_value(&format!("v = {text}")) else {
        return None;
    };
    dict.remove("v")
        .filter(|value| matches!(value, Value::Array(..)))
}

impl<'a> Override<'a> {
    /// What a variable sets; `None` if it is not configuration.
    fn of_variable(
        name: &str,
        value: &'a OsStr,
        file: &Dict,
    ) -> Result<Option<Self>, ConfigProblem> {
        let label = format!("environment {name}");
        let path = variable_path(name, value, file)
            .map_err(|message| ConfigProblem::of_source(&*label, message))?;
        match (path, value.to_str()) {
            (Some(path), Some(text)) => Ok(Some(Self { label, path, text })),
            (None, None) if name == LOG_VARIABLE => Err(not_utf8(label)),
            (None, _) => Ok(None),
            (Some(_), None) => Err(not_utf8(label)),
        }
    }

    /// What a `--set` sets.
    fn of_option(set: &'a str, file: &Dict) -> Result<Option<Self>, ConfigProblem> {
        let Some((key, text)) = set.split_once('=') else {
            // The message leaves out the text: it may be a secret that was to follow a key.
            let message = "is written KEY=VALUE, such as `--set redis.partitions=16`";
            return Err(ConfigProblem::of_source("--set", message));
        };
        let label = if key.is_empty() {
            "--set".to_owned()
        } else {
            format!("--set {key}")
        };
        let path = key.split('.').map(str::to_owned).collect();
        // `--print` writes the name of a property in quotes.
        let path = known_path(path, file, |name| name.trim_matches('"').to_owned())
            .map_err(|message| ConfigProblem::of_source(&*label, message))?;
        Ok(Some(Self { label, path, text }))
    }
}

fn not_utf8(label: String) -> ConfigProblem {
    ConfigProblem::of_source(label, "is not UTF-8")
}

/// The path of the key that an environment variable names; `None` if the variable is not configuration.
fn variable_path(name: &str, value: &OsStr, file: &Dict) -> Result<Option<Vec<String>>, String> {
    let rest = name.strip_prefix(VARIABLE_PREFIX).unwrap_or_default();
    let rest = rest.to_ascii_lowercase();
    if !name.contains("__") {
        let is_other = [FILE_VARIABLE, LOG_VARIABLE].contains(&name) || is_of_service(&rest, value);
        if !is_other {
            refuse_slip(&rest, file)?;
        }
        return Ok(None);
    }
    // `POSTDATE__KEY` names a key of the top level, which has no section to put before a double underscore.
    if let Some(top) = rest.strip_prefix('_').filter(|top| !top.contains("__")) {
        return Ok(Some(vec![top.to_owned()]));
    }
    let path = rest.split("__").map(str::to_owned).collect();
    known_path(path, file, |name| name.replace('_', ".")).map(Some)
}

/// Reports whether Kubernetes has made this variable for a Service whose name begins with `postdate`, such as
/// `POSTDATE_REDIS_SERVICE_HOST` and `POSTDATE_REDIS_PORT_6379_TCP`.
fn is_of_service(rest: &str, value: &OsStr) -> bool {
    let rest = format!("_{rest}_");
    let (_, after_port) = rest.split_once("_port_").unwrap_or_default();
    rest.contains("_service_host_")
        || rest.contains("_service_port_")
        || after_port.starts_with(|c: char| c.is_ascii_digit())
        || rest.ends_with("_port_") && value.to_string_lossy().contains("://")
}

/// Refuses a variable that was most likely meant as a key: it begins with the name of a section, or it is a key but for
/// its underscores and a slip or two. Others that begin with the prefix may be anybody's.
fn refuse_slip(rest: &str, file: &Dict) -> Result<(), String> {
    let keys = key_kinds();
    let (section, key) = rest.split_once('_').unwrap_or((rest, ""));
    let is_section = keys.keys().any(|path| path.len() > 1 && path[0] == section);
    let known = spelled_variables(keys, file);
    let slips = |known: &str| strsim::damerau_levenshtein(rest, known);
    let slip = known
        .keys()
        .filter(|known| slips(known) <= MAX_SLIPS.min(known.len() / 4))
        .min_by_key(|known| slips(known));
    let beside = known
        .keys()
        .filter_map(|known| known.strip_prefix(section)?.strip_prefix('_'));
    let near = nearest(key, beside).map(|key| format!("{section}_{key}"));
    let meant = slip.or(near.as_ref()).map_or(section, String::as_str);
    match known.get(meant) {
        Some(name) => Err(format!("is no key; did you mean `{name}`?")),
        None if is_section => Err("is no key: the parts of a key are joined by double \
                                   underscores, such as `POSTDATE_REDIS__URL`"
            .to_owned()),
        None => Ok(()),
    }
}

/// The variables that this configuration knows, by what is left of their names without the prefix and with single
/// underscores.
fn spelled_variables(keys: KeyKinds, file: &Dict) -> BTreeMap<String, String> {
    let own = [FILE_VARIABLE, LOG_VARIABLE];
    let own = own.map(|name| {
        (
            name[VARIABLE_PREFIX.len()..].to_lowercase(),
            name.to_owned(),
        )
    });
    let mut spelled = BTreeMap::from(own);
    for (path, kinds) in keys {
        if kinds.iter().all(|kind| *kind == KeyKind::Section) {
            continue;
        }
        let mut paths = Vec::new();
        if NAMED_TABLES.contains(&path[0].as_str()) {
            for name in names_in(file, &path[0]) {
                let mut path = path.clone();
                path[1] = name.replace('-', "_");
                paths.push(path);
            }
        } else {
            paths.push(path);
        }
        for path in paths {
            // A key of the top level has no section to put before a double underscore.
            let before = if path.len() == 1 { "_" } else { "" };
            let name = format!("{VARIABLE_PREFIX}{before}{}", path.join("__"));
            spelled.insert(path.join("_"), name.to_uppercase());
        }
    }
    spelled
}

/// Checks that each part of a path has a name, and that the file has the route or the connection in it. `spell` makes the
/// name of a librdkafka property.
fn known_path(
    mut path: Vec<String>,
    file: &Dict,
    spell: impl Fn(&str) -> String,
) -> Result<Vec<String>, String> {
    if path.iter().any(String::is_empty) {
        return Err("not the name of a key: there is a part without a name".to_owned());
    }
    if NAMED_TABLES.contains(&path[0].as_str()) && path.len() > 1 {
        path[1] = existing(&path[0], &path[1], file)?;
    }
    Ok(join_property(path, spell))
}

/// The name in the file that `name` means: a variable has `_` where the file may have `-`.
fn existing(table: &str, name: &str, file: &Dict) -> Result<String, String> {
    let known = names_in(file, table);
    if known.contains(&name) {
        return Ok(name.to_owned());
    }
    let alike: Vec<&&str> = known
        .iter()
        .filter(|known| known.replace('-', "_") == name.replace('-', "_"))
        .collect();
    match alike[..] {
        [one] => Ok((*one).to_owned()),
        [] => {
            let hint = nearest(name, known)
                .map(|near| format!("; did you mean `{table}.{near}`?"))
                .unwrap_or_default();
            Err(format!(
                "`{table}.{name}` is not in the file, and neither the environment nor `--set` can make new ones{hint}"
            ))
        }
        _ => Err(format!("`{table}.{name}` may be any of {alike:?}")),
    }
}

/// The names that the operator chose in a table of the file.
fn names_in<'a>(file: &'a Dict, table: &str) -> Vec<&'a str> {
    let names = file.get(table).and_then(Value::as_dict);
    names
        .map(|names| names.keys().map(String::as_str).collect())
        .unwrap_or_default()
}

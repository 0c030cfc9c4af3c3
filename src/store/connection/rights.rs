//! The rights that Postdate's user needs at Redis. Each new connection tries them: a command that is refused in the
//! middle of a script would leave half of a transition behind.

use std::collections::BTreeSet;

use redis::{RedisError, RedisResult};

use super::deadline::RedisWire;
use super::slot_map::SlotMap;
use crate::domain::{Partition, Partitions};
use crate::store::call::keys::Keys;
use crate::store::call::scripts;

/// Commands that cannot be tried in a script, in the spelling of an access list.
const OUTSIDE_SCRIPTS: [&str; 6] = [
    "config|get",
    "role",
    "script|load",
    "evalsha",
    "multi",
    "exec",
];
/// Commands of scripts and readers, as they are tried: `@1` is the first scratch key, see `rights.lua`. The first and
/// the last one remove the scratch keys.
const TRIED: [&[&str]; 45] = [
    &["UNLINK", "@1", "@2", "@3", "@4", "@5", "@6"],
    &["EXISTS", "@1"],
    &["HSET", "@1", "field", "1"],
    &["HSETNX", "@1", "field", "1"],
    &["HINCRBY", "@1", "field", "1"],
    &["HGET", "@1", "field"],
    &["HMGET", "@1", "field"],
    &["HGETALL", "@1"],
    &["HKEYS", "@1"],
    &["HSCAN", "@1", "0"],
    &["HSTRLEN", "@1", "field"],
    &["HDEL", "@1", "field"],
    &["ZADD", "@2", "1", "member"],
    &["ZCARD", "@2"],
    &["ZCOUNT", "@2", "-inf", "+inf"],
    &["ZMSCORE", "@2", "member"],
    &["ZRANDMEMBER", "@2", "1"],
    &["ZRANGE", "@2", "0", "0"],
    &["ZRANGEBYLEX", "@2", "-", "+"],
    &["ZRANGEBYSCORE", "@2", "-inf", "+inf"],
    &["ZSCAN", "@2", "0"],
    &["ZSCORE", "@2", "member"],
    &["ZREM", "@2", "member"],
    &["ZREMRANGEBYRANK", "@2", "0", "-1"],
    &["SET", "@3", "value"],
    &["GET", "@3"],
    &["GETRANGE", "@3", "0", "0"],
    &["STRLEN", "@3"],
    &["PTTL", "@3"],
    &["PERSIST", "@3"],
    &["TYPE", "@3"],
    &["RENAME", "@3", "@5"],
    &["XADD", "@4", "*", "field", "value"],
    &["XREVRANGE", "@4", "+", "-", "COUNT", "1"],
    &["RPUSH", "@6", "value"],
    &["LINDEX", "@6", "0"],
    &["LLEN", "@6"],
    &["LSET", "@6", "0", "value"],
    &["LRANGE", "@6", "0", "0"],
    &["PEXPIRE", "@6", "60000"],
    &["LPOP", "@6"],
    &["TIME"],
    &["INFO", "memory"],
    &["SCAN", "0", "COUNT", "1"],
    &["UNLINK", "@1", "@2", "@3", "@4", "@5", "@6"],
];
/// Where the rights are written down.
const DOCUMENT: &str = "docs/security.md";

/// The rules of an access list for Postdate's user at a server that keeps messages, without its name and password.
/// A cluster needs `+cluster|slots` besides, a `durability` that waits for replicas or disks `+wait` and `+waitaof`.
pub fn user_rules(prefix: &str) -> Vec<String> {
    let tried: BTreeSet<String> = TRIED.iter().map(|words| words[0].to_lowercase()).collect();
    let commands = OUTSIDE_SCRIPTS.into_iter().map(str::to_owned).chain(tried);
    let fixed = [
        "resetkeys".to_owned(),
        format!("~{prefix}:*"),
        "resetchannels".to_owned(),
        "-@all".to_owned(),
    ];
    fixed
        .into_iter()
        .chain(commands.map(|command| format!("+{command}")))
        .collect()
}

/// Tries the rights of a connection's user at one master.
#[derive(Clone, Debug)]
pub(in crate::store) struct RightsProbe {
    scratch_keys: [String; 6],
}

impl RightsProbe {
    /// The probe for the node at this place of the map. `None` if no partition is there, so that there is no key to
    /// try anything on.
    pub(in crate::store) fn of(
        prefix: &str,
        partitions: Partitions,
        map: &SlotMap,
        at: usize,
    ) -> Option<Self> {
        let partition: Partition = partitions
            .all()
            .find(|&partition| map.node_of(Keys::slot(partition)) == Some(at))?;
        Some(Self {
            scratch_keys: Keys::new(prefix).scratch(partition),
        })
    }

    /// Tries all rights. An error that does not speak of rights is no news here: it shows where it matters.
    pub(in crate::store) async fn check(&self, connection: &mut RedisWire) -> Result<(), String> {
        let refusals: BTreeSet<Refusal> = match self.refusals(connection).await {
            Ok(failures) => failures
                .iter()
                .filter_map(|text| Refusal::of_script(text))
                .collect(),
            Err(error) => Refusal::of_error(&error.to_string()).into_iter().collect(),
        };
        sentence(&refusals).map_or(Ok(()), Err)
    }

    /// The commands that failed, each with its error.
    async fn refusals(&self, connection: &mut RedisWire) -> RedisResult<Vec<String>> {
        // One by one: the client cannot read the answers to a transaction whose begin is refused.
        for command in ["MULTI", "TIME", "EXEC"] {
            redis::cmd(command).exec_async(connection).await?;
        }
        let mut invocation = scripts::RIGHTS.prepare_invoke();
        for key in &self.scratch_keys {
            invocation.key(key);
        }
        for words in TRIED {
            invocation.arg(words.len());
            for word in words {
                invocation.arg(*word);
            }
        }
        invocation.load_async(connection).await?;
        invocation.invoke_async(connection).await
    }
}

/// What errors say when a right is missing: those of the client library, of Valkey and of Redis in a script. The last
/// ones name no command.
const DENIED: [&str; 4] = [
    "NoPerm",
    "NOPERM",
    "ACL failure in script",
    "The user executing the script can't",
];

/// Reports whether an error speaks of a right that is missing.
pub(in crate::store) fn is_denied(error: &RedisError) -> bool {
    speaks_of_rights(&error.to_string())
}

fn speaks_of_rights(error: &str) -> bool {
    DENIED.iter().any(|words| error.contains(words))
}

/// A right that is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Refusal {
    /// The user may not run this command.
    Command(String),
    /// The user may not touch keys of the prefix.
    Keys,
}

impl Refusal {
    /// The right that a failed command of `rights.lua` lacks: a text of its name and its error.
    fn of_script(failure: &str) -> Option<Self> {
        let (command, error) = failure.split_once(' ')?;
        if !speaks_of_rights(error) {
            return None;
        }
        let speaks_of_keys = error.contains("access") && error.contains("key");
        Some(if speaks_of_keys {
            Self::Keys
        } else {
            Self::Command(command.to_owned())
        })
    }

    /// The right that a command outside of a script lacks, which its error names.
    fn of_error(error: &str) -> Option<Self> {
        let named = error
            .split_once("run the '")
            .and_then(|(_, rest)| rest.split_once('\''));
        speaks_of_rights(error).then(|| {
            named.map_or(Self::Keys, |(command, _)| {
                Self::Command(command.to_uppercase())
            })
        })
    }
}

/// What is refused, in words for whoever made the user. `None` if that is nothing.
fn sentence(refusals: &BTreeSet<Refusal>) -> Option<String> {
    let commands: Vec<&str> = refusals
        .iter()
        .filter_map(|refusal| match refusal {
            Refusal::Command(command) => Some(command.as_str()),
            Refusal::Keys => None,
        })
        .collect();
    let lacks = match (commands.as_slice(), refusals.is_empty()) {
        (_, true) => return None,
        ([], false) => "touch the keys of the prefix".to_owned(),
        (commands, false) => format!("run {}", commands.join(", ")),
    };
    Some(format!(
        "its user may not {lacks}; {DOCUMENT} lists its rights"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_command_or_the_keys() {
        let lacks = |refusal: &str| Some(Refusal::Command(refusal.to_owned()));
        let of_redis =
            "HGET ERR The user executing the script can't run this command or subcommand";
        let of_valkey =
            "HGET ERR ACL failure in script: User a has no permissions to run the 'hget' command";
        assert_eq!(
            [of_redis, of_valkey].map(Refusal::of_script),
            [lacks("HGET"), lacks("HGET")]
        );
        let keys = "UNLINK ERR The user executing the script can't access at least one of the keys mentioned";
        assert_eq!(Refusal::of_script(keys), Some(Refusal::Keys));
        assert_eq!(
            Refusal::of_script("SET OOM command not allowed"),
            None,
            "not a matter of rights"
        );
        let direct = "NoPerm: User post has no permissions to run the 'script|load' command";
        assert_eq!(Refusal::of_error(direct), lacks("SCRIPT|LOAD"));
        assert_eq!(
            Refusal::of_error("NoPerm: No permissions to access a key"),
            Some(Refusal::Keys)
        );
        assert_eq!(Refusal::of_error("broken pipe"), None);
    }

    #[test]
    fn a_sentence_names_all_commands_that_are_refused() {
        let command = |name: &str| Refusal::Command(name.to_owned());
        let two = sentence(&[command("HGET"), command("SCRIPT|LOAD")].into()).expect("a sentence");
        assert_eq!(
            two,
            "its user may not run HGET, SCRIPT|LOAD; docs/security.md lists its rights"
        );
        let keys = sentence(&[Refusal::Keys].into()).expect("a sentence");
        assert_eq!(
            keys,
            "its user may not touch the keys of the prefix; docs/security.md lists its rights"
        );
        assert_eq!(sentence(&BTreeSet::new()), None);
    }

    #[test]
    fn every_command_of_every_script_and_reader_is_tried_or_listed() {
        let tried: BTreeSet<&str> = TRIED.iter().map(|words| words[0]).collect();
        let known_outside = [
            "CONFIG", "ROLE", "EVALSHA", "CLUSTER", "SENTINEL", "WAIT", "WAITAOF",
        ];
        let mut missing = BTreeSet::new();
        for (file, text) in sources() {
            for start in ["redis.call('", "redis.pcall('", "cmd(\""] {
                let words = text
                    .split(start)
                    .skip(1)
                    .filter_map(|rest| rest.split(['\'', '"']).next());
                let commands = words
                    .filter(|word| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()));
                for command in commands.filter(|c| !tried.contains(c) && !known_outside.contains(c))
                {
                    missing.insert(format!("{command} of {file}"));
                }
            }
        }
        assert_eq!(missing, BTreeSet::new());
    }

    /// The scripts and the Rust sources of the store.
    fn sources() -> Vec<(String, String)> {
        let mut folders =
            vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/store")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let text = std::fs::read_to_string(&path).expect("a text");
                    found.push((path.display().to_string(), text));
                }
            }
        }
        assert!(found.len() > 50, "{} files", found.len());
        found
    }

    #[test]
    fn the_rights_are_written_down() {
        let path = format!("{}/{DOCUMENT}", env!("CARGO_MANIFEST_DIR"));
        let document = std::fs::read_to_string(path).expect("the document");
        let line = format!(
            "ACL SETUSER postdate on >PASSWORD {}",
            user_rules("postdate").join(" ")
        );
        assert!(
            document.lines().any(|of_document| of_document == line),
            "{line}"
        );
    }
}

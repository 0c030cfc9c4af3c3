//! Lines of a relay's log that say that a part's trouble begins, or that it is over.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

/// Lines for one kind of part: how its name begins, the lines that begin a trouble, the lines that end one.
struct Words {
    part: &'static str,
    begin: &'static [&'static str],
    end: &'static [&'static str],
}

/// The lines of all other parts, which name their part.
const BEGIN: &str = "trouble begins";
const END: &str = "trouble is over";

/// Lines of whoever keeps a connection up. The first entry that fits a part's name is its own; `store:room` is none of
/// them.
const WORDS: &[Words] = &[
    Words {
        part: "redis",
        begin: &["redis is away; waiting for it", "waiting for the store"],
        end: &["connected to redis"],
    },
    Words {
        part: "store",
        begin: &[
            "the store was wiped or replaced",
            "whether the store may be used",
            "waiting for the store",
            "redis is away; waiting for it",
        ],
        end: &[
            "the store may be used; continuing",
            "the store is reached",
            "connected to redis",
        ],
    },
    Words {
        part: "kafka:",
        begin: &[
            "kafka cannot be reached, waiting",
            "kafka consumer is given nothing to read, waiting",
            "kafka consumer restarts",
            "starting another",
        ],
        end: &[
            "kafka is reached",
            "kafka consumer reads its partitions again",
        ],
    },
    Words {
        part: "rabbitmq:",
        begin: &["rabbitmq is away", "rabbitmq has blocked publishing"],
        end: &["rabbitmq is up"],
    },
];

/// The lines of a log, and when each was read.
#[derive(Debug)]
pub(super) struct LogLines {
    file: PathBuf,
    read: u64,
    /// The end of the file, where its last line is not yet complete.
    rest: Vec<u8>,
    lines: Vec<(i64, String)>,
}

impl LogLines {
    /// Reader of the lines that are written from now on.
    pub(super) fn after(file: PathBuf) -> Self {
        let read = std::fs::metadata(&file).map_or(0, |file| file.len());
        Self {
            file,
            read,
            rest: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Reads what is new, and keeps of it what begins or ends a trouble.
    pub(super) fn read(&mut self, now: i64) {
        let Ok(mut file) = File::open(&self.file) else {
            return;
        };
        let mut new = Vec::new();
        if file.seek(SeekFrom::Start(self.read)).is_err() || file.read_to_end(&mut new).is_err() {
            return;
        }
        self.read += new.len() as u64;
        self.rest.extend(new);
        let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') else {
            return;
        };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        let known = |line: &&str| {
            let message = message(line);
            let of_connections = WORDS
                .iter()
                .flat_map(|words| words.begin.iter().chain(words.end));
            let mut all = of_connections.chain(&[BEGIN, END]);
            all.any(|text| message.contains(text))
        };
        let text = String::from_utf8_lossy(&whole).into_owned();
        self.lines.extend(
            text.lines()
                .filter(known)
                .map(|line| (now, line.to_owned())),
        );
    }

    /// Reports whether a line read since then says that this part's trouble begins.
    pub(super) fn begins(&self, part: &str, since: i64) -> bool {
        self.has(part, since, BEGIN, |words| words.begin)
    }

    /// Reports whether a line read since then says that this part's trouble is over.
    pub(super) fn ends(&self, part: &str, since: i64) -> bool {
        self.has(part, since, END, |words| words.end)
    }

    fn has(
        &self,
        part: &str,
        since: i64,
        uniform: &str,
        of: impl Fn(&Words) -> &'static [&'static str],
    ) -> bool {
        let words = WORDS
            .iter()
            .find(|words| part.starts_with(words.part) && part != "store:room");
        let later = self.lines.iter().filter(|(read, _)| *read >= since);
        later.map(|(_, line)| line).any(|line| match words {
            Some(words) => of(words).iter().any(|text| message(line).contains(text)),
            None => message(line).contains(uniform) && names(line, part),
        })
    }
}

/// Reports whether the line is about this part.
fn names(line: &str, part: &str) -> bool {
    let fields: Option<serde_json::Value> = serde_json::from_str(line).ok();
    match fields.as_ref().and_then(|fields| fields["part"].as_str()) {
        Some(named) => named == part,
        None => line.contains(&format!("part=\"{part}\"")),
    }
}

/// The message of a log line. The fields beside it may quote the reason of another part.
fn message(line: &str) -> String {
    let fields: Option<serde_json::Value> = serde_json::from_str(line).ok();
    let message = fields.and_then(|fields| Some(fields["message"].as_str()?.to_owned()));
    message.unwrap_or_else(|| line.to_owned())
}

#[test]
fn a_reason_that_another_line_quotes_begins_nothing() {
    let quoted =
        r#"{"message":"trouble begins","part":"route:a","why":"store:room: trouble begins"}"#;
    let told = r#"{"message":"trouble begins","part":"store:room","why":"away"}"#;
    let text = r#"WARN postdate: trouble begins part="target:main:x" why="part=\"route:b\"""#;
    let mut log = LogLines::after(PathBuf::from("none"));
    log.lines = vec![(1, quoted.to_owned()), (1, text.to_owned())];
    assert!(!log.begins("store:room", 0));
    assert!(log.begins("route:a", 0) && log.begins("target:main:x", 0));
    log.lines.push((1, told.to_owned()));
    assert!(log.begins("store:room", 0) && !log.ends("store:room", 0));
}

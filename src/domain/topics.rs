//! The topics that a Kafka source reads, and the targets that follow from a topic's name.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use regex::bytes::{Regex, RegexBuilder};

use super::route::Target;
use super::{UnixMs, moment};

/// Most topics that one route reads.
pub const MAX_TOPICS: usize = 1000;
/// Most bytes of a topic's name.
const MAX_TOPIC_BYTES: usize = 249;

/// The topics of a Kafka source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topics {
    /// These topics.
    Named(Vec<String>),
    /// All topics whose names match.
    Pattern(TopicPattern),
}

impl Topics {
    /// One topic.
    pub fn one(topic: impl Into<String>) -> Self {
        Self::Named(vec![topic.into()])
    }

    /// The topic, if there is exactly one and its name is known.
    pub fn single(&self) -> Option<&str> {
        match self {
            Self::Named(topics) => match &topics[..] {
                [topic] => Some(topic),
                _ => None,
            },
            Self::Pattern(_) => None,
        }
    }

    /// The topics that the configuration names.
    pub fn named(&self) -> &[String] {
        match self {
            Self::Named(topics) => topics,
            Self::Pattern(_) => &[],
        }
    }

    /// The pattern, if topics are found by one.
    pub fn pattern(&self) -> Option<&TopicPattern> {
        match self {
            Self::Named(_) => None,
            Self::Pattern(pattern) => Some(pattern),
        }
    }

    /// Reports whether a topic is one of them.
    pub fn has(&self, topic: &str) -> bool {
        match self {
            Self::Named(topics) => topics.iter().any(|named| named == topic),
            Self::Pattern(pattern) => pattern.matches(topic),
        }
    }
}

impl fmt::Display for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(topics) => f.write_str(&topics.join(", ")),
            Self::Pattern(pattern) => f.write_str(pattern.as_str()),
        }
    }
}

/// A regular expression for whole names of topics. Kafka's internal topics never match.
#[derive(Clone, Debug)]
pub struct TopicPattern {
    text: String,
    expression: Regex,
}

impl TopicPattern {
    /// Reads a pattern. `Err` says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a pattern of topics cannot be empty".to_owned());
        }
        // Names of topics are ASCII.
        let expression = RegexBuilder::new(&format!("^(?:{text})$"))
            .unicode(false)
            .size_limit(1 << 20)
            .build()
            .map_err(|error| {
                let error = error.to_string();
                let why = error.lines().last().unwrap_or_default();
                format!(
                    "{text:?} is no regular expression: {}",
                    why.trim_start_matches("error: ")
                )
            })?;
        Ok(Self {
            text: text.to_owned(),
            expression,
        })
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of its groups.
    pub fn groups(&self) -> usize {
        self.expression.captures_len() - 1
    }

    /// Reports whether the name of a topic matches.
    pub fn matches(&self, topic: &str) -> bool {
        !topic.starts_with("__") && self.expression.is_match(topic.as_bytes())
    }
}

impl PartialEq for TopicPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for TopicPattern {}

impl Hash for TopicPattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// Where reading begins in a partition of which no position is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StartRule {
    /// At its oldest record.
    #[default]
    Earliest,
    /// At the first record of the moment at which the source was first read, or later.
    Latest,
    /// At the first record of this moment, or later.
    Since(UnixMs),
}

impl fmt::Display for StartRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Earliest => f.write_str("earliest"),
            Self::Latest => f.write_str("latest"),
            Self::Since(time) => match moment::render(*time) {
                Some(text) => f.write_str(&text),
                None => time.fmt(f),
            },
        }
    }
}

/// Checks the name of a topic. `Err` says what is wrong with it.
pub fn check_topic(name: &str) -> Result<(), String> {
    let fits = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    match name {
        "." | ".." => Err(format!("{name:?} cannot be a topic")),
        _ if fits && (1..=MAX_TOPIC_BYTES).contains(&name.len()) => Ok(()),
        _ => Err(format!(
            "{name:?} cannot be a topic: 1 to 249 of the characters A-Z a-z 0-9 . _ -"
        )),
    }
}

/// The name of a target topic with groups of the source's pattern in it: `{1}.due`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTemplate {
    pattern: TopicPattern,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Group(usize),
}

impl TopicTemplate {
    /// Reads a template for topics that match a pattern. `Err` says what is wrong with it.
    pub fn new(text: &str, pattern: &TopicPattern) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no name of a derived topic: `{{N}}` stands for group N of `topic_pattern`, which has {}",
                pattern.groups()
            )
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, group)) = rest.split_once('{') {
            let (number, after) = group.split_once('}').ok_or_else(wrong)?;
            let number: usize = number.parse().map_err(|_| wrong())?;
            if !(1..=pattern.groups()).contains(&number) {
                return Err(wrong());
            }
            parts.push(TemplatePart::Text(before.to_owned()));
            parts.push(TemplatePart::Group(number));
            rest = after;
        }
        parts.push(TemplatePart::Text(rest.to_owned()));
        parts.retain(|part| *part != TemplatePart::Text(String::new()));
        for part in &parts {
            if let TemplatePart::Text(text) = part
                && text != "."
                && text != ".."
            {
                check_topic(text)?;
            }
        }
        Ok(Self {
            pattern: pattern.clone(),
            parts,
        })
    }

    /// The target of a topic. A group that took no part is empty.
    fn expand(&self, topic: &str) -> String {
        let groups = self.pattern.expression.captures(topic.as_bytes());
        let mut target = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => target.push_str(text),
                TemplatePart::Group(number) => {
                    let found = groups.as_ref().and_then(|groups| groups.get(*number));
                    target.push_str(found.map_or("", |found| &topic[found.range()]));
                }
            }
        }
        target
    }
}

/// The targets of a route whose topics each have one of their own.
#[derive(Debug)]
pub struct DerivedTargets {
    connection: String,
    template: TopicTemplate,
    /// The sources of all routes in the cluster of the targets.
    sources: Vec<Topics>,
    known: Mutex<BTreeMap<String, Arc<Target>>>,
}

impl DerivedTargets {
    /// Targets on a connection. None of them may be one of `sources`: a message would be read again.
    pub fn new(connection: String, template: TopicTemplate, sources: Vec<Topics>) -> Self {
        Self {
            connection,
            template,
            sources,
            known: Mutex::default(),
        }
    }

    /// The target of the messages of a topic. `Err` says why nothing may be published there.
    pub fn of_topic(&self, topic: &str) -> Result<Arc<Target>, String> {
        let name = self.template.expand(topic);
        let derived = |why: &str| format!("its target, derived from topic {topic}, {why}");
        check_topic(&name)
            .map_err(|_| derived(&format!("would be {name:?}, which cannot be a topic")))?;
        self.named(&name)
            .ok_or_else(|| derived(&format!("is {name}, which Postdate reads itself: a loop")))
    }

    /// The target with this name. `None` if it cannot be one.
    pub fn named(&self, name: &str) -> Option<Arc<Target>> {
        let mut known = self.known.lock();
        if let Some(target) = known.get(name) {
            return Some(target.clone());
        }
        if check_topic(name).is_err() || self.sources.iter().any(|source| source.has(name)) {
            return None;
        }
        let target = Arc::new(Target::Kafka {
            connection: self.connection.clone(),
            topic: name.to_owned(),
        });
        known.insert(name.to_owned(), target.clone());
        Some(target)
    }

    /// The targets that messages had since the process began.
    pub fn known(&self) -> Vec<Arc<Target>> {
        self.known.lock().values().cloned().collect()
    }
}

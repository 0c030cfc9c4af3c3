//! Reads one table of the merged configuration, key by key.
//!
//! A wrong value is reported and reads as `None`. Reading goes on, so that all problems come at once.
//! Therefore callers read every key of a section before the first `?`.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use figment::value::{Dict, Value};

use super::key_kinds::{KeyKind, KeyKinds};
use super::layers::MergedLayers;
use super::problem::ConfigProblem;
use super::values::{integer, join, kind, shown, text};
use super::{elsewhere, units};
use crate::domain::nearest;
use crate::domain::route::Choice;

/// Layers and problems that all sections of one check share.
pub(super) struct CheckContext<'a> {
    pub(super) layers: &'a MergedLayers,
    /// The name of the file: the source that problems of missing keys name.
    pub(super) file: String,
    pub(super) problems: RefCell<Vec<ConfigProblem>>,
    /// Kinds of the keys that were read, for the schema.
    pub(super) kinds: RefCell<KeyKinds>,
}

impl<'a> CheckContext<'a> {
    pub(super) fn new(
        layers: &'a MergedLayers,
        file: String,
        problems: Vec<ConfigProblem>,
    ) -> Self {
        Self {
            layers,
            file,
            problems: RefCell::new(problems),
            kinds: RefCell::default(),
        }
    }
}

impl CheckContext<'_> {
    /// The source of a value. For a default this is the file, which can set the key.
    pub(super) fn origin(&self, value: &Value) -> String {
        match self.layers.origin(value) {
            origin if origin == super::layers::DEFAULT_ORIGIN => self.file.clone(),
            origin => origin,
        }
    }

    /// Adds a problem, unless it was added before.
    pub(super) fn report(&self, source: String, key: String, message: impl Display) {
        let is_in_file = source == self.file;
        let position = if is_in_file {
            self.layers.positions.find(&key)
        } else {
            None
        };
        let problem = ConfigProblem {
            source,
            position,
            key,
            message: message.to_string(),
        };
        let mut problems = self.problems.borrow_mut();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
}

/// One table of the configuration. It remembers the keys it was asked for: all others are unknown.
pub(super) struct SectionReader<'a> {
    pub(super) context: &'a CheckContext<'a>,
    path: Vec<&'a str>,
    dict: &'a Dict,
    /// The table of `[defaults]` with the values of keys that this one lacks, and its path.
    fallback: Option<(Vec<&'a str>, &'a Dict)>,
    known: RefCell<Vec<&'static str>>,
}

/// Reads the whole configuration.
pub(super) fn root<'a, T>(
    context: &'a CheckContext<'a>,
    read: impl FnOnce(&SectionReader<'a>) -> Option<T>,
) -> Option<T> {
    SectionReader::new(context, vec![], &context.layers.dict, None).read_to_end(read)
}

impl<'a> SectionReader<'a> {
    fn new(
        context: &'a CheckContext<'a>,
        path: Vec<&'a str>,
        dict: &'a Dict,
        fallback: Option<(Vec<&'a str>, &'a Dict)>,
    ) -> Self {
        Self {
            context,
            path,
            dict,
            fallback,
            known: RefCell::default(),
        }
    }

    /// Runs `read`, then reports every key that it did not ask for as unknown.
    fn read_to_end<T>(&self, read: impl FnOnce(&Self) -> Option<T>) -> Option<T> {
        let result = read(self);
        self.report_unknown();
        result
    }

    /// Reads the table `key`, with its fallback.
    pub(super) fn table<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&SectionReader<'a>) -> Option<T>,
    ) -> Option<T> {
        self.known.borrow_mut().push(key);
        self.note(key, KeyKind::Section);
        let fallback = self.fallback.as_ref().and_then(|(path, dict)| {
            let path = path.iter().copied().chain([key]).collect();
            Some((path, dict.get(key)?.as_dict()?))
        });
        let Some(value) = self.dict.get(key) else {
            return match fallback {
                Some((path, dict)) => {
                    SectionReader::new(self.context, path, dict, None).read_to_end(read)
                }
                None => self.missing(key),
            };
        };
        self.enter(key, value, fallback, read)
    }

    /// Reads each table in the table `key`: their names are chosen by the operator.
    pub(super) fn each(
        &self,
        key: &'static str,
        fallback: Option<&'static str>,
        mut read: impl FnMut(&'a str, &SectionReader<'a>),
    ) {
        self.known.borrow_mut().push(key);
        let Some(value) = self
            .dict
            .get(key)
            .filter(|value| !matches!(value, Value::Empty(..)))
        else {
            return;
        };
        let Value::Dict(_, names) = value else {
            return self.report(key, format!("is {}, not a section", kind(value)));
        };
        for (name, value) in names {
            let path = self.path.iter().copied().chain([key]).collect();
            let at = SectionReader::new(self.context, path, names, None);
            let fallback =
                fallback.and_then(|key| Some((vec![key], self.dict.get(key)?.as_dict()?)));
            at.enter(name, value, fallback, |section| {
                read(name, section);
                Some(())
            });
        }
    }

    fn enter<T>(
        &self,
        key: &'a str,
        value: &'a Value,
        fallback: Option<(Vec<&'a str>, &'a Dict)>,
        read: impl FnOnce(&SectionReader<'a>) -> Option<T>,
    ) -> Option<T> {
        static NO_KEYS: Dict = Dict::new();
        let dict = match value {
            Value::Dict(_, dict) => dict,
            Value::Empty(..) => &NO_KEYS,
            other => {
                self.report(key, format!("is {}, not a section", kind(other)));
                return None;
            }
        };
        let path = self.path.iter().copied().chain([key]).collect();
        SectionReader::new(self.context, path, dict, fallback).read_to_end(read)
    }

    /// Reports whether the key is in this table, its fallback apart.
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.known.borrow_mut().push(key);
        self.dict.contains_key(key)
    }

    /// Reports whether a layer above the defaults sets the key in this table.
    pub(super) fn is_set(&self, key: &'static str) -> bool {
        let value = self.dict.get(key);
        value
            .is_some_and(|value| self.context.layers.origin(value) != super::layers::DEFAULT_ORIGIN)
    }

    /// Reports whether a layer above the defaults sets the key, in this table or in its fallback.
    pub(super) fn is_set_anywhere(&self, key: &'static str) -> bool {
        self.value(key)
            .is_some_and(|value| self.context.layers.origin(value) != super::layers::DEFAULT_ORIGIN)
    }

    /// The one of two keys that is to blame where they do not go together: the one that is set, if possible in this table.
    /// If both are, it is the first.
    pub(super) fn blamed(&self, first: &'static str, second: &'static str) -> &'static str {
        let is_first = self.is_set(first) || !self.is_set(second) && self.is_set_anywhere(first);
        if is_first { first } else { second }
    }

    /// Reports whether the key has another value in this table than its default.
    pub(super) fn differs(&self, key: &'static str) -> bool {
        let defaults = &self.context.layers.defaults;
        let fallback = self
            .path
            .iter()
            .try_fold(defaults, |dict, name| dict.get(*name)?.as_dict());
        self.dict
            .get(key)
            .is_some_and(|value| fallback.and_then(|dict| dict.get(key)) != Some(value))
    }

    /// Reports whether the table `key` is missing or empty.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        match self.dict.get(key) {
            None | Some(Value::Empty(..)) => true,
            Some(Value::Dict(_, dict)) => dict.is_empty(),
            Some(_) => false,
        }
    }

    /// The name of this section.
    pub(super) fn key(&self) -> &'a str {
        self.path.last().copied().unwrap_or_default()
    }

    /// The value of a key, from this table or its fallback.
    pub(super) fn value(&self, key: &'static str) -> Option<&'a Value> {
        self.known.borrow_mut().push(key);
        self.dict.get(key).or_else(|| {
            self.fallback
                .as_ref()
                .and_then(|(_, fallback)| fallback.get(key))
        })
    }

    /// Notes what a key takes. A reader that is made of another notes first, and knows better.
    pub(super) fn note(&self, key: &str, kind: KeyKind) {
        let path = self
            .path
            .iter()
            .copied()
            .chain([key])
            .map(str::to_owned)
            .collect();
        let mut kinds = self.context.kinds.borrow_mut();
        let known = kinds.entry(path).or_default();
        let adds_nothing = kind == KeyKind::Text && !known.is_empty();
        if !adds_nothing && !known.contains(&kind) {
            known.push(kind);
        }
    }

    /// Reads a key. A missing one is a problem.
    fn read<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&'a Value) -> Result<T, String>,
    ) -> Option<T> {
        let Some(value) = self.value(key) else {
            return self.missing(key);
        };
        read(value)
            .map_err(|message| self.report(key, message))
            .ok()
    }

    /// Reads a text.
    pub(super) fn text(&self, key: &'static str) -> Option<String> {
        self.note(key, KeyKind::Text);
        self.read(key, |value| text(value).map(str::to_owned))
    }

    /// Reads a text and parses it.
    pub(super) fn parsed<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.note(key, KeyKind::Text);
        self.read(key, |value| parse(text(value)?))
    }

    fn measure<T>(
        &self,
        key: &'static str,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.read(key, |value| match value.as_str() {
            Some(text) => parse(text),
            None => Err(format!("must be {what}, not {}", shown(value))),
        })
    }

    /// Reads a duration above zero.
    pub(super) fn duration(&self, key: &'static str) -> Option<Duration> {
        self.millis(key)
            .map(|millis| Duration::from_millis(millis.unsigned_abs()))
    }

    /// Reads a duration above zero, in milliseconds.
    pub(super) fn millis(&self, key: &'static str) -> Option<i64> {
        self.note(key, KeyKind::Duration);
        self.measure(
            key,
            "a duration such as \"20s\"",
            |text| match units::millis(text)? {
                0 => Err("must be above zero".to_owned()),
                millis => Ok(millis),
            },
        )
    }

    /// Reads a duration in milliseconds, which may be zero.
    pub(super) fn millis_or_none(&self, key: &'static str) -> Option<i64> {
        self.note(key, KeyKind::Duration);
        self.measure(key, "a duration such as \"20s\"", units::millis)
    }

    /// Reads a size above zero, at most `max` bytes.
    pub(super) fn size(&self, key: &'static str, max: u64) -> Option<usize> {
        self.note(key, KeyKind::Size);
        self.measure(key, "a size such as \"1MiB\"", |text| {
            match units::size(text)? {
                0 => Err("must be above zero".to_owned()),
                bytes if bytes > max => Err(format!("{text:?} is more than {}MiB", max >> 20)),
                bytes => Ok(bytes as usize),
            }
        })
    }

    /// Reads a whole number.
    pub(super) fn integer(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        self.note(key, KeyKind::Integer(range.clone()));
        self.read(key, |value| {
            let (min, max) = (range.start(), range.end());
            let number = match value {
                Value::Num(_, number) => integer(*number),
                _ => None,
            };
            let Some(number) = number else {
                return Err(format!(
                    "must be a whole number within {min} to {max}, not {}",
                    shown(value)
                ));
            };
            u64::try_from(number)
                .ok()
                .filter(|number| range.contains(number))
                .ok_or_else(|| format!("{number} is not within {min} to {max}"))
        })
    }

    /// Reads true or false.
    pub(super) fn truth(&self, key: &'static str) -> Option<bool> {
        self.note(key, KeyKind::Truth);
        self.read(key, |value| match value {
            Value::Bool(_, truth) => Ok(*truth),
            _ => Err(format!("must be true or false, not {}", shown(value))),
        })
    }

    /// Reads a setting that takes one of a few words.
    pub(super) fn choice<T: Choice>(&self, key: &'static str) -> Option<T> {
        let words: Vec<_> = T::ALL.iter().map(|&one| (one.as_str(), one)).collect();
        self.one_of(key, &words)
    }

    /// Reads one of a few words.
    pub(super) fn one_of<T: Copy>(
        &self,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        self.note(
            key,
            KeyKind::Choice(words.iter().map(|(word, _)| *word).collect()),
        );
        self.parsed(key, |text| {
            let meant = words.iter().find(|(word, _)| *word == text);
            meant.map(|(_, meaning)| *meaning).ok_or_else(|| {
                let names: Vec<String> =
                    words.iter().map(|(word, _)| format!("{word:?}")).collect();
                format!("{text:?} is not one of {}", names.join(", "))
            })
        })
    }

    /// Reads a list of texts.
    pub(super) fn texts(&self, key: &'static str) -> Option<Vec<String>> {
        self.note(key, KeyKind::Texts);
        self.read(key, |value| match value {
            Value::Array(_, items) => items
                .iter()
                .map(|item| text(item).map(str::to_owned))
                .collect(),
            _ => Err(format!(
                "must be a list such as [\"a\", \"b\"], not {}",
                kind(value)
            )),
        })
    }

    /// Reports a key as missing.
    pub(super) fn missing<T>(&self, key: &str) -> Option<T> {
        self.context.report(
            self.context.file.clone(),
            join(&self.path, key),
            "is missing",
        );
        None
    }

    /// Reports a problem of a key, with the source of its value.
    pub(super) fn report(&self, key: &str, message: impl Display) {
        let (path, value) = if let Some(value) = self.dict.get(key) {
            (&self.path, Some(value))
        } else if let Some((path, dict)) = &self.fallback
            && let Some(value) = dict.get(key)
        {
            (path, Some(value))
        } else {
            (&self.path, None)
        };
        let source = value.map_or_else(
            || self.context.file.clone(),
            |value| self.context.origin(value),
        );
        self.context.report(source, join(path, key), message);
    }

    /// Reports a problem of one entry of a table with free names in it.
    pub(super) fn report_entry(&self, key: &'a str, entry: &str, message: impl Display) {
        let value = self
            .dict
            .get(key)
            .and_then(|table| table.as_dict()?.get(entry));
        let source = value.map_or_else(
            || self.context.file.clone(),
            |value| self.context.origin(value),
        );
        let path: Vec<&str> = self.path.iter().copied().chain([key]).collect();
        self.context.report(source, join(&path, entry), message);
    }

    /// Reports a problem of the section as a whole.
    pub(super) fn report_self(&self, message: impl Display) {
        let Some((key, path)) = self.path.split_last() else {
            return;
        };
        // Any value names the source of the section: merging keeps no source for a table.
        let value = self.dict.values().next();
        let source = value.map_or_else(
            || self.context.file.clone(),
            |value| self.context.origin(value),
        );
        self.context.report(source, join(path, key), message);
    }

    fn report_unknown(&self) {
        let known = self.known.borrow();
        for key in self
            .dict
            .keys()
            .filter(|key| !known.contains(&key.as_str()))
        {
            if let Some(near) = nearest(key, known.iter().copied()) {
                self.report(
                    key,
                    format!("unknown key; did you mean `{}`?", join(&self.path, near)),
                );
            } else if let Some(elsewhere) = elsewhere::elsewhere(&self.context.layers.defaults, key)
            {
                self.report(key, format!("unknown key; did you mean `{elsewhere}`?"));
            } else {
                let mut names = known.clone();
                names.sort_unstable();
                names.dedup();
                self.report(
                    key,
                    format!("unknown key; known here: {}", names.join(", ")),
                );
            }
        }
    }
}

//! Reading one table of the merged configuration, key by key.
//!
//! A wrong value is reported and reads as `None`; reading goes on, so that all problems come at once.
//! Whoever builds from a section reads every key before the first `?`.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use figment::value::{Dict, Num, Value};

use super::layers::Layers;
use super::problem::Problem;
use super::{elsewhere, units};
use crate::domain::nearest;

/// What all sections of one check share.
pub(super) struct Context<'a> {
    pub(super) layers: &'a Layers,
    /// The file's name: the place of what is missing.
    pub(super) file: String,
    pub(super) problems: RefCell<Vec<Problem>>,
}

impl Context<'_> {
    /// Where a value came from; the file, for one that the file should have set.
    pub(super) fn origin(&self, value: &Value) -> String {
        match self.layers.origin(value) {
            origin if origin == super::layers::DEFAULT => self.file.clone(),
            origin => origin,
        }
    }

    /// Reports a problem, once.
    pub(super) fn report(&self, source: String, key: String, message: impl Display) {
        let problem = Problem { source, key, message: message.to_string() };
        let mut problems = self.problems.borrow_mut();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
}

/// One table.
pub(super) struct Section<'a> {
    pub(super) context: &'a Context<'a>,
    path: Vec<&'a str>,
    dict: &'a Dict,
    /// The table of `[defaults]` that stands behind this one.
    behind: Option<(Vec<&'a str>, &'a Dict)>,
    known: RefCell<Vec<&'static str>>,
}

/// Reads the whole configuration.
pub(super) fn root<'a, T>(
    context: &'a Context<'a>,
    read: impl FnOnce(&Section<'a>) -> Option<T>,
) -> Option<T> {
    Section::new(context, vec![], &context.layers.dict, None).whole(read)
}

impl<'a> Section<'a> {
    fn new(
        context: &'a Context<'a>,
        path: Vec<&'a str>,
        dict: &'a Dict,
        behind: Option<(Vec<&'a str>, &'a Dict)>,
    ) -> Self {
        Self { context, path, dict, behind, known: RefCell::default() }
    }

    /// Reads it to its end: then what nobody asked for is unknown.
    fn whole<T>(&self, read: impl FnOnce(&Self) -> Option<T>) -> Option<T> {
        let result = read(self);
        self.report_unknown();
        result
    }

    /// Reads the table `key`, with the one that stands behind it.
    pub(super) fn table<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&Section<'a>) -> Option<T>,
    ) -> Option<T> {
        self.known.borrow_mut().push(key);
        let behind = self.behind.as_ref().and_then(|(path, dict)| {
            let path = path.iter().copied().chain([key]).collect();
            Some((path, dict.get(key)?.as_dict()?))
        });
        let Some(value) = self.dict.get(key) else {
            return match behind {
                Some((path, dict)) => Section::new(self.context, path, dict, None).whole(read),
                None => self.missing(key),
            };
        };
        self.enter(key, value, behind, read)
    }

    /// Reads each table of the table `key`, whose names the operator chose.
    pub(super) fn each(
        &self,
        key: &'static str,
        behind: Option<&'static str>,
        mut read: impl FnMut(&'a str, &Section<'a>),
    ) {
        self.known.borrow_mut().push(key);
        let Some(value) = self.dict.get(key).filter(|value| !matches!(value, Value::Empty(..))) else {
            return;
        };
        let Value::Dict(_, names) = value else {
            return self.report(key, format!("is {}, not a section", kind(value)));
        };
        for (name, value) in names {
            let path = self.path.iter().copied().chain([key]).collect();
            let at = Section::new(self.context, path, names, None);
            let behind = behind.and_then(|key| Some((vec![key], self.dict.get(key)?.as_dict()?)));
            at.enter(name, value, behind, |section| {
                read(name, section);
                Some(())
            });
        }
    }

    fn enter<T>(
        &self,
        key: &'a str,
        value: &'a Value,
        behind: Option<(Vec<&'a str>, &'a Dict)>,
        read: impl FnOnce(&Section<'a>) -> Option<T>,
    ) -> Option<T> {
        static NOTHING: Dict = Dict::new();
        let dict = match value {
            Value::Dict(_, dict) => dict,
            Value::Empty(..) => &NOTHING,
            other => {
                self.report(key, format!("is {}, not a section", kind(other)));
                return None;
            }
        };
        let path = self.path.iter().copied().chain([key]).collect();
        Section::new(self.context, path, dict, behind).whole(read)
    }

    /// Whether the key is set here (not behind).
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.known.borrow_mut().push(key);
        self.dict.contains_key(key)
    }

    /// Whether the key is set here by anything above the defaults.
    pub(super) fn is_set(&self, key: &'static str) -> bool {
        let value = self.dict.get(key);
        value.is_some_and(|value| self.context.layers.origin(value) != super::layers::DEFAULT)
    }

    /// Whether the key is set here to something else than its default.
    pub(super) fn differs(&self, key: &'static str) -> bool {
        let defaults = &self.context.layers.defaults;
        let behind = self.path.iter().try_fold(defaults, |dict, name| dict.get(*name)?.as_dict());
        self.dict.get(key).is_some_and(|value| behind.and_then(|dict| dict.get(key)) != Some(value))
    }

    /// Whether a table is not there or has nothing in it.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        match self.dict.get(key) {
            None | Some(Value::Empty(..)) => true,
            Some(Value::Dict(_, dict)) => dict.is_empty(),
            Some(_) => false,
        }
    }

    /// The section's own name.
    pub(super) fn key(&self) -> &'a str {
        self.path.last().copied().unwrap_or_default()
    }

    /// The value of a key, here or behind.
    pub(super) fn value(&self, key: &'static str) -> Option<&'a Value> {
        self.known.borrow_mut().push(key);
        self.dict.get(key).or_else(|| self.behind.as_ref().and_then(|(_, behind)| behind.get(key)))
    }

    /// Reads a key; a missing one is a problem.
    fn read<T>(&self, key: &'static str, read: impl FnOnce(&'a Value) -> Result<T, String>) -> Option<T> {
        let Some(value) = self.value(key) else { return self.missing(key) };
        read(value).map_err(|message| self.report(key, message)).ok()
    }

    /// A text.
    pub(super) fn text(&self, key: &'static str) -> Option<String> {
        self.read(key, |value| text(value).map(str::to_owned))
    }

    /// A text of some form.
    pub(super) fn parsed<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
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

    /// A duration above zero.
    pub(super) fn duration(&self, key: &'static str) -> Option<Duration> {
        self.millis(key).map(|millis| Duration::from_millis(millis.unsigned_abs()))
    }

    /// A duration above zero, in milliseconds.
    pub(super) fn millis(&self, key: &'static str) -> Option<i64> {
        self.measure(key, "a duration such as \"20s\"", |text| match units::millis(text)? {
            0 => Err("must be above zero".to_owned()),
            millis => Ok(millis),
        })
    }

    /// A duration in milliseconds; zero is none.
    pub(super) fn millis_or_none(&self, key: &'static str) -> Option<i64> {
        self.measure(key, "a duration such as \"20s\"", units::millis)
    }

    /// A size above zero, at most `max` bytes.
    pub(super) fn size(&self, key: &'static str, max: u64) -> Option<usize> {
        self.measure(key, "a size such as \"1MiB\"", |text| match units::size(text)? {
            0 => Err("must be above zero".to_owned()),
            bytes if bytes > max => Err(format!("{text:?} is more than {}MiB", max >> 20)),
            bytes => Ok(bytes as usize),
        })
    }

    /// A whole number.
    pub(super) fn integer(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        self.read(key, |value| {
            let number = match value {
                Value::Num(_, number) => whole(*number),
                _ => None,
            };
            let Some(number) = number else {
                return Err(format!("must be a whole number, not {}", shown(value)));
            };
            match u64::try_from(number).ok().filter(|number| range.contains(number)) {
                Some(number) => Ok(number),
                None if *range.end() == u64::MAX => Err(format!("{number} is below {}", range.start())),
                None => Err(format!("{number} is not within {} to {}", range.start(), range.end())),
            }
        })
    }

    /// True or false.
    pub(super) fn truth(&self, key: &'static str) -> Option<bool> {
        self.read(key, |value| match value {
            Value::Bool(_, truth) => Ok(*truth),
            _ => Err(format!("must be true or false, not {}", shown(value))),
        })
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        self.parsed(key, |text| {
            let meant = words.iter().find(|(word, _)| *word == text);
            meant.map(|(_, meaning)| *meaning).ok_or_else(|| {
                let names: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
                format!("{text:?} is not one of {}", names.join(", "))
            })
        })
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &'static str) -> Option<Vec<String>> {
        self.read(key, |value| match value {
            Value::Array(_, items) => items.iter().map(|item| text(item).map(str::to_owned)).collect(),
            _ => Err(format!("must be a list such as [\"a\", \"b\"], not {}", kind(value))),
        })
    }

    /// Reports a key as missing.
    pub(super) fn missing<T>(&self, key: &str) -> Option<T> {
        self.context.report(self.context.file.clone(), join(&self.path, key), "is missing");
        None
    }

    /// Reports a problem of a key, at the place its value came from.
    pub(super) fn report(&self, key: &str, message: impl Display) {
        let at_behind = || {
            let (path, dict) = self.behind.as_ref()?;
            Some((path, dict.get(key)?))
        };
        let (path, value) = match self.dict.get(key) {
            Some(value) => (&self.path, Some(value)),
            None => at_behind().map_or((&self.path, None), |(path, value)| (path, Some(value))),
        };
        let source = value.map_or_else(|| self.context.file.clone(), |value| self.context.origin(value));
        self.context.report(source, join(path, key), message);
    }

    /// Reports a problem of one entry of a table whose keys are not ours.
    pub(super) fn report_entry(&self, key: &'a str, entry: &str, message: impl Display) {
        let value = self.dict.get(key).and_then(|table| table.as_dict()?.get(entry));
        let source = value.map_or_else(|| self.context.file.clone(), |value| self.context.origin(value));
        let path: Vec<&str> = self.path.iter().copied().chain([key]).collect();
        self.context.report(source, join(&path, entry), message);
    }

    /// Reports a problem of the section as a whole.
    pub(super) fn report_self(&self, message: impl Display) {
        let Some((key, path)) = self.path.split_last() else { return };
        // The section's own place: that of any of its values, for a table has none that merging keeps.
        let value = self.dict.values().next();
        let source = value.map_or_else(|| self.context.file.clone(), |value| self.context.origin(value));
        self.context.report(source, join(path, key), message);
    }

    fn report_unknown(&self) {
        let known = self.known.borrow();
        for key in self.dict.keys().filter(|key| !known.contains(&key.as_str())) {
            if let Some(near) = nearest(key, known.iter().copied()) {
                self.report(key, format!("unknown key; did you mean `{}`?", join(&self.path, near)));
            } else if let Some(elsewhere) = elsewhere::elsewhere(&self.context.layers.defaults, key) {
                self.report(key, format!("unknown key; did you mean `{elsewhere}`?"));
            } else {
                let mut names = known.clone();
                names.sort_unstable();
                names.dedup();
                self.report(key, format!("unknown key; known here: {}", names.join(", ")));
            }
        }
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("must be text in quotes, not {}", kind(value)))
}

/// What a value is, for a reader.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "text",
        Value::Bool(..) => "true or false",
        Value::Num(..) => "a number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a section",
        Value::Array(..) => "a list",
    }
}

/// A number without a fraction. YAML's are unsigned where they can be, TOML's are not.
pub(super) fn whole(number: Num) -> Option<i128> {
    number.to_i128().or_else(|| number.to_u128().and_then(|number| number.try_into().ok()))
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(_, text) => format!("the text {text:?}"),
        Value::Num(_, number) => match (whole(*number), number.to_f64()) {
            (Some(whole), _) => format!("the number {whole}"),
            (None, Some(float)) => format!("the number {float}"),
            (None, None) => kind(value).to_owned(),
        },
        _ => kind(value).to_owned(),
    }
}

fn join(path: &[&str], key: &str) -> String {
    path.iter().copied().chain([key]).map(quoted).collect::<Vec<_>>().join(".")
}

/// A key as TOML writes it.
pub(super) fn quoted(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare { key.to_owned() } else { toml::Value::from(key).to_string() }
}

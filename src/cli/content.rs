//! The content of a message, and conditions on messages, as arguments say them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;

use super::client::ClientError;

/// The content of a message.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ContentArgs {
    /// The record's key; for routes from Kafka
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// A header; may be repeated
    #[arg(long = "header", value_name = "N=V", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The body
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    body: Option<String>,
    /// A file that holds the body
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// The content as the API takes it.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) key: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Option<String>,
    pub(super) body_base64: Option<String>,
}

impl ContentArgs {
    /// Reads the content, and its body from the file that is named.
    pub(super) fn read(self) -> Result<Content, ClientError> {
        let count = self.headers.len();
        let headers: BTreeMap<String, String> = self.headers.into_iter().collect();
        if headers.len() < count {
            let why = "each header can be given once";
            return Err(ClientError::Usage(why.to_owned()));
        }
        let bytes = match (self.body, self.file) {
            (Some(text), _) => Some(text.into_bytes()),
            (None, Some(file)) => Some(std::fs::read(&file).map_err(|error| {
                ClientError::Usage(format!("cannot read {}: {error}", file.display()))
            })?),
            (None, None) => None,
        };
        let (body, body_base64) = match bytes.map(String::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), None),
            Some(Err(bytes)) => (None, Some(STANDARD.encode(bytes.as_bytes()))),
        };
        Ok(Content {
            key: self.key,
            headers,
            body,
            body_base64,
        })
    }
}

/// Conditions on messages. All that are given must hold.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ConditionArgs {
    /// Whose id begins so
    #[arg(long, value_name = "TEXT")]
    pub(super) id_prefix: Option<String>,
    /// Whose key is this
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// With this header, its value whole; may be repeated
    #[arg(long = "header", value_name = "N=V", value_parser = header)]
    headers: Vec<(String, String)>,
    /// With this text in the body; for tokens that may see bodies
    #[arg(long, value_name = "TEXT")]
    pub(super) contains: Option<String>,
}

impl ConditionArgs {
    /// The headers, as the API takes them.
    pub(super) fn header(&self) -> Vec<String> {
        let headers = self.headers.iter();
        headers
            .map(|(name, value)| format!("{name}:{value}"))
            .collect()
    }

    /// All of them as parameters of a query.
    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        let of = |name, value: &Option<String>| Some((name, value.clone()?));
        let headers = self.header().into_iter().map(|header| ("header", header));
        of("id_prefix", &self.id_prefix)
            .into_iter()
            .chain(of("key", &self.key))
            .chain(headers)
            .chain(of("contains", &self.contains))
            .collect()
    }
}

pub(super) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a header is written NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct ContentCommandLine {
        #[command(flatten)]
        content: ContentArgs,
    }

    #[derive(Debug, Parser)]
    struct ConditionCommandLine {
        #[command(flatten)]
        conditions: ConditionArgs,
    }

    #[test]
    fn a_body_is_text_where_it_can_be_and_a_header_stands_once() {
        let read = |line: &[&str]| {
            let words = std::iter::once(&"x").chain(line);
            let args = ContentCommandLine::try_parse_from(words).expect("parses");
            args.content.read()
        };
        let none = read(&[]).expect("read");
        assert_eq!((none.body, none.body_base64, none.key), (None, None, None));
        let text = read(&["--body", "", "--header", "a=b=c"]).expect("read");
        assert_eq!(text.body.as_deref(), Some(""));
        assert_eq!(text.headers["a"], "b=c");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), [0xff, 0]).expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let bytes = read(&["--file", path]).expect("read");
        assert_eq!(
            (bytes.body, bytes.body_base64.as_deref()),
            (None, Some("/wA="))
        );
        for wrong in [
            &["--header", "a=1", "--header", "a=2"][..],
            &["--file", "/nothing/there"],
        ] {
            let error = read(wrong).expect_err("refused");
            assert_eq!(error.exit_code(), 64, "{wrong:?}: {error}");
        }
    }

    #[test]
    fn conditions_are_parameters_of_a_query() {
        let line = "x --id-prefix o- --header a=b:c --header d= --contains text";
        let args = ConditionCommandLine::try_parse_from(line.split(' ')).expect("parses");
        let pairs = args.conditions.pairs();
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let expected = [
            ("id_prefix", "o-"),
            ("header", "a:b:c"),
            ("header", "d:"),
            ("contains", "text"),
        ];
        assert_eq!(pairs, expected);
    }
}

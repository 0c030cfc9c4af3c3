//! Secrets of the configuration: given by their own key, or by a key that names a file.

use std::path::{Path, PathBuf};

use super::section::SectionReader;
use crate::admin::config::{NamedToken, TokenList};
use crate::credential::{Credential, read_secret};

/// Reads a secret from its key, or from the file that its other key names. Reports both at once as a problem.
pub(super) fn secret(
    section: &SectionReader<'_>,
    key: &'static str,
    file: &'static str,
    check: impl Fn(&str) -> Result<(), String>,
) -> Option<Credential> {
    if !section.has(file) {
        return section.parsed(key, |text| check(text).map(|()| Credential::inline(text)));
    }
    section.value(key);
    not_both(section, key, file)?;
    section.parsed(file, |path| {
        let credential = Credential::from_file(Path::new(path))?;
        check(credential.configured().expose())
            .map_err(|message| format!("the text of {path} {message}"))?;
        Ok(credential)
    })
}

/// Reports a key that is set beside the key of its file.
pub(super) fn not_both(
    section: &SectionReader<'_>,
    key: &'static str,
    file: &'static str,
) -> Option<()> {
    if section.is_set(key) {
        section.report(file, format!("`{key}` is set too; one of the two must go"));
        return None;
    }
    Some(())
}

/// Reads a list of bearer tokens, or a file with one a line.
pub(super) fn tokens(
    section: &SectionReader<'_>,
    key: &'static str,
    file: &'static str,
) -> Option<TokenList> {
    let (given_by, texts, path) = if section.has(file) {
        section.value(key);
        not_both(section, key, file)?;
        let (text, path) = section.parsed(file, |path| {
            Ok((read_secret(Path::new(path))?, PathBuf::from(path)))
        })?;
        (file, text.lines().map(str::to_owned).collect(), Some(path))
    } else {
        (key, section.texts(key)?, None)
    };
    let mut tokens = Vec::new();
    for (index, text) in texts.into_iter().enumerate() {
        match NamedToken::parse(&text) {
            Ok(token) => tokens.push(token),
            Err(fault) => section.report(given_by, format!("token {} {fault}", index + 1)),
        }
    }
    Some(TokenList { tokens, file: path })
}

/// Reports whether a key, or a librdkafka property, holds a secret, by its name.
pub(super) fn is_secret_property(name: &str) -> bool {
    if name == "token_url" {
        return false;
    }
    let name = name.to_ascii_lowercase();
    [
        "pass",
        "secret",
        "token",
        "private",
        ".pem",
        "oauthbearer.config",
        "jaas",
        "authorization",
    ]
    .iter()
    .any(|part| name.contains(part))
}

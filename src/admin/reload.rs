//! Files of the listener that are read again when they change: those of its certificate, and those of tokens. A certificate
//! that is wrong changes nothing. Of tokens the lines that are right count, and what is no longer there is gone.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::auth::{AccessRole, AccessTokens};
use super::config::{Config, NamedToken, TokenList};
use super::tls::ShownCertificate;
use crate::credential::read_secret;
use crate::health::{Health, Part};
use crate::lifecycle::{Shutdown, tick};
use crate::tls::{IdentityFiles, IdentityPem};

/// Time between two looks at the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Files to look at.
pub(super) struct WatchedFiles {
    certificate: Option<WatchedCertificate>,
    tokens: Vec<WatchedTokens>,
}

/// The files of the certificate, and their contents when they were last read.
pub(super) struct WatchedCertificate {
    files: IdentityFiles,
    shown: Arc<ShownCertificate>,
    last: Result<IdentityPem, String>,
}

/// A file of tokens of one role, and what it held when it was last read.
struct WatchedTokens {
    file: PathBuf,
    role: AccessRole,
    listen: SocketAddr,
    access: Arc<AccessTokens>,
    /// `None` before the first look: the file may have changed since the configuration was read.
    last: Option<Result<String, String>>,
    part: Part,
}

impl WatchedFiles {
    pub(super) fn new(
        certificate: Option<WatchedCertificate>,
        config: &Config,
        access: &Arc<AccessTokens>,
        health: &Health,
    ) -> Self {
        let watched = |list: &TokenList, role, part: &str| {
            let file = list.file.clone()?;
            Some(WatchedTokens {
                file,
                role,
                listen: config.listen,
                access: access.clone(),
                last: None,
                part: health.side_part(part),
            })
        };
        let read = watched(&config.read_tokens, AccessRole::Read, "admin:read_tokens");
        let write = watched(
            &config.write_tokens,
            AccessRole::Write,
            "admin:write_tokens",
        );
        Self {
            certificate,
            tokens: read.into_iter().chain(write).collect(),
        }
    }

    /// Reports whether there is no file to look at.
    pub(super) fn is_empty(&self) -> bool {
        self.certificate.is_none() && self.tokens.is_empty()
    }

    /// Looks at the files until draining begins.
    pub(super) async fn watch(mut self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.draining() => return,
                () = tick(LOOK_INTERVAL) => {}
            }
            // A file may lie where reading takes long.
            let looked = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            self = match looked.await {
                Ok(files) => files,
                Err(error) => {
                    warn!(%error, "admin files are no longer looked at");
                    return;
                }
            };
        }
    }

    fn look(&mut self) {
        if let Some(certificate) = &mut self.certificate {
            certificate.look();
        }
        for tokens in &mut self.tokens {
            tokens.look();
        }
    }
}

impl WatchedCertificate {
    /// Reads the files for the first time.
    pub(super) fn load(files: &IdentityFiles) -> Result<(Self, Arc<ShownCertificate>), String> {
        let pem = files.read()?;
        let shown = ShownCertificate::new(files.parse(&pem)?);
        Ok((
            Self {
                files: files.clone(),
                shown: shown.clone(),
                last: Ok(pem),
            },
            shown,
        ))
    }

    fn look(&mut self) {
        let read = self.files.read();
        if read == self.last {
            return;
        }
        let parsed = match &read {
            Ok(pem) => self.files.parse(pem),
            Err(why) => Err(why.clone()),
        };
        self.last = read;
        match parsed {
            Ok(pair) => {
                self.shown.replace(pair);
                info!(certificate = %self.files.certificate.display(), "admin shows a new certificate");
            }
            Err(error) => warn!(
                error,
                "a new admin certificate cannot be used; the one before stays"
            ),
        }
    }
}

impl WatchedTokens {
    fn look(&mut self) {
        let read = read_secret(&self.file);
        if self.last.as_ref() == Some(&read) {
            return;
        }
        let file = self.file.display();
        let (tokens, fault) = match &read {
            Ok(text) => {
                let (tokens, fault) = tokens_of(text, self.listen);
                (tokens, fault.map(|fault| format!("{file}: {fault}")))
            }
            Err(why) => (Vec::new(), Some(why.clone())),
        };
        self.access.replace(self.role, &tokens);
        let count = tokens.len();
        if let Some(fault) = fault {
            warn!(
                fault,
                count, "the file of admin tokens has a fault; its lines that are right count"
            );
            self.part
                .down(format!("{fault}; {count} of its tokens count"));
        } else {
            if self.last.is_some() {
                info!(%file, count, "admin takes new tokens");
            }
            self.part.up();
        }
        self.last = Some(read);
    }
}

/// The tokens of a file, and its first fault. No message quotes one.
fn tokens_of(text: &str, listen: SocketAddr) -> (Vec<NamedToken>, Option<String>) {
    let mut tokens = Vec::new();
    let mut first = None;
    for (line, text) in (1..).zip(text.lines()) {
        let read = NamedToken::parse(text).map_err(str::to_owned);
        let judged = read.and_then(|token| match token.length_fault(listen) {
            Some(fault) => Err(fault),
            None => Ok(token),
        });
        match judged {
            Ok(token) => tokens.push(token),
            Err(fault) => drop(first.get_or_insert(format!("token {line} {fault}"))),
        }
    }
    if tokens.is_empty() && first.is_none() {
        first = Some("is empty".to_owned());
    }
    (tokens, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_of_tokens_is_judged_as_the_first_was() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let elsewhere = SocketAddr::from(([0, 0, 0, 0], 0));
        for (text, listen, names, said) in [
            ("ann one\n@b two\n", loopback, &["ann", "@b"][..], None),
            ("ann one\nann two", loopback, &["ann", "ann"], None),
            ("sixteen-or-longer\r\n", elsewhere, &["f238ec41"], None),
            ("", loopback, &[], Some("is empty")),
            (
                "one\n\ntwo",
                loopback,
                &["7692c3ad", "3fc4ccfe"],
                Some("token 2 is empty"),
            ),
            (
                "pass word x\nann two",
                loopback,
                &["ann"],
                Some("token 1 is empty or has other than visible ASCII"),
            ),
            (
                "a/b two",
                loopback,
                &[],
                Some("token 1 has a name before it"),
            ),
            (" two", loopback, &[], Some("token 1 has a name before it")),
            ("two ", loopback, &[], Some("token 1 is empty or")),
            (
                "bob hunter2\nann sixteen-or-longer",
                elsewhere,
                &["ann"],
                Some("token 1 has fewer than 16 characters"),
            ),
        ] {
            let (tokens, fault) = tokens_of(text, listen);
            let found: Vec<&str> = tokens.iter().map(|token| &*token.name).collect();
            assert_eq!(found, names, "{text:?}");
            assert_eq!(fault.is_some(), said.is_some(), "{text:?}: {fault:?}");
            let fault = fault.unwrap_or_default();
            assert!(
                fault.contains(said.unwrap_or_default()) && !fault.contains("hunter2"),
                "{fault}"
            );
        }
    }
}

//! Files of the listener that are read again when they change: those of its certificate, and those of tokens. What is
//! wrong in a new file changes nothing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::auth::{AccessRole, AccessTokens};
use super::config::{Config, TokenList, token_fault, token_length_fault};
use super::tls::ShownCertificate;
use crate::domain::Secret;
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

/// A file of tokens of one role, and its text when it was last read.
struct WatchedTokens {
    file: PathBuf,
    role: AccessRole,
    listen: SocketAddr,
    access: Arc<AccessTokens>,
    last: Result<String, String>,
}

impl WatchedFiles {
    pub(super) fn new(
        certificate: Option<WatchedCertificate>,
        config: &Config,
        access: &Arc<AccessTokens>,
    ) -> Self {
        let watched = |list: &TokenList, role| {
            let file = list.file.clone()?;
            let last = read_text(&file);
            Some(WatchedTokens {
                file,
                role,
                listen: config.listen,
                access: access.clone(),
                last,
            })
        };
        let read = watched(&config.read_tokens, AccessRole::Read);
        let write = watched(&config.write_tokens, AccessRole::Write);
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
        let read = read_text(&self.file);
        if read == self.last {
            return;
        }
        let file = self.file.display();
        let parsed = read
            .as_deref()
            .map_err(Clone::clone)
            .and_then(|text| tokens_of(text, self.listen));
        match parsed {
            Ok(tokens) => {
                self.access.replace(self.role, &tokens);
                info!(%file, count = tokens.len(), "admin takes new tokens");
            }
            Err(error) => warn!(%file, error, "new admin tokens cannot be used; those before stay"),
        }
        self.last = read;
    }
}

fn read_text(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("cannot be read: {error}"))
}

/// The tokens of a file, at least one. No message quotes one.
fn tokens_of(text: &str, listen: SocketAddr) -> Result<Vec<Secret>, String> {
    let mut tokens = Vec::new();
    for (index, token) in text.lines().enumerate() {
        let fault = token_fault(token)
            .map(str::to_owned)
            .or_else(|| token_length_fault(token, listen));
        if let Some(fault) = fault {
            return Err(format!("token {} {fault}", index + 1));
        }
        tokens.push(Secret::new(token));
    }
    if tokens.is_empty() {
        Err("is empty".to_owned())
    } else {
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_of_tokens_is_judged_as_the_first_was() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let elsewhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let count = |text, listen| tokens_of(text, listen).map(|tokens| tokens.len());
        assert_eq!(count("one\ntwo\n", loopback), Ok(2));
        assert_eq!(count("sixteen-or-longer\r\n", elsewhere), Ok(1));
        for (text, listen, said) in [
            ("", loopback, "is empty"),
            ("one\n\ntwo", loopback, "token 2 is empty"),
            (
                "pass word",
                loopback,
                "token 1 is empty or has other than visible ASCII",
            ),
            ("hunter2", elsewhere, "token 1 has fewer than 16 characters"),
        ] {
            let refused = count(text, listen).expect_err(text);
            assert!(
                refused.contains(said) && !refused.contains("hunter2"),
                "{refused}"
            );
        }
    }
}

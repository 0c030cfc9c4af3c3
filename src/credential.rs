//! Credentials: secrets that stand in the configuration, or in a file that the configuration names.
//!
//! A file is read again for each new connection. So a secret that is rotated (a Kubernetes Secret, a lease of Vault, an
//! OAuth token as password) takes effect at the next connection, without a restart.

use std::path::{Path, PathBuf};

use crate::domain::Secret;

/// A secret, with the file that it stands in, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The secret as it was when the configuration was read.
    configured: Secret,
    file: Option<PathBuf>,
}

impl Credential {
    /// A secret that stands in the configuration itself.
    pub fn inline(text: impl Into<String>) -> Self {
        Self {
            configured: Secret::new(text),
            file: None,
        }
    }

    /// The secret in a file. The error is a sentence that names the file and shows nothing of its text.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        Ok(Self {
            configured: Secret::new(read_secret(path)?),
            file: Some(path.to_owned()),
        })
    }

    /// The secret as it was when the configuration was read.
    pub fn configured(&self) -> &Secret {
        &self.configured
    }

    /// The secret as it is now: reads its file again. The error is a sentence that names the file.
    pub fn current(&self) -> Result<Secret, String> {
        match &self.file {
            Some(file) => read_secret(file).map(Secret::new),
            None => Ok(self.configured.clone()),
        }
    }
}

/// The text of a file with a secret, without one line break at its end. The error is a sentence that names the file.
pub fn read_secret(path: &Path) -> Result<String, String> {
    let mut text = std::fs::read_to_string(path)
        .map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() {
        Err(format!("{} is empty", path.display()))
    } else {
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_and_a_text_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        std::fs::write(&file, "first\n").expect("written");
        let credential = Credential::from_file(&file).expect("read");
        std::fs::write(&file, "second\r\n").expect("written");
        let now = credential.current().expect("read again");
        assert_eq!(
            (credential.configured().expose(), now.expose()),
            ("first", "second")
        );
        std::fs::write(&file, "\n").expect("written");
        assert!(
            credential
                .current()
                .is_err_and(|why| why.contains("is empty"))
        );
        std::fs::remove_file(&file).expect("removed");
        assert!(
            credential
                .current()
                .is_err_and(|why| why.contains("cannot be read"))
        );
        let inline = Credential::inline("text");
        assert_eq!(inline.current().expect("always").expose(), "text");
    }
}

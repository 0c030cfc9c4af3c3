//! A text that cannot be printed or serialised: passwords, tokens, and URLs that hold them.

/// A secret. `Debug` shows `***`; there is no `Display` and no `Serialize`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself: for the client library that needs it, never for a log.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A URL with its user and password cut out; safe to show.
    pub fn redacted_url(&self) -> String {
        match (self.0.find("://"), self.0.rfind('@')) {
            (Some(scheme), Some(at)) if at > scheme => {
                format!("{}://***{}", &self.0[..scheme], &self.0[at..])
            }
            (None, Some(_)) => "***".to_owned(),
            _ => self.0.clone(),
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

//! A text that cannot be printed or serialised: passwords, tokens, and URLs that contain them.

/// A secret. `Debug` shows `***`; there is no `Display` and no `Serialize`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the client library that needs it, never for a log.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A URL without its user, password and query; safe to show.
    pub fn redacted_url(&self) -> String {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return if self.0.contains('@') {
                "***".to_owned()
            } else {
                self.0.clone()
            };
        };
        // A password may contain an unescaped `@`, `/` or `?`. Cut at the last `@` first, so that no part of it
        // shows.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((_, rest)) => ("***@", rest),
            None => ("", rest),
        };
        let (rest, query) = match rest.split_once('?') {
            Some((rest, _)) => (rest, "?***"),
            None => (rest, ""),
        };
        format!("{scheme}://{user}{rest}{query}")
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_shows_where_it_leads_and_nothing_of_who_asks() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/1", "redis://127.0.0.1:6379/1"),
            ("redis://:hunter2@h:6379", "redis://***@h:6379"),
            (
                "amqp://u:hun@t/er?2@h/%2f?heartbeat=5",
                "amqp://***@h/%2f?***",
            ),
            (
                "unix:///run/redis.sock?pass=hunter2",
                "unix:///run/redis.sock?***",
            ),
            ("u:hunter2@h", "***"),
            ("plain", "plain"),
        ] {
            assert_eq!(Secret::new(url).redacted_url(), shown);
        }
    }
}

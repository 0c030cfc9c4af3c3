//! The definitions that a plan is made from: of a running broker, or a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

use crate::broker::rabbitmq::Definitions;
use crate::domain::{Secret, percent_decoded};

/// Longest time of one call to the management API.
const READ_DEADLINE: Duration = Duration::from_secs(20);
/// Largest definitions file, bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Login of a broker that was just installed, for clients on its own machine.
const DEFAULT_LOGIN: &str = "guest";

/// Where the definitions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanSource {
    /// A management API.
    Management {
        /// Its address, without a login.
        url: String,
        /// The user.
        user: String,
        /// The user's password.
        password: Secret,
    },
    /// A definitions file.
    File(PathBuf),
}

impl PlanSource {
    /// Takes the login out of a URL: `http://user:password@host:15672`. Without one it is `guest`.
    pub fn management(url: &Secret) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{} is no http:// or https:// URL of a management API",
                url.redacted_url()
            )
        };
        let mut address = Url::parse(url.expose()).map_err(|_| wrong())?;
        let (user, password) = match (address.username(), address.password()) {
            ("", None) => (DEFAULT_LOGIN, DEFAULT_LOGIN),
            (user, password) => (user, password.unwrap_or_default()),
        };
        let login = percent_decoded(user).zip(percent_decoded(password));
        let (user, password) = login.ok_or_else(wrong)?;
        let has_no_login = address.set_username("").and(address.set_password(None));
        if has_no_login.is_err() || !matches!(address.scheme(), "http" | "https") {
            return Err(wrong());
        }
        Ok(Self::Management {
            url: address.into(),
            user,
            password: Secret::new(password),
        })
    }
}

/// Reads the definitions of a virtual host. Blocks. The error is a sentence for a person.
pub fn read_definitions(source: &PlanSource, vhost: &str) -> Result<Definitions, String> {
    match source {
        PlanSource::Management {
            url,
            user,
            password,
        } => Definitions::read(url, user, password, vhost, READ_DEADLINE),
        PlanSource::File(path) => {
            let text = read_file(path)
                .map_err(|why| format!("{} cannot be read: {why}", path.display()))?;
            Definitions::parse(&text, vhost)
                .map_err(|why| format!("{} is no definitions file: {why}", path.display()))
        }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let size = std::fs::metadata(path)
        .map_err(|error| error.to_string())?
        .len();
    if size > MAX_FILE_BYTES {
        return Err(format!("it has {size} bytes, {MAX_FILE_BYTES} at most"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_taken_out_of_the_url() {
        let of = |url: &str| match PlanSource::management(&Secret::new(url)) {
            Ok(PlanSource::Management {
                url,
                user,
                password,
            }) => Some((url, user, password.expose().to_owned())),
            _ => None,
        };
        let login = |url: &str, user: &str, password: &str| {
            Some((url.to_owned(), user.to_owned(), password.to_owned()))
        };
        for (url, expected) in [
            ("http://h:15672", login("http://h:15672/", "guest", "guest")),
            ("http://@h", login("http://h/", "guest", "guest")),
            ("https://u:p%40@h/x", login("https://h/x", "u", "p@")),
            ("https://u:p@ss:w@h", login("https://h/", "u", "p@ss:w")),
            ("http://:p@[::1]:1", login("http://[::1]:1/", "", "p")),
            ("http://u@h", login("http://h/", "u", "")),
            (
                "http://\u{fc}:p%C3%A4@h",
                login("http://h/", "\u{fc}", "p\u{e4}"),
            ),
        ] {
            assert_eq!(of(url), expected, "{url}");
        }
        for wrong in [
            "",
            "h:15672",
            "amqp://u:p@h",
            "http://",
            "http://u:p@",
            "http://u:%zz@h",
            "http://u:%ff@h",
            "http://h:99999",
            "http://a b",
            "mailto:u@h",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let secret =
            PlanSource::management(&Secret::new("amqp://u:hunter2@h")).expect_err("no URL of it");
        assert!(!secret.contains("hunter2"), "{secret}");
    }
}

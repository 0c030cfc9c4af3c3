//! The definitions that a plan is made from: of a running broker, or a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

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
        let (scheme, rest) = url.expose().split_once("://").ok_or_else(wrong)?;
        let (login, host) = rest.rsplit_once('@').unwrap_or(("", rest));
        if !matches!(scheme, "http" | "https")
            || host.is_empty()
            || host.contains(char::is_whitespace)
        {
            return Err(wrong());
        }
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (percent_decoded(user), percent_decoded(password)),
            None if login.is_empty() => (
                Some(DEFAULT_LOGIN.to_owned()),
                Some(DEFAULT_LOGIN.to_owned()),
            ),
            None => (percent_decoded(login), Some(String::new())),
        };
        let user = user.ok_or_else(wrong)?;
        let password = Secret::new(password.ok_or_else(wrong)?);
        Ok(Self::Management {
            url: format!("{scheme}://{host}"),
            user,
            password,
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
        assert_eq!(
            of("http://h:15672"),
            login("http://h:15672", "guest", "guest")
        );
        assert_eq!(of("https://u:p%40@h/x"), login("https://h/x", "u", "p@"));
        assert_eq!(of("http://u@h"), login("http://h", "u", ""));
        for wrong in [
            "h:15672",
            "amqp://h",
            "http://",
            "http://u:%zz@h",
            "http://a b",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let secret =
            PlanSource::management(&Secret::new("amqp://u:hunter2@h")).expect_err("no URL of it");
        assert!(!secret.contains("hunter2"), "{secret}");
    }
}

//! Causes of failures of TLS, each with its sentence.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use crate::domain::unsafe_text::escaped;

/// Most names of a certificate in a sentence.
const MAX_NAMES: usize = 4;
/// Most characters of a text in a sentence that a server may have chosen. An escaped one counts as one.
const MAX_PEER_CHARS: usize = 200;

/// Keys of the configuration that a sentence about a server names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHints {
    /// The key that names a file of trusted authorities.
    pub ca: String,
    /// The key that names the file of this client's certificate.
    pub certificate: String,
    /// The setting with which TLS is spoken, as a sentence.
    pub with_tls: String,
    /// The setting with which no TLS is spoken, as a sentence.
    pub without_tls: String,
}

/// A cause of a failure of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsTrouble {
    /// The server's certificate is not from an authority that is trusted here.
    UnknownAuthority,
    /// The server shows the certificate of an authority as its own.
    AuthorityAsServer,
    /// The server's certificate has expired, this many seconds ago if known.
    Expired(Option<u64>),
    /// The server's certificate is not valid yet, for this many seconds if known.
    NotYetValid(Option<u64>),
    /// The server's certificate is for other names than the one by which the server is reached.
    OtherName {
        /// The name by which the server is reached.
        reached_by: Option<String>,
        /// The names of the certificate.
        names: Vec<String>,
    },
    /// The server asks for a certificate, and this client has none.
    CertificateWanted,
    /// The server refuses the certificate of this client, with this alert.
    CertificateRefused(String),
    /// The server speaks TLS where no TLS was expected.
    SpeaksTls,
    /// The server does not speak TLS where TLS was expected.
    SpeaksPlain,
    /// The server ends the connection in the middle of the handshake.
    HandshakeCut,
    /// Files of this client cannot be used.
    Files(String),
    /// Anything else, in the words of the TLS library.
    Other(String),
}

impl TlsTrouble {
    /// The cause behind an error of a client's handshake, as far as the error itself tells it.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(reason) => Self::of_certificate(reason),
            Error::AlertReceived(AlertDescription::CertificateRequired) => Self::CertificateWanted,
            // The first bytes are no TLS at all.
            Error::InvalidMessage(_) => Self::SpeaksPlain,
            other => Self::Other(peer_text(&other.to_string())),
        }
    }

    /// The cause behind an error of a stream; `None` if the TLS library did not report it.
    pub fn of_io(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Error>().map(Self::of)
    }

    fn of_certificate(reason: &CertificateError) -> Self {
        match reason {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::UnknownAuthority
            }
            CertificateError::Expired => Self::Expired(None),
            CertificateError::ExpiredContext { time, not_after } => {
                Self::Expired(Some(time.as_secs().saturating_sub(not_after.as_secs())))
            }
            CertificateError::NotValidYet => Self::NotYetValid(None),
            CertificateError::NotValidYetContext { time, not_before } => {
                Self::NotYetValid(Some(not_before.as_secs().saturating_sub(time.as_secs())))
            }
            CertificateError::NotValidForName => Self::OtherName {
                reached_by: None,
                names: Vec::new(),
            },
            CertificateError::NotValidForNameContext {
                expected,
                presented,
            } => Self::OtherName {
                reached_by: Some(expected.to_str().into_owned()),
                names: shown_names(presented),
            },
            other if other.to_string().contains("CaUsedAsEndEntity") => Self::AuthorityAsServer,
            other => Self::Other(peer_text(&format!("its certificate is invalid: {other}"))),
        }
    }

    /// The sentence about a server, without its final stop: what is wrong, and what to do.
    pub fn sentence(&self, hints: &KeyHints) -> String {
        let KeyHints {
            ca,
            certificate,
            with_tls,
            without_tls,
        } = hints;
        match self {
            Self::UnknownAuthority => format!(
                "its certificate is not from an authority that is trusted here: name the authority's certificate in \
                 `{ca}`, or in the file that SSL_CERT_FILE names"
            ),
            Self::AuthorityAsServer => {
                "its certificate is that of an authority, not of a server: give the server one of its own"
                    .to_owned()
            }
            Self::Expired(since) => {
                format!("its certificate has expired{}: renew it", shown_span(*since, " ", " ago"))
            }
            Self::NotYetValid(until) => format!(
                "its certificate is not valid yet{}: compare the clocks of both machines",
                shown_span(*until, " for another ", "")
            ),
            Self::OtherName { reached_by, names } => {
                let reached_by = reached_by.as_deref().unwrap_or("the name by which it is reached");
                let names = if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") };
                format!(
                    "its certificate is for {names}, not for {reached_by}: reach it by a name of its certificate, or \
                     give it another certificate"
                )
            }
            Self::CertificateWanted => {
                format!("it wants a certificate of its clients: name one, and its key, in `{certificate}`")
            }
            Self::CertificateRefused(alert) => {
                format!("it refuses the certificate that `{certificate}` names ({alert})")
            }
            Self::SpeaksTls => format!("it speaks TLS there: {with_tls}"),
            Self::SpeaksPlain => format!("it does not speak TLS there: {without_tls}"),
            Self::HandshakeCut => {
                format!(
                    "it ends the connection at the TLS handshake; if it speaks no TLS there: {without_tls}"
                )
            }
            Self::Files(why) => why.clone(),
            Self::Other(why) => format!("TLS fails: {why}"),
        }
    }
}

/// A span of seconds between two texts, in a unit that fits; nothing if it is unknown.
fn shown_span(seconds: Option<u64>, before: &str, after: &str) -> String {
    let Some(seconds) = seconds else {
        return String::new();
    };
    let (count, unit) = match seconds {
        0..120 => (seconds, "s"),
        120..7_200 => (seconds / 60, "min"),
        7_200..172_800 => (seconds / 3_600, "h"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{before}{count} {unit}{after}")
}

/// The first names of a certificate, and the number of those that are left out.
fn shown_names(presented: &[String]) -> Vec<String> {
    let first = presented.iter().take(MAX_NAMES);
    let mut names: Vec<_> = first.map(|name| peer_text(bare_name(name))).collect();
    if let Some(more) = presented.len().checked_sub(MAX_NAMES + 1) {
        names.push(format!("and {} more", more + 1));
    }
    names
}

/// The beginning of a text that a server may have chosen, without characters that a log or a terminal takes for commands.
fn peer_text(text: &str) -> String {
    match text.char_indices().nth(MAX_PEER_CHARS) {
        Some((end, _)) => escaped(&text[..end]) + "...",
        None => escaped(text),
    }
}

/// The name in the TLS library's description of one: `DnsName("redis.example")`.
fn bare_name(described: &str) -> &str {
    let inner = described
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(described).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::InvalidMessage;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;
    use crate::domain::unsafe_text::is_unsafe;

    fn hints() -> KeyHints {
        let text = str::to_owned;
        KeyHints {
            ca: text("redis.tls.ca"),
            certificate: text("redis.tls.certificate"),
            with_tls: text("on"),
            without_tls: text("off"),
        }
    }

    /// A certificate of a server that chooses how many names it has, how long they are, and what is in them.
    #[test]
    fn a_hostile_certificate_has_a_short_sentence() {
        let contents = [
            "a",
            "é",
            "\u{1f600}",
            "\n",
            "\u{1b}[2J",
            "\u{202e}",
            "\u{200b}",
        ];
        for count in [0, 1, 4, 5, 1000] {
            for (content, times) in contents.iter().flat_map(|c| [1, 253, 9999].map(|n| (c, n))) {
                let name = content.repeat(times);
                let presented = vec![format!("DnsName({name:?})"); count];
                let raw = vec![format!("DnsName(\"{name}\")"); count];
                let expected = ServerName::try_from("redis.example").expect("a name");
                let named = |presented| CertificateError::NotValidForNameContext {
                    expected: expected.clone(),
                    presented,
                };
                let other = std::io::Error::other(name.clone());
                let other = CertificateError::Other(rustls::OtherError(std::sync::Arc::new(other)));
                for error in [
                    Error::InvalidCertificate(named(presented)),
                    Error::InvalidCertificate(named(raw)),
                    Error::InvalidCertificate(other),
                    Error::General(name.clone()),
                ] {
                    let sentence = TlsTrouble::of(&error).sentence(&hints());
                    assert!(!sentence.contains(is_unsafe), "{sentence:?}");
                    assert!(sentence.len() < 5_500, "{count} of {name:?}: {sentence}");
                }
            }
        }
        let names: Vec<_> = (0..6)
            .map(|n| format!("DnsName(\"{n}.example\")"))
            .collect();
        assert_eq!(
            shown_names(&names).join(", "),
            "0.example, 1.example, 2.example, 3.example, and 2 more"
        );
        assert_eq!(shown_names(&names[..4]).len(), 4);
    }

    #[test]
    fn each_error_has_a_sentence_of_its_own() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let other_name = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("127.0.0.1").expect("a name"),
            presented: vec![
                "DnsName(\"redis.example\")".to_owned(),
                "IpAddress(10.0.0.1)".to_owned(),
            ],
        };
        let expired = CertificateError::ExpiredContext {
            time: at(400_000),
            not_after: at(0),
        };
        let early = CertificateError::NotValidYetContext {
            time: at(0),
            not_before: at(7_100),
        };
        for (error, sentence) in [
            (
                Error::InvalidCertificate(CertificateError::UnknownIssuer),
                "its certificate is not from an authority that is trusted here: name the authority's certificate in \
                 `redis.tls.ca`, or in the file that SSL_CERT_FILE names",
            ),
            (
                Error::InvalidCertificate(expired),
                "its certificate has expired 4 days ago: renew it",
            ),
            (
                Error::InvalidCertificate(early),
                "its certificate is not valid yet for another 118 min: compare the clocks of both machines",
            ),
            (
                Error::InvalidCertificate(other_name),
                "its certificate is for redis.example, 10.0.0.1, not for 127.0.0.1: reach it by a name of its \
                 certificate, or give it another certificate",
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                "it wants a certificate of its clients: name one, and its key, in `redis.tls.certificate`",
            ),
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "it does not speak TLS there: off",
            ),
            (
                Error::DecryptError,
                "TLS fails: cannot decrypt peer's message",
            ),
        ] {
            assert_eq!(TlsTrouble::of(&error).sentence(&hints()), sentence);
            let of_io = TlsTrouble::of_io(&io::Error::other(error)).expect("an error of TLS");
            assert_eq!(of_io.sentence(&hints()), sentence);
        }
        assert_eq!(
            TlsTrouble::of_io(&io::ErrorKind::ConnectionReset.into()),
            None
        );
    }
}

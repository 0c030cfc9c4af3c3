//! SASL mechanisms, as far as the librdkafka of this build has them.

use std::collections::BTreeMap;

use crate::domain::Secret;

/// The mechanisms that work with a user and a password.
const PASSWORD_MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// A property that asks for a SASL mechanism that cannot work, and a sentence on it. `has_oauth`: there is a source of
/// tokens.
pub fn sasl_problem(
    properties: &BTreeMap<String, Secret>,
    has_oauth: bool,
) -> Option<(&str, &'static str)> {
    let property = |name: &str| properties.get(name).map(Secret::expose);
    for name in properties.keys() {
        if name.to_ascii_lowercase().contains("sasl.oauthbearer.") {
            let problem =
                "has no effect: tokens are fetched by Postdate, as `oauth` beside `brokers` says";
            return Some((name, problem));
        }
    }
    let protocol = property("security.protocol");
    let is_sasl = protocol.is_some_and(|text| text.to_ascii_lowercase().starts_with("sasl_"));
    let mut names = ["sasl.mechanism", "sasl.mechanisms"].into_iter();
    let mechanism = names.find_map(|name| Some((name, property(name)?)));
    match mechanism {
        None if has_oauth => Some((
            "sasl.mechanism",
            "must be OAUTHBEARER, for `oauth` is set beside `brokers`",
        )),
        None if !is_sasl => None,
        Some((name, _)) if !is_sasl => Some((
            name,
            "has no effect unless `security.protocol` is SASL_SSL or SASL_PLAINTEXT: set that too",
        )),
        Some((_, "OAUTHBEARER")) if has_oauth => None,
        Some((name, _)) if has_oauth => Some((
            name,
            "must be OAUTHBEARER, for `oauth` is set beside `brokers`",
        )),
        Some((_, mechanism)) if PASSWORD_MECHANISMS.contains(&mechanism) => None,
        None => Some((
            "security.protocol",
            "needs `sasl.mechanism` beside it, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER: the client library's \
             default, GSSAPI (Kerberos), is not in this build",
        )),
        Some((name, "GSSAPI")) => Some((
            name,
            "GSSAPI (Kerberos) is not in this build: use SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER, or a \
             certificate (`ssl.certificate.location`)",
        )),
        Some((name, "OAUTHBEARER")) => Some((
            name,
            "OAUTHBEARER needs `oauth` beside `brokers`: `oauth = { token_url = \"..\", client_id = \"..\", \
             client_secret_file = \"..\" }`, or for AWS MSK `oauth = { aws_region = \"..\" }`",
        )),
        Some((name, "AWS_MSK_IAM")) => Some((
            name,
            "AWS_MSK_IAM is a name of Java's clients: use OAUTHBEARER, with `oauth = { aws_region = \"..\" }` beside \
             `brokers`",
        )),
        Some((name, _)) => Some((
            name,
            "is no mechanism of this build: use SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mechanisms_of_this_build_are_taken() {
        let tls = Some("SASL_SSL");
        // The protocol, the mechanism, the property that has the problem, and the one that has it with `oauth`.
        for (protocol, mechanism, problem, with_oauth) in [
            (None, None, None, Some("sasl.mechanism")),
            (Some("SSL"), None, None, Some("sasl.mechanism")),
            (tls, Some("PLAIN"), None, Some("sasl.mechanism")),
            (
                Some("sasl_plaintext"),
                Some("SCRAM-SHA-256"),
                None,
                Some("sasl.mechanism"),
            ),
            (tls, Some("SCRAM-SHA-512"), None, Some("sasl.mechanism")),
            (tls, None, Some("security.protocol"), Some("sasl.mechanism")),
            (
                tls,
                Some("GSSAPI"),
                Some("sasl.mechanism"),
                Some("sasl.mechanism"),
            ),
            (tls, Some("OAUTHBEARER"), Some("sasl.mechanism"), None),
            (
                Some("sasl_plaintext"),
                Some("OAUTHBEARER"),
                Some("sasl.mechanism"),
                None,
            ),
            (
                tls,
                Some("AWS_MSK_IAM"),
                Some("sasl.mechanism"),
                Some("sasl.mechanism"),
            ),
            (
                tls,
                Some("plain"),
                Some("sasl.mechanism"),
                Some("sasl.mechanism"),
            ),
            (
                Some("SSL"),
                Some("PLAIN"),
                Some("sasl.mechanism"),
                Some("sasl.mechanism"),
            ),
            (
                None,
                Some("OAUTHBEARER"),
                Some("sasl.mechanism"),
                Some("sasl.mechanism"),
            ),
        ] {
            let given = [
                ("security.protocol", protocol),
                ("sasl.mechanism", mechanism),
            ];
            let properties = given
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), Secret::new(value?))))
                .collect();
            let found = [false, true]
                .map(|has_oauth| sasl_problem(&properties, has_oauth).map(|(name, _)| name));
            assert_eq!(found, [problem, with_oauth], "{protocol:?}, {mechanism:?}");
        }
    }

    #[test]
    fn the_tokens_of_the_client_library_are_refused() {
        for name in [
            "sasl.oauthbearer.method",
            "enable.sasl.oauthbearer.unsecure.jwt",
        ] {
            let properties = [(name.to_owned(), Secret::new("x"))].into();
            let found = sasl_problem(&properties, true).map(|(name, _)| name);
            assert_eq!(found, Some(name));
        }
    }
}

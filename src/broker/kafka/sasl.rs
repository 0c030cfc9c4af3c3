//! SASL mechanisms, as far as the librdkafka of this build has them.

use std::collections::BTreeMap;

/// The mechanisms that work.
const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// A property that asks for a SASL mechanism that cannot work, and a sentence on it.
pub fn sasl_problem(properties: &BTreeMap<String, String>) -> Option<(&'static str, &'static str)> {
    let protocol = properties.get("security.protocol");
    let is_sasl = protocol.is_some_and(|text| text.to_ascii_lowercase().starts_with("sasl_"));
    let mut names = ["sasl.mechanism", "sasl.mechanisms"].into_iter();
    let mechanism = names.find_map(|name| Some((name, properties.get(name)?.as_str())));
    match mechanism {
        None if !is_sasl => None,
        Some((name, _)) if !is_sasl => Some((
            name,
            "has no effect unless `security.protocol` is SASL_SSL or SASL_PLAINTEXT: set that too",
        )),
        Some((_, mechanism)) if MECHANISMS.contains(&mechanism) => None,
        None => Some((
            "security.protocol",
            "needs `sasl.mechanism` beside it, PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512: the client library's default, GSSAPI \
             (Kerberos), is not in this build",
        )),
        Some((name, "GSSAPI")) => Some((
            name,
            "GSSAPI (Kerberos) is not in this build: use SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN, or a certificate \
             (`ssl.certificate.location`)",
        )),
        Some((name, "OAUTHBEARER")) => Some((
            name,
            "OAUTHBEARER has no source of tokens in this version: use SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN, or a \
             certificate (`ssl.certificate.location`)",
        )),
        Some((name, "AWS_MSK_IAM")) => Some((
            name,
            "AWS_MSK_IAM is not in this version: use SCRAM-SHA-512, which MSK offers, or a certificate \
             (`ssl.certificate.location`)",
        )),
        Some((name, _)) => Some((
            name,
            "is no mechanism of this build: use SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mechanisms_of_this_build_are_taken() {
        // The protocol, the mechanism, and the property that has the problem.
        for (protocol, mechanism, problem) in [
            (None, None, None),
            (Some("SSL"), None, None),
            (Some("SASL_SSL"), Some("PLAIN"), None),
            (Some("sasl_plaintext"), Some("SCRAM-SHA-256"), None),
            (Some("SASL_SSL"), Some("SCRAM-SHA-512"), None),
            (Some("SASL_SSL"), None, Some("security.protocol")),
            (Some("SASL_SSL"), Some("GSSAPI"), Some("sasl.mechanism")),
            (
                Some("SASL_SSL"),
                Some("OAUTHBEARER"),
                Some("sasl.mechanism"),
            ),
            (
                Some("SASL_SSL"),
                Some("AWS_MSK_IAM"),
                Some("sasl.mechanism"),
            ),
            (Some("SASL_SSL"), Some("plain"), Some("sasl.mechanism")),
            (Some("SSL"), Some("PLAIN"), Some("sasl.mechanism")),
            (None, Some("PLAIN"), Some("sasl.mechanism")),
        ] {
            let given = [
                ("security.protocol", protocol),
                ("sasl.mechanism", mechanism),
            ];
            let properties = given
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
            let found = sasl_problem(&properties.collect()).map(|(property, _)| property);
            assert_eq!(found, problem, "{protocol:?}, {mechanism:?}");
        }
    }
}

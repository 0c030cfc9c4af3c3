//! Options of URLs. One that a client library would read over is refused, so that nobody relies on it.

/// Options of a RabbitMQ URL that have an effect.
const AMQP_OPTIONS: &[&str] = &["frame_max", "channel_max", "heartbeat", "auth_mechanism"];
/// Options of a Redis URL that have an effect.
const REDIS_OPTIONS: &[&str] = &["protocol"];
/// Options of a URL of a Unix socket that have an effect.
const REDIS_SOCKET_OPTIONS: &[&str] = &["protocol", "db", "user", "pass"];

/// What to do instead of options that other clients have.
const ELSEWHERE: &[(&str, &[&str])] = &[
    (
        "name the file of the authority in `tls = { ca = \"/path\" }` beside it",
        &[
            "ca",
            "cacertfile",
            "cacerts",
            "cafile",
            "ssl_ca_certs",
            "ssl_ca_path",
            "ssl_ca_data",
            "tls_ca",
        ],
    ),
    (
        "name the files of certificate and key in `tls = { certificate = \"/path\", key = \"/path\" }` beside it",
        &[
            "cert",
            "certfile",
            "key",
            "keyfile",
            "ssl_certfile",
            "ssl_keyfile",
            "tls_cert",
            "tls_key",
        ],
    ),
    (
        "certificates and host names are always verified; name a private authority in `tls = { ca = \"/path\" }` \
         beside it",
        &[
            "verify",
            "depth",
            "fail_if_no_peer_cert",
            "insecure",
            "ssl_cert_reqs",
            "ssl_check_hostname",
        ],
    ),
    (
        "the host of the URL is the name that counts",
        &["server_name_indication", "sni"],
    ),
    ("a key must have no password", &["password", "ssl_password"]),
    (
        "the wait for a connection is fixed",
        &["connection_timeout", "connect_timeout", "timeout"],
    ),
];

/// Checks the options of a RabbitMQ URL.
pub(super) fn amqp(url: &str) -> Result<(), String> {
    check(url, AMQP_OPTIONS)
}

/// Checks the options of a Redis URL.
pub(super) fn redis(url: &str) -> Result<(), String> {
    check(
        url,
        if url.starts_with("unix://") {
            REDIS_SOCKET_OPTIONS
        } else {
            REDIS_OPTIONS
        },
    )
}

fn check(url: &str, known: &[&str]) -> Result<(), String> {
    let (url, fragment) = url
        .split_once('#')
        .map_or((url, None), |(url, fragment)| (url, Some(fragment)));
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let names = pairs.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    // `#insecure` switches verification off in other clients.
    let mut without_effect = names.filter(|name| !known.contains(name)).chain(fragment);
    let Some(name) = without_effect.next() else {
        return Ok(());
    };
    Err(match advice(name) {
        Some((name, advice)) => format!("has `{name}`, which would have no effect: {advice}"),
        // The message leaves out the text: it may be a part of a password.
        None if fragment.is_some() => "has a `#`; in a password it is written %23".to_owned(),
        None => {
            format!(
                "has an option that would have no effect; those that have one are {}",
                known.join(", ")
            )
        }
    })
}

/// The option by its own name, and what to do instead.
fn advice(name: &str) -> Option<(&'static str, &'static str)> {
    ELSEWHERE.iter().find_map(|(advice, names)| {
        let known = names
            .iter()
            .find(|known| known.eq_ignore_ascii_case(name))?;
        Some((*known, *advice))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_without_an_effect_are_refused_with_the_key_to_use() {
        for (url, part) in [
            (
                "amqps://h/%2f?cacertfile=/ca.pem",
                "`cacertfile`, which would have no effect: name the file of the",
            ),
            (
                "amqps://h/%2f?heartbeat=5&certfile=/c.pem",
                "`tls = { certificate = \"/path\", key = \"/path\" }`",
            ),
            (
                "amqps://h/%2f?verify=verify_none",
                "certificates and host names are always verified",
            ),
            (
                "amqps://h/%2f?Connection_Timeout=5",
                "the wait for a connection is fixed",
            ),
            (
                "amqps://h/%2f?hunter2=5",
                "those that have one are frame_max, channel_max, heartbeat",
            ),
            ("amqps://h/%2f#hunter2", "in a password it is written %23"),
        ] {
            let refused = amqp(url).expect_err(url);
            assert!(
                refused.contains(part) && !refused.contains("hunter2"),
                "{url}: {refused}"
            );
        }
        for (url, part) in [
            (
                "rediss://h?ssl_ca_certs=/ca.pem",
                "`tls = { ca = \"/path\" }`",
            ),
            (
                "rediss://h#insecure",
                "`insecure`, which would have no effect: certificates and host names",
            ),
            ("rediss://h?db=1", "those that have one are protocol"),
        ] {
            let refused = redis(url).expect_err(url);
            assert!(refused.contains(part), "{url}: {refused}");
        }
    }

    #[test]
    fn options_with_an_effect_pass() {
        assert_eq!(
            amqp("amqps://u:p@h/%2f?heartbeat=10&frame_max=4096&auth_mechanism=external"),
            Ok(())
        );
        assert_eq!(redis("rediss://:p@h/3?protocol=resp3"), Ok(()));
        assert_eq!(redis("unix:///run/redis.sock?db=1&user=u&pass=p"), Ok(()));
    }
}

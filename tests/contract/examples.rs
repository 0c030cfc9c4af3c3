//! `config/`: the reference is right and complete, every example is taken, every rejected file refused.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use postdate::broker::kafka::OWNED_PROPERTIES;
use postdate::config::{self, Config, ConfigProblems, ConfigSources};
use postdate::domain::route::{DelayFrom, OnInvalid, RateLimit, RetryPolicy};
use postdate::domain::{Endpoint, Route};
use postdate::store::config::Topology;
use serde_json::Value;

use super::{files, read, repository};

fn sources(file: &Path) -> ConfigSources {
    ConfigSources {
        file: Some(file.to_owned()),
        host_name: "here".to_owned(),
        ..ConfigSources::default()
    }
}

fn check(sources: ConfigSources) -> Result<Config, ConfigProblems> {
    config::load(sources)?.check()
}

/// Where a standalone store is.
fn place(config: &Config) -> &str {
    match &config.redis.topology {
        Topology::Standalone(url) => url.configured().expose(),
        other => panic!("a standalone server, not {other:?}"),
    }
}

fn example(name: &str) -> ConfigSources {
    sources(&repository("config/examples").join(name))
}

fn route<'a>(config: &'a Config, name: &str) -> &'a Route {
    config
        .routes
        .iter()
        .find(|route| route.name.as_str() == name)
        .expect("the route")
}

/// Writes a file that lives as long as what is returned.
fn written(extension: &str, text: &str) -> tempfile::TempPath {
    let file = tempfile::Builder::new()
        .suffix(extension)
        .tempfile()
        .expect("a temporary file");
    std::fs::write(file.path(), text).expect("written");
    file.into_temp_path()
}

const SMALL: &str = "[kafka.main]\nbrokers = \"a:1\"\n\
    [routes.new-orders]\nfrom = { kafka = \"main\", topic = \"in\" }\nto = { kafka = \"main\", topic = \"out\" }\n";

#[test]
fn every_example_is_right() {
    let examples = files("config/examples");
    assert!(examples.len() >= 6);
    for file in examples {
        if let Err(problems) = check(sources(&file)) {
            panic!("{problems}");
        }
    }
}

#[test]
fn every_rejected_file_is_refused_with_its_texts_and_no_secret() {
    let rejected = files("config/rejected");
    assert!(rejected.len() >= 25);
    for file in rejected {
        let text = read(&file);
        let expected: Vec<&str> = text
            .lines()
            .map_while(|line| line.strip_prefix("# expect: "))
            .collect();
        assert!(
            !expected.is_empty(),
            "{} says nothing of what it expects",
            file.display()
        );
        let problems = check(sources(&file))
            .expect_err(&file.display().to_string())
            .to_string();
        for expected in expected {
            assert!(
                problems.contains(expected),
                "{}: expected {expected:?} in\n{problems}",
                file.display()
            );
        }
        assert!(!problems.contains("hunter2"), "{problems}");
    }
}

#[test]
fn the_reference_is_the_default_and_its_commented_keys_are_right() {
    let reference = read(repository("config/postdate.toml"));
    // The keys without a default, as a reader would take the `#` away; of keys for one thing only the first. The files of
    // `tls` are not there.
    let uncommented: String = reference
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|c: char| c == '[' || c.is_ascii_lowercase()) => key,
            _ => line,
        })
        .filter(|line| {
            !["_file = ", "tls = {", "urls = "]
                .iter()
                .any(|key| line.contains(key))
        })
        .fold(String::new(), |text, line| text + line + "\n");
    let config = check(sources(&written(".toml", &uncommented)))
        .unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(
        (
            config.kafka.len(),
            config.rabbitmq.len(),
            config.routes.len()
        ),
        (1, 1, 1)
    );
    assert_eq!(config.shutdown_timeout, Duration::from_secs(20));
    assert_eq!(config.redis.partitions.count(), 64);
    assert_eq!(
        config.cluster.name, "here:8025",
        "host and port of the admin listener"
    );
    let policy = &route(&config, "orders").policy;
    assert_eq!(
        policy.retry,
        RetryPolicy {
            attempts: 16,
            initial_ms: 1000,
            max_ms: 300_000
        }
    );
    assert_eq!(
        policy.headers,
        postdate::domain::route::HeaderNames::default()
    );
    assert_eq!(
        (
            policy.dedupe_ms,
            policy.rate,
            policy.jitter_ms,
            policy.ordered
        ),
        (0, None, 0, false)
    );
    assert_eq!((policy.max_size, policy.max_headers), (1 << 20, 64 << 10));
    assert_eq!(
        policy.dead_letters,
        postdate::domain::DeadLetterLimits::default()
    );
    assert_eq!(policy.trail, postdate::domain::TrailLimits::default());

    for property in OWNED_PROPERTIES {
        assert!(
            reference.contains(&format!("`{property}`")),
            "{property} is not in the reference"
        );
    }
}

#[test]
fn routes_take_defaults_and_differ_where_they_say_so() {
    let config = check(example("many-routes.toml")).expect("right");
    let archive = route(&config, "archive");
    let jobs = route(&config, "jobs");
    assert_eq!(archive.policy.max_delay_ms, 365 * 86_400_000);
    assert_eq!(jobs.policy.max_delay_ms, 14 * 86_400_000);
    assert_eq!(archive.policy.on_invalid, OnInvalid::Drop);
    assert_eq!(
        (
            &*archive.policy.headers.delay,
            &*archive.policy.headers.target
        ),
        ("x-deliver-in", "x-archive")
    );
    assert_eq!(archive.policy.rate, None);
    assert_eq!(
        jobs.policy.rate,
        Some(RateLimit {
            per_second: 200,
            burst: 50
        })
    );
    assert_eq!(
        (jobs.policy.dedupe_ms, jobs.policy.jitter_ms),
        (3_600_000, 30_000)
    );
    assert_eq!(archive.policy.delay_from, DelayFrom::Produced);
    assert_eq!(jobs.policy.delay_from, DelayFrom::Arrival);
    let letters = jobs.policy.dead_letters;
    assert_eq!(
        (letters.max, letters.keep_ms, letters.max_bytes),
        (10_000, 90 * 86_400_000, 256 << 20)
    );
    assert!(matches!(
        &jobs.from,
        Endpoint::Rabbitmq { prefetch: 500, .. }
    ));
    assert!(matches!(&jobs.from, Endpoint::Rabbitmq { queue, .. } if queue == "jobs.delayed"));
    assert_eq!(
        config.admin.read_tokens.tokens[0].token.expose(),
        "read-me-not-from-afar"
    );
}

#[test]
fn yaml_says_the_same_as_toml() {
    let config = check(example("kubernetes.yaml")).expect("right");
    let orders = route(&config, "orders");
    assert_eq!(
        orders.policy.retry,
        RetryPolicy {
            attempts: 8,
            initial_ms: 1000,
            max_ms: 300_000
        }
    );
    assert_eq!(orders.policy.max_pending, 5_000_000);
    assert_eq!(
        config.kafka["main"].properties.configured()["socket.keepalive.enable"].expose(),
        "true"
    );
    assert_eq!(
        config.kafka["main"].properties.configured()["queued.max.messages.kbytes"].expose(),
        "32768"
    );
    let printed = config::load(example("kubernetes.yaml"))
        .expect("read")
        .print();
    for expected in [
        "max_pending = 5000000",
        "attempts = 8",
        "\"queued.max.messages.kbytes\" = 32768",
    ] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}

#[test]
fn the_layers_stand_in_their_order() {
    let file = written(
        ".toml",
        &format!("[redis]\nprefix = \"file\"\n[timer]\nclaim = \"11s\"\n{SMALL}"),
    );
    let environment = [
        ("POSTDATE_REDIS__PREFIX", "123456"),
        ("POSTDATE_REDIS__URL", "redis://:007@environment"),
        ("POSTDATE_REDIS__PARTITIONS", "8"),
        ("POSTDATE_REDIS__UNSAFE", "[\"eviction\"]"),
        ("POSTDATE_ROUTES__NEW_ORDERS__MAX_PENDING", "1_000"),
        ("POSTDATE_ROUTES__NEW_ORDERS__RETRY__ATTEMPTS", "3"),
        ("POSTDATE_KAFKA__MAIN__PROPERTIES__SASL_PASSWORD", "007"),
        ("POSTDATE__SHUTDOWN_TIMEOUT", "9s"),
        ("POSTDATE_PORT", "tcp://10.0.0.1:80"),
        ("POSTDATE_URL", "http://elsewhere"),
        ("POSTDATE_LOG", "debug"),
    ];
    let mut sources = sources(&file);
    sources.environment = environment
        .map(|(name, value)| (name.to_owned(), value.into()))
        .to_vec();
    sources.set = vec![
        "redis.url=redis://set".to_owned(),
        "kafka.main.properties.client.rack=a=b".to_owned(),
        "routes.new-orders.to.topic=other".to_owned(),
    ];
    let config = check(sources).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.redis.prefix, "123456");
    assert_eq!(place(&config), "redis://set");
    assert_eq!(config.redis.partitions.count(), 8);
    assert!(config.redis.overrides.eviction);
    assert_eq!(config.timer.claim, Duration::from_secs(11));
    assert_eq!(config.shutdown_timeout, Duration::from_secs(9));
    assert_eq!(config.log.filter.as_deref(), Some("debug"));
    let route = route(&config, "new-orders");
    assert_eq!(
        (route.policy.max_pending, route.policy.retry.attempts),
        (1000, 3)
    );
    assert_eq!(route.to.name(), "other");
    let properties = config.kafka["main"].properties.configured();
    assert_eq!(
        (
            properties["sasl.password"].expose(),
            properties["client.rack"].expose()
        ),
        ("007", "a=b")
    );
}

#[test]
fn a_value_of_each_kind_comes_from_the_environment_and_from_an_option() {
    let text = "[redis]\nnodes = [\"redis-0:6379\"]\n[kafka.main]\nbrokers = \"a:1\"\n[rabbitmq.mail]\n\
        [routes.new-orders]\nfrom = { kafka = \"main\" }\n\
        to = { rabbitmq = \"mail\", exchange = \"orders\", routing_key = \"key\" }\n";
    let file = written(".toml", text);
    let mut sources = sources(&file);
    sources.environment = [
        ("POSTDATE_REDIS__TLS", "true"),
        ("POSTDATE_REDIS__TOPOLOGY", "cluster"),
        (
            "POSTDATE_RABBITMQ__MAIL__URLS",
            "[\"amqp://a/%2f\", \"amqp://b/%2f\"]",
        ),
        (
            "POSTDATE_ROUTES__NEW_ORDERS__FROM__TOPICS",
            "[\"1\", \"true\"]",
        ),
        ("POSTDATE_ROUTES__NEW_ORDERS__CONSUMER_RETRY__ATTEMPTS", "7"),
        ("POSTDATE_ROUTES__NEW_ORDERS__TO__EXCHANGE", "true"),
    ]
    .map(|(name, value)| (name.to_owned(), value.into()))
    .to_vec();
    sources.set = ["defaults.commands=false", "kafka.main.unsafe_tls=true"]
        .map(str::to_owned)
        .to_vec();
    let config = check(sources).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(
        matches!(&config.redis.topology, Topology::Cluster { login, .. } if login.tls),
        "{:?}",
        config.redis.topology
    );
    assert!(config.kafka["main"].unsafe_tls);
    assert_eq!(config.rabbitmq["mail"].further_urls.len(), 1);
    let route = route(&config, "new-orders");
    assert!(
        matches!(&route.from, Endpoint::Kafka { topics, .. } if topics.has("1") && topics.has("true"))
    );
    let retry = route.policy.consumer_retry.expect("set");
    assert_eq!(retry.attempts, 7);
    assert!(!route.policy.commands);
    assert_eq!(route.to.name(), "true/");
}

#[test]
fn every_key_that_takes_no_text_takes_its_kind_from_an_option() {
    let mut kinds = BTreeSet::new();
    for (path, form) in all_keys() {
        let forms = form["anyOf"].as_array().map_or(&[][..], Vec::as_slice);
        for form in forms.iter().chain([&form]) {
            let value = match form["type"].as_str() {
                Some("boolean") => "true".to_owned(),
                Some("integer") => form["maximum"].to_string(),
                Some("array") => "[\"x\"]".to_owned(),
                _ => continue,
            };
            kinds.insert(form["type"].to_string());
            let key = path.join(".");
            let told = problems_beside(&[], &[&format!("{key}={value}")]);
            for kind in ["true or false", "a whole number", "a list"] {
                let refused = format!("{key}: must be {kind}");
                assert!(!told.contains(&refused), "{told}");
            }
        }
    }
    assert_eq!(kinds.len(), 3, "{kinds:?}");
}

#[test]
fn the_environment_makes_no_new_route_and_every_problem_names_its_source() {
    let file = written(".toml", &format!("[redis]\nprefx = \"a\"\n{SMALL}"));
    let mut sources = sources(&file);
    let environment = [
        ("POSTDATE_ROUTES__ORDRES__MAX_DELAY", "1d"),
        ("POSTDATE_REDIS__PARTITIONS", "many"),
        ("POSTDATE_REDIS__", "x"),
        ("POSTDATE_REDIS__POOL", "5"),
        ("POSTDATE_LOG", "a=b=c"),
    ];
    sources.environment = environment
        .map(|(name, value)| (name.to_owned(), value.into()))
        .to_vec();
    sources.set = vec![
        "timer.claim=1".to_owned(),
        "hunter2".to_owned(),
        "redis..url=x".to_owned(),
    ];
    let problems = check(sources).expect_err("wrong").to_string();
    for expected in [
        "environment POSTDATE_ROUTES__ORDRES__MAX_DELAY: `routes.ordres` is not in the file",
        "environment POSTDATE_REDIS__PARTITIONS: redis.partitions: must be a whole number within 1 to 4096, not the text \"many\"",
        "environment POSTDATE_REDIS__: not the name of a key",
        "environment POSTDATE_REDIS__POOL: redis.pool: unknown key",
        "environment POSTDATE_LOG: is not a tracing filter",
        "--set timer.claim: timer.claim: \"1\" is not a duration",
        "--set: is written KEY=VALUE",
        "--set redis..url: not the name of a key",
        "redis.prefx: unknown key; did you mean `redis.prefix`?",
    ] {
        assert!(
            problems.contains(expected),
            "expected {expected:?} in\n{problems}"
        );
    }
    assert!(!problems.contains("hunter2"));
    assert_eq!(problems.lines().count(), 9, "{problems}");
}

#[test]
fn secrets_come_from_files_without_their_last_line_break() {
    let (url, tokens) = (
        written("", "redis://:pa ss@h\r\n"),
        written("", "the-first-of-two\nthe-second-of-two\n"),
    );
    let properties = written("", "# secret\nsasl.password=a=b\n");
    let text = format!(
        "[redis]\nurl_file = {url:?}\n[admin]\nlisten = \"0.0.0.0:1\"\nwrite_tokens_file = {tokens:?}\n{}",
        SMALL.replace(
            "brokers",
            &format!("properties_file = {properties:?}\nbrokers")
        )
    );
    let config =
        check(sources(&written(".toml", &text))).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(place(&config), "redis://:pa ss@h");
    let list = &config.admin.write_tokens;
    assert_eq!(list.file.as_deref(), Some(&*tokens));
    let tokens: Vec<&str> = list
        .tokens
        .iter()
        .map(|named| named.token.expose())
        .collect();
    assert_eq!(tokens, ["the-first-of-two", "the-second-of-two"]);
    assert_eq!(
        config.kafka["main"].properties.configured()["sasl.password"].expose(),
        "a=b"
    );
}

#[test]
fn what_is_printed_names_each_source_hides_secrets_and_can_be_read_again() {
    let mut sources = example("kafka-to-kafka.toml");
    sources.environment = vec![(
        "POSTDATE_ADMIN__WRITE_TOKENS".to_owned(),
        "[\"hunter2\"]".into(),
    )];
    sources.set = [
        "timer.claim=12s",
        "traces.endpoint=http://here/v1/traces",
        "traces.authorization=Basic hunter3",
    ]
    .map(str::to_owned)
    .into();
    let printed = config::load(sources).expect("read").print();
    let file = repository("config/examples/kafka-to-kafka.toml");
    for expected in [
        "claim = \"12s\"  # --set timer.claim".to_owned(),
        "lookahead = \"250ms\"  # default".to_owned(),
        "write_tokens = [\"***\"]  # environment POSTDATE_ADMIN__WRITE_TOKENS".to_owned(),
        format!(
            "url = \"rediss://***@redis.example:6380/0\"  # {}",
            file.display()
        ),
        format!("\"sasl.password\" = \"***\"  # {}", file.display()),
        format!("\"sasl.username\" = \"postdate\"  # {}", file.display()),
        format!("max_delay = \"90d\"  # {}", file.display()),
        "max_size = \"1MiB\"  # default [defaults]".to_owned(),
        "delay_from = \"produced\"  # default [defaults]".to_owned(),
        "name = \"here:8025\"  # default".to_owned(),
        "authorization = \"***\"  # --set traces.authorization".to_owned(),
    ] {
        assert!(
            printed.contains(&expected),
            "expected {expected:?} in\n{printed}"
        );
    }
    for secret in ["hunter2", "hunter3", "\"secret\"", ":secret@"] {
        assert!(!printed.contains(secret), "{secret} in\n{printed}");
    }
    let again = check(self::sources(&written(".toml", &printed)))
        .unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(again.timer.claim, Duration::from_secs(12));
    assert_eq!(
        route(&again, "orders").policy.retry,
        RetryPolicy {
            attempts: 30,
            initial_ms: 500,
            max_ms: 600_000
        }
    );
}

/// The printed text with values in the place of hidden ones that are checked: tokens, and the options of URLs.
fn with_secrets(printed: &str) -> String {
    ["read", "write"]
        .iter()
        .fold(printed.replace("?***", ""), |text, what| {
            let hidden = format!("{what}_tokens = [\"***\"]");
            text.replace(
                &hidden,
                &format!("{what}_tokens = [\"long-enough-to-{what}\"]"),
            )
        })
}

#[test]
fn every_example_can_be_read_again_as_it_is_printed() {
    for file in files("config/examples") {
        let loaded = config::load(sources(&file)).expect("read");
        let config = loaded.check().expect("right");
        let printed = with_secrets(&loaded.print());
        let again = check(sources(&written(".toml", &printed)))
            .unwrap_or_else(|problems| panic!("{}: {problems}\n{printed}", file.display()));
        assert_eq!(
            format!("{:#?}", again.routes),
            format!("{:#?}", config.routes),
            "{}",
            file.display()
        );
    }
}

#[test]
fn a_secret_that_is_not_text_is_refused_and_never_printed() {
    for (value, kind) in [
        ("12345678", "a number"),
        ("1e10", "a number"),
        ("true", "true or false"),
    ] {
        let file = written(
            ".yaml",
            &format!(
                "kafka: {{ main: {{ brokers: 'a:1', properties: {{ security.protocol: SASL_SSL, \
                 sasl.mechanism: PLAIN, sasl.username: postdate, sasl.password: {value} }} }} }}\n\
                 routes: {{ orders: {{ from: {{ kafka: main, topic: in }}, to: {{ kafka: main, topic: out }} }} }}\n"
            ),
        );
        let loaded = config::load(sources(&file)).expect("read");
        let problems = loaded.check().expect_err(value).to_string();
        let told = format!(
            ": kafka.main.properties.\"sasl.password\": must be text in quotes, not {kind}"
        );
        assert!(problems.ends_with(&told), "{problems}");
        assert_eq!(problems.lines().count(), 1, "{problems}");
        let printed = loaded.print();
        assert!(printed.contains("\"sasl.password\" = \"***\""), "{printed}");
    }
}

#[test]
fn of_two_keys_that_do_not_go_together_the_one_that_is_set_is_told() {
    let orders = |key: &str| format!("routes.new-orders.{key}");
    let no_kept = "is below `max_size`: what fails could not be kept";
    let no_wait = "is below `consumer_retry.max`, which is 1h unless it is set";
    let reversed = "`initial` is above `max`";
    for (set, key, message) in [
        (
            vec![orders("dead_letters.max_message=512KiB")],
            orders("dead_letters.max_message"),
            no_kept,
        ),
        (
            vec!["defaults.dead_letters.max_message=512KiB".to_owned()],
            "defaults.dead_letters.max_message".to_owned(),
            no_kept,
        ),
        (
            vec![
                "defaults.dead_letters.max_message=512KiB".to_owned(),
                orders("dead_letters.max=5"),
            ],
            "defaults.dead_letters.max_message".to_owned(),
            no_kept,
        ),
        (
            vec![orders("max_size=32MiB")],
            orders("max_size"),
            "is above `dead_letters.max_message`: what fails could not be kept",
        ),
        (
            vec![orders("dead_letters.max_bytes=8MiB")],
            orders("dead_letters.max_bytes"),
            "`max_message` is above `max_bytes`",
        ),
        (
            vec![orders("consumer_retry.max=5s")],
            orders("consumer_retry.max"),
            reversed,
        ),
        (
            vec![orders("consumer_retry.initial=2h")],
            orders("consumer_retry.initial"),
            reversed,
        ),
        (
            vec![
                "defaults.retry.initial=10m".to_owned(),
                orders("retry.attempts=3"),
            ],
            "defaults.retry.initial".to_owned(),
            reversed,
        ),
        (
            vec![orders("consumer_retry.attempts=3"), orders("max_delay=30m")],
            orders("max_delay"),
            no_wait,
        ),
        (
            vec![
                "defaults.max_delay=30m".to_owned(),
                orders("consumer_retry.attempts=3"),
            ],
            "defaults.max_delay".to_owned(),
            no_wait,
        ),
        (
            vec![orders("consumer_retry.max=31d")],
            orders("consumer_retry.max"),
            "is above the route's `max_delay`",
        ),
    ] {
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let told = problems_beside(&[], &set);
        assert_eq!(told, format!("--set {key}: {key}: {message}"), "{set:?}");
    }
}

#[test]
fn one_url_of_several_that_is_wrong_is_one_problem() {
    let text = "[rabbitmq.main]\nurls = [\"rabbit-0:5672\", \"amqp://b/%2f\"]\n\
        [routes.mail]\nfrom = { rabbitmq = \"main\", queue = \"mail.delayed\" }\n\
        to = { rabbitmq = \"main\", exchange = \"mail\", routing_key = \"preserve\" }\n";
    let file = written(".toml", text);
    let problems = check(sources(&file)).expect_err("wrong").to_string();
    let told = ": rabbitmq.main.urls: the URL number 1 must begin with amqp:// or amqps://";
    assert!(problems.ends_with(told), "{problems}");
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

/// The paths of all keys of a part of the schema, each with its form, and with [`NAMES`] in the operator's own tables.
fn keys(form: &Value, path: &[&str], found: &mut Vec<(Vec<String>, Value)>) {
    for form in form["anyOf"].as_array().into_iter().flatten().chain([form]) {
        let named = match path {
            [table] => NAMES.iter().find(|(known, _)| known == table),
            _ => None,
        };
        if let Some((_, name)) = named {
            keys(&form["additionalProperties"], &[path[0], name], found);
        }
        for (key, inner) in form["properties"].as_object().into_iter().flatten() {
            let path = [path, &[key.as_str()]].concat();
            let is_section = inner["type"] == "object" && inner["properties"].is_object();
            if !is_section && inner["propertyNames"].is_null() {
                let path = path.iter().map(|part| (*part).to_owned()).collect();
                found.push((path, inner.clone()));
            }
            keys(inner, &path, found);
        }
    }
}

/// Names in [`SMALL`], by their tables.
const NAMES: [(&str, &str); 2] = [("kafka", "main"), ("routes", "new-orders")];

fn all_keys() -> Vec<(Vec<String>, Value)> {
    let schema: Value = serde_json::from_str(&config::schema()).expect("JSON");
    let mut found = Vec::new();
    keys(&schema, &[], &mut found);
    assert!(found.len() > 100, "{found:?}");
    found
}

/// The variable of a key, its parts joined by this.
fn variable_of(path: &[String], joint: &str) -> String {
    let parts: Vec<String> = path.iter().map(|part| part.replace('-', "_")).collect();
    format!("POSTDATE_{}", parts.join(joint)).to_uppercase()
}

/// The problems of [`SMALL`] beside these variables and options.
fn problems_beside(environment: &[(&str, OsString)], set: &[&str]) -> String {
    let file = written(".toml", SMALL);
    let mut sources = sources(&file);
    let environment = environment.iter();
    sources.environment = environment
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    sources.set = set.iter().map(|set| (*set).to_owned()).collect();
    check(sources).map_or_else(|problems| problems.to_string(), |_| String::new())
}

#[test]
fn a_variable_that_was_meant_as_a_key_is_told_with_the_key() {
    for (path, _) in all_keys() {
        let right = match &path[..] {
            [top] => format!("POSTDATE__{}", top.to_uppercase()),
            path => variable_of(path, "__"),
        };
        let wrong = variable_of(&path, "_");
        let told = problems_beside(&[(&wrong, "x".into())], &[]);
        assert_eq!(
            told,
            format!("environment {wrong}: is no key; did you mean `{right}`?")
        );
    }
    for (wrong, told) in [
        ("POSTDATE_REDSI_URL", "did you mean `POSTDATE_REDIS__URL`?"),
        ("POSTDATE_CONFG", "did you mean `POSTDATE_CONFIG`?"),
        ("POSTDATE_LOG_LEVEL", "did you mean `POSTDATE_LOG`?"),
        ("POSTDATE_CONFIG_FILE", "did you mean `POSTDATE_CONFIG`?"),
        ("POSTDATE_RABBITMQ_URL", "joined by double underscores"),
        ("POSTDATE_REDIS_HOST", "joined by double underscores"),
        ("POSTDATE_REDIS", "joined by double underscores"),
        ("POSTDATE_REDIS_PORT", "is no key"),
        (
            "POSTDATE_KAFKA_BROKERS",
            "did you mean `POSTDATE_KAFKA__MAIN__BROKERS`?",
        ),
    ] {
        let problems = problems_beside(&[(wrong, "6379".into())], &[]);
        let begin = format!("environment {wrong}: is no key");
        assert!(
            problems.starts_with(&begin) && problems.contains(told),
            "{wrong}: {problems}"
        );
    }
    // Those of Kubernetes' Services, of the other commands, of the scripts, and anybody's.
    for others in [
        "POSTDATE_PORT=tcp://10.0.0.1:80",
        "POSTDATE_SERVICE_HOST=10.0.0.1",
        "POSTDATE_REDIS_SERVICE_HOST=10.0.0.1",
        "POSTDATE_REDIS_SERVICE_PORT=6379",
        "POSTDATE_REDIS_SERVICE_PORT_TLS=6379",
        "POSTDATE_REDIS_PORT=tcp://10.0.0.1:6379",
        "POSTDATE_REDIS_PORT_6379_TCP_ADDR=10.0.0.1",
        "POSTDATE_URL=http://here",
        "POSTDATE_TOKEN=x",
        "POSTDATE_TOKEN_FILE=/x",
        "POSTDATE_CA=/x",
        "POSTDATE_CONFIG=/x",
        "POSTDATE_LOG=info",
        "POSTDATE_CACHE=/x",
        "POSTDATE_BINARY=/x",
        "POSTDATE_MUTANT=drop",
        "POSTDATE_RACES=/x",
        "POSTDATE_TEST_KEEP=1",
        "POSTDATE_VERSION=1.2.3",
    ] {
        let (name, value) = others.split_once('=').expect("a value");
        assert_eq!(problems_beside(&[(name, value.into())], &[]), "", "{name}");
    }
}

#[test]
fn bytes_that_are_not_utf_8_are_refused_in_every_key() {
    let variables: Vec<String> = all_keys()
        .iter()
        .filter(|(path, _)| path.len() > 1)
        .map(|(path, _)| variable_of(path, "__"))
        .chain(["POSTDATE_LOG".to_owned()])
        .collect();
    for name in &variables {
        for value in [&b"redis://\xff"[..], b"\xc3", b"1\x80s"] {
            let told = problems_beside(&[(name, OsString::from_vec(value.to_vec()))], &[]);
            assert_eq!(told, format!("environment {name}: is not UTF-8"));
        }
    }
    let other = OsString::from_vec(b"\xff".to_vec());
    assert_eq!(problems_beside(&[("POSTDATE_CACHE", other)], &[]), "");
}

#[test]
fn neither_the_environment_nor_an_option_makes_a_new_route_of_a_slip() {
    for (table, name) in NAMES {
        for at in 0..name.len() {
            let slip = format!("{}{}", &name[..at], &name[at + 1..]);
            let end = format!(
                "is not in the file, and neither the environment nor `--set` can make new ones; \
                 did you mean `{table}.{name}`?"
            );
            let told = problems_beside(&[], &[&format!("{table}.{slip}.x=5")]);
            let label = format!("--set {table}.{slip}.x");
            assert_eq!(told, format!("{label}: `{table}.{slip}` {end}"));
            let variable = variable_of(&[table.to_owned(), slip.clone(), "x".to_owned()], "__");
            let told = problems_beside(&[(&variable, "5".into())], &[]);
            assert!(
                told.starts_with(&format!("environment {variable}: `{table}."))
                    && told.ends_with(&end),
                "{told}"
            );
        }
    }
    assert_eq!(problems_beside(&[], &["routes.new_orders.rate=5"]), "");
}

#[test]
fn a_number_that_a_key_does_not_take_is_told_with_the_key_and_its_bounds() {
    const WRONG: [&str; 9] = [
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "170141183460469231731687303715884105728",
        "99999999999999999999999999999999999999999999999999",
        "-9223372036854775809",
        "-1",
        "1e30",
        "1.5",
    ];
    let toml = |path: &[String], number: &str| format!("{} = {number}\n", path.join("."));
    let yaml = |path: &[String], number: &str| {
        let around = |inner: String, part: &String| format!("{{ {part}: {inner} }}");
        path.iter().rev().fold(number.to_owned(), around)
    };
    // A key of a route is read as that of `[defaults]` is.
    let integers: Vec<_> = all_keys()
        .into_iter()
        .filter(|(path, form)| form["type"] == "integer" && path[0] != "routes")
        .collect();
    assert!(integers.len() > 8, "{integers:?}");
    for (path, form) in integers {
        let key = path.join(".");
        let bounds = format!("within {} to {}", form["minimum"], form["maximum"]);
        for number in WRONG {
            for (extension, text) in [
                (".toml", toml(&path, number)),
                (".yaml", yaml(&path, number)),
            ] {
                let file = written(extension, &text);
                let problems = check(sources(&file)).expect_err("wrong").to_string();
                let is_told = |line: &str| {
                    line.starts_with(&format!("{}:", file.display()))
                        && line.contains(&format!(" {key}: "))
                        && line.contains(&bounds)
                };
                assert!(
                    problems.lines().any(is_told),
                    "{key} = {number} in {extension}: {problems}"
                );
            }
            let told = problems_beside(&[], &[&format!("{key}={number}")]);
            assert!(
                told.contains(&format!("--set {key}: {key}: ")) && told.contains(&bounds),
                "{key}={number}: {told}"
            );
        }
    }
}

#[test]
fn no_message_about_yaml_advises_programmers() {
    for (text, told) in [
        (
            "a: 1\n---\nb: 2\n",
            ":3:1: a second document begins here, and a configuration is one: take out the `---` before it",
        ),
        (
            "a: 1\na: 2\n",
            "duplicate mapping key `a` is not allowed here",
        ),
        ("a: 1e400\n", "`1e400` is not a finite number"),
        ("a: !!binary /w==\n", "!!binary scalar is not valid UTF-8"),
        ("a: *b\n", "reference to unknown value"),
        ("<<: 1\n", "merge value must be mapping"),
    ] {
        let file = written(".yaml", text);
        let problems = check(sources(&file)).expect_err(text).to_string();
        assert!(problems.contains(told), "{text}: {problems}");
        for advice in ["from_str", "Options", "policy", "Option<"] {
            assert!(!problems.contains(advice), "{text}: {problems}");
        }
    }
}

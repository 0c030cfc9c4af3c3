//! Without a cluster: what comes out of the values.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::pods::{Container, list, string};
use super::tools::{KUBERNETES, cases, chart, documents, find, helm, template, text};
use crate::support::pod;
use crate::support::tls::Tls;

#[test]
fn lint_finds_nothing() {
    for case in cases() {
        let mut command = helm(&["lint", "--strict", "--kube-version", KUBERNETES]);
        let output = command
            .arg(chart())
            .arg("--values")
            .arg(&case)
            .output()
            .expect("helm runs");
        assert!(
            output.status.success(),
            "{}: {}",
            case.display(),
            text(&output.stdout)
        );
    }
}

/// A certificate of the API, its key and its authority.
static CERTIFICATE: LazyLock<[String; 3]> = LazyLock::new(|| {
    let tls = Tls::named("DNS:localhost");
    let (certificate, key) = tls.server();
    [certificate, key, tls.authority()]
        .map(|file| std::fs::read_to_string(file).expect("a file of PEM"))
});

/// Contents of a user's Secrets, by the path that the chart mounts them at.
fn secrets(pod: &Value) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for source in list(&pod["volumes"]).flat_map(|volume| list(&volume["projected"]["sources"])) {
        for item in list(&source["secret"]["items"]) {
            let text = match string(&item["path"]).split_once('/') {
                Some(("redis", "url")) => "rediss://:hunter2@redis:6379\n",
                Some(("redis", "password" | "sentinel_password")) => "hunter2\n",
                Some(("rabbitmq", _)) => "amqps://user:hunter2@rabbitmq/shop",
                Some(("kafka", _)) => {
                    "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=u\nsasl.password=hunter2\n"
                }
                Some(("admin", "read-tokens")) => "a-reader-of-the-tests\n",
                Some(("admin", "tls.crt")) => &CERTIFICATE[0],
                Some(("admin", "tls.key")) => &CERTIFICATE[1],
                Some(("admin", "ca.crt")) => &CERTIFICATE[2],
                Some(("admin", _)) => "ann a-token-of-the-tests\nanother-of-the-tests\n",
                other => panic!("a secret at {other:?}"),
            };
            let secret = all
                .entry(string(&source["secret"]["name"]).to_owned())
                .or_default();
            secret.insert(string(&item["key"]).to_owned(), text.to_owned());
        }
    }
    all
}

/// Files and environment that the pod of this Deployment or Job gets to see.
fn container(all: &[Value], pod: &Value, name: &str) -> Container {
    let secrets = secrets(pod);
    Container::of(pod, name, &|kind, name| match kind {
        "Secret" => secrets[name].clone(),
        // Not the chart's: a user's extra volume.
        _ if name.ends_with("-ca") => {
            BTreeMap::from([("ca.crt".to_owned(), "no certificate".to_owned())])
        }
        _ => {
            let map = find(all, kind, name);
            serde_json::from_value(map["data"].clone()).expect("texts")
        }
    })
}

/// Every case, and the one that the documentation begins with.
fn all_cases() -> Vec<(String, Vec<Value>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/kubernetes.md");
    let page = std::fs::read_to_string(page).expect("docs/kubernetes.md");
    let (_, example) = page
        .split_once("```yaml\n# values.yaml\n")
        .expect("the example");
    let example = example.split_once("```").expect("its end").0;
    let file = crate::support::folders::new("docs").join("values.yaml");
    std::fs::write(&file, example).expect("written");
    let files = cases().into_iter().chain([file]);
    files
        .map(|file| {
            (
                file.display().to_string(),
                documents(&template(&[&file], &[])),
            )
        })
        .collect()
}

#[tokio::test]
async fn every_rendered_configuration_is_right_by_the_binarys_own_check() {
    for (case, all) in all_cases() {
        for document in &all {
            let kind = string(&document["kind"]);
            if !matches!(kind, "Deployment" | "Job") {
                continue;
            }
            let container = container(&all, &document["spec"]["template"]["spec"], "check");
            // The servers of the examples are not there.
            let args: Vec<_> = container
                .args()
                .into_iter()
                .filter(|arg| *arg != "--connect")
                .collect();
            let output = pod::finish(&container.volumes, &container.environment, &args).await;
            let out = text(&output.stdout);
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{case}, {kind}: {error}");
            assert!(out.starts_with("the configuration is right"), "{out}");
        }
    }
}

/// Configuration that the binary has read of a case, on one line.
async fn printed(case: &str, deployment: &str) -> String {
    let all = documents(&template(&[&chart().join("ci").join(case)], &[]));
    let pod = &find(&all, "Deployment", deployment)["spec"]["template"]["spec"];
    let container = container(&all, pod, "check");
    let args = [&container.args()[..], &["--print"]].concat();
    let printed = text(
        &pod::finish(&container.volumes, &container.environment, &args)
            .await
            .stdout,
    );
    assert!(!printed.contains("hunter2"), "{printed}");
    printed.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn what_the_values_say_is_what_the_binary_reads() {
    let full = printed("full-values.yaml", "shop-relay").await;
    for expected in [
        "shutdown_timeout = \"45s\"",
        "partitions = 128",
        "max_pending = 50000000",
        "routing_key = \"no\"",
        "listen = \"0.0.0.0:8025\"",
        "probe_listen = \"0.0.0.0:8026\"",
        "certificate = \"/run/secrets/postdate/admin/tls.crt\"",
        "attempts = 8",
    ] {
        assert!(full.contains(expected), "{expected}: {full}");
    }
    let sentinel = printed("sentinel-values.yaml", "rel-postdate").await;
    for expected in [
        "topology = \"sentinel\"",
        "nodes = [\"redis-sentinel-0.redis:26379\", \"redis-sentinel-1.redis:26379\", ",
        "master = \"orders\"",
        " password_file = \"/run/secrets/postdate/redis/password\"",
        "sentinel_password_file = \"/run/secrets/postdate/redis/sentinel_password\"",
        "sentinel_username = \"postdate\"",
        "tls = true",
    ] {
        assert!(sentinel.contains(expected), "{expected}: {sentinel}");
    }
    let cluster = printed("cluster-values.yaml", "rel-postdate").await;
    for expected in [
        "topology = \"cluster\"",
        "password_file = \"/run/secrets/postdate/redis/password\"",
        "partitions = 256",
    ] {
        assert!(cluster.contains(expected), "{expected}: {cluster}");
    }
}

#[test]
fn every_pod_is_restricted() {
    for (case, all) in all_cases() {
        let pods = all
            .iter()
            .map(|document| &document["spec"]["template"]["spec"])
            .filter(|p| !p.is_null());
        let mut seen = 0;
        for pod in pods {
            assert_eq!(pod["automountServiceAccountToken"], false, "{case}");
            assert_eq!(pod["enableServiceLinks"], false, "{case}");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{case}");
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
                "{case}"
            );
            for container in list(&pod["initContainers"]).chain(list(&pod["containers"])) {
                let expected = json!({
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"] },
                });
                assert_eq!(container["securityContext"], expected, "{case}");
                assert!(
                    !container["resources"]["limits"]["memory"].is_null(),
                    "{case}"
                );
                seen += 1;
            }
        }
        assert!(seen >= 2, "{case}");
    }
}

fn deployment(case: &str, set: &[&str]) -> Value {
    let all = documents(&template(&[&chart().join("ci").join(case)], set));
    find(&all, "Deployment", "rel-postdate")["spec"].clone()
}

#[test]
fn kubernetes_waits_longer_than_the_drain_takes() {
    for seconds in [1, 20, 3600] {
        let spec = deployment(
            "kafka-values.yaml",
            &[&format!("shutdownTimeoutSeconds={seconds}")],
        );
        assert_eq!(
            spec["template"]["spec"]["terminationGracePeriodSeconds"],
            seconds + 10
        );
    }
}

#[test]
fn pods_are_replaced_when_the_configuration_changes_and_only_then() {
    let checksum = |set: &[&str]| {
        let spec = deployment("kafka-values.yaml", set);
        string(&spec["template"]["metadata"]["annotations"]["checksum/config"]).to_owned()
    };
    let before = checksum(&[]);
    assert_eq!(before, checksum(&["replicaCount=7"]));
    assert_ne!(before, checksum(&["config.routes.orders.max_delay=1h"]));
    assert_ne!(before, checksum(&["shutdownTimeoutSeconds=21"]));
}

#[test]
fn a_constraint_gets_the_deployments_selector_unless_it_has_one() {
    let spec = deployment("kafka-values.yaml", &[]);
    let constraints: Vec<_> =
        list(&spec["template"]["spec"]["topologySpreadConstraints"]).collect();
    assert_eq!(constraints.len(), 2);
    for constraint in constraints {
        assert_eq!(constraint["labelSelector"], spec["selector"]);
    }
    let full = documents(&template(&[&chart().join("ci/full-values.yaml")], &[]));
    let pod = &find(&full, "Deployment", "shop-relay")["spec"]["template"]["spec"];
    assert_eq!(
        pod["topologySpreadConstraints"][0]["labelSelector"],
        json!({"matchLabels": {"team": "shop"}})
    );
}

#[test]
fn a_network_policy_is_there_only_when_asked_for() {
    let all = documents(&template(&[&chart().join("ci/kafka-values.yaml")], &[]));
    assert!(
        all.iter()
            .all(|document| document["kind"] != "NetworkPolicy")
    );
}

#[test]
fn a_network_policy_opens_what_is_named_and_nothing_else() {
    let case = chart().join("ci/full-values.yaml");
    let spec = |set: &[&str]| {
        let all = documents(&template(&[&case], set));
        let policy = find(&all, "NetworkPolicy", "shop-relay")["spec"].clone();
        let deployment = find(&all, "Deployment", "shop-relay")["spec"].clone();
        assert_eq!(
            policy["podSelector"], deployment["selector"],
            "the pods of the Deployment"
        );
        assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
        policy
    };
    let full = spec(&[]);
    let ports: Vec<_> = list(&full["ingress"]).map(|rule| &rule["ports"]).collect();
    let tcp = |port: u16| json!([{ "port": port, "protocol": "TCP" }]);
    assert_eq!(ports, [&tcp(8025), &tcp(8026)]);
    assert!(
        list(&full["ingress"]).all(|rule| list(&rule["from"]).count() > 0),
        "{full}"
    );
    assert_eq!(
        full["ingress"][0]["from"][1],
        json!({ "podSelector": { "matchLabels": { "team": "shop" } } })
    );
    let ports: Vec<_> = list(&full["egress"])
        .map(|rule| &rule["ports"][0]["port"])
        .collect();
    assert_eq!(
        ports,
        [&json!(53), &json!(6379), &json!(9092), &json!("amqps")]
    );

    // Without a port of their own the probes need no rule: an empty rule would let everybody in.
    let without = spec(&["probePort=0"]);
    assert_eq!(list(&without["ingress"]).count(), 1);
    let closed = spec(&[
        "networkPolicy.ingress.admin=null",
        "networkPolicy.ingress.probes=null",
    ]);
    assert!(closed["ingress"].is_null(), "{closed}");

    let defaults = documents(&template(
        &[&chart().join("ci/kafka-values.yaml")],
        &[
            "networkPolicy.enabled=true",
            "networkPolicy.egress.redis[0].to[0].ipBlock.cidr=10.0.0.1/32",
            "networkPolicy.egress.redis[0].ports[0].port=6379",
            "networkPolicy.egress.brokers[0].to[0].ipBlock.cidr=10.0.0.2/32",
            "networkPolicy.egress.brokers[0].ports[0].port=9092",
        ],
    ));
    let policy = find(&defaults, "NetworkPolicy", "rel-postdate");
    let dns: Vec<_> = list(&policy["spec"]["egress"][0]["ports"])
        .map(|port| string(&port["protocol"]))
        .collect();
    assert_eq!(dns, ["UDP", "TCP"]);
}

/// Kinds that only somebody with Prometheus's operator has, and the dashboards.
const MONITORING: [&str; 3] = ["ServiceMonitor", "PodMonitor", "PrometheusRule"];

fn rendered(case: &str, set: &[&str]) -> Vec<Value> {
    documents(&template(&[&chart().join("ci").join(case)], set))
}

#[test]
fn monitoring_is_there_only_when_asked_for() {
    let all = rendered("kafka-values.yaml", &[]);
    assert!(
        all.iter()
            .all(|document| !MONITORING.contains(&string(&document["kind"])))
    );
    assert_eq!(
        all.iter()
            .filter(|document| document["kind"] == "ConfigMap")
            .count(),
        2,
        "the configuration, twice"
    );
}

#[test]
fn a_monitor_finds_the_pods_and_their_port() {
    let all = rendered("kafka-values.yaml", &["serviceMonitor.enabled=true"]);
    let monitor = find(&all, "ServiceMonitor", "rel-postdate");
    let service = find(&all, "Service", "rel-postdate");
    for (label, value) in monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .expect("labels")
    {
        assert_eq!(service["metadata"]["labels"][label], *value, "{label}");
    }
    let endpoint = &monitor["spec"]["endpoints"][0];
    assert_eq!(
        *endpoint,
        json!({ "port": "http", "path": "/metrics", "interval": "30s", "scrapeTimeout": "10s" })
    );
    assert_eq!(service["spec"]["ports"][0]["name"], "http");

    let all = rendered("full-values.yaml", &[]);
    let monitor = find(&all, "PodMonitor", "shop-relay");
    let deployment = find(&all, "Deployment", "shop-relay");
    assert_eq!(monitor["spec"]["selector"], deployment["spec"]["selector"]);
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(
        *endpoint,
        json!({ "port": "http", "path": "/metrics", "interval": "15s", "scrapeTimeout": "15s",
            "scheme": "https",
            "tlsConfig": { "ca": { "configMap": { "name": "shop-ca", "key": "ca.crt" } },
                "serverName": "relay.shop.example", "minVersion": "TLS13" },
            "relabelings": [{ "sourceLabels": ["__meta_kubernetes_pod_node_name"],
                "targetLabel": "node", "action": "Replace" }],
            "metricRelabelings": [{ "sourceLabels": ["__name__"], "separator": ";",
                "regex": "process_virtual_memory_bytes", "action": "drop" }] })
    );
    let ports = &deployment["spec"]["template"]["spec"]["containers"][0]["ports"];
    assert!(list(ports).any(|port| port["name"] == "http"), "{ports}");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert!(
        all.iter()
            .all(|document| document["kind"] != "ServiceMonitor")
    );
}

/// A file of the repository.
fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file")
}

#[test]
fn the_rules_of_the_chart_are_those_of_the_repository() {
    let written = file("deploy/prometheus/alerts.yaml");
    let groups =
        |text: &str| serde_saphyr::from_str::<Value>(text).expect("YAML")["groups"].clone();
    let all = rendered("kafka-values.yaml", &["prometheusRule.enabled=true"]);
    assert_eq!(
        find(&all, "PrometheusRule", "rel-postdate")["spec"]["groups"],
        groups(&written)
    );

    // Where the runbooks lie elsewhere, each alert leads there.
    let all = rendered("full-values.yaml", &[]);
    let rules = find(&all, "PrometheusRule", "shop-relay");
    let elsewhere = written.replace(
        "https://github.com/postdate/postdate/blob/main/docs/runbooks.md",
        "https://wiki.example.com/postdate",
    );
    assert_ne!(elsewhere, written);
    assert_eq!(rules["spec"]["groups"], groups(&elsewhere));
    assert_eq!(rules["metadata"]["labels"]["release"], "prometheus");
}

#[test]
fn the_dashboards_of_the_chart_are_those_of_the_repository() {
    let all = rendered("full-values.yaml", &[]);
    let entries = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana"));
    let names: Vec<_> = entries
        .expect("deploy/grafana")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let name = name.to_str().expect("UTF-8");
        let map = find(
            &all,
            "ConfigMap",
            &format!("shop-relay-{}", name.trim_end_matches(".json")),
        );
        assert_eq!(
            map["data"][format!("postdate-{name}")],
            file(&format!("deploy/grafana/{name}")),
            "{name}"
        );
        assert_eq!(map["metadata"]["labels"]["dashboards"], "shop");
        assert_eq!(map["metadata"]["annotations"]["grafana_folder"], "Postdate");
    }
    let all = rendered("kafka-values.yaml", &["dashboards.enabled=true"]);
    let map = find(&all, "ConfigMap", "rel-postdate-overview");
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
}

#[test]
fn names_fit_whatever_the_release_is_called() {
    let long = "a-release-with-a-name-that-is-as-long-as-helm-permits"; // helm: 53 characters
    let mut command = helm(&[
        "template",
        long,
        "--kube-version",
        KUBERNETES,
        "--set",
        "dashboards.enabled=true",
    ]);
    command
        .arg("--values")
        .arg(chart().join("ci/kafka-values.yaml"))
        .arg(chart());
    let output = command.output().expect("helm runs");
    let all = documents(&output);
    for document in all {
        assert!(
            string(&document["metadata"]["name"]).len() <= 63,
            "{document}"
        );
    }
}

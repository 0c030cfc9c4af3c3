//! Labels, names and users of the pods, and the examples of the documentation.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::pods::{list, string};
use super::tools::{cases, chart, documents, find, template, text};
use crate::support::folders;

const NAME: &str = "rel-postdate";

fn rendered(case: &str, set: &[&str]) -> Vec<Value> {
    documents(&template(&[&chart().join("ci").join(case)], set))
}

/// Selectors of an object: of its pods, and of those that its policies and constraints speak of.
fn selectors(object: &Value, found: &mut Vec<Value>) {
    match object {
        Value::Object(keys) => {
            for (key, value) in keys {
                if ["selector", "matchLabels", "podSelector"].contains(&key.as_str()) {
                    found.push(value.clone());
                }
                selectors(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| selectors(item, found)),
        _ => {}
    }
}

#[test]
fn common_labels_are_on_every_object_and_every_pod_and_in_no_selector() {
    let set = ["commonLabels.cost-center=shop-4711"];
    let mut kinds = BTreeSet::new();
    for case in cases() {
        let without = documents(&template(&[&case], &[]));
        let all = documents(&template(&[&case], &set));
        for object in &all {
            let name = string(&object["metadata"]["name"]);
            // Further objects are the user's own; one of them asks for the labels of the chart.
            if name.ends_with("-links") {
                continue;
            }
            let kind = string(&object["kind"]);
            kinds.insert(kind.to_owned());
            let labels = &object["metadata"]["labels"];
            assert_eq!(labels["cost-center"], "shop-4711", "{kind} {name}");
            let pod = &object["spec"]["template"];
            if !pod.is_null() {
                let labels = &pod["metadata"]["labels"];
                assert_eq!(labels["cost-center"], "shop-4711", "pod of {kind} {name}");
            }
            let mut found = [Vec::new(), Vec::new()];
            selectors(object, &mut found[0]);
            selectors(find(&without, kind, name), &mut found[1]);
            assert_eq!(found[0], found[1], "{kind} {name}");
        }
    }
    let expected = [
        "ConfigMap",
        "Deployment",
        "HorizontalPodAutoscaler",
        "Job",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "PodMonitor",
        "PrometheusRule",
        "ScaledObject",
        "Service",
        "ServiceMonitor",
        "StatefulSet",
    ];
    assert_eq!(
        kinds.iter().collect::<Vec<_>>(),
        expected.iter().collect::<Vec<_>>()
    );
}

/// A label that stands twice is no YAML that every reader takes.
#[test]
fn labels_of_one_object_count_before_common_ones() {
    let output = template(&[&chart().join("ci/full-values.yaml")], &[]);
    let all = documents(&output);
    let deployment = find(&all, "Deployment", "shop-relay");
    assert_eq!(deployment["metadata"]["labels"]["team"], "all");
    let pod = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(pod["team"], "shop");
    assert_eq!(pod["cost-center"], "4711");
    let set = [
        "commonLabels.release=x",
        "podMonitor.labels.release=prometheus",
    ];
    let all = rendered("full-values.yaml", &set);
    let labels = &find(&all, "PodMonitor", "shop-relay")["metadata"]["labels"];
    assert_eq!(labels["release"], "prometheus");
    let rendered = text(&output.stdout);
    let head = rendered.split("kind: Deployment").nth(1).expect("it");
    let pod = head.split("    spec:").next().expect("its labels");
    assert_eq!(pod.matches("team:").count(), 2, "{pod}");
}

#[test]
fn the_chosen_users_and_names_are_those_of_every_pod_of_the_relay() {
    let pods = |case: &str, set: &[&str]| {
        let all = rendered(case, set);
        let pods = all
            .iter()
            .filter(|object| ["Deployment", "Job"].contains(&string(&object["kind"])));
        let specs = pods.map(|object| object["spec"]["template"]["spec"].clone());
        specs.collect::<Vec<_>>()
    };
    let by_default = pods("kafka-values.yaml", &[]);
    assert_eq!(by_default.len(), 2, "the Job and the Deployment");
    for pod in by_default {
        for key in ["hostUsers", "dnsPolicy", "dnsConfig"] {
            assert!(pod[key].is_null(), "{key}: {pod}");
        }
    }
    let set = [
        "hostUsers=false",
        "dnsPolicy=None",
        "dnsConfig.nameservers={fd00::10}",
    ];
    let chosen = pods("kafka-values.yaml", &set);
    assert_eq!(chosen.len(), 2, "the Job and the Deployment");
    for pod in chosen {
        assert_eq!(pod["hostUsers"], false, "{pod}");
        assert_eq!(pod["dnsPolicy"], "None", "{pod}");
        assert_eq!(pod["dnsConfig"], json!({ "nameservers": ["fd00::10"] }));
    }
    let of_the_node = pods("kafka-values.yaml", &["hostUsers=true"]);
    assert!(of_the_node.iter().all(|pod| pod["hostUsers"] == true));
}

#[test]
fn the_deployment_keeps_as_many_revisions_as_asked_for() {
    for (set, expected) in [(&[][..], 10), (&["revisionHistoryLimit=0"], 0)] {
        let all = rendered("kafka-values.yaml", set);
        let spec = &find(&all, "Deployment", NAME)["spec"];
        assert_eq!(spec["revisionHistoryLimit"], expected);
    }
}

#[test]
fn the_service_has_the_families_that_are_asked_for() {
    let service = |set: &[&str]| {
        let all = rendered("kafka-values.yaml", set);
        find(&all, "Service", NAME)["spec"].clone()
    };
    let by_default = service(&[]);
    assert!(by_default["ipFamilyPolicy"].is_null() && by_default["ipFamilies"].is_null());
    let both = service(&[
        "service.ipFamilyPolicy=RequireDualStack",
        "service.ipFamilies={IPv6,IPv4}",
    ]);
    assert_eq!(both["ipFamilyPolicy"], "RequireDualStack");
    assert_eq!(both["ipFamilies"], json!(["IPv6", "IPv4"]));
}

#[test]
fn every_address_of_the_pod_is_of_the_family_that_is_asked_for() {
    let admin = |set: &[&str]| {
        let all = rendered("kafka-values.yaml", set);
        let map = string(&find(&all, "ConfigMap", NAME)["data"]["postdate.yaml"]);
        let config: Value = serde_saphyr::from_str(map).expect("YAML");
        ["listen", "probe_listen"].map(|key| config["admin"][key].clone())
    };
    assert_eq!(admin(&[]), [json!("[::]:8025"), Value::Null]);
    assert_eq!(
        admin(&["probePort=8026"]),
        [json!("[::]:8025"), json!("[::]:8026")]
    );
    assert_eq!(
        admin(&["probePort=8026", "listenAddress=0.0.0.0"]),
        [json!("0.0.0.0:8025"), json!("0.0.0.0:8026")]
    );
}

/// Values that an example adds to: what every release must say, and where its own Redis is unless the example says so.
fn around(example: &Value) -> Value {
    let redis = &example["config"]["redis"];
    let url = redis["topology"].is_null() && example["secrets"]["redis"].is_null();
    let redis = if url {
        json!({ "url": "redis://redis:6379" })
    } else {
        json!({})
    };
    let kafka = json!({ "main": { "brokers": "kafka:9092" } });
    let route = json!({ "from": { "kafka": "main", "topic": "a" }, "to": { "kafka": "main", "topic": "b" } });
    let egress = json!([{ "to": [{ "podSelector": {} }], "ports": [{ "port": 6379 }] }]);
    json!({
        "image": { "repository": "postdate" },
        "config": { "redis": redis, "kafka": kafka, "routes": { "orders": route } },
        "secrets": { "writeTokens": { "name": "postdate-tokens" } },
        "networkPolicy": { "egress": { "redis": egress, "brokers": egress } },
    })
}

#[test]
fn every_example_of_the_documentation_is_taken() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/kubernetes.md");
    let page = std::fs::read_to_string(page).expect("docs/kubernetes.md");
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().expect("its end"));
    let mut taken = 0;
    for block in blocks {
        // In a list of the page it is indented as a whole.
        let indent = block.len() - block.trim_start().len();
        let lines = block.lines().map(|line| line.get(indent..).unwrap_or(""));
        let example = lines.collect::<Vec<_>>().join("\n");
        let values: Value = serde_saphyr::from_str(&example).expect("YAML");
        if values["kind"].is_string() {
            continue;
        }
        let folder = folders::new("example");
        let base = folder.join("base.yaml");
        let file = folder.join("values.yaml");
        std::fs::write(&base, around(&values).to_string()).expect("written");
        std::fs::write(&file, &example).expect("written");
        let output = template(&[&base, &file], &[]);
        let error = text(&output.stderr);
        assert!(output.status.success(), "{example}\n{error}");
        taken += 1;
    }
    assert!(taken >= 10, "{taken} examples");
}

/// The example that `values.yaml` gives for Prometheus is a rule that lets it in.
#[test]
fn the_example_of_the_network_policy_lets_prometheus_in() {
    let values = std::fs::read_to_string(chart().join("values.yaml")).expect("values.yaml");
    let comment = values
        .lines()
        .find(|line| line.contains("Prometheus of the namespace `monitoring`"))
        .expect("the example");
    let example = comment.split('`').find(|part| part.starts_with("[{"));
    let example = example.expect("the example");
    let peers: Value = serde_saphyr::from_str(example).expect("YAML");
    let file = folders::new("example").join("values.yaml");
    let policy = json!({ "enabled": true, "ingress": { "admin": peers } });
    std::fs::write(&file, json!({ "networkPolicy": policy }).to_string()).expect("written");
    let case = chart().join("ci/scaled-values.yaml");
    let all = documents(&template(&[&case, &file], &[]));
    let rules = &find(&all, "NetworkPolicy", NAME)["spec"]["ingress"];
    assert_eq!(list(rules).count(), 1);
    assert_eq!(rules[0]["from"], peers);
    assert_eq!(rules[0]["ports"][0]["port"], 8025);
    let namespace = &peers[0]["namespaceSelector"]["matchLabels"];
    assert_eq!(namespace["kubernetes.io/metadata.name"], "monitoring");
}

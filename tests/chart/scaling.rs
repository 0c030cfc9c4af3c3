//! Scalers of the pods, the check that connects, the Redis for a try, and further objects.

use postdate::telemetry::metrics::descriptions;
use serde_json::{Value, json};

use super::pods::{list, string};
use super::tools::{chart, documents, find, template};
use crate::support::{Redis, folders, prometheus};

fn rendered(case: &str, set: &[&str]) -> Vec<Value> {
    documents(&template(&[&chart().join("ci").join(case)], set))
}

#[test]
fn nothing_of_it_is_there_unless_asked_for() {
    let all = rendered("kafka-values.yaml", &[]);
    for kind in ["HorizontalPodAutoscaler", "ScaledObject", "StatefulSet"] {
        assert!(
            all.iter().all(|document| document["kind"] != kind),
            "{kind}"
        );
    }
}

#[test]
fn the_check_before_changes_connects_unless_told_not_to_or_its_redis_comes_later() {
    for (case, set, connects) in [
        ("kafka-values.yaml", &[][..], true),
        ("kafka-values.yaml", &["check.connect=false"], false),
        ("evaluation-values.yaml", &[], false),
    ] {
        let all = rendered(case, set);
        let job = find(&all, "Job", "rel-postdate-check");
        let is_asked = job.to_string().contains("--connect");
        assert_eq!(is_asked, connects, "{case} {set:?}: {job}");
    }
}

/// The number of pods belongs to one of the two: an upgrade must not take it back.
#[test]
fn a_deployment_that_is_scaled_says_no_number_of_pods() {
    for (case, scaled) in [
        ("kafka-values.yaml", false),
        ("evaluation-values.yaml", true),
        ("scaled-values.yaml", true),
    ] {
        let all = rendered(case, &[]);
        let replicas = &find(&all, "Deployment", "rel-postdate")["spec"]["replicas"];
        assert_eq!(replicas.is_null(), scaled, "{case}: {replicas}");
    }
    let all = rendered("evaluation-values.yaml", &[]);
    let spec = &find(&all, "HorizontalPodAutoscaler", "rel-postdate")["spec"];
    assert_eq!(spec["scaleTargetRef"]["name"], "rel-postdate");
    assert_eq!(
        (&spec["minReplicas"], &spec["maxReplicas"]),
        (&json!(2), &json!(4))
    );
    let metrics: Vec<_> = list(&spec["metrics"])
        .map(|metric| string(&metric["type"]))
        .collect();
    assert_eq!(metrics, ["Resource", "Pods"]);
    let all = rendered(
        "evaluation-values.yaml",
        &["autoscaling.targetCPUUtilizationPercentage=0"],
    );
    let spec = &find(&all, "HorizontalPodAutoscaler", "rel-postdate")["spec"];
    assert_eq!(
        list(&spec["metrics"]).count(),
        1,
        "only the metric of the adapter"
    );
}

#[tokio::test]
async fn keda_asks_for_metrics_that_are_there_in_words_of_prometheus() {
    let all = rendered("scaled-values.yaml", &[]);
    let scaled = find(&all, "ScaledObject", "rel-postdate");
    assert_eq!(scaled["metadata"]["labels"]["team"], "shop");
    let spec = &scaled["spec"];
    assert_eq!(spec["scaleTargetRef"]["name"], "rel-postdate");
    assert_eq!(
        (&spec["minReplicaCount"], &spec["maxReplicaCount"]),
        (&json!(3), &json!(12))
    );
    let triggers: Vec<&Value> = list(&spec["triggers"]).collect();
    let thresholds: Vec<_> = triggers
        .iter()
        .map(|trigger| string(&trigger["metadata"]["threshold"]))
        .collect();
    assert_eq!(thresholds, ["50000", "0.5"]);
    for metric in ["postdate_ingress_lag", "postdate_lateness_seconds"] {
        let mut described = descriptions::ALL.iter();
        assert!(
            described.any(|described| metric == format!("postdate_{}", described.name)),
            "{metric}"
        );
        let asked = triggers
            .iter()
            .any(|trigger| string(&trigger["metadata"]["query"]).contains(metric));
        assert!(asked, "{metric}");
    }
    if !prometheus::available("the chart: the queries of KEDA") {
        return;
    }
    let rules = triggers.iter().enumerate().map(
        |(number, trigger)| json!({ "record": format!("query:{number}"), "expr": trigger["metadata"]["query"] }),
    );
    let rules = json!({ "groups": [{ "name": "keda", "rules": rules.collect::<Vec<_>>() }] });
    let file = folders::new("keda").join("rules.json");
    std::fs::write(&file, rules.to_string()).expect("written");
    let printed = prometheus::promtool(&["check", "rules", file.to_str().expect("UTF-8")]).await;
    assert!(printed.contains("2 rules found"), "{printed}");
}

#[test]
fn the_job_that_connects_may_reach_the_same_servers_and_no_pod_connects_before_it_starts() {
    let all = rendered("scaled-values.yaml", &[]);
    let connects = |pod: &Value| {
        let containers = list(&pod["initContainers"]).chain(list(&pod["containers"]));
        containers
            .filter(|container| list(&container["args"]).any(|arg| arg == "--connect"))
            .count()
    };
    let job = find(&all, "Job", "rel-postdate-check");
    assert_eq!(connects(&job["spec"]["template"]["spec"]), 1);
    let deployment = find(&all, "Deployment", "rel-postdate");
    assert_eq!(
        connects(&deployment["spec"]["template"]["spec"]),
        0,
        "a pod waits for brokers that are away"
    );

    let policy = find(&all, "NetworkPolicy", "rel-postdate-check");
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"], *labels);
    let of_pods = find(&all, "NetworkPolicy", "rel-postdate");
    assert_eq!(policy["spec"]["egress"], of_pods["spec"]["egress"]);
    let hook = "helm.sh/hook";
    assert_eq!(
        policy["metadata"]["annotations"][hook],
        job["metadata"]["annotations"][hook]
    );
}

#[tokio::test]
async fn the_redis_for_a_try_is_one_that_postdate_takes() {
    let all = rendered("evaluation-values.yaml", &[]);
    let map = &find(&all, "ConfigMap", "rel-postdate")["data"]["postdate.yaml"];
    assert!(
        string(map).contains("url: redis://rel-postdate-evaluation-redis:6379"),
        "{map}"
    );
    let set = find(&all, "StatefulSet", "rel-postdate-evaluation-redis");
    let pod = &set["spec"]["template"];
    let labels = pod["metadata"]["labels"].to_string();
    let reached = find(&all, "NetworkPolicy", "rel-postdate")["spec"]["egress"].to_string();
    assert!(reached.contains(&labels), "{reached}");
    let own = &find(&all, "NetworkPolicy", "rel-postdate-evaluation-redis")["spec"];
    assert_eq!(own["podSelector"]["matchLabels"].to_string(), labels);
    let relays = &find(&all, "Deployment", "rel-postdate")["spec"]["selector"];
    assert_eq!(own["ingress"][0]["from"][0]["podSelector"], *relays);

    let container = &pod["spec"]["containers"][0];
    let args: Vec<_> = list(&container["args"]).map(string).skip(1).collect();
    // The server of the test has a folder of its own.
    let options: Vec<_> = args
        .chunks(2)
        .filter(|pair| pair[0] != "--dir")
        .flatten()
        .copied()
        .collect();
    let redis = Redis::start_with("redis-server", &options).await;
    for (key, expected) in [
        ("appendonly", "yes"),
        ("maxmemory-policy", "noeviction"),
        ("maxmemory", "134217728"),
    ] {
        let answer: Vec<String> = redis
            .command(&["CONFIG", "GET", key])
            .await
            .expect("an answer");
        assert_eq!(answer, [key, expected]);
    }
    assert_eq!(
        container["resources"]["limits"]["memory"], "320Mi",
        "twice its maxmemory and 64Mi"
    );

    let claim = &set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"];
    assert_eq!(claim["storage"], "2Gi");
    let without = rendered("evaluation-values.yaml", &["evaluationRedis.storage="]);
    let set = find(&without, "StatefulSet", "rel-postdate-evaluation-redis");
    assert_eq!(
        set["spec"]["template"]["spec"]["volumes"][0]["emptyDir"],
        json!({})
    );
    assert!(set["spec"]["volumeClaimTemplates"].is_null());

    // Its pods have a label of its name and of a hash of ten digits, 63 characters at most.
    let long = format!("fullnameOverride={}", "x".repeat(50));
    let long = rendered("evaluation-values.yaml", &[&long]);
    let name = format!("{}-evaluation-redis", "x".repeat(34));
    assert!(name.len() + 11 <= 63, "{name}");
    find(&long, "StatefulSet", &name);
}

#[test]
fn further_objects_may_have_templates_in_them() {
    let all = rendered("scaled-values.yaml", &[]);
    assert_eq!(
        find(&all, "ConfigMap", "rel-postdate-links")["data"]["console"],
        "http://rel"
    );
    let notes = find(&all, "ConfigMap", "rel-notes");
    assert_eq!(notes["data"]["owner"], "shop");
    assert_eq!(
        notes["metadata"]["labels"]["app.kubernetes.io/name"],
        "postdate"
    );
}

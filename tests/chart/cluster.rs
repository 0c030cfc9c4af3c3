//! On a real API server: installed, upgraded, refused, killed, rolled back, uninstalled; and its pod run.

use std::process::Stdio;
use std::sync::Arc;

use serde_json::{Value, json};

use super::pods::string;
use super::server::{Cluster, Kubelet};
use super::tools::{chart, text};
use crate::support::pod;
use crate::support::{
    Kafka, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, folders, names, ports,
};

/// A copy of a case whose Job judges the configuration alone: the servers that the case names are not there.
fn without_servers(case: &str) -> String {
    let written = std::fs::read_to_string(chart().join("ci").join(case)).expect("a case");
    let file = folders::new("values").join("values.yaml");
    std::fs::write(&file, format!("{written}check: {{ connect: false }}\n")).expect("written");
    file.display().to_string()
}

fn pod_of(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]
}

/// Configuration that the pods would read at their next restart.
async fn installed(cluster: &Cluster) -> (Value, Value) {
    let deployment = cluster
        .get("shop", "deployment", "rel-postdate")
        .await
        .expect("a Deployment");
    let map = cluster
        .get("shop", "configmap", "rel-postdate")
        .await
        .expect("a ConfigMap");
    (deployment["spec"].clone(), map["data"].clone())
}

#[tokio::test]
async fn a_release_from_its_install_to_its_end() {
    let cluster = Arc::new(Cluster::start().await);
    cluster.namespace("shop").await;
    cluster
        .secret(
            "shop",
            "postdate-tokens",
            &[("write-tokens", "a-token-of-the-tests\n")],
        )
        .await;
    let kubelet = Kubelet::start(&cluster, "shop");
    let file = without_servers("kafka-values.yaml");
    let helm = async |verb: &str, more: &[&str]| {
        let output = cluster
            .run_helm("shop", &[&[verb, "rel"], more].concat())
            .await;
        (
            output.status.success(),
            format!("{}{}", text(&output.stdout), text(&output.stderr)),
        )
    };

    // A refused configuration installs nothing; what it was refused for stays to be read.
    let (done, said) = helm(
        "install",
        &[
            "--values",
            &file,
            "--set",
            "config.routes.orders.max_delay=soon",
        ],
    )
    .await;
    assert!(
        !done && said.contains("pre-install") && said.contains("failed"),
        "{said}"
    );
    assert_eq!(
        cluster.owned("shop", "rel").await,
        [
            "configmap/rel-postdate-check",
            "job.batch/rel-postdate-check"
        ]
    );
    let (done, said) = helm("uninstall", &[]).await;
    assert!(done, "{said}");

    let (done, notes) = helm("install", &["--values", &file]).await;
    assert!(done, "{notes}");
    let all = [
        "configmap/rel-postdate",
        "deployment.apps/rel-postdate",
        "poddisruptionbudget.policy/rel-postdate",
        "service/rel-postdate",
    ];
    assert_eq!(
        cluster.owned("shop", "rel").await,
        all,
        "and the Job has gone"
    );
    said_right(&cluster, &notes).await;
    let first = installed(&cluster).await;
    restricted(&cluster, &first.0).await;

    let settings = [
        "--values",
        &file,
        "--set",
        "config.routes.orders.max_delay=1h",
    ];
    let (done, said) = helm("upgrade", &settings).await;
    assert!(done, "{said}");
    let second = installed(&cluster).await;
    assert_ne!(
        first.0["template"]["metadata"], second.0["template"]["metadata"],
        "other pods"
    );
    assert!(
        second.1["postdate.yaml"]
            .to_string()
            .contains("max_delay: 1h")
    );

    // Refused, by the schema and by the binary: nothing that runs has changed.
    let (done, said) = helm(
        "upgrade",
        &["--values", &file, "--set", "replicaCount=many"],
    )
    .await;
    assert!(
        !done && said.contains("at '/replicaCount': got string, want integer"),
        "{said}"
    );
    let (done, said) = helm(
        "upgrade",
        &[
            "--values",
            &file,
            "--set",
            "config.routes.orders.to.topic=orders.delayed",
        ],
    )
    .await;
    assert!(!done && said.contains("pre-upgrade"), "{said}");
    assert_eq!(installed(&cluster).await, second);

    killed(&cluster, &kubelet, &file).await;
    assert_eq!(
        installed(&cluster).await,
        second,
        "an upgrade that was killed has changed nothing"
    );
    let (done, said) = helm("upgrade", &settings).await;
    assert!(!done && said.contains("another operation"), "{said}");

    let (done, said) = helm("rollback", &["1"]).await;
    assert!(done, "{said}");
    assert_eq!(installed(&cluster).await, first, "as it was at first");
    let (done, said) = helm("upgrade", &settings).await;
    assert!(done, "after the rollback all goes on: {said}");
    assert_eq!(
        cluster.owned("shop", "rel").await,
        all,
        "what was left of refused ones has gone too"
    );

    let (done, said) = helm("uninstall", &[]).await;
    assert!(done, "{said}");
    assert_eq!(cluster.owned("shop", "rel").await, Vec::<String>::new());
    let secret = cluster.get("shop", "secret", "postdate-tokens").await;
    assert!(secret.is_some(), "the user's own stay");
}

/// Kills helm with SIGKILL while its Job runs.
async fn killed(cluster: &Cluster, kubelet: &Kubelet, file: &str) {
    kubelet.works(false);
    let mut command = cluster.helm(
        "shop",
        &[
            "upgrade",
            "rel",
            "--values",
            file,
            "--set",
            "replicaCount=5",
        ],
    );
    let mut helm = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("helm");
    // The refused one of before has another id.
    let before = cluster.get("shop", "job", "rel-postdate-check").await;
    let before = before.map(|job| job["metadata"]["uid"].clone());
    eventually("helm has made its Job", async || {
        let job = cluster.get("shop", "job", "rel-postdate-check").await;
        match job {
            Some(job)
                if Some(&job["metadata"]["uid"]) != before.as_ref()
                    || job["status"] == json!({}) =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    helm.kill().expect("killed");
    helm.wait().expect("a child of ours");
    kubelet.works(true);
}

/// A pod of the Deployment is taken in a namespace that enforces the restricted level, where one that is
/// any less so is not.
async fn restricted(cluster: &Cluster, deployment: &Value) {
    let pod = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "shop" }, "spec": deployment["template"]["spec"] })
    };
    cluster.create(&pod("good")).await.expect("taken");
    cluster
        .try_kubectl(&[
            "-n",
            "shop",
            "delete",
            "pod",
            "good",
            "--force",
            "--grace-period=0",
        ])
        .await
        .expect("gone");
    let mut bad = pod("bad");
    bad["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
    let error = cluster
        .create(&bad)
        .await
        .expect_err("it is not restricted");
    assert!(
        error.contains("violates PodSecurity \"restricted"),
        "{error}"
    );
}

/// The commands of NOTES.txt name what is there.
async fn said_right(cluster: &Cluster, notes: &str) {
    let commands: Vec<_> = notes
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("kubectl "))
        .collect();
    assert_eq!(commands.len(), 5, "{notes}");
    for command in commands {
        let words: Vec<_> = command.split(' ').collect();
        let object = words
            .iter()
            .find(|word| word.contains('/'))
            .expect("an object");
        let namespace = words[1..]
            .windows(2)
            .find(|pair| pair[0] == "-n")
            .expect("a namespace")[1];
        let found = cluster
            .try_kubectl(&["-n", namespace, "get", object, "-o", "name"])
            .await;
        found.unwrap_or_else(|error| panic!("{command}: {error}"));
    }
    let token = notes
        .split_once("$(kubectl ")
        .expect("the token")
        .1
        .split_once(" | head")
        .expect("its end")
        .0;
    let token: Vec<String> = token
        .split_inclusive('\'')
        .map(|part| part.trim_matches('\'').to_owned())
        .collect();
    let [words, template] = &token[..] else {
        panic!("{token:?}")
    };
    let words: Vec<_> = words
        .trim_end()
        .trim_end_matches("-o go-template=")
        .split_whitespace()
        .collect();
    let template = format!("go-template={template}");
    let read = cluster
        .try_kubectl(&[&words[..], &["-o", &template]].concat())
        .await
        .expect("the token");
    assert_eq!(read, "a-token-of-the-tests\n");
    assert!(notes.contains("postdate send --route orders "), "{notes}");
}

/// NOTES.txt calls the API by the scheme that it speaks, and warns of tokens in clear where the Service is open to others.
fn said_of_tls(case: &str, notes: &str) {
    let calls: Vec<_> = notes
        .lines()
        .map(str::trim)
        .filter(|line| line.contains("//localhost:8025") || line.contains("//127.0.0.1:8025"))
        .collect();
    let expected: &[&str] = match case {
        "full-values" | "tls-values" => &[
            "curl --cacert postdate-ca.crt https://localhost:8025/readyz",
            "export POSTDATE_URL=https://localhost:8025 POSTDATE_CA=postdate-ca.crt",
        ],
        _ => &["curl http://127.0.0.1:8025/readyz"],
    };
    assert_eq!(calls, expected, "{case}: {notes}");
    let warns = notes.contains("the API speaks no TLS");
    assert_eq!(warns, case == "evaluation-values", "{case}: {notes}");
}

/// Every case installs, and its API objects are what was written: nothing is dropped as unknown.
#[tokio::test]
async fn every_case_is_taken_by_the_api() {
    let cluster = Cluster::start().await;
    cluster.operators_kinds().await;
    for case in super::tools::cases() {
        let name = case
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("a name")
            .to_owned();
        cluster.namespace(&name).await;
        let args = [
            "install",
            "rel",
            "--no-hooks",
            "--values",
            case.to_str().expect("UTF-8"),
        ];
        let output = cluster.run_helm(&name, &args).await;
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        assert!(
            !text(&output.stderr).contains("arning"),
            "{name}: {}",
            text(&output.stderr)
        );
        said_of_tls(&name, &text(&output.stdout));
    }
    assert!(
        cluster
            .get("scaled-values", "scaledobject", "rel-postdate")
            .await
            .is_some()
    );
    assert!(
        cluster
            .get(
                "evaluation-values",
                "horizontalpodautoscaler",
                "rel-postdate"
            )
            .await
            .is_some()
    );
    let redis = cluster
        .get(
            "evaluation-values",
            "statefulset",
            "rel-postdate-evaluation-redis",
        )
        .await;
    let redis = redis.expect("a StatefulSet");
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "redis", "namespace": "evaluation-values" },
        "spec": { "containers": pod_of(&redis)["containers"], "securityContext": pod_of(&redis)["securityContext"],
            "volumes": [{ "name": "data", "emptyDir": {} }] } });
    cluster
        .create(&pod)
        .await
        .expect("the restricted level takes it");
    for kind in ["podmonitor", "prometheusrule"] {
        assert!(
            cluster
                .get("full-values", kind, "shop-relay")
                .await
                .is_some(),
            "{kind}"
        );
    }
    let full = cluster
        .get("full-values", "deployment", "shop-relay")
        .await
        .expect("a Deployment");
    let modes = &pod_of(&full)["volumes"];
    assert_eq!(
        (
            &modes[0]["configMap"]["defaultMode"],
            &modes[1]["projected"]["defaultMode"]
        ),
        (&json!(0o444), &json!(0o444))
    );
}

/// The plain manifests, in a namespace that enforces the restricted level.
#[tokio::test]
async fn the_plain_manifests_are_taken_by_the_api() {
    let cluster = Cluster::start().await;
    cluster.namespace("postdate").await;
    let file =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes/postdate.yaml");
    let file = file.display().to_string();
    for expected in ["created", "unchanged"] {
        let apply = [
            "apply",
            "--validate=strict",
            "--namespace",
            "postdate",
            "-f",
            &file,
        ];
        let said = cluster.try_kubectl(&apply).await.expect("taken");
        assert!(
            said.contains(&format!("deployment.apps/postdate {expected}")),
            "{said}"
        );
        assert!(!said.contains("arning"), "{said}");
    }
}

/// The pod of the installed Deployment, run: its init container, then itself, between real servers.
#[tokio::test]
async fn the_installed_pod_relays() {
    let (cluster, redis, kafka, rabbitmq) = tokio::join!(
        Cluster::start(),
        Redis::shared(),
        Kafka::shared(),
        Rabbitmq::shared()
    );
    let from = kafka.unique_topic("from", 2).await;
    let target = names::unique("to");
    rabbitmq.declare_queue(&target, QueueKind::Quorum).await;
    cluster.namespace("shop").await;
    cluster
        .secret("shop", "redis", &[("url", &redis.url())])
        .await;
    cluster
        .secret("shop", "rabbitmq", &[("url", &rabbitmq.url())])
        .await;
    cluster
        .secret(
            "shop",
            "kafka",
            &[("properties", "socket.keepalive.enable=true\n")],
        )
        .await;
    cluster
        .secret(
            "shop",
            "tokens",
            &[
                ("write-tokens", "a-token-of-the-tests\n"),
                ("read-tokens", "a-reader-of-the-tests"),
            ],
        )
        .await;
    let file = folders::new("values").join("values.yaml");
    let secret = |name: &str, key: &str| json!({ "name": name, "key": key });
    let content = json!({
        "image": { "repository": "postdate" },
        "config": {
            "redis": { "prefix": names::unique("postdate") },
            "kafka": { "main": { "brokers": kafka.bootstrap() } },
            "routes": { "orders": {
                "from": { "kafka": "main", "topic": from },
                "to": { "rabbitmq": "main", "exchange": "", "routing_key": target },
            } },
        },
        "secrets": {
            "redis": secret("redis", "url"),
            "rabbitmq": { "main": secret("rabbitmq", "url") },
            "kafka": { "main": secret("kafka", "properties") },
            "writeTokens": secret("tokens", "write-tokens"),
            "readTokens": secret("tokens", "read-tokens"),
        },
    });
    std::fs::write(&file, content.to_string()).expect("written");
    let args = [
        "install",
        "rel",
        "--no-hooks",
        "--values",
        file.to_str().expect("UTF-8"),
    ];
    let output = cluster.run_helm("shop", &args).await;
    assert!(output.status.success(), "{}", text(&output.stderr));

    let deployment = cluster
        .get("shop", "deployment", "rel-postdate")
        .await
        .expect("a Deployment");
    let pod = pod_of(&deployment);
    let init = cluster.container("shop", pod, "check").await;
    let checked = pod::finish(&init.volumes, &init.environment, &init.args()).await;
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));

    // All pods of this machine share its ports: another one than the chart's.
    let address = format!("127.0.0.1:{}", ports::free());
    let main = cluster.container("shop", pod, "postdate").await;
    let listen = format!("admin.listen={address}");
    let args = [&main.args()[..], &["--set", &listen]].concat();
    let mut relay = Relay::adopt(
        pod::start(&main.volumes, &main.environment, &args),
        &address,
    );
    let probe = |name: &str| string(&pod["containers"][0][name]["httpGet"]["path"]).to_owned();
    relay.ready().await;
    assert_eq!(
        relay
            .get(&probe("readinessProbe"))
            .await
            .expect("an answer")
            .0,
        200
    );
    assert_eq!(
        relay
            .get(&probe("livenessProbe"))
            .await
            .expect("an answer")
            .0,
        200
    );

    let run = Run::new();
    run.collect_rabbitmq(rabbitmq, &target);
    let label = format!("rabbitmq:{target}");
    let messages = (0..20)
        .map(|n| run.message(&label, When::Delay(n * 50)).key(&target))
        .collect();
    run.send_kafka(kafka, &from, messages).await;
    run.drain(&relay).await;
    run.report().assert_accounted(0);
    assert!(relay.terminate().await.success(), "{}", relay.log());
}

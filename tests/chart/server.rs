//! A real kube-apiserver on a real etcd. Nobody runs pods there: what is asked is what the API takes, and
//! `Kubelet` plays the one that runs the Jobs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::pods::{Container, list, string};
use super::tools::{chart, helm, text, tool};
use crate::support::process::Process;
use crate::support::{eventually, folders, pod, ports};

/// The two processes, and how to speak to them.
#[derive(Debug)]
pub(crate) struct Cluster {
    kubeconfig: PathBuf,
    _etcd: Process,
    _api: Process,
}

impl Cluster {
    /// Starts them, and waits until the API is ready.
    pub(crate) async fn start() -> Self {
        let folder = folders::new("cluster");
        let client = ports::free();
        let peer = ports::free();
        let port = ports::free();
        let (client, peer) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let etcd = Process::start("etcd", &folder, "etcd", |command| {
            command.args(["--data-dir", "etcd", "--unsafe-no-fsync"]);
            command.args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ]);
            command.args(["--listen-peer-urls", &peer]);
        });
        let key = Command::new("openssl")
            .args(["genrsa", "-out", "sa.key", "2048"])
            .current_dir(&folder)
            .output();
        assert!(key.expect("openssl").status.success());
        std::fs::write(
            folder.join("tokens.csv"),
            "token,admin,admin,\"system:masters\"\n",
        )
        .expect("written");
        let program = tool("kube-apiserver");
        let mut api = Process::start(
            "kube-apiserver",
            &folder,
            &program.to_string_lossy(),
            |command| {
                command
                    .arg(format!("--etcd-servers={client}"))
                    .arg(format!("--secure-port={port}"));
                command.args([
                    "--service-account-issuer=https://kubernetes.default.svc",
                    "--service-account-signing-key-file=sa.key",
                    "--service-account-key-file=sa.key",
                    "--cert-dir=certs",
                    "--token-auth-file=tokens.csv",
                    "--authorization-mode=RBAC",
                    "--bind-address=127.0.0.1",
                    "--advertise-address=127.0.0.1",
                    "--service-cluster-ip-range=10.0.0.0/24",
                    // Nobody makes service accounts here.
                    "--disable-admission-plugins=ServiceAccount",
                ]);
            },
        );
        let kubeconfig = folder.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true } }],
            "users": [{ "name": "admin", "user": { "token": "token" } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "admin" } }],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("written");
        let cluster = {
            eventually("the API server is ready", async || {
                api.assert_running();
                let mut command = kubectl(&kubeconfig, &["get", "--raw", "/readyz"]);
                let output =
                    tokio::task::spawn_blocking(move || command.output().expect("kubectl")).await?;
                if output.status.success() {
                    Ok(())
                } else {
                    Err(anyhow::anyhow!(text(&output.stderr)))
                }
            })
            .await;
            Self {
                kubeconfig,
                _etcd: etcd,
                _api: api,
            }
        };
        // Made by a controller that runs here in its own time.
        eventually("the class system-cluster-critical is there", async || {
            cluster
                .try_kubectl(&["get", "priorityclass", "system-cluster-critical"])
                .await
        })
        .await;
        cluster
    }

    /// A namespace that enforces the restricted level.
    pub(crate) async fn namespace(&self, name: &str) {
        let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": labels } });
        self.create(&namespace).await.expect("a namespace");
    }

    /// The kinds of the Prometheus operator and of KEDA, whose fields nobody checks.
    pub(crate) async fn operators_kinds(&self) {
        const MONITORING_API: (&str, &str) = ("monitoring.coreos.com", "v1");
        const KEDA_API: (&str, &str) = ("keda.sh", "v1alpha1");
        let kinds = [
            ("ServiceMonitor", MONITORING_API),
            ("PodMonitor", MONITORING_API),
            ("PrometheusRule", MONITORING_API),
            ("ScaledObject", KEDA_API),
        ];
        for (kind, (group, version)) in kinds {
            let singular = kind.to_lowercase();
            let name = format!("{singular}s.{group}");
            let anything =
                json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
            let version = json!({ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": anything } });
            let names =
                json!({ "kind": kind, "singular": singular, "plural": format!("{singular}s") });
            let definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": name },
                "spec": { "group": group, "scope": "Namespaced", "names": names, "versions": [version] },
            });
            self.create(&definition).await.expect("a kind");
            let wait = [
                "wait",
                "--for=condition=Established",
                "--timeout=60s",
                &format!("crd/{name}"),
            ];
            self.try_kubectl(&wait).await.expect("it is served");
        }
    }

    /// A Secret of texts.
    pub(crate) async fn secret(&self, namespace: &str, name: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<_, _> = data.iter().copied().collect();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": name, "namespace": namespace }, "stringData": data });
        self.create(&secret).await.expect("a Secret");
    }

    /// Creates an object; what the API said if it would not.
    pub(crate) async fn create(&self, object: &Value) -> Result<String, String> {
        let file = folders::new("object").join("object.json");
        std::fs::write(&file, object.to_string()).expect("written");
        self.try_kubectl(&[
            "create",
            "--validate=strict",
            "-f",
            file.to_str().expect("UTF-8"),
        ])
        .await
    }

    /// Runs kubectl: its output, or what it complained of.
    pub(crate) async fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = kubectl(&self.kubeconfig, args);
        let output = tokio::task::spawn_blocking(move || command.output().expect("kubectl"))
            .await
            .expect("no panic");
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// An object, as the API has it; `None` if it is not there.
    pub(crate) async fn get(&self, namespace: &str, kind: &str, name: &str) -> Option<Value> {
        match self
            .try_kubectl(&["-n", namespace, "get", kind, name, "-o", "json"])
            .await
        {
            Ok(json) => Some(serde_json::from_str(&json).expect("JSON")),
            Err(error) if error.contains("NotFound") => None,
            Err(error) => panic!("{kind} {name}: {error}"),
        }
    }

    /// Everything in a namespace that this release has made, `KIND/NAME`.
    pub(crate) async fn owned(&self, namespace: &str, release: &str) -> Vec<String> {
        let kinds = "deployments,jobs,services,configmaps,poddisruptionbudgets,secrets,serviceaccounts,pods";
        let label = format!("app.kubernetes.io/instance={release}");
        let args = ["-n", namespace, "get", kinds, "-l", &label, "-o", "name"];
        let names = self.try_kubectl(&args).await.expect("a list");
        let mut names: Vec<_> = names.lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// helm against this cluster: `VERB RELEASE`, the chart where the verb takes it, and further arguments.
    pub(crate) fn helm(&self, namespace: &str, args: &[&str]) -> Command {
        let mut command = helm(args);
        if matches!(args[0], "install" | "upgrade") {
            command.arg(chart());
        }
        command
            .args(["--namespace", namespace])
            .env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// The same, run to its end.
    pub(crate) async fn run_helm(&self, namespace: &str, args: &[&str]) -> Output {
        let mut command = self.helm(namespace, args);
        tokio::task::spawn_blocking(move || command.output().expect("helm"))
            .await
            .expect("no panic")
    }

    /// The data of a namespace's ConfigMaps and Secrets that a pod names.
    pub(crate) async fn data(
        &self,
        namespace: &str,
        pod: &Value,
    ) -> BTreeMap<(String, String), BTreeMap<String, String>> {
        let maps = list(&pod["volumes"]).filter_map(|v| v["configMap"]["name"].as_str());
        let sources = list(&pod["volumes"]).flat_map(|v| list(&v["projected"]["sources"]));
        let secrets = sources.filter_map(|source| source["secret"]["name"].as_str());
        let mut all = BTreeMap::new();
        for (kind, name) in maps
            .map(|name| ("ConfigMap", name))
            .chain(secrets.map(|name| ("Secret", name)))
        {
            let object = self
                .get(namespace, kind, name)
                .await
                .unwrap_or_else(|| panic!("{kind} {name}"));
            let data: BTreeMap<String, String> =
                serde_json::from_value(object["data"].clone()).expect("texts");
            let decoded = |text: String| {
                if kind == "ConfigMap" {
                    text
                } else {
                    self::text(&STANDARD.decode(text).expect("base64"))
                }
            };
            let data = data
                .into_iter()
                .map(|(key, text)| (key, decoded(text)))
                .collect();
            all.insert((kind.to_owned(), name.to_owned()), data);
        }
        all
    }

    /// A container of a pod that the API has, with its volumes.
    pub(crate) async fn container(&self, namespace: &str, pod: &Value, name: &str) -> Container {
        let data = self.data(namespace, pod).await;
        Container::of(pod, name, &|kind, name| {
            data[&(kind.to_owned(), name.to_owned())].clone()
        })
    }
}

fn kubectl(kubeconfig: &PathBuf, args: &[&str]) -> Command {
    let mut command = Command::new(tool("kubectl"));
    command
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", folders::new("kubectl"));
    command
}

/// Runs the Jobs of a namespace as a kubelet would, with the real binary, and reports how each ended.
#[derive(Debug)]
pub(crate) struct Kubelet {
    works: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Kubelet {
    /// At work until this is dropped.
    pub(crate) fn start(cluster: &Arc<Cluster>, namespace: &str) -> Self {
        let cluster = cluster.clone();
        let namespace = namespace.to_owned();
        let works = Arc::new(AtomicBool::new(true));
        let working = works.clone();
        let task = tokio::spawn(async move {
            loop {
                if working.load(Ordering::Relaxed) {
                    jobs(&cluster, &namespace).await;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Self { works, task }
    }

    /// Sets whether it looks for Jobs.
    pub(crate) fn works(&self, works: bool) {
        self.works.store(works, Ordering::Relaxed);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn jobs(cluster: &Cluster, namespace: &str) {
    let all = cluster
        .try_kubectl(&["-n", namespace, "get", "jobs", "-o", "json"])
        .await
        .expect("the Jobs");
    let all: Value = serde_json::from_str(&all).expect("JSON");
    for job in list(&all["items"]).filter(|job| job["status"]["conditions"].is_null()) {
        let pod = &job["spec"]["template"]["spec"];
        let container = cluster.container(namespace, pod, "check").await;
        let output = pod::finish(
            &container.volumes,
            &container.environment,
            &container.args(),
        )
        .await;
        println!("{}{}", text(&output.stdout), text(&output.stderr));
        let now = &job["metadata"]["creationTimestamp"];
        let condition =
            |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
        let status = if output.status.success() {
            let conditions = [condition("SuccessCriteriaMet"), condition("Complete")];
            json!({ "startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions })
        } else {
            let conditions = [condition("FailureTarget"), condition("Failed")];
            json!({ "startTime": now, "failed": 1, "conditions": conditions })
        };
        let patch = json!({ "status": status }).to_string();
        let name = string(&job["metadata"]["name"]);
        let args = [
            "-n",
            namespace,
            "patch",
            "job",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        if let Err(error) = cluster.try_kubectl(&args).await {
            // helm may have deleted it meanwhile, as after a kill.
            assert!(error.contains("NotFound"), "{error}");
        }
    }
}

//! The API over TLS: what the chart renders for it, and its pod, run and called as its users call it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use super::pods::{Container, list, string, volume_files};
use super::tools::{chart, documents, find, template, text};
use crate::support::not_tested::not_tested;
use crate::support::process::Process;
use crate::support::tls::Tls;
use crate::support::{Redis, eventually, folders, names, pod, ports};

const NAME: &str = "rel-postdate";
/// Names that the documentation asks of the certificate.
const CERTIFICATE_NAMES: &str = "DNS:rel-postdate.shop.svc,DNS:localhost";

fn rendered(case: &str, set: &[&str]) -> Vec<Value> {
    documents(&template(&[&chart().join("ci").join(case)], set))
}

/// Spec of the pods that a Deployment or Job makes.
fn pod_of<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    &find(all, kind, name)["spec"]["template"]["spec"]
}

#[test]
fn probes_speak_what_their_port_speaks() {
    let probes = |case: &str, set: &[&str], name: &str| {
        let all = rendered(case, set);
        let container = &pod_of(&all, "Deployment", name)["containers"][0];
        ["livenessProbe", "readinessProbe"].map(|probe| {
            let get = &container[probe]["httpGet"];
            (get["port"].clone(), get["scheme"].clone())
        })
    };
    let plain = (json!("http"), Value::Null);
    let tls = (json!("http"), json!("HTTPS"));
    let own = (json!("probes"), Value::Null);
    let case = "tls-values.yaml";
    assert_eq!(
        probes("kafka-values.yaml", &[], NAME),
        [plain.clone(), plain]
    );
    assert_eq!(probes(case, &[], NAME), [tls.clone(), tls]);
    // That port never speaks TLS.
    let set = ["probePort=8026"];
    assert_eq!(probes(case, &set, NAME), [own.clone(), own]);
}

#[test]
fn monitors_scrape_by_the_name_and_the_authority_of_the_certificate() {
    let endpoint = |set: &[&str]| {
        let all = rendered("tls-values.yaml", set);
        find(&all, "ServiceMonitor", NAME)["spec"]["endpoints"][0].clone()
    };
    let by_default = endpoint(&[]);
    assert_eq!(by_default["scheme"], "https");
    let ca = json!({ "secret": { "name": "postdate-api", "key": "ca.crt" } });
    let name = "rel-postdate.shop.svc";
    assert_eq!(
        by_default["tlsConfig"],
        json!({ "ca": ca, "serverName": name })
    );
    let of_the_systems = endpoint(&["secrets.adminTls.ca="]);
    assert_eq!(of_the_systems["tlsConfig"], json!({ "serverName": name }));

    // What is given stands for the whole key: the operator refuses a `ca` of two sources.
    let prefix = "serviceMonitor.tlsConfig";
    let own = endpoint(&[
        &format!("{prefix}.ca.configMap.name=company-ca"),
        &format!("{prefix}.ca.configMap.key=ca.crt"),
        &format!("{prefix}.serverName=relay.example"),
    ]);
    let ca = json!({ "configMap": { "name": "company-ca", "key": "ca.crt" } });
    assert_eq!(
        own["tlsConfig"],
        json!({ "ca": ca, "serverName": "relay.example" })
    );

    let all = rendered(
        "tls-values.yaml",
        &["serviceMonitor.enabled=false", "podMonitor.enabled=true"],
    );
    let of_pods = &find(&all, "PodMonitor", NAME)["spec"]["podMetricsEndpoints"][0];
    assert_eq!(*of_pods, by_default);
}

#[test]
fn the_service_says_that_its_port_speaks_tls() {
    let port = |case: &str| {
        let all = rendered(case, &[]);
        find(&all, "Service", NAME)["spec"]["ports"][0].clone()
    };
    assert_eq!(port("tls-values.yaml")["appProtocol"], "https");
    assert!(port("kafka-values.yaml")["appProtocol"].is_null());
}

#[test]
fn the_address_of_the_command_line_is_left_to_those_who_set_it() {
    let environment = |set: &[&str]| {
        let all = rendered("tls-values.yaml", set);
        let pods = [("Deployment", NAME), ("Job", "rel-postdate-check")];
        let all = pods.map(|(kind, name)| {
            let pod = pod_of(&all, kind, name);
            let containers = list(&pod["initContainers"]).chain(list(&pod["containers"]));
            let names = containers.flat_map(|container| list(&container["env"]));
            let names = names.map(|entry| string(&entry["name"]).to_owned());
            names.collect::<Vec<_>>()
        });
        all.concat()
    };
    let count = |names: &[String], name: &str| names.iter().filter(|other| *other == name).count();
    let by_default = environment(&[]);
    // Two containers of the Deployment, one of the Job.
    assert_eq!(count(&by_default, "POSTDATE_URL"), 3, "{by_default:?}");
    assert_eq!(count(&by_default, "POSTDATE_CA"), 3, "{by_default:?}");
    let own = environment(&[
        "extraEnv[0].name=POSTDATE_URL",
        "extraEnv[0].value=https://relay.example:8025",
    ]);
    assert_eq!(own, by_default_with_last(&by_default, "POSTDATE_URL"));
    let of_the_systems = environment(&["secrets.adminTls.ca="]);
    assert_eq!(count(&of_the_systems, "POSTDATE_CA"), 0);
}

/// The same variables, this one last in each container.
fn by_default_with_last(names: &[String], last: &str) -> Vec<String> {
    let containers = names.chunks(names.len() / 3);
    let moved = containers.flat_map(|names| {
        let others = names.iter().filter(|name| *name != last).cloned();
        others.chain([last.to_owned()]).collect::<Vec<_>>()
    });
    moved.collect()
}

/// The Secret `postdate-api`, as cert-manager makes it.
fn certificate(tls: &Tls) -> BTreeMap<String, String> {
    let (certificate, key) = tls.server();
    let files = [
        ("tls.crt", certificate),
        ("tls.key", key),
        ("ca.crt", tls.authority()),
    ];
    let read = |file: String| std::fs::read_to_string(file).expect("a file of PEM");
    let files = files.map(|(key, file)| (key.to_owned(), read(file)));
    files.into()
}

/// The pod of `tls-values.yaml` over a store of its own, running.
struct TlsPod {
    spec: Value,
    container: Container,
    port: u16,
    process: Process,
}

impl TlsPod {
    fn start(redis: &Redis, tls: &Tls) -> Self {
        let file = folders::new("values").join("values.yaml");
        let store = json!({ "url": redis.url(), "prefix": names::unique("postdate") });
        let values = json!({ "config": { "redis": store }, "listenAddress": listen_address() });
        std::fs::write(&file, values.to_string()).expect("written");
        let case = chart().join("ci/tls-values.yaml");
        let all = documents(&template(&[&case, Path::new(&file)], &[]));
        let spec = pod_of(&all, "Deployment", NAME).clone();
        let mut container = Container::of(&spec, "postdate", &|kind, name| match kind {
            "Secret" => secret(name, tls),
            _ => serde_json::from_value(find(&all, kind, name)["data"].clone()).expect("texts"),
        });
        // All pods of this machine share its ports: another one than the chart's, at the chart's address.
        let port = ports::free();
        let map = string(&find(&all, "ConfigMap", NAME)["data"]["postdate.yaml"]);
        let config: Value = serde_saphyr::from_str(map).expect("YAML");
        let listen = moved(string(&config["admin"]["listen"]), port);
        for (_, value) in &mut container.environment {
            *value = moved(value, port);
        }
        let listen = format!("admin.listen={listen}");
        let args = [&container.args()[..], &["--set", &listen]].concat();
        let process = pod::start(&container.volumes, &container.environment, &args);
        Self {
            spec,
            container,
            port,
            process,
        }
    }

    /// `kubectl exec ... -- postdate status`, with these variables instead of the container's own.
    async fn status(&self, instead: &[(&str, &str)]) -> Output {
        let mut environment = self.container.environment.clone();
        for (name, value) in instead {
            environment.retain(|(other, _)| other != name);
            environment.push(((*name).to_owned(), (*value).to_owned()));
        }
        pod::finish(&self.container.volumes, &environment, &["status"]).await
    }

    /// The volume of Secrets with the files of another certificate, as a kubelet changes it.
    fn renew(&self, tls: &Tls) {
        let place = list(&self.spec["volumes"]).position(|volume| volume["name"] == "secrets");
        let place = place.expect("the volume of Secrets");
        let volume = &self.spec["volumes"][place];
        let files = volume_files(volume, &|_, name| secret(name, tls));
        // The container mounts its volumes in the order in which the pod has them.
        self.container.volumes[place].update(&files);
    }
}

fn secret(name: &str, tls: &Tls) -> BTreeMap<String, String> {
    if name == "postdate-api" {
        return certificate(tls);
    }
    let token = "a-token-of-the-tests\n".to_owned();
    BTreeMap::from([("write-tokens".to_owned(), token)])
}

fn moved(text: &str, port: u16) -> String {
    text.replace("8025", &port.to_string())
}

/// The chart's default, where the kernel has IPv6.
fn listen_address() -> &'static str {
    if TcpListener::bind("[::]:0").is_ok() {
        return "::";
    }
    not_tested("the chart: a pod that listens on IPv6", "no IPv6 here");
    "0.0.0.0"
}

#[tokio::test]
async fn a_command_in_the_pod_trusts_the_certificate_and_the_next_one() {
    let redis = Redis::shared().await;
    let first = Tls::named(CERTIFICATE_NAMES);
    let mut running = TlsPod::start(redis, &first);
    let succeeds = async |running: &mut TlsPod| {
        eventually("postdate status succeeds in the pod", async || {
            running.process.assert_running();
            let output = running.status(&[]).await;
            if output.status.success() {
                Ok(text(&output.stdout))
            } else {
                Err(text(&output.stderr))
            }
        })
        .await
    };
    let shown = succeeds(&mut running).await;
    assert!(shown.contains("orders"), "{shown}");

    // An address that is none of its names.
    let other = format!("https://127.0.0.1:{}", running.port);
    let output = running.status(&[("POSTDATE_URL", &other)]).await;
    let error = text(&output.stderr);
    assert!(error.contains("not for 127.0.0.1"), "{error}");
    let plain = format!("http://localhost:{}", running.port);
    let output = running.status(&[("POSTDATE_URL", &plain)]).await;
    let error = text(&output.stderr);
    assert!(error.contains("this address speaks TLS"), "{error}");

    // The next certificate is of another authority, which the same Secret holds: no restart.
    running.renew(&Tls::named(CERTIFICATE_NAMES));
    let shown = succeeds(&mut running).await;
    assert!(shown.contains("orders"), "{shown}");
}

#[tokio::test]
async fn the_pod_is_reached_by_both_families_of_addresses() {
    let redis = Redis::shared().await;
    let mut running = TlsPod::start(redis, &Tls::named(CERTIFICATE_NAMES));
    let families = if listen_address() == "::" {
        &["127.0.0.1", "::1"][..]
    } else {
        &["127.0.0.1"]
    };
    for address in families {
        let answer = eventually("the port answers", async || {
            running.process.assert_running();
            plain_answer(address, running.port)
        })
        .await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{address}: {answer}");
    }
}

/// The answer to a request without TLS.
fn plain_answer(address: &str, port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((address, port))?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

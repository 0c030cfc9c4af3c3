//! helm and kubectl, from where `scripts/test-chart` puts them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::folders;

/// The API version that is rendered for where no server is asked.
pub(crate) const KUBERNETES: &str = "1.33.4";

/// A tool's path.
pub(crate) fn tool(name: &str) -> PathBuf {
    let path = folders::cache().join("kube/bin").join(name);
    assert!(
        path.exists(),
        "{} is missing: run scripts/test-chart",
        path.display()
    );
    path
}

/// The chart's folder.
pub(crate) fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm/postdate")
}

/// The values that the tests install, each a user's case.
pub(crate) fn cases() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(chart().join("ci")).expect("deploy/helm/postdate/ci");
    let mut cases: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    cases.sort();
    assert!(cases.len() >= 3, "{cases:?}");
    cases
}

/// A helm command that knows no cluster and keeps its files to itself.
pub(crate) fn helm(args: &[&str]) -> Command {
    let mut command = Command::new(tool("helm"));
    let home = folders::new("helm");
    command.args(args).env("KUBECONFIG", home.join("none"));
    for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(name, &home);
    }
    command
}

/// `helm template` of these values files and settings.
pub(crate) fn template(files: &[&Path], set: &[&str]) -> Output {
    let mut command = helm(&[
        "template",
        "rel",
        "--namespace",
        "shop",
        "--kube-version",
        KUBERNETES,
    ]);
    command.arg(chart());
    for file in files {
        command.arg("--values").arg(file);
    }
    for set in set {
        command.args(["--set", set]);
    }
    command.output().expect("helm runs")
}

/// Rendered documents, each parsed.
pub(crate) fn documents(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let all: Vec<Value> = serde_saphyr::from_multiple(&text(&output.stdout)).expect("YAML");
    all.into_iter()
        .filter(|document| !document.is_null())
        .collect()
}

/// The document of this kind; the last one's name ends with `suffix`.
pub(crate) fn find<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |document: &&Value| document["kind"] == kind && document["metadata"]["name"] == name;
    all.iter()
        .find(is)
        .unwrap_or_else(|| panic!("no {kind} {name} in {all:#?}"))
}

/// Output of a process, as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

//! `deploy/kubernetes`: the chart as plain manifests, for those without helm. `UPDATE_DOCS=1 scripts/test-chart
//! --no-cluster` renders them anew.

use std::path::{Path, PathBuf};
use std::process::Output;

use super::tools::{KUBERNETES, chart, helm, text};

/// Oldest version of Kubernetes that the chart names.
const OLDEST_VERSION: &str = "1.27.0";
/// A version between the oldest and that of the API server of the tests.
const MIDDLE_VERSION: &str = "1.30.0";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes")
}

fn plain(version: &str) -> Output {
    let mut command = helm(&[
        "template",
        "postdate",
        "--namespace",
        "postdate",
        "--no-hooks",
    ]);
    command
        .args(["--kube-version", version])
        .arg("--values")
        .arg(folder().join("values.yaml"));
    command.arg(chart()).output().expect("helm runs")
}

/// The manifests without what only helm needs.
fn manifests() -> String {
    let output = plain(KUBERNETES);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut made = String::from(
        "# Made from the chart deploy/helm/postdate and values.yaml beside this file, by\n\
         # UPDATE_DOCS=1 scripts/test-chart --no-cluster. The namespace and the Secrets come first: docs/kubernetes.md.\n\
         #   kubectl apply --namespace postdate -f deploy/kubernetes/postdate.yaml\n",
    );
    for line in text(&output.stdout).lines() {
        let of_helm = [
            "helm.sh/chart:",
            "app.kubernetes.io/managed-by:",
            "# Source:",
        ];
        if !of_helm
            .iter()
            .any(|begin| line.trim_start().starts_with(begin))
        {
            made.push_str(line);
            made.push('\n');
        }
    }
    made
}

#[test]
fn the_plain_manifests_are_fresh() {
    let path = folder().join("postdate.yaml");
    let made = manifests();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("deploy/kubernetes/postdate.yaml");
    assert!(
        there == made,
        "deploy/kubernetes/postdate.yaml is not fresh: UPDATE_DOCS=1 scripts/test-chart --no-cluster"
    );
    for word in ["helm.sh", "Helm"] {
        assert!(!made.contains(word), "{word}");
    }
}

#[test]
fn every_version_that_the_chart_names_gets_the_same() {
    let newest = text(&plain(KUBERNETES).stdout);
    for version in [OLDEST_VERSION, MIDDLE_VERSION] {
        let output = plain(version);
        assert!(
            output.status.success(),
            "{version}: {}",
            text(&output.stderr)
        );
        assert_eq!(text(&output.stdout), newest, "{version}");
    }
    let refused = plain("1.26.0");
    assert!(!refused.status.success());
    assert!(
        text(&refused.stderr).contains("kubeVersion: >=1.27.0-0"),
        "{}",
        text(&refused.stderr)
    );
}

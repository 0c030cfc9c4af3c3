//! A rendered pod, run: its volumes made from the ConfigMaps and Secrets that it names.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::pod::Volume;

/// The data of a ConfigMap or Secret, by kind and name.
pub(crate) type Objects<'a> = &'a dyn Fn(&str, &str) -> BTreeMap<String, String>;

/// One container of a pod, ready for `support::pod`.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) volumes: Vec<Volume>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) args: Vec<String>,
}

impl Container {
    /// The container of this name, init containers included, of a pod's spec.
    pub(crate) fn of(spec: &Value, name: &str, objects: Objects<'_>) -> Self {
        let containers = list(&spec["initContainers"]).chain(list(&spec["containers"]));
        let container = containers
            .into_iter()
            .find(|c| c["name"] == name)
            .expect("the container");
        let volumes = list(&container["volumeMounts"]).map(|mount| {
            let volume = list(&spec["volumes"])
                .find(|v| v["name"] == mount["name"])
                .expect("its volume");
            assert_eq!(mount["readOnly"], true, "{mount}");
            Volume::new(string(&mount["mountPath"]), &volume_files(volume, objects))
        });
        let environment = list(&container["env"]).map(|variable| {
            (
                string(&variable["name"]).to_owned(),
                string(&variable["value"]).to_owned(),
            )
        });
        Self {
            volumes: volumes.collect(),
            environment: environment.collect(),
            args: list(&container["args"])
                .map(|arg| string(arg).to_owned())
                .collect(),
        }
    }

    pub(crate) fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }
}

/// Files of a volume, by their path in it.
pub(crate) fn volume_files(volume: &Value, objects: Objects<'_>) -> Vec<(String, String)> {
    if let Some(name) = volume["configMap"]["name"].as_str() {
        return objects("ConfigMap", name).into_iter().collect();
    }
    let sources = list(&volume["projected"]["sources"]).map(|source| &source["secret"]);
    let files = sources.flat_map(|secret| {
        let data = objects("Secret", string(&secret["name"]));
        let items = list(&secret["items"]).map(move |item| {
            let key = string(&item["key"]);
            let text = data
                .get(key)
                .unwrap_or_else(|| panic!("no key {key} in {secret}"));
            (string(&item["path"]).to_owned(), text.clone())
        });
        items.collect::<Vec<_>>()
    });
    files.collect()
}

/// The items of a list; none if there is no list.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A text that must be there.
pub(crate) fn string(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is not a text"))
}

//! ConfigMaps and Secrets that a pod refers to: which, and what is in them.

use crate::driver::StartFailure;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use regatta_kit::Cluster;
use regatta_types::pod::{Container, KeySelector, Pod};
use regatta_types::{ObjectRef, Resource, resource};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Content of one object, by key.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// Content of all objects that a pod refers to. Those that do not exist are left out.
#[derive(Debug, Clone, Default)]
pub(crate) struct References {
    pub(crate) config_maps: BTreeMap<String, Data>,
    pub(crate) secrets: BTreeMap<String, Data>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Content {
    data: BTreeMap<String, String>,
    binary_data: BTreeMap<String, String>,
}

impl References {
    /// Reads what the pod refers to.
    pub(crate) async fn fetch(cluster: &dyn Cluster, pod: &Pod) -> Result<Self, StartFailure> {
        let (config_maps, secrets) = names(pod);
        let mut references = Self::default();
        for name in config_maps {
            if let Some(content) = fetch(cluster, &resource::CONFIG_MAPS, pod, &name).await? {
                let plain = content.data.into_iter().map(|(key, value)| (key, value.into_bytes()));
                let mut data: Data = plain.collect();
                data.extend(decoded(content.binary_data));
                references.config_maps.insert(name, data);
            }
        }
        for name in secrets {
            if let Some(content) = fetch(cluster, &resource::SECRETS, pod, &name).await? {
                references.secrets.insert(name, decoded(content.data).collect());
            }
        }
        Ok(references)
    }

    /// A ConfigMap; none when it does not exist and may be missing.
    pub(crate) fn config_map(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&Data>, StartFailure> {
        find("ConfigMap", &self.config_maps, name, optional)
    }

    /// A Secret; likewise.
    pub(crate) fn secret(&self, name: &str, optional: Option<bool>) -> Result<Option<&Data>, StartFailure> {
        find("Secret", &self.secrets, name, optional)
    }
}

/// One key of an object; none when it may be missing and is.
pub(crate) fn value<'a>(
    kind: &str,
    key: &KeySelector,
    data: Option<&'a Data>,
) -> Result<Option<&'a [u8]>, StartFailure> {
    let value = data.and_then(|data| data.get(&key.key)).map(Vec::as_slice);
    if value.is_none() && key.optional != Some(true) {
        let message = format!(
            "{kind} {:?} has no key {:?}; add it, or mark the reference as optional",
            key.name, key.key
        );
        return Err(StartFailure::refused("CreateContainerConfigError", message));
    }
    Ok(value)
}

fn find<'a>(
    kind: &str,
    objects: &'a BTreeMap<String, Data>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'a Data>, StartFailure> {
    match objects.get(name) {
        None if optional != Some(true) => {
            let message = format!(
                "{kind} {name:?} does not exist in the pod's namespace; create it, or mark the reference as optional"
            );
            Err(StartFailure::refused("CreateContainerConfigError", message))
        }
        found => Ok(found),
    }
}

/// What the server has checked is base64; anything else is left out.
fn decoded(data: BTreeMap<String, String>) -> impl Iterator<Item = (String, Vec<u8>)> {
    data.into_iter().filter_map(|(key, value)| Some((key, STANDARD.decode(value.trim()).ok()?)))
}

async fn fetch(
    cluster: &dyn Cluster,
    resource: &Resource,
    pod: &Pod,
    name: &str,
) -> Result<Option<Content>, StartFailure> {
    let at = ObjectRef::namespaced(*resource, pod.metadata.namespace(), name);
    let fail =
        |error| StartFailure::passing("CreateContainerConfigError", format!("cannot read {at}: {error}"));
    match cluster.get(&at).await {
        Ok(object) => object.decode().map(Some).map_err(fail),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(fail(error)),
    }
}

/// Names of the ConfigMaps and Secrets that the pod refers to.
fn names(pod: &Pod) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut config_maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let env = containers
        .clone()
        .flat_map(|container: &Container| &container.env)
        .filter_map(|env| env.value_from.as_ref());
    for source in env {
        config_maps.extend(source.config_map_key_ref.iter().map(|key| key.name.clone()));
        secrets.extend(source.secret_key_ref.iter().map(|key| key.name.clone()));
    }
    for source in containers.flat_map(|container| &container.env_from) {
        config_maps.extend(source.config_map_ref.iter().map(|map| map.name.clone()));
        secrets.extend(source.secret_ref.iter().map(|map| map.name.clone()));
    }
    for volume in &pod.spec.volumes {
        config_maps.extend(volume.config_map.iter().map(|map| map.name.clone()));
        secrets.extend(volume.secret.iter().map(|map| map.secret_name.clone()));
    }
    (config_maps, secrets)
}

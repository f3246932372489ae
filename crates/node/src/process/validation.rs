//! What is wrong with a pod before anything is started.

use super::ProcessDriver;
use super::mount_plan;
use super::volumes;
use crate::runtime::lock;
use regatta_agent::namespaces::Mounts;
use regatta_types::pod::{Container, Pod};
use regatta_types::{Quantity, Uid, labels};
use std::path::Path;

impl ProcessDriver {
    /// Whether this machine can give the pod what it asks for; a sentence with the fix when it cannot.
    pub(crate) fn validate(&self, pod: &Pod) -> Result<(), String> {
        check(pod)?;
        if self.mounts == Mounts::None {
            check_in_place(pod)?;
        }
        if self.is_on_host(pod) {
            self.check_ports(pod)?;
        }
        Ok(())
    }

    /// On the host's network two pods cannot listen on the same port.
    fn check_ports(&self, pod: &Pod) -> Result<(), String> {
        let own = pod.metadata.uid();
        let live = lock(&self.live);
        for port in literal_ports(pod) {
            let other =
                live.values().find(|live| live.record.uid != own && live.record.host_ports.contains(&port));
            if let Some(other) = other {
                return Err(format!(
                    "port {port} is in use by pod {}, and pods share this machine's ports; use the port in $MASTER_PORT, which is \
                     free for each attempt, wait for that pod to end, or give each job a network of its own (run the daemon as root \
                     with nftables installed)",
                    other.record.name
                ));
            }
        }
        Ok(())
    }
}

/// What no machine can give.
pub(super) fn check(pod: &Pod) -> Result<(), String> {
    if pod.spec.containers.is_empty() {
        return Err("the pod has no container; give it one with a command".to_owned());
    }
    for volume in &pod.spec.volumes {
        let known = volume.empty_dir.is_some()
            || volume.host_path.is_some()
            || volume.config_map.is_some()
            || volume.secret.is_some();
        if !known {
            return Err(volumes::unknown_kind(volume).message);
        }
    }
    let mut names = std::collections::BTreeSet::new();
    for container in containers(pod) {
        if !is_label(&container.name) {
            return Err(format!(
                "{:?} is not the name of a container: use lower-case letters, digits and dashes",
                container.name
            ));
        }
        if !names.insert(&container.name) {
            return Err(format!("two containers have the name {:?}", container.name));
        }
        let gpus = container.resources.request(labels::GPU_RESOURCE).map_or(0, Quantity::milli);
        if gpus < 0 || gpus % 1000 != 0 {
            return Err(format!(
                "container {:?} asks for a part of a GPU; GPUs are given whole: ask for 1 or more",
                container.name
            ));
        }
        for mount in &container.volume_mounts {
            mount_plan::check_target(Path::new(&mount.mount_path)).map_err(|failure| failure.message)?;
        }
    }
    // The uid is a directory's name.
    if pod.metadata.uid.as_ref().is_some_and(|uid| !is_label(&uid.as_str().to_ascii_lowercase())) {
        return Err(format!(
            "{:?} is not the uid of a pod",
            pod.metadata.uid.as_ref().map(Uid::as_str).unwrap_or_default()
        ));
    }
    Ok(())
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().chain(&pod.spec.containers)
}

fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Without mount namespaces a volume can only be where it is.
fn check_in_place(pod: &Pod) -> Result<(), String> {
    for mount in containers(pod).flat_map(|container| &container.volume_mounts) {
        let volume = pod.spec.volumes.iter().find(|volume| volume.name == mount.name);
        let host_path = volume.and_then(|volume| volume.host_path.as_ref());
        let in_place = host_path.is_some_and(|host| host.path == mount.mount_path)
            && mount.read_only != Some(true)
            && mount.sub_path.as_deref().unwrap_or_default().is_empty();
        if !in_place {
            return Err(format!(
                "{} cannot be mounted: this daemon may make neither mount namespaces nor user namespaces; run it as root, permit \
                 user namespaces (sysctl user.max_user_namespaces), or mount a path of the host at the same path, writable",
                mount.mount_path
            ));
        }
    }
    Ok(())
}

/// Ports that the pod says it listens on: those of its containers, and a rendezvous port that it sets itself.
pub(super) fn literal_ports(pod: &Pod) -> Vec<u16> {
    let declared =
        pod.spec.containers.iter().flat_map(|container| &container.ports).map(|port| port.container_port);
    let variables = pod.spec.containers.iter().flat_map(|container| &container.env);
    let rendezvous = variables
        .filter(|variable| matches!(variable.name.as_str(), "MASTER_PORT" | "PET_MASTER_PORT"))
        .filter_map(|variable| variable.value.as_ref()?.parse().ok());
    let mut ports: Vec<u16> = declared.chain(rendezvous).filter(|port| *port > 0).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn what_no_machine_can_give_is_refused_with_the_fix() {
        let with = |container: Value| json!({"containers": [container]});
        for (spec, expected) in [
            (json!({"containers": []}), Some("has no container")),
            (with(json!({"name": "Main"})), Some("is not the name of a container")),
            (with(json!({"name": "../x"})), Some("is not the name of a container")),
            (json!({"containers": [{"name": "a"}, {"name": "a"}]}), Some("two containers have the name")),
            (
                json!({"containers": [{"name": "a"}], "volumes": [{"name": "v", "nfs": {}}]}),
                Some("has the kind nfs"),
            ),
            (
                with(json!({"name": "a", "volumeMounts": [{"name": "v", "mountPath": "x"}]})),
                Some("is not absolute"),
            ),
            (
                with(json!({"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/proc"}]})),
                Some("belongs to the system"),
            ),
            (
                with(json!({"name": "a", "resources": {"limits": {"nvidia.com/gpu": "500m"}}})),
                Some("a part of a GPU"),
            ),
            (with(json!({"name": "main-1", "volumeMounts": [{"name": "v", "mountPath": "/ckpt"}]})), None),
        ] {
            let outcome = check(&pod(&spec)).err();
            match expected {
                Some(part) => {
                    assert!(outcome.as_ref().is_some_and(|text| text.contains(part)), "{spec}: {outcome:?}");
                }
                None => assert_eq!(outcome, None, "{spec}"),
            }
        }
    }

    #[test]
    fn without_namespaces_volumes_stay_in_place() {
        let spec = |mount: &Value| {
            pod(&json!({
                "volumes": [{"name": "v", "hostPath": {"path": "/data"}}, {"name": "e", "emptyDir": {}}],
                "containers": [{"name": "a", "volumeMounts": [mount]}],
            }))
        };
        assert_eq!(check_in_place(&spec(&json!({"name": "v", "mountPath": "/data"}))), Ok(()));
        for mount in [
            json!({"name": "v", "mountPath": "/ckpt"}),
            json!({"name": "v", "mountPath": "/data", "readOnly": true}),
            json!({"name": "v", "mountPath": "/data", "subPath": "x"}),
            json!({"name": "e", "mountPath": "/scratch"}),
        ] {
            assert!(check_in_place(&spec(&mount)).unwrap_err().contains("run it as root"), "{mount}");
        }
    }

    #[test]
    fn ports_are_declared_or_set() {
        let pod = pod(&json!({"containers": [
            {"name": "a", "ports": [{"containerPort": 8080}, {"containerPort": 29500}],
             "env": [{"name": "MASTER_PORT", "value": "29500"}, {"name": "PORT", "value": "1"}]},
            {"name": "b", "env": [{"name": "PET_MASTER_PORT", "value": "x"}]},
        ]}));
        assert_eq!(literal_ports(&pod), [8080, 29_500]);
    }
}

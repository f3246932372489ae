//! Tells the API which nodes there are, and that they live.

use crate::error::Error;
use crate::nodes::{NodeSpec, RUNTIME, RUNTIME_LABEL};
use bytes::Bytes;
use regatta_kit::{ApiError, Cluster, DeleteOptions, ListOptions, Object, PatchKind};
use regatta_types::node::Node;
use regatta_types::{Clock, ObjectRef, resource};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two signs of life, in milliseconds.
const HEARTBEAT_MS: u64 = 10_000;
/// How long a sign of life is good for, in seconds.
const LEASE_SECONDS: u32 = 40;
/// Namespace of the nodes' leases, as in Kubernetes.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Writes the node objects; removes those of an earlier runtime that are no more.
pub(crate) async fn register(cluster: &dyn Cluster, nodes: &[NodeSpec]) -> Result<(), Error> {
    for node in nodes {
        let name = node.object.metadata.name.clone();
        write(cluster, &node.object).await.map_err(|source| Error::Register { node: name, source })?;
    }
    let selector = Some(format!("{RUNTIME_LABEL}={RUNTIME}"));
    let options = ListOptions { label_selector: selector, ..ListOptions::default() };
    let fail = |source| Error::Register { node: "(all)".to_owned(), source };
    for object in cluster.list(&resource::NODES, &options).await.map_err(fail)?.items {
        let known: Node = object.decode().map_err(fail)?;
        let name = known.metadata.name;
        // The selector is the server's business; a node of somebody else must not go because it was not honoured.
        let ours = known.metadata.labels.get(RUNTIME_LABEL).is_some_and(|runtime| runtime == RUNTIME);
        if ours && !nodes.iter().any(|node| node.object.metadata.name == name) {
            let at = ObjectRef::cluster(resource::NODES, &name);
            match cluster.delete(&at, &DeleteOptions::default()).await {
                Err(error) if !error.is_not_found() => {
                    return Err(Error::Register { node: name, source: error });
                }
                _ => tracing::info!(node = name, "a node of an earlier start is gone"),
            }
        }
    }
    Ok(())
}

async fn write(cluster: &dyn Cluster, node: &Node) -> Result<(), ApiError> {
    let at = ObjectRef::cluster(resource::NODES, &node.metadata.name);
    match cluster.create(&resource::NODES, Object::encode(node)?).await {
        Err(error) if error.is_already_exists() => {
            let patch =
                json!({"metadata": {"labels": node.metadata.labels, "annotations": annotations(node)}});
            cluster.patch(&at, PatchKind::Merge, body(&patch)).await?;
        }
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    // A server that keeps status apart has dropped it at creation.
    cluster.patch_status(&at, PatchKind::Merge, body(&json!({"status": status(node)}))).await.map(drop)
}

/// The annotations, with what an earlier start may have left taken away.
fn annotations(node: &Node) -> Value {
    let mut annotations = json!({regatta_types::labels::SIMULATED_GPUS: null});
    for (name, value) in &node.metadata.annotations {
        annotations[name] = Value::from(value.clone());
    }
    annotations
}

/// The status, with what an earlier start may have left taken away.
fn status(node: &Node) -> Value {
    let mut status = serde_json::to_value(&node.status).unwrap_or_default();
    for list in ["capacity", "allocatable"] {
        if !node.status.capacity.contains_key(regatta_types::labels::GPU_RESOURCE) {
            status[list][regatta_types::labels::GPU_RESOURCE] = Value::Null;
        }
    }
    status
}

fn body(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

/// Gives a sign of life for each node until told to stop.
pub(crate) async fn heartbeats(
    cluster: Arc<dyn Cluster>,
    clock: Arc<dyn Clock>,
    nodes: Vec<String>,
    stop: CancellationToken,
) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}});
    if let Ok(object) = Object::encode(&namespace)
        && let Err(error) = cluster.create(&resource::NAMESPACES, object).await
        && !error.is_already_exists()
    {
        tracing::warn!(%error, "cannot make the namespace of the nodes' leases");
    }
    loop {
        for node in &nodes {
            if let Err(error) = renew(cluster.as_ref(), clock.as_ref(), node).await {
                tracing::warn!(node, %error, "cannot renew the node's lease");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(HEARTBEAT_MS)) => {}
        }
    }
}

async fn renew(cluster: &dyn Cluster, clock: &dyn Clock, node: &str) -> Result<(), ApiError> {
    let at = ObjectRef::namespaced(resource::LEASES, LEASE_NAMESPACE, node);
    // Kubernetes writes lease times with six digits.
    let now = regatta_agent::log_line::time_text(clock.now()).replace('Z', "000Z");
    let spec = json!({"holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now});
    match cluster.patch(&at, PatchKind::Merge, body(&json!({"spec": spec}))).await {
        Err(error) if error.is_not_found() => {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": node, "namespace": LEASE_NAMESPACE},
                "spec": spec,
            });
            cluster.create(&resource::LEASES, Object::encode(&lease)?).await.map(drop)
        }
        outcome => outcome.map(drop),
    }
}

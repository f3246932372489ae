//! The objects that a fresh data directory starts with.

use regatta_kit::{ApiError, Cluster, Object};
use regatta_types::{Resource, resource};
use serde_json::{Value, json};

/// Makes what is missing; what is there stays as its owner has changed it.
///
/// # Errors
/// When the API refuses an object for another reason than that it exists.
pub async fn ensure(cluster: &dyn Cluster) -> Result<(), ApiError> {
    for (kind, object) in objects() {
        match cluster.create(&kind, Object::encode(&object)?).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn objects() -> Vec<(Resource, Value)> {
    let namespace = |name: &str| {
        (resource::NAMESPACES, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
    };
    vec![
        namespace("default"),
        namespace("kube-system"),
        namespace("kube-node-lease"),
        (
            resource::QUEUES,
            json!({
                "apiVersion": "regatta.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "default"},
                "spec": {"description": "jobs that name no queue"},
            }),
        ),
        (
            resource::NODE_POOLS,
            json!({
                "apiVersion": "regatta.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "default"},
                "spec": {"selector": {}},
            }),
        ),
    ]
}

//! The kinds that are served, each in one place. Discovery, OpenAPI, tables, storage and checks all read this.

use regatta_types::{Resource, Scope, job, node, pod, queue, resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::columns::{self, Column};
use crate::schema;

/// What happens to the `status` of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusRule {
    /// The kind has none.
    None,
    /// It is written through the subresource only.
    Subresource,
    /// As before, but whoever creates the object may set it: nodes report themselves.
    SubresourceAndCreate,
}

/// What deleting an object does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionRule {
    /// It goes once its finalizers are gone.
    Immediate,
    /// Whoever runs it stops it first and confirms with a grace period of 0.
    Graceful,
    /// Everything in it goes first.
    Namespace,
}

/// One kind.
pub struct Kind {
    /// Names and scope.
    pub resource: Resource,
    /// Lower-case singular.
    pub singular: &'static str,
    /// Short names for people.
    pub short_names: &'static [&'static str],
    /// Groups of kinds that `kubectl get` knows by one word.
    pub categories: &'static [&'static str],
    /// Its status.
    pub status: StatusRule,
    /// Its deletion.
    pub deletion: DeletionRule,
    /// Further subresources, for discovery.
    pub subresources: &'static [&'static str],
    /// Whether the Go clients know its type, so that lists in it are merged by key.
    pub strategic_merge: StrategicMerge,
    /// Whether writes may be lost in a crash: heartbeats.
    pub durability: regatta_store::Durability,
    /// Fields that can be selected.
    pub fields: &'static [&'static str],
    /// Columns of its table.
    pub columns: &'static [Column],
    /// OpenAPI v3 schema.
    pub schema: Value,
    decode: fn(&Value) -> Result<(), serde_json::Error>,
}

/// Whether a kind supports strategic merge patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrategicMerge {
    /// It is built into Kubernetes.
    Yes,
    /// It is a custom resource.
    No,
}

impl Kind {
    fn new<T: DeserializeOwned>(
        resource: Resource,
        singular: &'static str,
        columns: &'static [Column],
    ) -> Self {
        Self {
            resource,
            singular,
            short_names: &[],
            categories: &[],
            status: StatusRule::None,
            deletion: DeletionRule::Immediate,
            subresources: &[],
            strategic_merge: StrategicMerge::Yes,
            durability: regatta_store::Durability::Synced,
            fields: &[],
            columns,
            schema: json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            decode: |value| T::deserialize(value).map(drop),
        }
    }

    /// Name of the kind in the store.
    pub(crate) fn store_name(&self) -> String {
        store_name(&self.resource)
    }

    /// Whether the value has the shape of the kind.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn check_shape(&self, value: &Value) -> Result<(), String> {
        (self.decode)(value).map_err(|e| e.to_string())
    }

    pub(crate) fn is_namespaced(&self) -> bool {
        self.resource.scope == Scope::Namespaced
    }

    /// Subresources in discovery, `status` included.
    pub(crate) fn all_subresources(&self) -> impl Iterator<Item = &'static str> + '_ {
        let status = (self.status != StatusRule::None).then_some("status");
        status.into_iter().chain(self.subresources.iter().copied())
    }
}

pub(crate) fn store_name(resource: &Resource) -> String {
    if resource.group.is_empty() {
        resource.plural.to_owned()
    } else {
        format!("{}/{}", resource.group, resource.plural)
    }
}

/// All kinds.
pub struct Registry {
    kinds: Vec<Kind>,
}

impl Registry {
    /// The kinds that training needs.
    pub fn builtin() -> Self {
        Self { kinds: [own_kinds(), core_kinds()].into_iter().flatten().collect() }
    }

    /// All of them.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter()
    }

    /// By names in the URL.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Kind> {
        let same = |kind: &&Kind| {
            let resource = &kind.resource;
            resource.group == group && resource.version == version && resource.plural == plural
        };
        self.kinds.iter().find(same)
    }

    /// By descriptor.
    pub fn of(&self, resource: &Resource) -> Option<&Kind> {
        self.kinds.iter().find(|kind| kind.resource == *resource)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "both become part of the schema")]
fn own_schema(spec: Value, status: Option<Value>) -> Value {
    let mut properties = json!({
        "apiVersion": {"type": "string", "description": "Version of the schema: regatta.dev/v1alpha1."},
        "kind": {"type": "string", "description": "Name of the kind."},
        "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "description": "Standard metadata."},
        "spec": spec,
    });
    if let Some(mut status) = status {
        schema::leave_open(&mut status, &[]);
        properties["status"] = status;
    }
    json!({"type": "object", "properties": properties})
}

fn own_kinds() -> Vec<Kind> {
    let mut job_schema = own_schema(schema::of::<job::JobSpec>(), Some(schema::of::<job::JobStatus>()));
    schema::leave_open(&mut job_schema, &["spec", "roles", "[]", "template"]);
    vec![
        Kind {
            short_names: &["rjob"],
            categories: &["all", "regatta"],
            status: StatusRule::Subresource,
            strategic_merge: StrategicMerge::No,
            fields: &["status.phase", "spec.queue"],
            schema: job_schema,
            ..Kind::new::<job::Job>(resource::JOBS, "job", columns::JOB)
        },
        Kind {
            short_names: &["rq"],
            categories: &["regatta"],
            status: StatusRule::Subresource,
            strategic_merge: StrategicMerge::No,
            schema: own_schema(schema::of::<queue::QueueSpec>(), Some(schema::of::<queue::QueueStatus>())),
            ..Kind::new::<queue::Queue>(resource::QUEUES, "queue", columns::QUEUE)
        },
        Kind {
            short_names: &["np"],
            categories: &["regatta"],
            strategic_merge: StrategicMerge::No,
            schema: own_schema(schema::of::<node::NodePoolSpec>(), None),
            ..Kind::new::<node::NodePool>(resource::NODE_POOLS, "nodepool", columns::NODE_POOL)
        },
    ]
}

fn core_kinds() -> Vec<Kind> {
    let mut pod_spec = schema::of::<pod::PodSpec>();
    schema::leave_open(&mut pod_spec, &[]);
    let pod_schema = json!({"type": "object", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"},
        "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "spec": pod_spec,
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    vec![
        Kind {
            short_names: &["po"],
            categories: &["all"],
            status: StatusRule::Subresource,
            deletion: DeletionRule::Graceful,
            subresources: &["binding", "exec", "log"],
            fields: &["spec.nodeName", "status.phase", "spec.restartPolicy"],
            schema: pod_schema,
            ..Kind::new::<pod::Pod>(resource::PODS, "pod", columns::POD)
        },
        Kind {
            short_names: &["no"],
            status: StatusRule::SubresourceAndCreate,
            fields: &["spec.unschedulable"],
            ..Kind::new::<node::Node>(resource::NODES, "node", columns::NODE)
        },
        Kind {
            short_names: &["ev"],
            fields: &[
                "involvedObject.kind",
                "involvedObject.namespace",
                "involvedObject.name",
                "involvedObject.uid",
                "involvedObject.apiVersion",
                "involvedObject.resourceVersion",
                "involvedObject.fieldPath",
                "reason",
                "type",
                "source",
                "reportingComponent",
            ],
            ..Kind::new::<Value>(resource::EVENTS, "event", columns::EVENT)
        },
        Kind {
            short_names: &["cm"],
            ..Kind::new::<Value>(resource::CONFIG_MAPS, "configmap", columns::CONFIG_MAP)
        },
        Kind { fields: &["type"], ..Kind::new::<Value>(resource::SECRETS, "secret", columns::SECRET) },
        Kind {
            short_names: &["ns"],
            status: StatusRule::Subresource,
            deletion: DeletionRule::Namespace,
            fields: &["status.phase"],
            ..Kind::new::<Value>(resource::NAMESPACES, "namespace", columns::NAMESPACE)
        },
        Kind {
            durability: regatta_store::Durability::Lazy,
            ..Kind::new::<Value>(resource::LEASES, "lease", columns::LEASE)
        },
    ]
}

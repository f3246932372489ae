//! Descriptors of the resources that Regatta itself reads and writes, and references to single objects.

use std::fmt;

/// Whether objects of a kind live in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The object has no namespace.
    Cluster,
    /// The object lives in a namespace.
    Namespaced,
}

/// One kind as the API serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// API group; `""` for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Lower-case plural, as in URLs.
    pub plural: &'static str,
    /// Kind, as in manifests.
    pub kind: &'static str,
    /// Where objects live.
    pub scope: Scope,
}

impl Resource {
    /// `group/version`, or only the version for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// The API group of Regatta's own kinds.
pub const GROUP: &str = "regatta.dev";
/// The version of Regatta's own kinds.
pub const VERSION: &str = "v1alpha1";

macro_rules! resources {
    ($($(#[$doc:meta])* $name:ident = $group:expr, $version:expr, $plural:literal, $kind:literal, $scope:ident;)*) => {
        $($(#[$doc])* pub const $name: Resource =
            Resource { group: $group, version: $version, plural: $plural, kind: $kind, scope: Scope::$scope };)*
    };
}

resources! {
    /// Regatta jobs.
    JOBS = GROUP, VERSION, "jobs", "Job", Namespaced;
    /// Regatta queues.
    QUEUES = GROUP, VERSION, "queues", "Queue", Cluster;
    /// Classes of hardware.
    NODE_POOLS = GROUP, VERSION, "nodepools", "NodePool", Cluster;
    /// "What would happen if I submitted this": create-only, never stored.
    JOB_PREVIEWS = GROUP, VERSION, "jobpreviews", "JobPreview", Namespaced;
    /// Pods.
    PODS = "", "v1", "pods", "Pod", Namespaced;
    /// Nodes.
    NODES = "", "v1", "nodes", "Node", Cluster;
    /// Events, as kubectl reads them.
    EVENTS = "", "v1", "events", "Event", Namespaced;
    /// Configuration data.
    CONFIG_MAPS = "", "v1", "configmaps", "ConfigMap", Namespaced;
    /// Secret data.
    SECRETS = "", "v1", "secrets", "Secret", Namespaced;
    /// Namespaces.
    NAMESPACES = "", "v1", "namespaces", "Namespace", Cluster;
    /// Leases, for leader election and node heartbeats.
    LEASES = "coordination.k8s.io", "v1", "leases", "Lease", Namespaced;
}

/// Names one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its kind.
    pub resource: Resource,
    /// Its namespace; none for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl ObjectRef {
    /// A reference to a namespaced object.
    pub fn namespaced(resource: Resource, namespace: &str, name: &str) -> Self {
        Self { resource, namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// A reference to a cluster-scoped object.
    pub fn cluster(resource: Resource, name: &str) -> Self {
        Self { resource, namespace: None, name: name.to_owned() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.resource.kind, self.name),
            None => write!(f, "{} {}", self.resource.kind, self.name),
        }
    }
}

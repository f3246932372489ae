//! Nodes, and pools of nodes of one kind.

use crate::conditions::Condition;
use crate::meta::ObjectMeta;
use crate::pod::{Other, ResourceList};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A machine, or a virtual part of one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// Always `v1`.
    pub api_version: String,
    /// Always `Node`.
    pub kind: String,
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Intent.
    pub spec: NodeSpec,
    /// Facts.
    pub status: NodeStatus,
}

/// What operations want of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Whether new pods stay away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
    /// Fields that Regatta does not read, kept as they came.
    #[serde(flatten)]
    pub other: Other,
}

/// What a node reports of itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// What the machine has.
    pub capacity: ResourceList,
    /// What pods may use.
    pub allocatable: ResourceList,
    /// Conditions, `Ready` among them.
    pub conditions: Vec<Condition>,
    /// Addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Value>,
    /// Versions and identities.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_info: BTreeMap<String, String>,
    /// Fields that Regatta does not read, kept as they came.
    #[serde(flatten)]
    pub other: Other,
}

/// A class of hardware.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePool {
    /// Always `regatta.dev/v1alpha1`.
    pub api_version: String,
    /// Always `NodePool`.
    pub kind: String,
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Definition.
    pub spec: NodePoolSpec,
}

/// Definition of a pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePoolSpec {
    /// Labels that a node of this pool has; every node when empty.
    pub selector: BTreeMap<String, String>,
    /// GPU model in lower case, such as `h100`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// Price of one GPU for one hour, in millionths of the currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_gpu_hour_micros: Option<i64>,
    /// Price of one CPU core for one hour, in millionths of the currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_cpu_hour_micros: Option<i64>,
    /// Currency of the prices, ISO 4217.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

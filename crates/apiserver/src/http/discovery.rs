//! What the server serves, in the two forms that clients ask for: one aggregated document, or the older ones.

use super::{App, json_bytes, json_response};
use crate::registry::Kind;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use regatta_types::Scope;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// The version of Kubernetes whose API this is, with our own beside it.
pub(super) fn version() -> Value {
    let own = env!("CARGO_PKG_VERSION");
    json!({
        "major": "1", "minor": "34", "gitVersion": format!("v1.34.0+regatta-{own}"), "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "linux/amd64",
    })
}

/// One served kind, stored or virtual, as discovery shows it.
struct Served {
    group: String,
    version: String,
    plural: String,
    singular: String,
    kind: String,
    namespaced: bool,
    short_names: Vec<&'static str>,
    categories: Vec<&'static str>,
    verbs: Vec<String>,
    subresources: Vec<(String, Vec<&'static str>)>,
}

fn served(app: &App) -> Vec<Served> {
    let stored = app.engine.registry.kinds().map(stored);
    let virtuals = app.virtuals.iter().flat_map(|handler| handler.descriptors()).map(|descriptor| Served {
        singular: descriptor.kind.to_lowercase(),
        namespaced: descriptor.scope == Scope::Namespaced,
        short_names: Vec::new(),
        categories: Vec::new(),
        subresources: descriptor.subresources.into_iter().map(|name| (name, vec!["get"])).collect(),
        group: descriptor.group,
        version: descriptor.version,
        plural: descriptor.plural,
        kind: descriptor.kind,
        verbs: descriptor.verbs,
    });
    stored.chain(virtuals).collect()
}

fn stored(kind: &Kind) -> Served {
    let verbs_of = |subresource: &str| match subresource {
        "status" => STATUS_VERBS.to_vec(),
        "log" => vec!["get"],
        "exec" => vec!["create", "get"],
        _ => vec!["create"],
    };
    Served {
        group: kind.resource.group.to_owned(),
        version: kind.resource.version.to_owned(),
        plural: kind.resource.plural.to_owned(),
        singular: kind.singular.to_owned(),
        kind: kind.resource.kind.to_owned(),
        namespaced: kind.is_namespaced(),
        short_names: kind.short_names.to_vec(),
        categories: kind.categories.to_vec(),
        verbs: VERBS.iter().map(|verb| (*verb).to_owned()).collect(),
        subresources: kind.all_subresources().map(|name| (name.to_owned(), verbs_of(name))).collect(),
    }
}

/// Groups and their versions; the core group is the empty one.
fn by_group(app: &App) -> BTreeMap<String, BTreeMap<String, Vec<Served>>> {
    let mut groups: BTreeMap<String, BTreeMap<String, Vec<Served>>> = BTreeMap::new();
    for served in served(app) {
        groups
            .entry(served.group.clone())
            .or_default()
            .entry(served.version.clone())
            .or_default()
            .push(served);
    }
    groups
}

/// Paths that there are.
pub(super) fn root(app: &App) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, versions) in by_group(app).into_iter().filter(|(group, _)| !group.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.keys().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(["/healthz", "/livez", "/openapi/v3", "/readyz", "/version"].map(str::to_owned));
    json!({"paths": paths})
}

/// `/api` and `/apis`.
pub(super) fn groups(app: &App, path: &str, headers: &HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let core = path == "/api";
    let groups = by_group(app).into_iter().filter(|(group, _)| group.is_empty() == core);
    if accept.contains("as=APIGroupDiscoveryList")
        && accept.contains("v=v2")
        && !accept.contains("v=v2beta1;")
    {
        return aggregated(groups);
    }
    if accept
        .split(',')
        .next()
        .is_some_and(|first| first.contains("g=apidiscovery.k8s.io") && first.contains("v=v2;"))
    {
        return aggregated(groups);
    }
    if core {
        return json_response(&json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }));
    }
    let groups: Vec<Value> = groups.map(|(group, versions)| group_json(&group, versions.keys())).collect();
    json_response(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

fn aggregated(groups: impl Iterator<Item = (String, BTreeMap<String, Vec<Served>>)>) -> Response {
    let items: Vec<Value> = groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .into_iter()
                .map(|(version, kinds)| {
                    let resources: Vec<Value> = kinds.iter().map(aggregated_resource).collect();
                    json!({"version": version, "freshness": "Current", "resources": resources})
                })
                .collect();
            json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
        })
        .collect();
    let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    json_bytes(StatusCode::OK, Bytes::from(document.to_string()), AGGREGATED)
}

fn aggregated_resource(served: &Served) -> Value {
    let response_kind = json!({"group": served.group, "version": served.version, "kind": served.kind});
    let subresources: Vec<Value> = served
        .subresources
        .iter()
        .map(|(name, verbs)| json!({"subresource": name, "responseKind": response_kind, "verbs": verbs}))
        .collect();
    let mut resource = json!({
        "resource": served.plural, "responseKind": response_kind,
        "scope": if served.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": served.singular, "verbs": served.verbs,
    });
    if !served.short_names.is_empty() {
        resource["shortNames"] = json!(served.short_names);
    }
    if !served.categories.is_empty() {
        resource["categories"] = json!(served.categories);
    }
    if !subresources.is_empty() {
        resource["subresources"] = json!(subresources);
    }
    resource
}

fn group_json<'a>(group: &str, versions: impl Iterator<Item = &'a String>) -> Value {
    let versions: Vec<Value> =
        versions.map(|v| json!({"groupVersion": format!("{group}/{v}"), "version": v})).collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.last()})
}

/// `/apis/GROUP`, `/api/v1` and `/apis/GROUP/VERSION`.
pub(super) fn group(app: &App, path: &str) -> Option<Value> {
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let groups = by_group(app);
    match segments.as_slice() {
        ["apis", group] => {
            let versions = groups.get(*group).filter(|_| !group.is_empty())?;
            let mut document = group_json(group, versions.keys());
            document["kind"] = json!("APIGroup");
            document["apiVersion"] = json!("v1");
            Some(document)
        }
        ["api", version] => Some(resource_list(version, groups.get("")?.get(*version)?)),
        ["apis", group, version] => {
            Some(resource_list(&format!("{group}/{version}"), groups.get(*group)?.get(*version)?))
        }
        _ => None,
    }
}

fn resource_list(group_version: &str, kinds: &[Served]) -> Value {
    let mut resources = Vec::new();
    for served in kinds {
        let mut resource = json!({
            "name": served.plural, "singularName": served.singular, "namespaced": served.namespaced,
            "kind": served.kind, "verbs": served.verbs,
        });
        if !served.short_names.is_empty() {
            resource["shortNames"] = json!(served.short_names);
        }
        if !served.categories.is_empty() {
            resource["categories"] = json!(served.categories);
        }
        resources.push(resource);
        for (name, verbs) in &served.subresources {
            resources.push(json!({
                "name": format!("{}/{name}", served.plural), "singularName": "", "namespaced": served.namespaced,
                "kind": served.kind, "verbs": verbs,
            }));
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
}

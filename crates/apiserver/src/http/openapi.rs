//! OpenAPI v3, from the registry: `kubectl explain` reads the schemas, `kubectl create` and `apply` read whether the
//! server checks fields by itself.

use super::App;
use crate::schema;
use regatta_types::{Resource, Scope};
use serde_json::{Map, Value, json};

/// Schemas of one kind.
struct Described {
    group: String,
    version: String,
    kind: String,
    plural: String,
    namespaced: bool,
    schema: Value,
}

fn described(app: &App) -> Vec<Described> {
    let stored = app.engine.registry.kinds().map(|kind| {
        let Resource { group, version, kind: name, plural, .. } = kind.resource;
        Described {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: name.to_owned(),
            plural: plural.to_owned(),
            namespaced: kind.is_namespaced(),
            schema: kind.schema.clone(),
        }
    });
    let open = || json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let virtuals =
        app.virtuals.iter().flat_map(|handler| handler.descriptors()).map(|descriptor| Described {
            schema: descriptor.schema.as_ref().map_or_else(open, schema::sanitized),
            namespaced: descriptor.scope == Scope::Namespaced,
            group: descriptor.group,
            version: descriptor.version,
            kind: descriptor.kind,
            plural: descriptor.plural,
        });
    stored.chain(virtuals).collect()
}

/// Path of a group and version: `api/v1`, `apis/regatta.dev/v1alpha1`.
fn prefix(described: &Described) -> String {
    if described.group.is_empty() {
        format!("api/{}", described.version)
    } else {
        format!("apis/{}/{}", described.group, described.version)
    }
}

/// `/openapi/v3`.
pub(super) fn index(app: &App) -> Value {
    // The hash lets clients cache a document; it changes with the program.
    let hash = env!("CARGO_PKG_VERSION");
    let paths = described(app).into_iter().map(|described| {
        let prefix = prefix(&described);
        let url = format!("/openapi/v3/{prefix}?hash={hash}");
        (prefix, json!({"serverRelativeURL": url}))
    });
    json!({"paths": paths.collect::<Map<String, Value>>()})
}

/// The document of one group and version.
pub(super) fn document(app: &App, wanted: &str) -> Option<Value> {
    let kinds: Vec<Described> =
        described(app).into_iter().filter(|described| prefix(described) == wanted).collect();
    if kinds.is_empty() {
        return None;
    }
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for described in &kinds {
        let name = schema_name(described);
        let mut schema = described.schema.clone();
        schema["x-kubernetes-group-version-kind"] = json!([gvk(described)]);
        schemas.insert(name.clone(), schema);
        let scope = if described.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("/{wanted}{scope}/{}", described.plural);
        paths.insert(collection.clone(), collection_path(described, &name));
        paths.insert(format!("{collection}/{{name}}"), object_path(described, &name));
    }
    Some(json!({
        "openapi": "3.0.0", "info": {"title": "Regatta", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths, "components": {"schemas": schemas},
    }))
}

/// Names as Kubernetes gives them: the reversed group, version, kind.
fn schema_name(described: &Described) -> String {
    if described.group.is_empty() {
        return format!("io.k8s.api.core.{}.{}", described.version, described.kind);
    }
    let reversed: Vec<&str> = described.group.split('.').rev().collect();
    format!("{}.{}.{}", reversed.join("."), described.version, described.kind)
}

fn gvk(described: &Described) -> Value {
    json!({"group": described.group, "version": described.version, "kind": described.kind})
}

fn operation(described: &Described, action: &str, schema: &str) -> Value {
    let parameter =
        |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let reference = json!({"$ref": format!("#/components/schemas/{schema}")});
    json!({
        "operationId": format!("{action}{}", described.kind),
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk(described),
        "parameters": [parameter("dryRun"), parameter("fieldManager"), parameter("fieldValidation")],
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
    })
}

fn collection_path(described: &Described, schema: &str) -> Value {
    json!({"get": operation(described, "list", schema), "post": operation(described, "post", schema)})
}

fn object_path(described: &Described, schema: &str) -> Value {
    json!({
        "get": operation(described, "get", schema), "put": operation(described, "put", schema),
        "patch": operation(described, "patch", schema), "delete": operation(described, "delete", schema),
    })
}

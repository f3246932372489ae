//! Tables: what `kubectl get` asks for.

use super::query::Query;
use crate::registry::Kind;
use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use regatta_types::Timestamp;
use serde_json::{Value, json};

/// Whether the client asks for a table.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let first = accept.split(',').next().unwrap_or_default();
    first.split(';').any(|part| part.trim() == "as=Table")
}

/// Whether a table says what its columns are: in a watch only the first one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Headings {
    Yes,
    No,
}

/// A table of these objects.
pub(super) fn of<'a>(
    kind: &Kind,
    objects: impl Iterator<Item = &'a Bytes>,
    meta: &Value,
    query: &Query,
    now: Timestamp,
    headings: Headings,
) -> Value {
    let include = query.get("includeObject").unwrap_or("Metadata");
    let rows = objects.filter_map(|json| serde_json::from_slice::<Value>(json).ok()).map(|object| {
        let cells: Vec<Value> = kind.columns.iter().map(|column| (column.cell)(&object, now)).collect();
        let shown = match include {
            "None" => Value::Null,
            "Object" => object,
            _ => json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]}),
        };
        json!({"cells": cells, "object": shown})
    });
    let rows: Vec<Value> = rows.collect();
    let columns = kind.columns.iter().map(|column| {
        let format = if column.name == "Name" { "name" } else { "" };
        json!({"name": column.name, "type": "string", "format": format, "description": column.name, "priority": column.priority})
    });
    let columns: Vec<Value> = if headings == Headings::Yes { columns.collect() } else { Vec::new() };
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "columnDefinitions": columns, "rows": rows})
}

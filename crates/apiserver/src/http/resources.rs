//! Requests on collections and objects of the registry's kinds.

use super::path::Target;
use super::{
    App, Call, content_type, exec, json_bytes, parse_body, table, unsupported, virtual_resources, watch,
};
use crate::engine::delete::{Deleted, Deletion, Origin, Outcome, Propagation};
use crate::engine::write::Part;
use crate::engine::{DryRun, FieldValidation, WriteOptions, Written, key_of};
use crate::error::{bad_request, method_not_allowed, no_such_resource, refuse};
use crate::patch::PatchType;
use crate::registry::{Kind, StatusRule, StrategicMerge};
use crate::selector::Selector;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use regatta_kit::ApiError;
use regatta_types::streams::LogRequest;
use regatta_types::{Timestamp, resource};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn answer(app: &Arc<App>, target: Target, call: Call) -> Result<Response, ApiError> {
    let Some(kind) = app.engine.registry.find(&target.group, &target.version, &target.plural) else {
        return virtual_resources::answer(app, target, call).await;
    };
    if target.namespace.is_some() != kind.is_namespaced()
        && (target.namespace.is_some() || target.name.is_some())
    {
        return Err(no_such_resource());
    }
    match (&target.name, target.subresource.as_deref()) {
        (None, _) => collection(app, kind, &target, call).await,
        (Some(name), None) => object(app, kind, &target, name, Part::Main, call).await,
        (Some(name), Some("status")) if kind.status != StatusRule::None => {
            object(app, kind, &target, name, Part::Status, call).await
        }
        (Some(name), Some(subresource)) if kind.resource == resource::PODS => {
            pod_subresource(app, kind, &target, name, subresource, call).await
        }
        _ => Err(no_such_resource()),
    }
}

async fn collection(app: &Arc<App>, kind: &Kind, target: &Target, call: Call) -> Result<Response, ApiError> {
    let namespace = target.namespace.as_deref();
    if kind.is_namespaced() && namespace.is_none() && !matches!(call.method, Method::GET | Method::HEAD) {
        return Err(method_not_allowed(&format!("{} of all namespaces", kind.resource.plural)));
    }
    match call.method {
        Method::GET | Method::HEAD => {
            let selector = selector(kind, &call)?;
            if kind.resource == resource::EVENTS {
                app.engine.expire_events().await;
            }
            if call.query.is_set("watch") {
                return watch::answer(app, kind, namespace, selector, &call);
            }
            list(app, kind, namespace, &selector, &call)
        }
        Method::POST => {
            let options = write_options(&call)?;
            let body = parse_body(&call)?;
            let written = app.engine.create_object(kind, namespace, body, &options).await?;
            Ok(written_response(app, kind, &call, StatusCode::CREATED, written))
        }
        Method::DELETE => {
            let deletion = deletion_options(&call)?;
            let deleted =
                app.engine.delete_collection(kind, namespace, &selector(kind, &call)?, &deletion).await?;
            let version = app.engine.store.version();
            Ok(json_bytes(
                StatusCode::OK,
                list_json(kind, deleted.iter(), &json!({"resourceVersion": version.to_string()})),
                "application/json",
            ))
        }
        _ => Err(method_not_allowed(kind.resource.plural)),
    }
}

fn selector(kind: &Kind, call: &Call) -> Result<Selector, ApiError> {
    Selector::parse(call.query.get("labelSelector"), call.query.get("fieldSelector"), kind.fields)
}

fn list(
    app: &App,
    kind: &Kind,
    namespace: Option<&str>,
    selector: &Selector,
    call: &Call,
) -> Result<Response, ApiError> {
    let limit = call.query.number::<usize>("limit")?.unwrap_or(0);
    check_version(app, call)?;
    let page = app.engine.list_page(kind, namespace, selector, limit, call.query.get("continue"))?;
    let mut meta = json!({"resourceVersion": page.version.to_string()});
    if let Some(next) = page.next {
        meta["continue"] = Value::from(next);
    }
    if let Some(remaining) = page.remaining {
        meta["remainingItemCount"] = json!(remaining);
    }
    let objects = page.entries.iter().map(|entry| &entry.json);
    if table::is_wanted(&call.headers) {
        let table =
            table::of(kind, objects, &meta, &call.query, app.engine.clock.now(), table::Headings::Yes);
        return Ok(json_bytes(StatusCode::OK, Bytes::from(table.to_string()), "application/json"));
    }
    Ok(json_bytes(StatusCode::OK, list_json(kind, objects, &meta), "application/json"))
}

/// Lists show the newest state: that is not older than any version there was, but it is seldom exactly an older one.
fn check_version(app: &App, call: &Call) -> Result<(), ApiError> {
    let Some(asked) = call.query.number::<u64>("resourceVersion")? else { return Ok(()) };
    let current = app.engine.store.version();
    if asked > current {
        let message = format!("Too large resource version: {asked}, current: {current}");
        return Err(refuse(504, "Timeout", message));
    }
    if call.query.get("resourceVersionMatch") == Some("Exact") && asked != current {
        let message =
            format!("version {asked} is no longer kept as a list (current: {current}); list without it");
        return Err(refuse(410, "Expired", message));
    }
    Ok(())
}

/// A list, put together from the stored bytes.
fn list_json<'a>(kind: &Kind, objects: impl Iterator<Item = &'a Bytes>, meta: &Value) -> Bytes {
    let head = json!({"kind": format!("{}List", kind.resource.kind), "apiVersion": kind.resource.api_version(), "metadata": meta});
    let mut json = head.to_string().into_bytes();
    json.pop();
    json.extend_from_slice(b",\"items\":[");
    for (index, object) in objects.enumerate() {
        if index > 0 {
            json.push(b',');
        }
        json.extend_from_slice(object);
    }
    json.extend_from_slice(b"]}");
    json.into()
}

async fn object(
    app: &Arc<App>,
    kind: &Kind,
    target: &Target,
    name: &str,
    part: Part,
    call: Call,
) -> Result<Response, ApiError> {
    let namespace = target.namespace.as_deref();
    let key = key_of(kind, namespace, name);
    match call.method {
        Method::GET | Method::HEAD => {
            let entry = app.engine.get_entry(kind, namespace, name)?;
            Ok(object_response(app, kind, &call, StatusCode::OK, entry.json.clone()))
        }
        Method::PUT => {
            let body = parse_body(&call)?;
            let written = app.engine.replace(kind, &key, part, body, &write_options(&call)?).await?;
            Ok(written_response(app, kind, &call, StatusCode::OK, written))
        }
        Method::PATCH => {
            let patch_type = patch_type(kind, &call)?;
            let body = serde_json::from_slice(&call.body)
                .map_err(|e| bad_request(format!("the patch is not JSON: {e}")))?;
            let options = write_options(&call)?;
            let written = app.engine.patch_object(kind, &key, part, (patch_type, &body), &options).await?;
            Ok(written_response(app, kind, &call, StatusCode::OK, written))
        }
        Method::DELETE if part == Part::Main => {
            let deleted = app.engine.delete_object(kind, &key, &deletion_options(&call)?).await?;
            Ok(deleted_response(kind, name, deleted))
        }
        _ => Err(method_not_allowed(kind.resource.plural)),
    }
}

fn patch_type(kind: &Kind, call: &Call) -> Result<PatchType, ApiError> {
    let known =
        "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";
    match content_type(&call.headers).as_str() {
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/strategic-merge-patch+json" if kind.strategic_merge == StrategicMerge::Yes => {
            Ok(PatchType::Strategic)
        }
        "application/apply-patch+yaml" => Err(unsupported(
            "application/apply-patch+yaml: server-side apply is not served; use `kubectl apply` without --server-side",
            known,
        )),
        other => Err(unsupported(other, known)),
    }
}

fn object_response(app: &App, kind: &Kind, call: &Call, status: StatusCode, json: Bytes) -> Response {
    if table::is_wanted(&call.headers) {
        let table = table::of(
            kind,
            std::iter::once(&json),
            &json!({}),
            &call.query,
            app.engine.clock.now(),
            table::Headings::Yes,
        );
        return json_bytes(status, Bytes::from(table.to_string()), "application/json");
    }
    json_bytes(status, json, "application/json")
}

fn written_response(app: &App, kind: &Kind, call: &Call, status: StatusCode, written: Written) -> Response {
    let mut response = object_response(app, kind, call, status, written.json);
    for warning in written.warnings {
        // The format of a Warning header (RFC 7234): code, agent, quoted text.
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

fn deleted_response(kind: &Kind, name: &str, deleted: Deleted) -> Response {
    // Typed clients expect the pod itself; for others the object is shown only while it is still there.
    if kind.resource == resource::PODS || deleted.outcome == Outcome::Pending {
        return json_bytes(StatusCode::OK, deleted.json, "application/json");
    }
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": name, "group": kind.resource.group, "kind": kind.resource.plural, "uid": deleted.uid},
    });
    json_bytes(StatusCode::OK, Bytes::from(status.to_string()), "application/json")
}

fn write_options(call: &Call) -> Result<WriteOptions, ApiError> {
    let dry_run = match call.query.get("dryRun") {
        None => DryRun::No,
        Some("All") => DryRun::Yes,
        Some(other) => return Err(bad_request(format!("dryRun={other:?} is not valid; only All is"))),
    };
    let validation = match call.query.get("fieldValidation") {
        None | Some("Warn") => FieldValidation::Warn,
        Some("Strict") => FieldValidation::Strict,
        Some("Ignore") => FieldValidation::Ignore,
        Some(other) => {
            return Err(bad_request(format!("fieldValidation={other:?} is not one of Ignore, Warn, Strict")));
        }
    };
    Ok(WriteOptions { user: call.user.clone(), dry_run, validation })
}

/// Options of a deletion: from the body, and from the query where that says more.
fn deletion_options(call: &Call) -> Result<Deletion, ApiError> {
    let body = if call.body.is_empty() { json!({}) } else { parse_body(call)? };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let grace = call.query.number("gracePeriodSeconds")?.or_else(|| body["gracePeriodSeconds"].as_i64());
    let propagation =
        call.query.get("propagationPolicy").map(str::to_owned).or_else(|| text(&body["propagationPolicy"]));
    let propagation = match propagation.as_deref() {
        Some("Orphan") => Propagation::Orphan,
        Some("Foreground") => Propagation::Foreground,
        None if body["orphanDependents"] == true => Propagation::Orphan,
        None | Some("" | "Background") => Propagation::Background,
        Some(other) => {
            let known = "Background, Foreground, Orphan";
            return Err(bad_request(format!("propagationPolicy={other:?} is not one of {known}")));
        }
    };
    let dry =
        call.query.get("dryRun").is_some() || body["dryRun"].as_array().is_some_and(|all| !all.is_empty());
    Ok(Deletion {
        grace_period_seconds: grace,
        uid: text(&body["preconditions"]["uid"]),
        resource_version: text(&body["preconditions"]["resourceVersion"]),
        propagation,
        dry_run: if dry { DryRun::Yes } else { DryRun::No },
        from: Origin::Client,
    })
}

async fn pod_subresource(
    app: &Arc<App>,
    kind: &Kind,
    target: &Target,
    name: &str,
    subresource: &str,
    call: Call,
) -> Result<Response, ApiError> {
    let namespace = target.namespace.as_deref().unwrap_or_default();
    match (subresource, &call.method) {
        ("log", &Method::GET) => {
            app.engine.get_entry(kind, Some(namespace), name)?;
            let stream = app.pods.logs(namespace, name, log_request(&call, app.engine.clock.now())?).await?;
            let body = Body::from_stream(stream.map_err(std::io::Error::other));
            Ok(([(header::CONTENT_TYPE, "text/plain")], body).into_response())
        }
        ("exec", _) => {
            app.engine.get_entry(kind, Some(namespace), name)?;
            exec::answer(app, namespace, name, call).await
        }
        ("binding", &Method::POST) => {
            let body = parse_body(&call)?;
            let node = body["target"]["name"].as_str().filter(|node| !node.is_empty());
            let node =
                node.ok_or_else(|| bad_request("target.name: Required value: the node to bind the pod to"))?;
            app.engine.bind_pod(namespace, name, node).await?;
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
            Ok(json_bytes(StatusCode::CREATED, Bytes::from(status.to_string()), "application/json"))
        }
        ("attach" | "portforward" | "ephemeralcontainers" | "eviction" | "proxy" | "resize", _) => {
            Err(refuse(
                404,
                "NotFound",
                format!("pods have no {subresource} here; they have log, exec, binding and status"),
            ))
        }
        ("log" | "binding", _) => Err(method_not_allowed(subresource)),
        _ => Err(no_such_resource()),
    }
}

fn log_request(call: &Call, now: Timestamp) -> Result<LogRequest, ApiError> {
    let query = &call.query;
    let since_time = query.get("sinceTime").map(|text| {
        Timestamp::parse(text)
            .ok_or_else(|| bad_request(format!("sinceTime={text:?} is not an RFC 3339 time")))
    });
    let since_seconds = query.number::<i64>("sinceSeconds")?;
    let since = since_seconds.map(|seconds| now.plus_ms(seconds.saturating_mul(-1000)));
    Ok(LogRequest {
        container: query.get("container").map(str::to_owned),
        follow: query.is_set("follow"),
        previous: query.is_set("previous"),
        tail_lines: query.number("tailLines")?,
        rank: None,
        since_time: since_time.transpose()?.or(since),
        timestamps: query.is_set("timestamps"),
        limit_bytes: query.number("limitBytes")?,
    })
}

//! Requests on resources that are answered by code.

use super::path::Target;
use super::{App, Call, json_bytes, parse_body};
use crate::error::{method_not_allowed, no_such_resource};
use crate::virtuals::{VirtualRequest, VirtualResponse};
use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use regatta_kit::ApiError;
use std::sync::Arc;

pub(super) async fn answer(app: &Arc<App>, target: Target, call: Call) -> Result<Response, ApiError> {
    let found = app.virtuals.iter().find_map(|handler| {
        let same = handler.descriptors().into_iter().find(|descriptor| {
            descriptor.group == target.group
                && descriptor.version == target.version
                && descriptor.plural == target.plural
        });
        same.map(|descriptor| (handler.clone(), descriptor))
    });
    let Some((handler, descriptor)) = found else { return Err(no_such_resource()) };
    if let Some(subresource) = &target.subresource
        && !descriptor.subresources.contains(subresource)
    {
        return Err(no_such_resource());
    }
    let verb = match (&call.method, &target.name) {
        (&Method::GET, Some(_)) => "get",
        (&Method::GET, None) => "list",
        (&Method::POST, None) => "create",
        (&Method::DELETE, Some(_)) => "delete",
        _ => return Err(method_not_allowed(&target.plural)),
    };
    if !descriptor.verbs.iter().any(|known| known == verb) {
        return Err(method_not_allowed(&target.plural));
    }
    let body = if verb == "create" { Some(parse_body(&call)?) } else { None };
    let request = VirtualRequest {
        plural: target.plural,
        verb: verb.to_owned(),
        namespace: target.namespace,
        name: target.name,
        subresource: target.subresource,
        query: call.query.to_map(),
        body,
        user: call.user,
    };
    match handler.handle(request).await? {
        VirtualResponse::Json(value) => {
            let status = if verb == "create" { StatusCode::CREATED } else { StatusCode::OK };
            Ok(json_bytes(status, Bytes::from(value.to_string()), "application/json"))
        }
        VirtualResponse::Stream(stream) => {
            let body = Body::from_stream(stream.map_err(std::io::Error::other));
            Ok(([(header::CONTENT_TYPE, "text/plain")], body).into_response())
        }
    }
}

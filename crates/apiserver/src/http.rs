//! The wire: requests in, JSON out, with the content types, status objects and streams that clients of Kubernetes expect.
//!
//! One handler serves every kind: [`path`] says what a URL names, [`resources`] does it through the engine, and
//! [`discovery`] and [`openapi`] describe the same registry. Requests need a token, except for health and version.

mod discovery;
mod exec;
mod openapi;
mod path;
mod protobuf;
mod query;
mod resources;
mod serve;
mod table;
mod virtual_resources;
mod watch;

pub use serve::serve;

use crate::auth::Authenticator;
use crate::engine::Engine;
use crate::error::{bad_request, refuse, to_status};
use crate::pods::PodBackend;
use crate::virtuals::VirtualResource;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Request, State, WebSocketUpgrade};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use query::Query;
use regatta_kit::ApiError;
use serde_json::{Value, json};
use std::sync::Arc;

/// Largest request body, in bytes: the limit of kube-apiserver.
pub const BODY_BYTES_MAX: usize = 3 << 20;

/// What the server needs beside the engine.
pub struct HttpOptions {
    /// Who runs pods.
    pub pods: Arc<dyn PodBackend>,
    /// Resources that are answered by code.
    pub virtuals: Vec<Arc<dyn VirtualResource>>,
    /// Who may ask.
    pub authenticator: Authenticator,
    /// Routes beside the API's resources, behind the same door.
    pub extra: axum::Router,
}

/// What all requests share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) pods: Arc<dyn PodBackend>,
    pub(crate) virtuals: Vec<Arc<dyn VirtualResource>>,
}

struct Door {
    authenticator: Authenticator,
}

/// Who asks, as far as the door knows.
#[derive(Debug, Clone)]
pub(crate) struct User(pub(crate) String);

/// The whole API as one router.
pub fn router(engine: Engine, options: HttpOptions) -> axum::Router {
    let app = Arc::new(App { engine, pods: options.pods, virtuals: options.virtuals });
    let door = Arc::new(Door { authenticator: options.authenticator });
    axum::Router::new()
        .fallback(handle)
        .with_state(app)
        .merge(options.extra)
        .layer(middleware::from_fn_with_state(door, enter))
}

/// Lets in whoever has a token; health and version are open.
async fn enter(State(door): State<Arc<Door>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let open =
        matches!(path, "/version" | "/healthz") || path.starts_with("/livez") || path.starts_with("/readyz");
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match door.authenticator.user(given).map(str::to_owned) {
        Some(user) => {
            request.extensions_mut().insert(User(user));
        }
        None if open => {
            request.extensions_mut().insert(User("system:anonymous".to_owned()));
        }
        None => {
            return error_response(&refuse(
                401,
                "Unauthorized",
                "Unauthorized: send the token of the kubeconfig",
            ));
        }
    }
    let path = request.uri().path().to_owned();
    // A bug in one request must not take the others down: it is told and the server goes on.
    let answered = std::panic::AssertUnwindSafe(next.run(request));
    match futures::FutureExt::catch_unwind(answered).await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(path, "a request ended in a panic");
            error_response(&ApiError::internal(format!(
                "the server has a bug: the request {path} ended in a panic; the log says where"
            )))
        }
    }
}

async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    match answer(&app, request).await {
        Ok(response) => response,
        Err(error) => error_response(&error),
    }
}

/// A request taken apart.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) query: Query,
    pub(crate) user: String,
    pub(crate) body: Bytes,
    pub(crate) upgrade: Option<WebSocketUpgrade>,
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path().trim_end_matches('/').to_owned();
    if !accepts_json(&parts.headers) {
        return Err(refuse(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        ));
    }
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, app).await.ok();
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| {
        refuse(
            413,
            "RequestEntityTooLarge",
            format!("the body is larger than {BODY_BYTES_MAX} bytes, or was cut off"),
        )
    })?;
    let user = parts.extensions.get::<User>().map_or_else(String::new, |user| user.0.clone());
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let call = Call { method: parts.method, headers: parts.headers, query, user, body, upgrade };
    match path.as_str() {
        "/version" => return Ok(json_response(&discovery::version())),
        "/livez" | "/readyz" | "/healthz" => return Ok("ok".into_response()),
        "" => return Ok(json_response(&discovery::root(app))),
        "/api" | "/apis" => return Ok(discovery::groups(app, &path, &call.headers)),
        "/openapi/v3" => return Ok(json_response(&openapi::index(app))),
        _ => {}
    }
    if path.starts_with("/livez/") || path.starts_with("/readyz/") {
        return Ok("ok".into_response());
    }
    if let Some(group) = path.strip_prefix("/openapi/v3/") {
        let document = openapi::document(app, group);
        return document.map(|document| json_response(&document)).ok_or_else(crate::error::no_such_resource);
    }
    if let Some(document) = discovery::group(app, &path) {
        return Ok(json_response(&document));
    }
    match path::parse(&path) {
        Some(target) => resources::answer(app, target, call).await,
        None => Ok((StatusCode::NOT_FOUND, "404 page not found\n").into_response()),
    }
}

/// Whether the client takes JSON; most ask for protobuf first and JSON second.
fn accepts_json(headers: &HeaderMap) -> bool {
    let Some(accept) = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()) else { return true };
    let kinds = accept.split(',').map(|part| part.split(';').next().unwrap_or_default().trim());
    kinds.into_iter().any(|kind| {
        matches!(kind, "application/json" | "*/*" | "application/*" | "" | "text/plain" | "application/yaml")
    })
}

pub(crate) fn json_response(value: &Value) -> Response {
    json_bytes(StatusCode::OK, Bytes::from(value.to_string()), "application/json")
}

pub(crate) fn json_bytes(status: StatusCode, bytes: Bytes, content_type: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, content_type)], Body::from(bytes)).into_response()
}

pub(crate) fn error_response(error: &ApiError) -> Response {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let code = if code.is_informational() { StatusCode::SERVICE_UNAVAILABLE } else { code };
    let mut status = to_status(error);
    status["code"] = json!(code.as_u16());
    let mut response = json_bytes(code, Bytes::from(status.to_string()), "application/json");
    if matches!(error.code, 429 | 503 | 504) {
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    }
    response
}

/// The body as JSON; YAML where the client says so.
pub(crate) fn parse_body(call: &Call) -> Result<Value, ApiError> {
    let kind = content_type(&call.headers);
    match kind.as_str() {
        "application/json" | "" => {
            serde_json::from_slice(&call.body).map_err(|e| bad_request(format!("the body is not JSON: {e}")))
        }
        "application/yaml" | "application/x-yaml" => {
            let text = std::str::from_utf8(&call.body)
                .map_err(|e| bad_request(format!("the body is not UTF-8: {e}")))?;
            serde_saphyr::from_str(text).map_err(|e| bad_request(format!("the body is not YAML: {e}")))
        }
        "application/vnd.kubernetes.protobuf" => match protobuf::decode(&call.body) {
            Ok(object) => Ok(object),
            Err(protobuf::Problem::Bytes(problem)) => {
                Err(bad_request(format!("the protobuf body cannot be read: {problem}")))
            }
            Err(protobuf::Problem::Kind(kind)) => {
                Err(unsupported(&format!("protobuf of kind {kind}"), "application/json, application/yaml"))
            }
        },
        other => Err(unsupported(other, "application/json, application/yaml")),
    }
}

pub(crate) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(crate) fn unsupported(found: &str, known: &str) -> ApiError {
    let message = format!(
        "the body of the request was in an unknown format ({found}); accepted media types include: {known}"
    );
    refuse(415, "UnsupportedMediaType", message)
}

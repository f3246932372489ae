//! A server with a clock that is moved by hand, a backend that pretends to run pods, and short ways to ask.

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http_body_util::BodyExt;
use regatta_apiserver::{Authenticator, Engine, ExecSession, HttpOptions, PodBackend, Registry, router};
use regatta_kit::{ApiError, Cluster, DeleteOptions, ListOptions, Object, WatchEvent, WatchStream};
use regatta_store::Store;
use regatta_types::seed::Seed;
use regatta_types::streams::{ExecRequest, LogRequest};
use regatta_types::{Clock, ObjectRef, Resource, Timestamp, Uid, resource};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::sync::mpsc;
use tower::ServiceExt;

pub(crate) const TOKEN: &str = "s3cret";

/// A clock that is moved by hand.
#[derive(Debug)]
pub(crate) struct ManualClock(AtomicI64);

impl ManualClock {
    pub(crate) fn advance_ms(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_ms(self.0.load(Ordering::SeqCst))
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.0.load(Ordering::SeqCst)).unwrap()
    }
}

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock(AtomicI64::new(1_796_040_000_000)))
}

/// An engine without a disk, with the namespaces that are always there.
pub(crate) async fn engine() -> Engine {
    engine_with(clock()).await
}

pub(crate) async fn engine_with(clock: Arc<dyn Clock>) -> Engine {
    let engine = Engine::new(Store::in_memory(), Registry::builtin(), clock, Seed(7));
    for name in ["default", "kube-system"] {
        create(&engine, resource::NAMESPACES, json!({"metadata": {"name": name}})).await.unwrap();
    }
    engine
}

pub(crate) async fn create(engine: &Engine, resource: Resource, object: Value) -> Result<Value, ApiError> {
    engine.create(&resource, Object::encode(&object)?).await?.decode()
}

pub(crate) async fn update(engine: &Engine, resource: Resource, object: Value) -> Result<Value, ApiError> {
    engine.update(&resource, Object::encode(&object)?).await?.decode()
}

pub(crate) async fn get(engine: &Engine, at: &ObjectRef) -> Result<Value, ApiError> {
    engine.get(at).await?.decode()
}

pub(crate) fn config_map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "data": {"key": value}})
}

pub(crate) fn config_map_at(name: &str) -> ObjectRef {
    ObjectRef::namespaced(resource::CONFIG_MAPS, "default", name)
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "any", "command": ["true"]}], "restartPolicy": "Never"},
    })
}

pub(crate) fn job(name: &str) -> Value {
    json!({
        "apiVersion": "regatta.dev/v1alpha1", "kind": "Job", "metadata": {"name": name, "namespace": "default"},
        "spec": {"roles": [{"name": "worker", "replicas": 2, "template": {"spec": {"containers": [{"name": "main", "command": ["true"]}]}}}]},
    })
}

/// What is there, and a watch that starts there.
pub(crate) async fn list_and_watch(
    engine: &Engine,
    resource: Resource,
    options: &ListOptions,
) -> (Vec<Value>, WatchStream) {
    let list = engine.list(&resource, options).await.unwrap();
    let watch = engine.watch(&resource, options, &list.resource_version).await.unwrap();
    (list.items.iter().map(|item| item.decode().unwrap()).collect(), watch)
}

/// The next event as its kind and the object's name.
pub(crate) async fn next_event(watch: &mut WatchStream) -> (&'static str, String) {
    let (kind, object) = match watch.next().await.unwrap().unwrap() {
        WatchEvent::Added(object) => ("added", object),
        WatchEvent::Modified(object) => ("modified", object),
        WatchEvent::Deleted(object) => ("deleted", object),
        WatchEvent::Bookmark(version) => return ("bookmark", version),
    };
    let object: Value = object.decode().unwrap();
    (kind, object["metadata"]["name"].as_str().unwrap().to_owned())
}

/// Pods that say who they are, and commands that do one of three things.
pub(crate) struct EchoPods;

#[async_trait]
impl PodBackend for EchoPods {
    async fn logs(
        &self,
        _: &str,
        pod: &str,
        options: LogRequest,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        let lines: Vec<String> = (1..=3).map(|n| format!("{pod} line {n}\n")).collect();
        let skip =
            options.tail_lines.map_or(0, |tail| lines.len().saturating_sub(usize::try_from(tail).unwrap()));
        let lines: Vec<_> = lines.into_iter().skip(skip).map(|line| Ok(Bytes::from(line))).collect();
        Ok(futures::stream::iter(lines).boxed())
    }

    /// `cat` gives its input back, `exit N` exits, anything else is printed.
    async fn exec(&self, _: &str, _: &str, options: ExecRequest) -> Result<ExecSession, ApiError> {
        let (stdout, output) = mpsc::channel(8);
        let (stdin, mut input) = mpsc::channel::<Bytes>(8);
        let command = options.command;
        let exit = tokio::spawn(async move {
            match command[0].as_str() {
                "cat" => {
                    while let Some(bytes) = input.recv().await {
                        stdout.send(bytes).await.unwrap();
                    }
                    0
                }
                "exit" => command[1].parse().unwrap(),
                _ => {
                    stdout.send(Bytes::from(format!("{}\n", command.join(" ")))).await.unwrap();
                    0
                }
            }
        });
        Ok(ExecSession {
            stdin: options.stdin.then_some(stdin),
            stdout: options.stdout.then_some(output),
            stderr: None,
            resize: None,
            exit: Box::pin(async { Ok(exit.await.unwrap()) }),
        })
    }
}

pub(crate) fn routes(engine: Engine) -> axum::Router {
    let extra = axum::Router::new()
        .route("/extra", axum::routing::get(async || "extra"))
        .route("/panic", axum::routing::get(async || -> &'static str { panic!("as the test wants") }));
    let authenticator = Authenticator::new().with_token(TOKEN, "admin");
    router(engine, HttpOptions { pods: Arc::new(EchoPods), virtuals: Vec::new(), authenticator, extra })
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }
}

/// One request with the token: method and path in one text, headers, body.
pub(crate) async fn ask(
    routes: &axum::Router,
    request: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let (method, path) = request.split_once(' ').unwrap();
    let mut builder = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "authorization") {
        builder = builder.header("authorization", format!("Bearer {TOKEN}"));
    }
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let request = builder.body(Body::from(body.to_owned())).unwrap();
    let response = routes.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

/// Does what a kubelet does, with nothing behind it: binds each pod, says that it runs and ends well, and confirms
/// deletions.
pub(crate) async fn pretend_to_run_pods(engine: Engine) {
    let node = json!({"metadata": {"name": "node-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    create(&engine, resource::NODES, node).await.unwrap();
    let (_, mut watch) = list_and_watch(&engine, resource::PODS, &ListOptions::default()).await;
    while let Some(Ok(event)) = watch.next().await {
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else { continue };
        let mut pod: Value = object.decode().unwrap();
        let namespace = pod["metadata"]["namespace"].as_str().unwrap().to_owned();
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let phase = pod["status"]["phase"].as_str().unwrap().to_owned();
        // What somebody else has changed meanwhile comes again.
        if pod["spec"]["nodeName"].is_null() {
            let _ = engine.bind(&namespace, &name, "node-1").await;
        } else if pod["metadata"]["deletionTimestamp"].is_string() {
            let uid = Uid::from(pod["metadata"]["uid"].as_str().unwrap());
            let options = DeleteOptions { grace_period_seconds: Some(0), uid: Some(uid) };
            let _ = engine.delete(&ObjectRef::namespaced(resource::PODS, &namespace, &name), &options).await;
        } else if phase == "Pending" {
            let long = pod["metadata"]["labels"]["stays"] == "yes";
            pod["status"]["phase"] = json!(if long { "Running" } else { "Succeeded" });
            let ready = json!([{"type": "Ready", "status": if long { "True" } else { "False" }}]);
            pod["status"]["conditions"] = ready;
            pod["status"]["containerStatuses"] = json!([{
                "name": pod["spec"]["containers"][0]["name"], "ready": long, "restartCount": 0,
                "image": "any", "imageID": "any",
                "state": if long { json!({"running": {}}) } else { json!({"terminated": {"exitCode": 0, "reason": "Completed"}}) },
            }]);
            let _ = engine.update_status(&resource::PODS, Object::encode(&pod).unwrap()).await;
        }
    }
}

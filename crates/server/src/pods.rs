//! The node runtime as the API server and the run records see it.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use regatta_apiserver::{ExecSession, PodBackend};
use regatta_kit::ApiError;
use regatta_node::NodeRuntime;
use regatta_types::Uid;
use regatta_types::streams::{ExecRequest, LogRequest};
use std::sync::Arc;

/// Which log, and which part of it.
#[derive(Debug, Clone, Default)]
pub struct LogOf {
    /// Namespace of the pod.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its uid, when the pod object may be gone.
    pub uid: Option<Uid>,
    /// Which part.
    pub request: LogRequest,
}

/// Where logs come from.
#[async_trait]
pub trait PodLogs: Send + Sync {
    /// Opens a log.
    async fn open(&self, log: LogOf) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError>;
}

/// Pods of the node runtime in this process.
pub struct LocalPods {
    /// The runtime.
    pub node: Arc<NodeRuntime>,
}

#[async_trait]
impl PodLogs for LocalPods {
    async fn open(&self, log: LogOf) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        let stream = self
            .node
            .logs(&log.namespace, &log.pod, log.uid, log.request)
            .await
            .map_err(|error| to_api_error(&error))?;
        let pod = log.pod;
        let wrap = move |chunk: Result<Bytes, std::io::Error>| {
            chunk.map_err(|e| ApiError::internal(format!("cannot read the log of pod {pod}: {e}")))
        };
        Ok(stream.map(wrap).boxed())
    }
}

#[async_trait]
impl PodBackend for LocalPods {
    async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        request: LogRequest,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        self.open(LogOf { namespace: namespace.to_owned(), pod: pod.to_owned(), uid: None, request }).await
    }

    async fn exec(&self, namespace: &str, pod: &str, request: ExecRequest) -> Result<ExecSession, ApiError> {
        let process = self.node.exec(namespace, pod, request).await.map_err(|error| to_api_error(&error))?;
        let exit = process.exit;
        Ok(ExecSession {
            stdin: process.stdin,
            stdout: process.stdout,
            stderr: process.stderr,
            resize: process.resize,
            exit: Box::pin(async move { exit.await.map_err(|error| to_api_error(&error)) }),
        })
    }
}

fn to_api_error(error: &regatta_node::Error) -> ApiError {
    let (code, reason) = if error.is_not_found() { (404, "NotFound") } else { (400, "BadRequest") };
    ApiError { code, reason: reason.to_owned(), message: error.to_string() }
}

//! The node runtime as the API server and the run records see it.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use regatta_apiserver::{ExecOptions, ExecSession, LogOptions, PodBackend, TerminalSize};
use regatta_kit::ApiError;
use regatta_node::{ExecRequest, LogRequest, NodeRuntime, WindowSize};
use regatta_types::{Clock, Timestamp, Uid};
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
    /// Container; the only one when none.
    pub container: Option<String>,
    /// Global rank; all ranks of the pod when none.
    pub rank: Option<u32>,
    /// Whether to go on as lines appear.
    pub follow: bool,
    /// Whether to read the run before the last restart.
    pub previous: bool,
    /// Only the last lines.
    pub tail_lines: Option<u64>,
    /// Only lines from this time on.
    pub since_time: Option<Timestamp>,
    /// Whether each line starts with its time.
    pub timestamps: bool,
    /// Stop after so many bytes.
    pub limit_bytes: Option<u64>,
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
    /// The time.
    pub clock: Arc<dyn Clock>,
}

#[async_trait]
impl PodLogs for LocalPods {
    async fn open(&self, log: LogOf) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        let request = LogRequest {
            container: log.container,
            rank: log.rank,
            follow: log.follow,
            previous: log.previous,
            tail_lines: log.tail_lines,
            since_time: log.since_time,
            timestamps: log.timestamps,
            limit_bytes: log.limit_bytes,
        };
        let stream = self
            .node
            .logs(&log.namespace, &log.pod, log.uid, request)
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
        options: LogOptions,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        let since =
            options.since_seconds.map(|seconds| self.clock.now().plus_ms(seconds.saturating_mul(-1000)));
        self.open(LogOf {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            uid: None,
            container: options.container,
            rank: None,
            follow: options.follow,
            previous: options.previous,
            tail_lines: options.tail_lines,
            since_time: options.since_time.or(since),
            timestamps: options.timestamps,
            limit_bytes: options.limit_bytes,
        })
        .await
    }

    async fn exec(&self, namespace: &str, pod: &str, options: ExecOptions) -> Result<ExecSession, ApiError> {
        let request = ExecRequest {
            container: options.container,
            command: options.command,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
            tty: options.tty,
            rank: None,
        };
        let process = self.node.exec(namespace, pod, request).await.map_err(|error| to_api_error(&error))?;
        let resize = process.resize.map(|sizes| {
            let (sender, mut receiver) = tokio::sync::mpsc::channel::<TerminalSize>(1);
            tokio::spawn(async move {
                while let Some(size) = receiver.recv().await {
                    if sizes.send(WindowSize { columns: size.width, rows: size.height }).await.is_err() {
                        return;
                    }
                }
            });
            sender
        });
        let exit = process.exit;
        Ok(ExecSession {
            stdin: process.stdin,
            stdout: process.stdout,
            stderr: process.stderr,
            resize,
            exit: Box::pin(async move { exit.await.map_err(|error| to_api_error(&error)) }),
        })
    }
}

fn to_api_error(error: &regatta_node::Error) -> ApiError {
    let (code, reason) = if error.is_not_found() { (404, "NotFound") } else { (400, "BadRequest") };
    ApiError { code, reason: reason.to_owned(), message: error.to_string() }
}

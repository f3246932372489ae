//! What the server needs of whoever runs pods: their logs, and commands beside them.

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use regatta_kit::ApiError;
use regatta_types::streams::{ExecRequest, LogRequest, TerminalSize};
use tokio::sync::mpsc;

/// Chunks that may wait in one direction of an exec session.
pub const EXEC_CHUNKS_MAX: usize = 32;

/// A command that runs beside a pod. Dropping the session ends the command.
pub struct ExecSession {
    /// Input of the command; dropping the sender closes it.
    pub stdin: Option<mpsc::Sender<Bytes>>,
    /// Output; ends when the command closes it.
    pub stdout: Option<mpsc::Receiver<Bytes>>,
    /// Errors; likewise.
    pub stderr: Option<mpsc::Receiver<Bytes>>,
    /// New sizes of the terminal.
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    /// The exit code, as shells report it.
    pub exit: BoxFuture<'static, Result<i32, ApiError>>,
}

/// Whoever runs pods.
#[async_trait]
pub trait PodBackend: Send + Sync {
    /// The log of a container, as chunks of bytes.
    async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        options: LogRequest,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError>;
    /// Starts a command beside a pod.
    async fn exec(&self, namespace: &str, pod: &str, options: ExecRequest) -> Result<ExecSession, ApiError>;
}

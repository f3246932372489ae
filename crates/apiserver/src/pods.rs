//! What the server needs of whoever runs pods: their logs, and commands beside them.

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use regatta_kit::ApiError;
use regatta_types::Timestamp;
use tokio::sync::mpsc;

/// Chunks that may wait in one direction of an exec session.
pub const EXEC_CHUNKS_MAX: usize = 32;

/// Which part of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    /// Container; the only one when none.
    pub container: Option<String>,
    /// Whether to go on as lines appear, until the container has ended.
    pub follow: bool,
    /// Whether to read the run before the last restart.
    pub previous: bool,
    /// Only the last lines.
    pub tail_lines: Option<u64>,
    /// Only lines that are at most so old.
    pub since_seconds: Option<i64>,
    /// Only lines from this time on.
    pub since_time: Option<Timestamp>,
    /// Whether each line starts with its time.
    pub timestamps: bool,
    /// Stop after so many bytes.
    pub limit_bytes: Option<u64>,
}

/// What to run beside a pod, and which streams to connect.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecOptions {
    /// Container; the only one when none.
    pub container: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Whether the client sends input.
    pub stdin: bool,
    /// Whether the client wants standard output.
    pub stdout: bool,
    /// Whether the client wants standard error.
    pub stderr: bool,
    /// Whether the command gets a terminal; output and errors then come as one stream.
    pub tty: bool,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Lines.
    pub height: u16,
}

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
        options: LogOptions,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError>;
    /// Starts a command beside a pod.
    async fn exec(&self, namespace: &str, pod: &str, options: ExecOptions) -> Result<ExecSession, ApiError>;
}

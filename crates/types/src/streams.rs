//! Logs and commands of pods, as they are asked for: by a client of the API, and by the API of whoever runs the pods.

use crate::time::Timestamp;

/// Which part of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogRequest {
    /// Container; the first when none.
    pub container: Option<String>,
    /// Global rank; all ranks, with a prefix for each line when there are several, when none.
    pub rank: Option<u32>,
    /// Whether to go on as lines appear, until the pod has ended.
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

/// A command to run beside a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecRequest {
    /// Container; the first when none.
    pub container: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Whether input is sent.
    pub stdin: bool,
    /// Whether output is wanted.
    pub stdout: bool,
    /// Whether errors are wanted.
    pub stderr: bool,
    /// Whether the command gets a terminal; output and errors then come as one stream.
    pub tty: bool,
    /// Global rank to run beside; the first that lives when none.
    pub rank: Option<u32>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

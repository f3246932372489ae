//! The command line: everything a person types, and nothing that decides.
//!
//! A verb is one file under `verb`; it reads its arguments, speaks the Kubernetes API through `api`, and writes
//! through `output`. What is asked for is translated into a Job by pure functions in `manifest`; what is heard of
//! a job is told as sentences by pure functions in `narrate`.
//!
//! The crate deliberately does not know how jobs are planned, started or recovered, nor whether the server behind the
//! API is the embedded one or a cluster's. The one thing that is special about this machine, starting and finding the
//! local daemon, comes in from outside as a [`LocalDaemon`].
//!
//! Where to start reading: `verb::run`, then `manifest`.

#![forbid(unsafe_code)]

pub mod local;

pub use local::{DaemonError, DaemonInfo, LocalDaemon, NetworkMode, UpOptions};

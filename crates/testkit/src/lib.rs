//! Fixtures for tests and measurements that go through the real binary: a daemon of one's own, commands, watches.
//!
//! It knows the command line and the API as a person knows them, from outside; no crate that decides or runs anything.
//! Waiting is for events: output of a process, a change of an object. The deadlines only end what hangs.
//!
//! Start reading at [`TestDaemon`].

#![forbid(unsafe_code)]
// Tests may stop at the first thing that is not as expected.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::missing_panics_doc)]

pub mod api;
pub mod command;
pub mod daemon;
pub mod processes;

pub use api::Api;
pub use command::{Finished, Running};
pub use daemon::{Builder, TestDaemon};
pub use processes::RankProcess;

/// Longest wait for anything, in seconds: ample on a loaded machine, and an end for what hangs.
pub const DEADLINE_S: u64 = 120;

//! The controllers: they execute what the planner and the lifecycle decide.
//!
//! ```text
//!  watch events ─┐
//!  agent reports ├─► core::Core ──step──► effects ──► Cluster
//!  effect results┘      │  (synchronous, no I/O)          │
//!        ▲              └── planner::World, lifecycle      │
//!        └────────────────────────────────────────────────┘
//! ```
//!
//! [`core::Core`] is a synchronous state machine over values: it is told what happened and answers what to do. The
//! [`driver`] feeds it from informers and carries the effects out. So the same core runs in production and, one effect
//! at a time under a virtual clock, in tests that crash it after every write.
//!
//! The crate deliberately does not know whether the cluster is real, how pods are run, or how people ask.
//! Start reading at [`core`], then [`planning`] and [`effects`].

#![forbid(unsafe_code)]

pub mod admission;
pub mod core;
pub mod driver;
pub mod effects;
pub mod planning;
pub mod preview;

pub use crate::core::{Change, Core, Input, Key, Observation};
pub use driver::{Handle, Operator, Options};
pub use effects::{Effect, Outcome, RunKey, RunLog};

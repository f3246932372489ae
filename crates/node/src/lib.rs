//! The node runtime of one machine: what a kubelet is, for pods that are process groups.
//!
//! It registers the machine as one node or as several virtual ones, starts an agent for each pod that is bound to
//! them, tells the API what becomes of it, and stops it when its object is deleted. Pods live on without it: the next
//! runtime in the same data directory adopts them.
//!
//! The crate deliberately knows nothing of jobs beyond the launch facts in a pod's annotation, nothing of queues, and
//! nothing of the planner: a pod is its business once it is bound to a node.
//!
//! It restarts nothing: a pod of a job is restarted by the job's lifecycle, which is the only one to do so, and a pod
//! without a job runs once, whatever its restart policy says.
//!
//! Where to start reading: [`api`] (what it is asked), [`machine`] (what is decided for one pod), [`driver`] (the line
//! between deciding and doing), `process` (doing it with real processes), [`fake`] (doing it with none).
//!
//! ```text
//!  API ──informer──► runtime ──► actor per pod ──► Driver ──► agent ──► ranks
//!                       ▲            │ status                   │
//!                       └── facts ◄──┴──────── agents.sock ◄────┘
//! ```

mod actor;
pub mod api;
mod cgroups;
pub mod driver;
mod error;
mod exec;
pub mod fake;
mod gpus;
mod layout;
mod ledger;
mod logs;
pub mod machine;
mod network;
mod nodes;
mod process;
mod readiness;
mod registration;
mod runtime;
mod status;

pub use api::{ExecProcess, Gpus, NetworkMode, NodeCount, NodeFacts, NodeOptions};
pub use error::Error;
pub use runtime::NodeRuntime;

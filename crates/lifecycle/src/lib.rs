//! What becomes of a job as evidence arrives. Pure: values in, a decision out.
//!
//! ```text
//!            start (planner)                    all slots run
//!  Queued ───────────────────► Starting ─────────────────────► Running
//!    ▲  ▲                        │  ▲                             │
//!    │  │ requeue                │  │ epoch + 1                   │ all exit 0
//!    │  └──────────┐   failure,  │  │                             ▼
//!    │ resume      │   cancel …  ▼  │                         Succeeded
//!  Suspended ◄──── Stopping ──► Backoff
//!                    │
//!                    └────────► Failed, Cancelled
//! ```
//!
//! [`decide`] answers with one [`Step`]: a status to *write*, or effects to *carry out*, never both. A decision is
//! stored before its effects happen, so a controller that dies between any two steps resumes where it stopped, and
//! deciding twice does nothing twice. Three rules hold in every state:
//!
//! - epochs only rise, and a new one starts only after every pod of the old one is gone;
//! - each failure charges each budget at most once, and only the job's status keeps the budgets;
//! - an ended job stays as it ended.
//!
//! Why an epoch ended is the business of [`classify`](mod@classify), what that costs and whether there is another
//! attempt of [`verdict`](mod@verdict), time and money of [`account`](mod@account).
//!
//! The crate deliberately does not know clocks, API clients, how pods are run, or who else wants the resources.
//! Start reading at [`mod@decide`].

#![forbid(unsafe_code)]

pub mod account;
pub mod classify;
pub mod decide;
pub mod events;
pub mod facts;
pub mod pods;
pub mod start;
pub mod step;
pub mod verdict;

mod status;
#[cfg(test)]
mod tests;

pub use account::{Prices, price_per_hour_micros};
pub use decide::decide;
pub use facts::{ContainerExit, ContainerKind, PodFacts, PodPhase};
pub use pods::{hosts, pod_for};
pub use start::{SlotAssignment, start, waiting};
pub use step::{Action, EventKind, EventNote, Inputs, Shutdown, Step};

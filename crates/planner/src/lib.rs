//! Who runs, where and when. A library: facts go in as deltas, a plan and its reasons come out.
//!
//! ```text
//!  NodeUpsert, GangUpsert, GangPlaced … ──► World ──plan──► starts, verdicts
//!                                            │
//!                                            └──preview──► what would happen to this gang
//! ```
//!
//! Rules of this version:
//!
//! - *All or nothing*: a gang starts with every member or not at all.
//! - *Order*: priority, highest first, then age, then the gang's identity. A gang that waits keeps the nodes where it is
//!   closest to fitting, and later ones take only what it leaves: nobody starves, and what it cannot use is used. The
//!   rule and why it is enough are told in `line`.
//! - *Best fit*: a gang goes to the fewest nodes, and for the last of them to the one where it leaves the least GPUs, CPU
//!   and memory idle; all members of one role get the same GPU model, the first of the role's list that fits.
//!
//! Cost: waiting gangs of the same shape and queue form a class, which is looked at once in a plan. Indexes over the
//! nodes follow a log of changes, and proofs that a class does not fit hold until something changes on which they rest;
//! so a plan costs what changed and the number of classes, not what waits. A verdict is told when it is new to its gang.
//!
//! Everything is integers and ordered maps: the same deltas give the same plan, byte for byte. The crate deliberately
//! does not know Kubernetes clients, clocks, threads, or what becomes of a gang that has started.
//! Start reading at [`World::plan`], then the modules `line` and `fit`.

#![forbid(unsafe_code)]

pub mod facts;
pub mod plan;
pub mod preview;
pub mod verdict;
pub mod world;

mod explain;
mod fit;
mod gang;
mod line;
mod merit;
mod nodes;
mod shapes;

pub use facts::{
    Amounts, Delta, GangFacts, GangId, MemberGroup, NodeFacts, QueueFacts, QueueState, Schedulable,
};
pub use plan::{Budget, Plan, SlotAssignment, Start};
pub use preview::{Preview, Reservation};
pub use verdict::{ImpossibleVerdict, Numbers, Until, Verdict};
pub use world::World;

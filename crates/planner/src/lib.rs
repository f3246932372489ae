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
//! - *Order*: priority, highest first, then age, then name of the gang's identity. The order is strict on what a gang
//!   could use: once a gang has to wait, later ones may only take what it could not use even if every node were empty
//!   (other nodes, or resources beyond those that its own members can ever take there). So a gang that waits is never
//!   overtaken on its own ground and cannot starve, and a GPU gang that waits does not keep idle CPUs from others.
//! - *Best fit*: a gang goes to the fewest nodes, and among those to the ones where it leaves the least GPUs, CPU and
//!   memory idle; all members of one role get the same GPU model, the first of the role's list that fits.
//!
//! Cost: waiting gangs of the same shape form a class. A class that was proven not to fit is not looked at again before
//! something that could help it has changed, so a plan costs what changed and not what waits. A verdict is told when
//! it is new to its gang.
//!
//! Everything is integers and ordered maps: the same deltas give the same plan, byte for byte. The crate deliberately
//! does not know Kubernetes clients, clocks, threads, or what becomes of a gang that has started.
//! Start reading at [`World::plan`], then [`fit`](mod@fit).

#![forbid(unsafe_code)]

pub mod facts;
pub mod fit;
pub mod plan;
pub mod preview;
pub mod verdict;
pub mod world;

mod gang;

pub use facts::{
    Amounts, Delta, GangFacts, GangId, MemberGroup, NodeFacts, QueueFacts, QueueState, Schedulable,
};
pub use plan::{Budget, Plan, SlotAssignment, Start};
pub use preview::Preview;
pub use verdict::{ImpossibleVerdict, Verdict};
pub use world::World;

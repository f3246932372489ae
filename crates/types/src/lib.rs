//! The vocabulary of Regatta: API kinds, identifiers, quantities, conditions and typed reasons.
//!
//! Everything here is a value. The crate deliberately knows nothing of I/O, async, HTTP or of any
//! decision: other crates decide about these values, store them or move them.
//!
//! Where to start reading: [`job`] (what a person asks for and what became of it), then [`pod`]
//! (what runs), [`queue`] and [`node`] (where), [`reason`] (why not).
//!
//! ```text
//!  regatta.yaml ─► Job ──(lifecycle)──► Pod ──(node)──► processes
//!                   │ queue                │ nodeName
//!                   ▼                      ▼
//!                 Queue                  Node ◄── NodePool
//! ```

#![forbid(unsafe_code)]

pub mod clock;
pub mod conditions;
pub mod evidence;
pub mod id;
pub mod job;
pub mod labels;
pub mod launch;
pub mod meta;
pub mod node;
pub mod pod;
pub mod preview;
pub mod quantity;
pub mod queue;
pub mod reason;
pub mod resource;
pub mod run_record;
pub mod seed;
pub mod streams;
pub mod time;

pub use clock::{Clock, SystemClock};
pub use id::{Epoch, Incarnation, Rank, SlotIndex, Uid};
pub use meta::{ObjectMeta, OwnerReference};
pub use quantity::Quantity;
pub use resource::{ObjectRef, Resource, Scope};
pub use time::Timestamp;

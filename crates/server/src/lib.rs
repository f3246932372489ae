//! Composition: from options to what runs in this process, and the order in which it stops.
//!
//! ```text
//!  store ─► Engine ─► router (TLS, token) ◄── kubectl, regatta, SDKs
//!             ▲  ▲
//!   operator ─┘  └─ node runtime ─► agents ─► ranks
//! ```
//!
//! Start reading at [`daemon`]. This is the one crate that knows all others; it decides nothing itself.

#![forbid(unsafe_code)]

pub mod admission;
pub mod bootstrap;
pub mod daemon;
pub mod data_dir;
pub mod kubeconfig;
pub mod local;
pub mod pods;
pub mod previews;
pub mod runs;

pub use local::Local;

//! The controller kit: what every controller needs, whatever it controls.
//!
//! - [`cluster::Cluster`]: the one door to the API, implemented by the embedded server and by a client of a real one.
//! - [`informer::Informer`]: list and watch as one ordered stream that survives disconnects.
//!
//! The kit deliberately knows nothing of what is being controlled, nor whether the cluster is real.
//! `kube-runtime`'s `Controller` is not used: its order of work cannot be reproduced from a seed.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod informer;

pub use cluster::{
    ApiError, Cluster, DeleteOptions, ListOptions, Object, ObjectList, PatchKind, WatchEvent, WatchStream,
};
pub use informer::{Informer, InformerEvent};

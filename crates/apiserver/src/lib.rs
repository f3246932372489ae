//! The embedded Kubernetes API server: one generic engine driven by a registry of kinds.
//!
//! ```text
//!  kubectl, clients ──HTTP──► http ─┐                    ┌─► pods, virtuals (somebody else's code)
//!  controllers ──kit::Cluster──────►├─ engine ── store   │
//!                                   │    ▲               │
//!                                   └─ registry ─────────┘
//! ```
//!
//! - [`registry`]: a kind is added in one place; discovery, OpenAPI, tables, storage and checks read it there.
//! - [`engine`]: create, get, list, watch, update, patch, delete, whatever the kind.
//! - [`pods`], [`virtuals`], [`admission`]: what the server asks of others.
//!
//! The crate deliberately knows nothing of what jobs and queues mean, nor of how pods run. It depends on the kit for
//! one reason: the engine is one of the back ends behind the kit's door.
//! Start reading at [`registry`], then [`engine`].

#![forbid(unsafe_code)]

pub mod admission;
pub mod auth;
pub mod engine;
pub mod http;
pub mod pki;
pub mod pods;
pub mod registry;
pub mod virtuals;

mod columns;
mod error;
mod names;
mod object;
mod patch;
mod prepare;
mod schema;
mod selector;

pub use admission::{Admission, AdmissionRequest, AdmissionVerb};
pub use auth::Authenticator;
pub use columns::Column;
pub use engine::Engine;
pub use engine::events::{EVENT_TTL_MS, EVENTS_MAX};
pub use http::{HttpOptions, router, serve};
pub use pki::TlsConfig;
pub use pods::{ExecSession, PodBackend};
pub use registry::{Kind, Registry};
pub use schema::of as schema_of;
pub use virtuals::{VirtualDescriptor, VirtualRequest, VirtualResource, VirtualResponse};

//! Identifiers as types, so that a rank cannot be passed where a slot is meant.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        #[schemars(inline)]
        pub struct $name(pub $inner);

        impl $name {
            /// The identifier after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id! {
    /// One attempt of a job. Rises monotonically in the job's status and is never reused; 0 means "not started yet".
    Epoch(u64)
}
number_id! {
    /// The n-th pod that has held a slot. It is part of the pod's name; an in-place restart keeps it.
    Incarnation(u64)
}
number_id! {
    /// Global rank of a training process: 0 up to the world size.
    Rank(u32)
}
number_id! {
    /// One node-sized seat of a role: 0 up to the role's replicas. It keeps its rank range across restarts.
    SlotIndex(u32)
}

/// A server-assigned object identity, unique over time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Uid(pub String);

impl Uid {
    /// The identity as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

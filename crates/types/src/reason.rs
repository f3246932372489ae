//! Typed reasons: nothing is refused, delayed, stopped or restarted without one.
//!
//! Each has an entry in `docs/CONDITIONS.md`. The explanation is made by the decision that has the numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every reason, for the documentation check.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The reason as one word.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// Why a gang waits.
    WaitReason {
        /// It has not been planned yet.
        NotPlanned,
        /// The nodes that exist do not have enough free of some resource.
        InsufficientCapacity,
        /// No node that exists now could ever hold one member, even when empty.
        NoSuchNode,
        /// Gangs with higher priority, or older ones of the same priority, are served first.
        BehindOthers,
        /// Its queue does not exist.
        QueueNotFound,
        /// Its queue is stopped.
        QueueStopped,
        /// It is suspended by its owner or by a limit.
        Suspended,
    }
}

reasons! {
    /// Why an epoch ended, or a job with it.
    EndReason {
        /// All ranks exited with 0.
        Completed,
        /// A rank ended with a failure that its program caused.
        UserError,
        /// A signal that nobody here sent ended a rank: a crash, or somebody's `kill`.
        Signaled,
        /// A rank was killed for memory.
        OutOfMemory,
        /// The command does not exist, cannot be executed, or the container has none. Never retried.
        ConfigError,
        /// The program asked not to be restarted (exit code 93).
        NoRestartRequested,
        /// The node was lost, or restarted under the job.
        NodeLost,
        /// A pod was deleted by somebody else.
        PodDeleted,
        /// The program kept failing without making progress.
        CrashLoop,
        /// The user's budget of restarts is used up.
        BudgetExhausted,
        /// The job's own limit on run time was reached.
        RuntimeLimit,
        /// The job's own limit on cost was reached.
        CostLimit,
        /// Its owner suspended it.
        SuspendRequested,
        /// Its owner cancelled it.
        CancelRequested,
        /// Regatta is shutting down on this machine.
        Shutdown,
    }
}

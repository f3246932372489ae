//! Reasons of the events that a job's life writes. Each has an entry in `docs/CONDITIONS.md`.

/// The job was accepted and waits.
pub const QUEUED: &str = "Queued";
/// An attempt got its resources.
pub const STARTED: &str = "Started";
/// All slots of an attempt run.
pub const RUNNING: &str = "Running";
/// An attempt is over and another one follows.
pub const RESTARTING: &str = "Restarting";
/// The job gave its resources back and waits again.
pub const REQUEUED: &str = "Requeued";
/// The job gave its resources back and waits for its owner.
pub const SUSPENDED: &str = "Suspended";
/// The job ended well.
pub const SUCCEEDED: &str = "Succeeded";
/// The job ended badly.
pub const FAILED: &str = "Failed";
/// The job was ended by its owner.
pub const CANCELLED: &str = "Cancelled";
/// A checkpoint could not be read and will not be used again.
pub const BAD_CHECKPOINT: &str = "BadCheckpoint";

/// All of them, for the documentation check.
pub const ALL: &[&str] = &[
    QUEUED,
    STARTED,
    RUNNING,
    RESTARTING,
    REQUEUED,
    SUSPENDED,
    SUCCEEDED,
    FAILED,
    CANCELLED,
    BAD_CHECKPOINT,
];

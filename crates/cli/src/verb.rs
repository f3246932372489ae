//! One file per verb.

pub(crate) mod cancel;
pub(crate) mod completion;
pub(crate) mod describe;
pub(crate) mod down;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod logs;
pub(crate) mod nodes;
pub(crate) mod ps;
pub(crate) mod queues;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod up;
pub(crate) mod version;
pub(crate) mod wait;
pub(crate) mod why;

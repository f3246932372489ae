//! The store from outside: against a model, across crashes, under concurrency.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "these are tests; the lints know only functions marked as such"
)]

mod common;
mod concurrency;
mod crash;
mod model;

//! The store from outside: against a model, across crashes, under concurrency.

mod common;
mod concurrency;
mod crash;
mod model;

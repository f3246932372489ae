//! The server from outside: through the kit's door, over HTTP, and with `kubectl`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of tests are tests, too"
)]

mod deletion;
mod durability;
mod events;
mod http;
mod kubectl;
mod reads;
mod support;
mod writes;

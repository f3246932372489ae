//! The server from outside: through the kit's door, over HTTP, and with `kubectl`.

mod deletion;
mod events;
mod http;
mod kubectl;
mod reads;
mod support;
mod writes;

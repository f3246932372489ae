//! Descriptors that tell when they are ready, through the runtime's poller.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::unix::AsyncFd;

/// Watches a descriptor. Must be called within the runtime.
#[expect(unsafe_code, reason = "the poller must be promised that the descriptor stays what it is")]
pub(crate) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, stays open and always gives the same number until it is dropped, and the poller's
    // handle owns it from here on. Nobody closes or replaces numbers behind its back: that would need unsafe code.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

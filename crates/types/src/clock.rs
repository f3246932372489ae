//! Time as a capability: nothing else in the workspace may ask the machine what time it is.

use crate::time::Timestamp;

/// A source of time. Production uses [`SystemClock`]; tests and the simulator use a clock they move by hand.
pub trait Clock: Send + Sync {
    /// Wall-clock time, for what people read and for what is stored.
    fn now(&self) -> Timestamp;

    /// Milliseconds since an arbitrary origin that never runs backwards, for measuring durations.
    fn monotonic_ms(&self) -> u64;
}

/// The machine's own clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_unix_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the monotonic clock")]
    fn monotonic_ms(&self) -> u64 {
        static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let origin = ORIGIN.get_or_init(std::time::Instant::now);
        u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

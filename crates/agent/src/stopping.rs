//! SIGTERM, patience, SIGKILL. Pure.

/// Where a container stands between running and killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stopping {
    /// Nobody has asked it to stop.
    #[default]
    No,
    /// It was asked to stop, and has until then, on the monotonic clock in milliseconds.
    Asked { kill_at_ms: u64 },
    /// It was killed.
    Killed,
}

/// What to do to every process of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Send SIGTERM.
    Terminate,
    /// Send SIGKILL.
    Kill,
}

impl Stopping {
    /// Asks for a stop within `grace_ms`. A second request can only bring the end nearer.
    pub(crate) fn request(&mut self, now_ms: u64, grace_ms: u64) -> Option<Act> {
        let requested = now_ms.saturating_add(grace_ms);
        match *self {
            Self::No => {
                *self = Self::Asked { kill_at_ms: requested };
                Some(Act::Terminate)
            }
            Self::Asked { kill_at_ms } => {
                *self = Self::Asked { kill_at_ms: kill_at_ms.min(requested) };
                None
            }
            Self::Killed => None,
        }
    }

    /// What is due now.
    pub(crate) fn due(&mut self, now_ms: u64) -> Option<Act> {
        match *self {
            Self::Asked { kill_at_ms } if now_ms >= kill_at_ms => {
                *self = Self::Killed;
                Some(Act::Kill)
            }
            _ => None,
        }
    }

    /// When something is due.
    pub(crate) const fn deadline_ms(self) -> Option<u64> {
        match self {
            Self::Asked { kill_at_ms } => Some(kill_at_ms),
            Self::No | Self::Killed => None,
        }
    }

    /// Whether somebody has asked.
    pub(crate) const fn is_requested(self) -> bool {
        !matches!(self, Self::No)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_once() {
        let mut stopping = Stopping::default();
        assert_eq!(stopping.due(0), None);
        assert_eq!(stopping.request(1_000, 30_000), Some(Act::Terminate));
        assert_eq!(stopping.request(2_000, 60_000), None, "a later deadline changes nothing");
        assert_eq!(stopping.deadline_ms(), Some(31_000));
        assert_eq!(stopping.request(3_000, 0), None);
        assert_eq!(stopping.deadline_ms(), Some(3_000));
        assert_eq!(stopping.due(2_999), None);
        assert_eq!(stopping.due(3_000), Some(Act::Kill));
        assert_eq!(stopping.due(9_000), None);
        assert_eq!(stopping.request(9_000, 0), None);
        assert!(stopping.is_requested());
    }
}

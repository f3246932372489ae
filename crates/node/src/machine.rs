//! What is to be done next for one pod. Pure.

use regatta_types::pod::Pod;

/// What the API says of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Desired {
    /// Nothing yet: the API has not been heard since the runtime started. Nothing destructive may follow from that.
    Unknown,
    /// The object exists.
    Present {
        /// Grace period of its deletion, in milliseconds, once that was asked for.
        deleting: Option<u64>,
        /// Whether its status says that it has ended.
        finished: bool,
    },
    /// The object is gone.
    Gone,
}

impl Desired {
    /// What an object says.
    pub fn of(pod: &Pod) -> Self {
        let seconds =
            pod.metadata.deletion_grace_period_seconds.or(pod.spec.termination_grace_period_seconds);
        let grace_ms = || {
            u64::try_from(seconds.unwrap_or(GRACE_PERIOD_SECONDS_DEFAULT)).unwrap_or(0).saturating_mul(1000)
        };
        Self::Present {
            deleting: pod.metadata.is_being_deleted().then(grace_ms),
            finished: pod.is_finished(),
        }
    }
}

/// Grace period of a pod that names none, in seconds.
pub const GRACE_PERIOD_SECONDS_DEFAULT: i64 = 30;

/// What is known of the pod on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// It was not started.
    Absent,
    /// It was started and has not ended.
    Running,
    /// It has ended, or could not be started.
    Ended,
}

/// Whether the API has been told the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It has.
    Yes,
    /// There is news.
    No,
}

/// All that the decision depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// What the API says.
    pub desired: Desired,
    /// What is known here.
    pub local: Local,
    /// Whether the API has been told.
    pub told: Told,
    /// The grace period of the stop that was asked for last, in milliseconds.
    pub stop_sent: Option<u64>,
}

/// The next thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until something changes.
    Wait,
    /// Start the pod.
    Start,
    /// Ask it to stop within so many milliseconds.
    Stop {
        /// Grace period, in milliseconds.
        grace_period_ms: u64,
    },
    /// Tell the API what is known.
    Tell,
    /// Take the object away: its processes are gone and its last status is told.
    DeleteObject,
    /// Forget the pod and remove what belonged to it.
    Remove,
}

/// The next thing to do.
pub fn decide(view: &View) -> Step {
    match (view.desired, view.local) {
        (Desired::Unknown, _) => Step::Wait,
        (Desired::Gone, Local::Absent | Local::Ended) => Step::Remove,
        // Somebody took the object away by force: nobody is left to wait for a grace period.
        (Desired::Gone, Local::Running) => stop_unless_sent(view, 0),
        (Desired::Present { deleting: Some(_), .. }, Local::Absent) => Step::DeleteObject,
        (Desired::Present { finished: true, .. }, Local::Absent) => Step::Wait,
        (Desired::Present { .. }, Local::Absent) => Step::Start,
        (Desired::Present { deleting: Some(grace_ms), .. }, Local::Running) => {
            stop_unless_sent(view, grace_ms)
        }
        (Desired::Present { deleting: None, .. }, Local::Running) => if_news(view, Step::Wait),
        (Desired::Present { deleting, finished }, Local::Ended) => {
            let after = if deleting.is_some() { Step::DeleteObject } else { Step::Wait };
            if finished { after } else { if_news(view, after) }
        }
    }
}

fn stop_unless_sent(view: &View, grace_period_ms: u64) -> Step {
    match view.stop_sent {
        Some(sent) if sent <= grace_period_ms => Step::Wait,
        _ => Step::Stop { grace_period_ms },
    }
}

fn if_news(view: &View, otherwise: Step) -> Step {
    if view.told == Told::No { Step::Tell } else { otherwise }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRESENT: Desired = Desired::Present { deleting: None, finished: false };
    const FINISHED: Desired = Desired::Present { deleting: None, finished: true };
    const DELETING: Desired = Desired::Present { deleting: Some(5_000), finished: false };

    fn check(desired: Desired, local: Local, told: Told, stop_sent: Option<u64>, expected: Step) {
        let view = View { desired, local, told, stop_sent };
        assert_eq!(decide(&view), expected, "{view:?}");
    }

    #[test]
    fn each_row() {
        use Local::{Absent, Ended, Running};
        use Told::{No, Yes};
        check(PRESENT, Absent, Yes, None, Step::Start);
        check(FINISHED, Absent, Yes, None, Step::Wait);
        check(DELETING, Absent, Yes, None, Step::DeleteObject);
        check(PRESENT, Running, No, None, Step::Tell);
        check(PRESENT, Running, Yes, None, Step::Wait);
        check(DELETING, Running, No, None, Step::Stop { grace_period_ms: 5_000 });
        check(DELETING, Running, Yes, Some(5_000), Step::Wait);
        check(DELETING, Running, Yes, Some(9_000), Step::Stop { grace_period_ms: 5_000 });
        check(PRESENT, Ended, No, None, Step::Tell);
        check(PRESENT, Ended, Yes, None, Step::Wait);
        check(FINISHED, Ended, No, None, Step::Wait);
        check(DELETING, Ended, No, None, Step::Tell);
        check(DELETING, Ended, Yes, None, Step::DeleteObject);
        check(Desired::Gone, Running, Yes, Some(5_000), Step::Stop { grace_period_ms: 0 });
        check(Desired::Gone, Running, Yes, Some(0), Step::Wait);
        check(Desired::Gone, Ended, No, None, Step::Remove);
        check(Desired::Gone, Absent, Yes, None, Step::Remove);
    }

    fn any_view() -> impl Strategy<Value = View> {
        let desired = prop_oneof![
            Just(Desired::Unknown),
            Just(Desired::Gone),
            (proptest::option::of(0_u64..3), any::<bool>())
                .prop_map(|(deleting, finished)| Desired::Present { deleting, finished }),
        ];
        let local = prop_oneof![Just(Local::Absent), Just(Local::Running), Just(Local::Ended)];
        let told = prop_oneof![Just(Told::Yes), Just(Told::No)];
        (desired, local, told, proptest::option::of(0_u64..3))
            .prop_map(|(desired, local, told, stop_sent)| View { desired, local, told, stop_sent })
    }

    proptest! {
        #[test]
        fn an_object_goes_only_when_nothing_runs_and_nothing_is_untold(view in any_view()) {
            if decide(&view) == Step::DeleteObject {
                prop_assert_ne!(view.local, Local::Running);
                let finished = matches!(view.desired, Desired::Present { finished: true, .. });
                prop_assert!(view.local == Local::Absent || finished || view.told == Told::Yes);
            }
        }

        #[test]
        fn silence_changes_nothing(mut view in any_view()) {
            view.desired = Desired::Unknown;
            prop_assert_eq!(decide(&view), Step::Wait);
        }

        #[test]
        fn a_deleted_pod_always_goes(mut view in any_view()) {
            // Carries each step out; a pod that was asked to stop ends.
            prop_assume!(!matches!(view.desired, Desired::Unknown | Desired::Present { deleting: None, .. }));
            for _ in 0..8 {
                match decide(&view) {
                    Step::Remove => return Ok(()),
                    Step::DeleteObject => view.desired = Desired::Gone,
                    Step::Tell => view.told = Told::Yes,
                    Step::Stop { grace_period_ms } => view.stop_sent = Some(grace_period_ms),
                    Step::Start => prop_assert!(false, "a deleted pod is not started"),
                    Step::Wait => {
                        prop_assert!(view.local == Local::Running && view.stop_sent.is_some(), "{:?}", view);
                        view.local = Local::Ended;
                        view.told = Told::No;
                    }
                }
            }
            prop_assert!(false, "{:?} does not go", view);
        }
    }
}

//! Random histories: pods end, vanish, are slow; owners change their minds; the controller is late. The invariants hold
//! after every step, and once the faults stop the job settles.

use super::*;
use proptest::prelude::*;

/// Something that may happen to the toy.
#[derive(Debug, Clone)]
enum Happening {
    Place,
    Run,
    End(usize, i32),
    Kill(usize),
    Vanish(usize),
    Checkpoint(u64),
    Time(i64),
    Suspend(bool),
    Cancel,
    Delete,
    /// The node finishes a deletion.
    Reap,
    /// The controller does its next step; otherwise it may be late by any number of happenings.
    Step,
    ShutDown(bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => Just(Happening::Place),
        6 => Just(Happening::Run),
        3 => (0usize..3, prop_oneof![Just(0), Just(0), Just(1), Just(75), Just(93), Just(127)]).prop_map(|(i, c)| Happening::End(i, c)),
        2 => (0usize..3).prop_map(Happening::Kill),
        1 => (0usize..3).prop_map(Happening::Vanish),
        3 => (1u64..50).prop_map(Happening::Checkpoint),
        3 => (1i64..400_000).prop_map(Happening::Time),
        1 => any::<bool>().prop_map(Happening::Suspend),
        1 => prop_oneof![9 => Just(Happening::Step), 1 => Just(Happening::Cancel), 1 => Just(Happening::Delete)],
        4 => Just(Happening::Reap),
        20 => Just(Happening::Step),
        1 => any::<bool>().prop_map(Happening::ShutDown),
    ]
}

fn happen(toy: &mut Toy, what: &Happening) {
    match *what {
        Happening::Place if toy.phase() == JobPhase::Queued && toy.job.status.queued_at.is_some() => {
            toy.place();
        }
        Happening::Run => toy.run_all(),
        Happening::End(index, code) if toy.pods.get(index).is_some_and(|pod| !pod.is_finished()) => {
            toy.end(index, ProcessEnd::Exited(code));
        }
        Happening::Kill(index) if toy.pods.get(index).is_some_and(|pod| !pod.is_finished()) => {
            let known = toy.live.clone();
            toy.end_with(index, ProcessEnd::Signaled(9), |record| record.checkpoints = known);
        }
        Happening::Vanish(index) if index < toy.pods.len() => drop(toy.pods.remove(index)),
        Happening::Checkpoint(step) => toy.live = vec![checkpoint(step)],
        Happening::Time(ms) => toy.pass_ms(ms),
        Happening::Suspend(suspend) => toy.job.spec.suspend = suspend,
        Happening::Cancel => toy.job.spec.cancel = true,
        Happening::Delete => toy.job.metadata.deletion_timestamp = Some(toy.now),
        Happening::Reap => toy.pods.retain(|pod| !pod.terminating),
        Happening::Step => {
            let step = toy.decide();
            toy.apply(step);
        }
        Happening::ShutDown(yes) => toy.shutting_down = if yes { Shutdown::Yes } else { Shutdown::No },
        _ => {}
    }
}

fn check_invariants(before: &Job, toy: &Toy) {
    let (old, new) = (&before.status, &toy.job.status);
    assert!(new.epoch >= old.epoch && new.epoch.0 <= old.epoch.0 + 1, "epochs rise one by one");
    if old.phase.is_terminal() {
        assert_eq!(new.phase, old.phase, "an ended job stays ended");
    }
    assert!(new.user_restarts <= toy.job.spec.recovery.max_user_restarts, "the budget holds");
    assert!(new.user_restarts <= old.user_restarts + 1, "no failure is charged twice");
    let charged = new.epochs.iter().filter(|record| record.charged_to_user).count();
    assert!(u32::try_from(charged).unwrap() <= new.user_restarts + 1);
    let incarnations: std::collections::BTreeSet<_> = toy.pods.iter().map(|pod| pod.incarnation).collect();
    assert!(incarnations.len() <= 1, "pods of two epochs at once: {incarnations:?}");
    if let Some(record) = new.epochs.last()
        && let Some(from) = &record.resumed_from
    {
        assert!(new.checkpoints.iter().max() >= Some(from), "resumes from what exists");
    }
    let decides = new.phase == JobPhase::Stopping || new.phase == JobPhase::Backoff;
    assert_eq!(
        new.decision.is_some(),
        decides,
        "a decision exactly while it is carried out: {:?}",
        new.phase
    );
    assert!(new.usage.lost_slot_ms <= new.usage.slot_ms);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_invariants_hold_and_it_settles(
        slots in 1u32..4,
        happenings in proptest::collection::vec(happening(), 1..120),
    ) {
        let mut toy = Toy::new(job(slots));
        for what in happenings {
            let before = toy.job.clone();
            happen(&mut toy, &what);
            if toy.gone {
                return Ok(());
            }
            check_invariants(&before, &toy);
        }
        // Faults stop: the job reaches an end, or runs, or waits for somebody.
        toy.shutting_down = Shutdown::No;
        for _ in 0..50 {
            if let Some(until) = toy.settle() {
                toy.now = toy.now.max(until);
            }
            if toy.gone {
                return Ok(());
            }
            if toy.phase() == JobPhase::Queued {
                toy.place();
            }
            toy.run_all();
        }
        let calm = matches!(toy.phase(), JobPhase::Running | JobPhase::Suspended) || toy.phase().is_terminal();
        prop_assert!(calm, "{:?}", toy.job.status);
    }
}

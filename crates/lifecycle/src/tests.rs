//! The state machine as a whole: scenarios on a toy cluster that keeps its promises late and in any order.

mod histories;

use crate::step::{Action, EventNote, Inputs, Shutdown, Step};
use crate::{
    ContainerExit, ContainerKind, PodFacts, PodPhase, Prices, SlotAssignment, decide, events, pod_for, start,
    verdict, waiting,
};
use regatta_types::conditions;
use regatta_types::evidence::{Checkpoint, ExitRecord, ProcessEnd, Progress, RankEnd};
use regatta_types::job::{CheckpointSpec, Job, JobPhase, Limits, Next, Role};
use regatta_types::pod::{Container, LaunchSpec};
use regatta_types::reason::{EndReason, WaitReason};
use regatta_types::run_record::RunFact;
use regatta_types::{Epoch, Incarnation, Rank, Timestamp, Uid, labels};

const GPU_HOUR_MICROS: i64 = 3_600_000;

fn job(slots: u32) -> Job {
    let mut job = Job { api_version: "regatta.dev/v1alpha1".into(), kind: "Job".into(), ..Job::default() };
    job.metadata.name = "train".into();
    job.metadata.namespace = Some("default".into());
    job.metadata.uid = Some("u1".into());
    job.metadata.finalizers = vec![labels::JOB_FINALIZER.into()];
    let mut container =
        Container { name: "main".into(), command: vec!["train".into()], ..Container::default() };
    container.resources.limits.insert(labels::GPU_RESOURCE.into(), "1".parse().unwrap());
    let mut role = Role { replicas: slots, ..Role::default() };
    role.template.spec.containers.push(container);
    job.spec.roles.push(role);
    job
}

/// A job, its pods, and a node that does what it is told when it is asked to.
struct Toy {
    job: Job,
    pods: Vec<PodFacts>,
    now: Timestamp,
    live: Vec<Checkpoint>,
    progress: Option<Progress>,
    shutting_down: Shutdown,
    prices: Option<Prices>,
    events: Vec<EventNote>,
    records: Vec<RunFact>,
    gone: bool,
    uids: u64,
}

impl Toy {
    fn new(job: Job) -> Self {
        Self {
            job,
            pods: Vec::new(),
            now: Timestamp::from_unix_ms(1_000_000),
            live: Vec::new(),
            progress: None,
            shutting_down: Shutdown::No,
            prices: Some(Prices {
                gpu_hour_micros: GPU_HOUR_MICROS,
                cpu_hour_micros: 0,
                currency: "USD".into(),
            }),
            events: Vec::new(),
            records: Vec::new(),
            gone: false,
            uids: 0,
        }
    }

    fn running(slots: u32) -> Self {
        let mut toy = Self::new(job(slots));
        toy.settle();
        toy.place();
        toy.settle();
        toy.run_all();
        toy.settle();
        assert_eq!(toy.job.status.phase, JobPhase::Running);
        toy
    }

    fn decide(&self) -> Step {
        decide(&Inputs {
            job: &self.job,
            pods: &self.pods,
            prices: self.prices.as_ref(),
            progress: self.progress.as_ref().filter(|progress| progress.epoch == self.job.status.epoch),
            checkpoints: &self.live,
            bad_checkpoints: &[],
            shutting_down: self.shutting_down,
            now: self.now,
        })
    }

    fn apply(&mut self, step: Step) -> Option<Timestamp> {
        match step {
            Step::Write { status, events, records } => {
                assert_ne!(*status, self.job.status, "a write that changes nothing");
                if status.epoch != self.job.status.epoch {
                    self.live.clear();
                }
                self.job.status = *status;
                self.events.extend(events);
                self.records.extend(records);
            }
            Step::Act { actions } => actions.into_iter().for_each(|action| self.act(action)),
            Step::Wait { until } => return until,
        }
        None
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::CreatePod(slot) => {
                let mut pod = pod_for(&self.job, &slot);
                if self.pods.iter().any(|known| known.name == pod.metadata.name) {
                    return;
                }
                self.uids += 1;
                pod.metadata.uid = Some(Uid(format!("pod-{}", self.uids)));
                self.pods.push(PodFacts::from(&pod));
            }
            Action::DeletePod { uid, .. } => {
                self.pods.iter_mut().filter(|pod| pod.uid == uid).for_each(|pod| pod.terminating = true);
            }
            Action::RemoveFinalizer | Action::DeleteJob => self.gone = true,
        }
    }

    /// Decides until there is nothing left to do; pods that are being deleted go at once.
    fn settle(&mut self) -> Option<Timestamp> {
        for _ in 0..100 {
            let step = self.decide();
            assert_eq!(step, self.decide(), "the same input gives the same answer");
            if let Step::Wait { until } = step {
                if self.pods.iter().any(|pod| pod.terminating) {
                    self.pods.retain(|pod| !pod.terminating);
                    continue;
                }
                return until;
            }
            self.apply(step);
            if self.gone {
                return None;
            }
        }
        panic!("no end in sight: {:?}", self.job.status);
    }

    fn place(&mut self) {
        let slots = (0..self.job.slots()).map(|slot| SlotAssignment {
            role: "worker".into(),
            slot: regatta_types::SlotIndex(slot),
            node: format!("node-{slot}"),
        });
        let (status, events, records) = start(&self.job, &slots.collect::<Vec<_>>(), self.now);
        self.job.status = status;
        self.events.extend(events);
        self.records.extend(records);
    }

    fn run_all(&mut self) {
        for pod in self.pods.iter_mut().filter(|pod| !pod.is_finished()) {
            pod.phase = PodPhase::Running;
            pod.started = true;
        }
    }

    fn pass_ms(&mut self, ms: i64) {
        self.now = self.now.plus_ms(ms);
    }

    fn end(&mut self, index: usize, end: ProcessEnd) {
        self.end_with(index, end, |_| {});
    }

    fn end_with(&mut self, index: usize, end: ProcessEnd, change: impl FnOnce(&mut ExitRecord)) {
        let mut record = ExitRecord {
            epoch: self.job.status.epoch,
            ranks: vec![RankEnd { rank: Rank(u32::try_from(index).unwrap()), end, at: self.now }],
            ..ExitRecord::default()
        };
        change(&mut record);
        let pod = &mut self.pods[index];
        pod.phase = if end == ProcessEnd::Exited(0) { PodPhase::Succeeded } else { PodPhase::Failed };
        pod.started = true;
        pod.exits = vec![ContainerExit {
            container: "main".into(),
            kind: ContainerKind::Main,
            exit_code: end.exit_code(),
            signal: if let ProcessEnd::Signaled(signal) = end { Some(signal) } else { None },
            reason: if record.oom_killed { "OOMKilled" } else { "Error" }.into(),
            message: String::new(),
            record: Some(record),
            started_at: Timestamp::from_unix_ms(1_000_000),
            finished_at: self.now,
        }];
    }

    /// One failed attempt of a job with one slot, and what follows it.
    fn attempt(&mut self, end: ProcessEnd, change: impl FnOnce(&mut ExitRecord)) {
        self.pass_ms(1_000);
        self.end_with(0, end, change);
        while let Some(until) = self.settle() {
            self.now = until;
        }
        self.run_all();
        self.settle();
    }

    fn phase(&self) -> JobPhase {
        self.job.status.phase
    }

    fn condition(&self, type_: &str) -> Option<&str> {
        self.job.status.conditions.iter().find(|c| c.type_ == type_).map(|c| c.status.as_str())
    }
}

fn checkpoint(step: u64) -> Checkpoint {
    Checkpoint { step, path: format!("/ckpt/ckpt-{step}.json") }
}

#[test]
fn a_gang_that_ends_well_succeeds() {
    let mut toy = Toy::running(2);
    assert_eq!(toy.condition(conditions::RUNNING), Some("True"));
    toy.pass_ms(10_000);
    toy.end(0, ProcessEnd::Exited(0));
    toy.settle();
    assert_eq!(toy.phase(), JobPhase::Running, "one slot still runs");
    toy.end(1, ProcessEnd::Exited(0));
    toy.settle();
    assert_eq!(toy.phase(), JobPhase::Succeeded);
    assert_eq!(toy.job.status.exit_code, Some(0));
    assert_eq!(toy.condition(conditions::SUCCEEDED), Some("True"));
    assert_eq!(toy.condition(conditions::RUNNING), Some("False"));
    let usage = &toy.job.status.usage;
    assert_eq!((usage.gpu_ms, usage.slot_ms, usage.lost_gpu_ms), (20_000, 20_000, 0));
    assert_eq!(usage.cost_micros, Some(20_000), "two GPUs for ten seconds at 3.60 an hour");
    assert_eq!(toy.pods.len(), 2, "the pods of an ended job stay for `kubectl logs`");
    assert!(matches!(toy.records.last(), Some(RunFact::Finished { phase: JobPhase::Succeeded, .. })));
}

#[test]
fn a_job_that_starts_at_once_was_accepted_too() {
    let mut toy = Toy::new(job(1));
    toy.place();
    assert_eq!(toy.condition(conditions::ADMITTED), Some("True"));
    assert!(toy.job.status.queued_at.is_some());
    assert!(matches!(toy.records[..], [RunFact::Submitted { .. }, RunFact::Placed { .. }]));
}

#[test]
fn a_killed_rank_restarts_the_gang_from_the_newest_checkpoint() {
    let mut toy = Toy::running(2);
    toy.pass_ms(100_000);
    toy.end_with(1, ProcessEnd::Signaled(9), |record| {
        record.last_step = Some(130);
        record.checkpoints = vec![checkpoint(100), checkpoint(50)];
    });
    toy.settle();
    let status = &toy.job.status;
    assert_eq!((status.phase, status.epoch), (JobPhase::Starting, Epoch(2)));
    let [first, second] = &status.epochs[..] else { panic!("two epochs: {:?}", status.epochs) };
    assert_eq!(first.reason, Some(EndReason::Signaled));
    assert_eq!(first.lost_steps, Some(30));
    assert_eq!(first.blamed_pod.as_deref(), Some("train-worker-1-1"));
    assert_eq!(first.blamed_node.as_deref(), Some("node-1"));
    assert!(
        first.message.contains("rank 1 of worker-1 on node-1 was ended by signal 9 (SIGKILL) at step 130"),
        "{}",
        first.message
    );
    assert!(!first.charged_to_user);
    let recorded =
        toy.records.iter().filter(|fact| matches!(fact, RunFact::Checkpoint { epoch: Epoch(1), .. }));
    assert_eq!(recorded.count(), 2, "each checkpoint is recorded once");
    assert_eq!(second.resumed_from, Some(checkpoint(100)));
    assert_eq!(status.usage.lost_gpu_ms, 2 * (100_000 * 30 / 130));
    let names: Vec<&str> = toy.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(
        names,
        ["train-worker-0-2", "train-worker-1-2"],
        "the old pods are gone before the new ones come"
    );
    let pod = pod_for(&toy.job, &toy.job.status.placement[1]);
    let launch: LaunchSpec = serde_json::from_str(&pod.metadata.annotations[labels::LAUNCH]).unwrap();
    assert_eq!((launch.epoch, launch.resume), (Epoch(2), Some(checkpoint(100))));
    toy.run_all();
    toy.settle();
    assert_eq!(toy.phase(), JobPhase::Running);
}

#[test]
fn ends_are_told_apart() {
    let check = |end, change: fn(&mut ExitRecord), reason: EndReason, phase: JobPhase, charged: u32| {
        let mut toy = Toy::running(1);
        toy.attempt(end, change);
        let status = &toy.job.status;
        assert_eq!(status.epochs[0].reason, Some(reason), "{end:?}");
        assert_eq!((status.phase, status.user_restarts), (phase, charged), "{end:?}");
        if phase == JobPhase::Failed {
            assert_eq!(status.exit_code, Some(end.exit_code()));
        }
    };
    let plain: fn(&mut ExitRecord) = |_| {};
    check(ProcessEnd::Exited(1), plain, EndReason::UserError, JobPhase::Running, 1);
    check(ProcessEnd::Exited(93), plain, EndReason::NoRestartRequested, JobPhase::Failed, 0);
    check(ProcessEnd::Exited(75), plain, EndReason::UserError, JobPhase::Running, 0);
    check(ProcessEnd::Exited(127), plain, EndReason::ConfigError, JobPhase::Failed, 0);
    check(ProcessEnd::Exited(126), plain, EndReason::ConfigError, JobPhase::Failed, 0);
    check(ProcessEnd::NotStarted(2), plain, EndReason::ConfigError, JobPhase::Failed, 0);
    check(ProcessEnd::Signaled(9), plain, EndReason::Signaled, JobPhase::Running, 0);
    check(ProcessEnd::Exited(137), plain, EndReason::Signaled, JobPhase::Running, 0);
    check(ProcessEnd::Exited(139), plain, EndReason::Signaled, JobPhase::Running, 0);
    check(ProcessEnd::Signaled(9), |r| r.oom_killed = true, EndReason::OutOfMemory, JobPhase::Failed, 0);
    let with_progress: fn(&mut ExitRecord) = |record| {
        record.oom_killed = true;
        record.checkpoints = vec![checkpoint(10)];
    };
    check(ProcessEnd::Signaled(9), with_progress, EndReason::OutOfMemory, JobPhase::Running, 1);
    check(ProcessEnd::Signaled(15), |r| r.stop_requested = true, EndReason::PodDeleted, JobPhase::Running, 0);
}

#[test]
fn a_failed_setup_is_told_as_such() {
    let mut toy = Toy::running(1);
    toy.end_with(0, ProcessEnd::Exited(4), |record| record.stderr_tail = "no such package\n".into());
    toy.pods[0].exits[0].kind = ContainerKind::Init;
    toy.pods[0].exits[0].container = "setup".into();
    toy.settle();
    let message = &toy.job.status.epochs[0].message;
    assert_eq!(message, "the setup step of worker-0 on node-0 exited with 4: no such package");
}

#[test]
fn a_lost_agent_charges_nobody() {
    let mut toy = Toy::running(1);
    toy.pods[0].reason = Some("AgentLost".into());
    toy.pods[0].phase = PodPhase::Failed;
    toy.settle();
    let status = &toy.job.status;
    assert_eq!(status.epochs[0].reason, Some(EndReason::NodeLost));
    assert_eq!(
        (status.phase, status.user_restarts, status.failures_without_progress),
        (JobPhase::Starting, 0, 0)
    );
}

#[test]
fn the_users_budget_is_three_restarts() {
    let mut toy = Toy::running(1);
    for restarts in 1..=3 {
        toy.attempt(ProcessEnd::Exited(1), |_| {});
        assert_eq!((toy.phase(), toy.job.status.user_restarts), (JobPhase::Running, restarts));
    }
    toy.attempt(ProcessEnd::Exited(7), |record| {
        record.stderr_tail = "Traceback\nValueError: no such column\n".into();
    });
    let status = &toy.job.status;
    assert_eq!((status.phase, status.reason), (JobPhase::Failed, Some(EndReason::BudgetExhausted)));
    assert_eq!((status.exit_code, status.user_restarts, status.epoch), (Some(7), 3, Epoch(4)));
    assert!(
        status.message.contains("exited with 7: ValueError: no such column; all 3 restarts are used up"),
        "{}",
        status.message
    );
    assert_eq!(toy.condition(conditions::FAILED), Some("True"));
}

#[test]
fn failing_without_progress_is_a_crash_loop_and_progress_ends_it() {
    let mut toy = Toy::running(1);
    for _ in 0..verdict::FAILURES_WITHOUT_PROGRESS_MAX - 1 {
        toy.attempt(ProcessEnd::Signaled(11), |_| {});
        assert_eq!(toy.phase(), JobPhase::Running);
    }
    toy.attempt(ProcessEnd::Signaled(11), |record| record.checkpoints = vec![checkpoint(10)]);
    assert_eq!((toy.phase(), toy.job.status.failures_without_progress), (JobPhase::Running, 1));
    for _ in 0..verdict::FAILURES_WITHOUT_PROGRESS_MAX - 1 {
        toy.attempt(ProcessEnd::Signaled(11), |record| record.checkpoints = vec![checkpoint(10)]);
    }
    assert_eq!((toy.phase(), toy.job.status.reason), (JobPhase::Failed, Some(EndReason::CrashLoop)));
    assert_eq!(toy.job.status.exit_code, Some(139));
}

#[test]
fn pauses_grow_only_without_progress() {
    for (failures, expected) in
        [(0, 0), (1, 0), (2, 5_000), (3, 10_000), (4, 20_000), (9, 300_000), (u32::MAX, 300_000)]
    {
        assert_eq!(verdict::backoff_ms(failures), expected, "{failures}");
    }
}

#[test]
fn an_unreadable_checkpoint_is_passed_over_and_charges_nobody() {
    let mut toy = Toy::running(1);
    toy.attempt(ProcessEnd::Signaled(9), |record| record.checkpoints = vec![checkpoint(20), checkpoint(10)]);
    assert_eq!(toy.job.status.epochs[1].resumed_from, Some(checkpoint(20)));
    toy.attempt(ProcessEnd::Exited(1), |record| {
        record.checkpoints = vec![checkpoint(20), checkpoint(10)];
        record.bad_checkpoints = vec![checkpoint(20).path];
    });
    let status = &toy.job.status;
    assert_eq!((status.user_restarts, status.failures_without_progress), (0, 1));
    assert_eq!(status.epochs[2].resumed_from, Some(checkpoint(10)));
    assert_eq!(status.bad_checkpoints, [checkpoint(20).path]);
    assert!(toy.events.iter().any(|event| event.reason == events::BAD_CHECKPOINT));
}

#[test]
fn a_claimed_checkpoint_that_agents_do_not_find_whole_does_not_count() {
    let mut toy = Toy::running(1);
    toy.job.spec.checkpoint = Some(CheckpointSpec { path: "/ckpt".into() });
    toy.live = vec![checkpoint(30), checkpoint(20)];
    toy.pass_ms(100_000);
    toy.settle();
    assert_eq!(toy.job.status.checkpoint, Some(checkpoint(30)), "while it runs the claim is what is known");
    toy.end_with(0, ProcessEnd::Signaled(9), |record| record.checkpoints = vec![checkpoint(20)]);
    toy.settle();
    assert_eq!(toy.job.status.epochs[1].resumed_from, Some(checkpoint(20)));
    assert_eq!(toy.job.status.checkpoints, [checkpoint(20)]);
}

#[test]
fn a_peers_ordinary_exit_waits_for_the_cause() {
    let mut toy = Toy::running(2);
    toy.end(0, ProcessEnd::Exited(1));
    let until = toy.settle().expect("it looks again");
    assert_eq!(toy.phase(), JobPhase::Running);
    // The cause was earlier and is heard of later.
    let seen = toy.now;
    toy.now = Timestamp::from_unix_ms(seen.unix_ms() - 50);
    toy.end(1, ProcessEnd::Signaled(9));
    toy.now = seen;
    toy.settle();
    assert_eq!(toy.job.status.epochs[0].reason, Some(EndReason::Signaled));
    // Without a cause the exit itself is it, after the last call.
    let mut toy = Toy::running(2);
    toy.end(0, ProcessEnd::Exited(1));
    toy.settle();
    toy.now = until;
    toy.settle();
    assert_eq!(toy.job.status.epochs[0].reason, Some(EndReason::UserError));
}

#[test]
fn a_deleted_pod_forms_the_gang_anew() {
    let mut toy = Toy::running(2);
    toy.pods.remove(0);
    toy.settle();
    let status = &toy.job.status;
    assert_eq!(
        (status.phase, status.epoch, status.epochs[0].reason),
        (JobPhase::Starting, Epoch(2), Some(EndReason::PodDeleted))
    );
    assert_eq!(status.epochs[0].blamed_pod.as_deref(), Some("train-worker-0-1"));
}

#[test]
fn what_is_disturbed_at_once_again_and_again_waits_and_goes_on() {
    let mut toy = Toy::running(1);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        toy.pods.clear();
        let failed_at = toy.now;
        while let Some(until) = toy.settle() {
            toy.now = until;
        }
        pauses.push(toy.now.since_ms(failed_at) / 1000);
        toy.run_all();
        toy.settle();
        assert_eq!(toy.phase(), JobPhase::Running);
    }
    assert_eq!(pauses, [0, 5, 10, 20, 40, 80, 160, 300]);
    toy.pass_ms(verdict::DISRUPTED_SOON_MS);
    toy.pods.clear();
    toy.settle();
    assert_eq!(
        toy.phase(),
        JobPhase::Starting,
        "an attempt that had run for a while is started anew at once"
    );
}

#[test]
fn owners_wishes_hold_in_every_phase() {
    for wish in ["cancel", "suspend", "delete"] {
        for phase in ["queued", "starting", "running", "backoff"] {
            let mut toy = Toy::new(job(2));
            toy.settle();
            if phase != "queued" {
                toy.place();
                toy.settle();
            }
            if phase == "running" || phase == "backoff" {
                toy.run_all();
                toy.settle();
            }
            if phase == "backoff" {
                toy.job.status.failures_without_progress = 2;
                toy.end(0, ProcessEnd::Signaled(9));
                toy.settle();
                assert_eq!(toy.phase(), JobPhase::Backoff);
            }
            match wish {
                "cancel" => toy.job.spec.cancel = true,
                "suspend" => toy.job.spec.suspend = true,
                _ => toy.job.metadata.deletion_timestamp = Some(toy.now),
            }
            toy.settle();
            let expected = if wish == "suspend" { JobPhase::Suspended } else { JobPhase::Cancelled };
            assert_eq!(toy.phase(), expected, "{wish} while {phase}");
            assert!(toy.pods.is_empty(), "{wish} while {phase}");
            assert_eq!(toy.gone, wish == "delete", "{wish} while {phase}");
            if wish == "cancel" {
                assert_eq!(toy.job.status.exit_code, Some(130));
            }
            if wish == "suspend" {
                toy.job.spec.suspend = false;
                toy.settle();
                assert_eq!(toy.phase(), JobPhase::Queued, "resumed");
            }
        }
    }
}

#[test]
fn a_limit_suspends_until_it_is_raised() {
    let mut toy = Toy::new(job(1));
    toy.job.spec.limits = Limits { runtime_seconds: Some(60), ..Limits::default() };
    toy.settle();
    toy.place();
    toy.settle();
    toy.run_all();
    let until = toy.settle();
    assert_eq!(until, Some(toy.now.plus_ms(60_000)));
    toy.now = until.unwrap();
    toy.settle();
    assert_eq!((toy.phase(), toy.job.status.reason), (JobPhase::Suspended, Some(EndReason::RuntimeLimit)));
    toy.pass_ms(3_600_000);
    assert_eq!(toy.settle(), None);
    assert_eq!(toy.phase(), JobPhase::Suspended, "it does not loop");
    toy.job.spec.limits.runtime_seconds = Some(90);
    toy.settle();
    assert_eq!(toy.phase(), JobPhase::Queued);
    toy.place();
    toy.settle();
    toy.run_all();
    assert_eq!(toy.settle(), Some(toy.now.plus_ms(30_000)), "what has been used counts");
}

#[test]
fn a_cost_limit_is_exact() {
    let mut toy = Toy::new(job(2));
    // Two GPUs at 3.60 an hour cost 2,000 millionths a second.
    toy.job.spec.limits = Limits { cost_micros: Some(20_000), ..Limits::default() };
    toy.settle();
    toy.place();
    toy.settle();
    toy.run_all();
    assert_eq!(toy.settle(), Some(toy.now.plus_ms(10_000)));
    toy.pass_ms(10_000);
    toy.settle();
    assert_eq!((toy.phase(), toy.job.status.reason), (JobPhase::Suspended, Some(EndReason::CostLimit)));
    assert_eq!(toy.job.status.usage.cost_micros, Some(20_000));
}

#[test]
fn a_shutdown_requeues_and_keeps_the_checkpoints() {
    let mut toy = Toy::running(2);
    toy.live = vec![checkpoint(40)];
    toy.shutting_down = Shutdown::Yes;
    toy.settle();
    let status = &toy.job.status;
    assert_eq!((status.phase, status.user_restarts), (JobPhase::Queued, 0));
    assert_eq!(status.checkpoint, Some(checkpoint(40)));
    toy.shutting_down = Shutdown::No;
    toy.place();
    assert_eq!(toy.job.status.epochs[1].resumed_from, Some(checkpoint(40)));
}

#[test]
fn an_ended_job_goes_after_its_time() {
    let mut toy = Toy::running(1);
    toy.job.spec.ttl_seconds_after_finished = Some(5);
    toy.end(0, ProcessEnd::Exited(0));
    assert_eq!(toy.settle(), Some(toy.now.plus_ms(5_000)));
    toy.pass_ms(5_000);
    toy.settle();
    assert!(toy.gone);
}

#[test]
fn a_typed_reason_is_written_once() {
    let mut toy = Toy::new(job(1));
    let (status, _, records) =
        waiting(&toy.job, WaitReason::InsufficientCapacity, "needs 1 GPU", toy.now).unwrap();
    assert!(matches!(records[..], [RunFact::Submitted { .. }]), "accepted on the way");
    toy.job.status = status;
    assert!(matches!(toy.decide(), Step::Wait { .. }));
    assert_eq!(waiting(&toy.job, WaitReason::InsufficientCapacity, "other numbers", toy.now), None);
    assert!(waiting(&toy.job, WaitReason::BehindOthers, "1 ahead", toy.now).is_some());
}

#[test]
fn ranks_are_numbered_over_roles() {
    let mut job = job(2);
    job.spec.roles[0].procs_per_node = Some(4);
    let mut leader = job.spec.roles[0].clone();
    leader.name = "leader".into();
    leader.replicas = 1;
    leader.procs_per_node = None;
    job.spec.roles.insert(0, leader);
    let launch = |job: &Job, role: &str, slot| -> LaunchSpec {
        let placement = regatta_types::job::SlotPlacement {
            role: role.into(),
            slot: regatta_types::SlotIndex(slot),
            node: "n".into(),
            incarnation: Incarnation(1),
        };
        let pod = pod_for(job, &placement);
        serde_json::from_str(&pod.metadata.annotations[labels::LAUNCH]).unwrap()
    };
    let last = launch(&job, "worker", 1);
    assert_eq!((last.first_rank, last.procs, last.world_size), (Rank(5), 4, 9));
    assert_eq!(last.hosts, ["train-leader-0.train", "train-worker-0.train", "train-worker-1.train"]);
    job.spec.roles[1].template.spec.containers[0].command = vec!["torchrun".into(), "x.py".into()];
    let last = launch(&job, "worker", 1);
    assert_eq!(
        (last.first_rank, last.procs, last.world_size),
        (Rank(5), 1, 9),
        "torchrun starts its ranks itself"
    );
}

#[test]
fn every_reason_is_documented() {
    let page = include_str!("../../../docs/CONDITIONS.md");
    let reasons = EndReason::ALL.iter().map(|reason| reason.as_str());
    let waits = WaitReason::ALL.iter().map(|reason| reason.as_str());
    for word in reasons.chain(waits).chain(events::ALL.iter().copied()) {
        assert!(page.contains(&format!("| `{word}` |")), "docs/CONDITIONS.md has no row for {word}");
    }
}

#[test]
fn a_restart_decision_names_its_checkpoint() {
    let mut toy = Toy::running(2);
    toy.end_with(0, ProcessEnd::Signaled(9), |record| record.checkpoints = vec![checkpoint(5)]);
    let step = toy.decide();
    let Step::Write { status, .. } = step else { panic!("write ahead: {step:?}") };
    let decision = status.decision.expect("decided");
    assert!(matches!(decision.next, Next::Restart { resume: Some(ref c), .. } if *c == checkpoint(5)));
}

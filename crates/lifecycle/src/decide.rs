//! The state machine. One function per phase; each answers with the first thing that must happen.

use crate::account::{self, Kept};
use crate::classify::{Failure, Finding, classify};
use crate::events;
use crate::facts::{PodFacts, PodPhase};
use crate::start::{accepted, next_epoch};
use crate::status::{Claims, Holds, current, enter, last_step, merge_checkpoints, set_condition};
use crate::step::{Action, EventNote, Inputs, Shutdown, Step};
use crate::verdict::{Charge, budget_text, judge, lost_steps, resume_from};
use regatta_types::Timestamp;
use regatta_types::conditions;
use regatta_types::job::{Decision, Job, JobPhase, JobStatus, Next, Waiting};
use regatta_types::labels::JOB_FINALIZER;
use regatta_types::reason::{EndReason, WaitReason};
use regatta_types::run_record::RunFact;

/// How often live progress is copied into the status; `regatta ps` and the run record have it at once.
pub const PROGRESS_WRITE_MS_MIN: i64 = 60_000;
/// Exit code of a job that its owner cancelled: what shells report for an interrupted program.
pub const EXIT_CANCELLED: i32 = 130;

/// What happens next to a job.
pub fn decide(inputs: &Inputs<'_>) -> Step {
    let mut step = decide_phase(inputs);
    if let Step::Write { status, events, records } = &mut step {
        let known = &inputs.job.status.checkpoints;
        let new = status.checkpoints.iter().rev().filter(|checkpoint| !known.contains(checkpoint));
        let epoch = inputs.job.status.epoch;
        // Before what follows from them: an attempt's end, the next one's start.
        let facts = new.map(|checkpoint| RunFact::Checkpoint { epoch, checkpoint: checkpoint.clone() });
        records.splice(0..0, facts.collect::<Vec<_>>());
        let known = &inputs.job.status.bad_checkpoints;
        let bad = status.bad_checkpoints.iter().filter(|path| !known.contains(path));
        events.extend(bad.map(|path| {
            EventNote::warning(
                events::BAD_CHECKPOINT,
                format!("{path} could not be read and is not used again"),
            )
        }));
    }
    step
}

fn decide_phase(inputs: &Inputs<'_>) -> Step {
    let status = &inputs.job.status;
    if status.queued_at.is_none() && status.phase == JobPhase::Queued {
        let (status, events, records) = accepted(inputs.job, inputs.now);
        return Step::Write { status: Box::new(status), events, records };
    }
    match status.phase {
        JobPhase::Succeeded | JobPhase::Failed | JobPhase::Cancelled => ended(inputs),
        JobPhase::Queued => queued(inputs),
        JobPhase::Suspended => suspended(inputs),
        JobPhase::Starting | JobPhase::Running => active(inputs),
        JobPhase::Stopping => stopping(inputs),
        JobPhase::Backoff => backoff(inputs),
    }
}

/// What the owner wants, strongest first.
enum Wish {
    /// It shall go, or stop for good.
    End(String),
    /// It shall give its resources back.
    Suspend,
    /// It shall run.
    Run,
}

fn wish(job: &Job) -> Wish {
    if job.metadata.is_being_deleted() {
        Wish::End("deleted by its owner".to_owned())
    } else if job.spec.cancel {
        Wish::End("cancelled by its owner".to_owned())
    } else if job.spec.suspend {
        Wish::Suspend
    } else {
        Wish::Run
    }
}

fn ended(inputs: &Inputs<'_>) -> Step {
    let job = inputs.job;
    let leftovers: Vec<Action> =
        inputs.pods.iter().filter(|pod| !pod.is_finished()).filter_map(delete).collect();
    if !leftovers.is_empty() {
        return Step::Act { actions: leftovers };
    }
    if job.metadata.is_being_deleted() {
        let stopped = inputs.pods.iter().all(PodFacts::is_finished);
        let held = job.metadata.finalizers.iter().any(|finalizer| finalizer == JOB_FINALIZER);
        return match (stopped, held) {
            (true, true) => Step::Act { actions: vec![Action::RemoveFinalizer] },
            _ => Step::Wait { until: None },
        };
    }
    let Some((seconds, finished_at)) = job.spec.ttl_seconds_after_finished.zip(job.status.finished_at) else {
        return Step::Wait { until: None };
    };
    let due = finished_at.plus_ms(seconds.max(0).saturating_mul(1000));
    if inputs.now >= due {
        Step::Act { actions: vec![Action::DeleteJob] }
    } else {
        Step::Wait { until: Some(due) }
    }
}

fn queued(inputs: &Inputs<'_>) -> Step {
    match wish(inputs.job) {
        Wish::End(message) => leave(inputs, inputs.job.status.clone(), &cancel(message, inputs.now)),
        Wish::Suspend => {
            let message = "suspended by its owner; `suspend: false` queues it again".to_owned();
            let decision = Decision {
                reason: EndReason::SuspendRequested,
                message,
                next: Next::Suspend,
                at: inputs.now,
            };
            leave(inputs, inputs.job.status.clone(), &decision)
        }
        Wish::Run => Step::Wait { until: None },
    }
}

fn suspended(inputs: &Inputs<'_>) -> Step {
    match wish(inputs.job) {
        Wish::End(message) => leave(inputs, inputs.job.status.clone(), &cancel(message, inputs.now)),
        Wish::Suspend => Step::Wait { until: None },
        // A job at its limit would be stopped again at once: it waits for a higher limit.
        Wish::Run if account::is_over_limit(inputs.job) => Step::Wait { until: None },
        Wish::Run => {
            let mut status = inputs.job.status.clone();
            requeue(&mut status, inputs.now);
            let events = vec![EventNote::normal(events::QUEUED, "resumed; waits in its queue")];
            Step::Write { status: Box::new(status), events, records: Vec::new() }
        }
    }
}

fn backoff(inputs: &Inputs<'_>) -> Step {
    let job = inputs.job;
    let Some(decision) = &job.status.decision else {
        // A status without the decision that led to it was not written by this code: start over from the queue.
        let decision = planned(EndReason::Shutdown, "its decision is missing", Next::Requeue, inputs.now);
        return leave(inputs, job.status.clone(), &decision);
    };
    if let Some(overruled) = overrule(inputs, decision) {
        return leave(inputs, job.status.clone(), &overruled);
    }
    match decision.next {
        Next::Restart { not_before, .. } if inputs.now < not_before => {
            let limit =
                account::runtime_limit_at(job).into_iter().chain(account::cost_limit_at(job, inputs.prices));
            Step::Wait { until: limit.chain([not_before]).min() }
        }
        _ => leave(inputs, job.status.clone(), decision),
    }
}

/// A decision that is stronger than the one being carried out.
fn overrule(inputs: &Inputs<'_>, decision: &Decision) -> Option<Decision> {
    if matches!(decision.next, Next::Finish { .. }) {
        return None;
    }
    let suspends = decision.next == Next::Suspend;
    let goes_on = !suspends && decision.next != Next::Requeue;
    match wish(inputs.job) {
        Wish::End(message) => Some(cancel(message, inputs.now)),
        Wish::Suspend if !suspends => Some(suspend(inputs.now)),
        _ if !suspends && limit_reached(inputs).is_some() => limit_reached(inputs),
        _ if goes_on && inputs.shutting_down == Shutdown::Yes => Some(shutdown(inputs.now)),
        _ => None,
    }
}

fn active(inputs: &Inputs<'_>) -> Step {
    let job = inputs.job;
    let own: Vec<&PodFacts> = current_pods(job, inputs.pods);
    let all_there = own.len() == job.status.placement.len();
    if all_there && !own.is_empty() && own.iter().all(|pod| pod.phase == PodPhase::Succeeded) {
        return succeed(inputs, &own);
    }
    if let Some(decision) = asked_to_stop(inputs) {
        return stop(inputs, &own, decision, None);
    }
    let look_again = match classify(&own, inputs.now) {
        Finding::Failed(failure) if failure.reason != EndReason::PodDeleted => {
            return fail(inputs, &own, &failure);
        }
        Finding::Unsettled(until) => Some(until),
        Finding::Failed(_) | Finding::Healthy => None,
    };
    if let Some(pod) = own.iter().find(|pod| pod.terminating || is_stopped_from_outside(pod)) {
        return lose(inputs, &own, &pod.name, pod.node.clone());
    }
    let strangers: Vec<Action> = inputs
        .pods
        .iter()
        .filter(|pod| own.iter().all(|mine| mine.name != pod.name))
        .filter_map(delete)
        .collect();
    if !strangers.is_empty() {
        return Step::Act { actions: strangers };
    }
    let missing = job.status.placement.iter().filter(|slot| {
        let name = job.pod_name(&slot.role, slot.slot, slot.incarnation);
        own.iter().all(|pod| pod.name != name)
    });
    let missing: Vec<_> = missing.cloned().collect();
    if let Some(slot) = missing.first() {
        if job.status.phase == JobPhase::Running {
            return lose(
                inputs,
                &own,
                &job.pod_name(&slot.role, slot.slot, slot.incarnation),
                Some(slot.node.clone()),
            );
        }
        return Step::Act { actions: missing.into_iter().map(Action::CreatePod).collect() };
    }
    if job.status.phase == JobPhase::Starting && own.iter().all(|pod| pod.started) {
        return run(inputs);
    }
    watch(inputs, look_again)
}

fn is_stopped_from_outside(pod: &PodFacts) -> bool {
    pod.phase == PodPhase::Failed && pod.records().any(|record| record.stop_requested)
}

/// The pods that hold the slots of the current epoch, in placement order.
fn current_pods<'a>(job: &Job, pods: &'a [PodFacts]) -> Vec<&'a PodFacts> {
    let names = job.status.placement.iter().map(|slot| job.pod_name(&slot.role, slot.slot, slot.incarnation));
    names.filter_map(|name| pods.iter().find(|pod| pod.name == name)).collect()
}

fn asked_to_stop(inputs: &Inputs<'_>) -> Option<Decision> {
    match wish(inputs.job) {
        Wish::End(message) => Some(cancel(message, inputs.now)),
        Wish::Suspend => Some(suspend(inputs.now)),
        Wish::Run if inputs.shutting_down == Shutdown::Yes => Some(shutdown(inputs.now)),
        Wish::Run => limit_reached(inputs),
    }
}

fn planned(reason: EndReason, message: &str, next: Next, at: Timestamp) -> Decision {
    Decision { reason, message: message.to_owned(), next, at }
}

fn cancel(message: String, now: Timestamp) -> Decision {
    let next = Next::Finish { phase: JobPhase::Cancelled, exit_code: EXIT_CANCELLED };
    Decision { reason: EndReason::CancelRequested, message, next, at: now }
}

fn suspend(now: Timestamp) -> Decision {
    planned(
        EndReason::SuspendRequested,
        "suspended by its owner; `suspend: false` queues it again",
        Next::Suspend,
        now,
    )
}

fn shutdown(now: Timestamp) -> Decision {
    planned(EndReason::Shutdown, "Regatta goes down on this machine; it is queued again", Next::Requeue, now)
}

fn limit_reached(inputs: &Inputs<'_>) -> Option<Decision> {
    let job = inputs.job;
    let reached = |at: Option<Timestamp>| at.is_some_and(|at| inputs.now >= at);
    let (reason, message) = if reached(account::runtime_limit_at(job)) {
        let seconds = job.spec.limits.runtime_seconds.unwrap_or(0);
        (
            EndReason::RuntimeLimit,
            format!("it has run for its limit of {seconds} s; a higher limits.runtimeSeconds lets it go on"),
        )
    } else if reached(account::cost_limit_at(job, inputs.prices)) {
        let limit = job.spec.limits.cost_micros.unwrap_or(0);
        let (whole, part) = (limit / 1_000_000, limit % 1_000_000 / 10_000);
        let currency = inputs.prices.map_or("", |prices| prices.currency.as_str());
        (
            EndReason::CostLimit,
            format!(
                "it has cost its limit of {whole}.{part:02} {currency}; a higher limits.costMicros lets it go on"
            ),
        )
    } else {
        return None;
    };
    Some(Decision { reason, message, next: Next::Suspend, at: inputs.now })
}

/// All slots run.
fn run(inputs: &Inputs<'_>) -> Step {
    let mut status = inputs.job.status.clone();
    let epoch = status.epoch;
    enter(&mut status, JobPhase::Running, inputs.now);
    if let Some(record) = current(&mut status) {
        record.running_at = Some(inputs.now);
    }
    let slots = inputs.job.slots();
    let message = format!("epoch {epoch}: all {slots} slots run");
    let events = vec![EventNote::normal(events::RUNNING, message)];
    Step::Write { status: Box::new(status), events, records: vec![RunFact::Running { epoch }] }
}

/// Nothing has to be done; progress is copied into the status now and then.
fn watch(inputs: &Inputs<'_>, look_again: Option<Timestamp>) -> Step {
    let job = inputs.job;
    let mut status = job.status.clone();
    merge_checkpoints(&mut status, inputs, Claims::Count);
    if let Some(progress) = inputs.progress {
        status.progress = Some(progress.clone());
    }
    let limits = account::runtime_limit_at(job).into_iter().chain(account::cost_limit_at(job, inputs.prices));
    let mut until = limits.chain(look_again).min();
    if status != job.status {
        let written =
            job.status.progress.as_ref().filter(|old| old.epoch == job.status.epoch).map(|old| old.at);
        let running_at = job.current_epoch().and_then(|record| record.running_at);
        let due = written.or(running_at).map_or(inputs.now, |at| at.plus_ms(PROGRESS_WRITE_MS_MIN));
        if inputs.now >= due {
            return Step::Write { status: Box::new(status), events: Vec::new(), records: Vec::new() };
        }
        until = until.into_iter().chain([due]).min();
    }
    Step::Wait { until }
}

/// A pod is gone or going, and not because of us.
fn lose(inputs: &Inputs<'_>, own: &[&PodFacts], pod: &str, node: Option<String>) -> Step {
    let failure = Failure {
        reason: EndReason::PodDeleted,
        message: format!("pod {pod} was deleted or stopped from outside"),
        exit_code: 137,
        pod: pod.to_owned(),
        node,
        record: None,
        at: inputs.now,
        restart_requested: crate::classify::RestartRequested::No,
    };
    fail(inputs, own, &failure)
}

fn fail(inputs: &Inputs<'_>, own: &[&PodFacts], failure: &Failure) -> Step {
    let mut status = inputs.job.status.clone();
    merge_checkpoints(&mut status, inputs, Claims::Count);
    let (mut decision, charge) = judge(inputs.job, &mut status, failure, inputs.now);
    if let Some(stronger) = asked_to_stop(inputs).filter(|_| matches!(decision.next, Next::Restart { .. })) {
        decision.next = stronger.next;
    }
    let mut events = Vec::new();
    if let Next::Restart { resume, not_before } = &decision.next {
        let from = resume.as_ref().map_or_else(
            || "from the beginning".to_owned(),
            |checkpoint| format!("from the checkpoint of step {}", checkpoint.step),
        );
        let wait = match not_before.since_ms(inputs.now) {
            0 => String::new(),
            ms => format!(" in {} s", ms / 1000),
        };
        let budget = budget_text(&status, &inputs.job.spec.recovery, charge);
        let message = format!("{}; restarts {from}{wait} ({budget})", failure.message);
        events.push(EventNote::warning(events::RESTARTING, message));
    }
    if let Some(record) = current(&mut status) {
        record.message.clone_from(&failure.message);
        record.blamed_pod = Some(failure.pod.clone());
        record.blamed_node.clone_from(&failure.node);
        record.exit.clone_from(&failure.record);
        record.charged_to_user = charge == Charge::User;
        let failed_at = if failure.at <= inputs.now { failure.at } else { inputs.now };
        record.failed_at = Some(failed_at);
        record.running_at = record.running_at.map(|at| at.min(failed_at));
    }
    stop_with(inputs, own, status, decision, events)
}

/// Stops the current epoch because of `decision`.
fn stop(inputs: &Inputs<'_>, own: &[&PodFacts], decision: Decision, failed_at: Option<Timestamp>) -> Step {
    let mut status = inputs.job.status.clone();
    merge_checkpoints(&mut status, inputs, Claims::Count);
    if let Some(record) = current(&mut status) {
        record.failed_at = Some(failed_at.unwrap_or(inputs.now));
    }
    stop_with(inputs, own, status, decision, Vec::new())
}

fn stop_with(
    inputs: &Inputs<'_>,
    own: &[&PodFacts],
    mut status: JobStatus,
    decision: Decision,
    events: Vec<EventNote>,
) -> Step {
    let last_step = last_step(inputs, own);
    if let Some(progress) = inputs.progress {
        status.progress = Some(progress.clone());
    }
    status.reason = Some(decision.reason);
    status.message.clone_from(&decision.message);
    if let Some(record) = current(&mut status) {
        record.reason = Some(decision.reason);
        if record.message.is_empty() {
            record.message.clone_from(&decision.message);
        }
        record.last_step = last_step;
    }
    status.decision = Some(decision);
    enter(&mut status, JobPhase::Stopping, inputs.now);
    Step::Write { status: Box::new(status), events, records: Vec::new() }
}

fn stopping(inputs: &Inputs<'_>) -> Step {
    let job = inputs.job;
    let Some(decision) = &job.status.decision else {
        let decision = planned(EndReason::Shutdown, "its decision is missing", Next::Requeue, inputs.now);
        let own = current_pods(job, inputs.pods);
        return stop_with(inputs, &own, job.status.clone(), decision, Vec::new());
    };
    if let Some(overruled) = overrule(inputs, decision) {
        let mut status = job.status.clone();
        status.decision = Some(overruled);
        return Step::Write { status: Box::new(status), events: Vec::new(), records: Vec::new() };
    }
    // What the agents found at the end of their pods goes with the pods: keep it first.
    let mut status = job.status.clone();
    merge_checkpoints(&mut status, inputs, Claims::AreOld);
    if status != job.status {
        return Step::Write { status: Box::new(status), events: Vec::new(), records: Vec::new() };
    }
    // The pods of a job that ends are kept, so that people can look at them; otherwise the next epoch needs them gone.
    let keeps_finished = matches!(decision.next, Next::Finish { .. }) && !job.metadata.is_being_deleted();
    let in_the_way: Vec<&PodFacts> =
        inputs.pods.iter().filter(|pod| !(keeps_finished && pod.is_finished())).collect();
    if !in_the_way.is_empty() {
        let actions: Vec<Action> = in_the_way.into_iter().filter_map(delete).collect();
        return if actions.is_empty() { Step::Wait { until: None } } else { Step::Act { actions } };
    }
    leave(inputs, status, decision)
}

/// Deletes a pod, unless that has been asked for.
fn delete(pod: &PodFacts) -> Option<Action> {
    let action =
        Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone(), grace_period_seconds: None };
    (!pod.terminating).then_some(action)
}

/// All slots ended with 0.
fn succeed(inputs: &Inputs<'_>, own: &[&PodFacts]) -> Step {
    let mut status = inputs.job.status.clone();
    merge_checkpoints(&mut status, inputs, Claims::Count);
    let last_step = last_step(inputs, own);
    let exits = || own.iter().flat_map(|pod| &pod.exits);
    let ended_at =
        exits().map(|exit| exit.finished_at).max().filter(|at| *at <= inputs.now).unwrap_or(inputs.now);
    let started_at = exits().map(|exit| exit.started_at).max().unwrap_or(inputs.now);
    if let Some(progress) = inputs.progress {
        status.progress = Some(progress.clone());
    }
    if let Some(record) = current(&mut status) {
        record.running_at.get_or_insert(started_at.max(record.planned_at));
        record.failed_at = Some(ended_at);
        // A short attempt may be seen to run only after it has ended.
        record.running_at = record.running_at.map(|at| at.min(ended_at));
        record.last_step = last_step;
        record.reason = Some(EndReason::Completed);
        record.message = format!("all {} slots exited with 0", own.len());
    }
    let next = Next::Finish { phase: JobPhase::Succeeded, exit_code: 0 };
    leave(inputs, status, &planned(EndReason::Completed, "", next, inputs.now))
}

/// Closes the current epoch, whose pods are gone or have ended, and does what `decision` says comes next.
fn leave(inputs: &Inputs<'_>, mut status: JobStatus, decision: &Decision) -> Step {
    let job = inputs.job;
    let now = inputs.now;
    let mut records = close_epoch(inputs, &mut status, decision);
    status.observed_generation = job.metadata.generation;
    let mut events = Vec::new();
    match &decision.next {
        Next::Restart { not_before, .. } if now < *not_before => {
            status.decision = Some(decision.clone());
            enter(&mut status, JobPhase::Backoff, now);
        }
        Next::Restart { .. } => {
            let nodes = status
                .placement
                .iter()
                .map(|slot| (slot.role.clone(), slot.slot, slot.node.clone()))
                .collect();
            let (status, started, placed) = next_epoch(job, status, nodes, now);
            events.extend(started);
            records.extend(placed);
            return Step::Write { status: Box::new(status), events, records };
        }
        Next::Requeue => {
            requeue(&mut status, now);
            events.push(EventNote::normal(events::REQUEUED, decision.message.clone()));
        }
        Next::Suspend => {
            release(&mut status);
            status.reason = Some(decision.reason);
            status.message.clone_from(&decision.message);
            let message = decision.message.clone();
            status.waiting = Some(Waiting { reason: WaitReason::Suspended, message, since: now });
            enter(&mut status, JobPhase::Suspended, now);
            events.push(EventNote::normal(events::SUSPENDED, decision.message.clone()));
        }
        Next::Finish { phase, exit_code } => {
            events.push(finish(job, &mut status, decision, *phase, *exit_code, now));
            let fact =
                RunFact::Finished { phase: *phase, reason: status.reason, usage: status.usage.clone() };
            records.push(fact);
        }
    }
    Step::Write { status: Box::new(status), events, records }
}

fn finish(
    job: &Job,
    status: &mut JobStatus,
    decision: &Decision,
    phase: JobPhase,
    exit_code: i32,
    now: Timestamp,
) -> EventNote {
    // The placement stays: it is where the job's pods, which are kept, have run.
    status.decision = None;
    status.waiting = None;
    status.reason = Some(decision.reason);
    status.message.clone_from(&decision.message);
    status.exit_code = Some(exit_code);
    status.finished_at = Some(now);
    enter(status, phase, now);
    let reason = decision.reason.as_str();
    let mut hold = |type_, holds| set_condition(status, type_, holds, reason, &decision.message, now);
    match phase {
        JobPhase::Succeeded => {
            hold(conditions::SUCCEEDED, Holds::Yes);
            let epochs = status.epoch;
            let name = &job.metadata.name;
            EventNote::normal(events::SUCCEEDED, format!("{name} ended well in epoch {epochs}"))
        }
        JobPhase::Cancelled => {
            hold(conditions::FAILED, Holds::Yes);
            EventNote::normal(events::CANCELLED, decision.message.clone())
        }
        _ => {
            hold(conditions::FAILED, Holds::Yes);
            EventNote::warning(events::FAILED, format!("{reason}: {}", decision.message))
        }
    }
}

fn release(status: &mut JobStatus) {
    status.placement.clear();
    status.decision = None;
}

fn requeue(status: &mut JobStatus, now: Timestamp) {
    release(status);
    status.reason = None;
    status.message = String::new();
    let message = "waits to be planned".to_owned();
    status.waiting = Some(Waiting { reason: WaitReason::NotPlanned, message, since: now });
    enter(status, JobPhase::Queued, now);
}

/// Books the time of the current epoch, or of the pause after it.
fn close_epoch(inputs: &Inputs<'_>, status: &mut JobStatus, decision: &Decision) -> Vec<RunFact> {
    let Some(since) = account::unbooked_since(inputs.job) else { return Vec::new() };
    let now = inputs.now;
    let held_ms = now.since_ms(since);
    let resume = resume_from(status);
    let well = decision.reason == EndReason::Completed;
    let Some(record) = current(status) else { return Vec::new() };
    if record.ended_at.is_some() {
        // The pause between two attempts: nothing was done in it.
        account::book(inputs.job, &mut status.usage, inputs.prices, held_ms, held_ms);
        return Vec::new();
    }
    record.ended_at = Some(now);
    record.reason.get_or_insert(decision.reason);
    let kept = if well { Kept::All } else { Kept::Until(resume.as_ref().map(|checkpoint| checkpoint.step)) };
    if !well {
        record.lost_steps = lost_steps(record, resume.as_ref());
    }
    let lost_ms = account::lost_ms(record, kept, now);
    let fact = RunFact::EpochEnded { record: Box::new(record.clone()) };
    account::book(inputs.job, &mut status.usage, inputs.prices, held_ms, lost_ms);
    vec![fact]
}

//! What the API is told of a pod. Pure.

use crate::driver::{PodEnd, StartFailure, Started};
use regatta_agent::exit::{ContainerExit, PodExit, termination_message};
use regatta_agent::protocol::{ContainerKind, ContainerPulse};
use regatta_types::conditions::{self, Condition, POD_SCHEDULED, READY};
use regatta_types::evidence::{ExitRecord, ProcessEnd, RankEnd};
use regatta_types::pod::{
    Container, ContainerRunning, ContainerStatus, ContainerTerminated, ContainerWaiting, Pod, PodStatus,
};
use regatta_types::{Epoch, Rank, Timestamp};
use serde_json::json;

/// Exit code of a container of which nothing is known, as Kubernetes reports it.
const EXIT_CODE_UNKNOWN: i32 = 137;
const HOST_IP: &str = "127.0.0.1";

/// A pod that was started: which of its containers run.
pub(crate) fn running(pod: &Pod, started: &Started, pulses: &[ContainerPulse], now: Timestamp) -> PodStatus {
    let state = |kind, container: &Container| {
        let pulse = pulses.iter().find(|pulse| pulse.kind == kind && pulse.name == container.name);
        let mut status = blank(container);
        match pulse {
            Some(pulse) => {
                status.state.running = Some(ContainerRunning { started_at: pulse.started_at });
                status.container_id = Some(format!("process://{}", pulse.pid));
                status.started = Some(true);
                status.ready = !pulse.ended;
            }
            None => status.state.waiting = Some(waiting("PodInitializing")),
        }
        status
    };
    let all_run = is_running(pod, pulses);
    let phase = if all_run { "Running" } else { "Pending" };
    let ready = if all_run { Ready::Yes } else { Ready::No("ContainersNotReady") };
    with_containers(pod, state, base(pod, Some(started), phase, ready, now))
}

/// `status` with the state of every container of the pod.
fn with_containers(
    pod: &Pod,
    state: impl Fn(ContainerKind, &Container) -> ContainerStatus,
    status: PodStatus,
) -> PodStatus {
    let all =
        |kind, containers: &[Container]| containers.iter().map(|container| state(kind, container)).collect();
    PodStatus {
        container_statuses: all(ContainerKind::Main, &pod.spec.containers),
        init_container_statuses: all(ContainerKind::Init, &pod.spec.init_containers),
        ..status
    }
}

/// Whether every main container has been started.
pub(crate) fn is_running(pod: &Pod, pulses: &[ContainerPulse]) -> bool {
    let has = |container: &Container| {
        pulses.iter().any(|pulse| pulse.kind == ContainerKind::Main && pulse.name == container.name)
    };
    pod.spec.containers.iter().all(has)
}

/// A pod that waits for something outside of it.
pub(crate) fn waiting_to_start(pod: &Pod, failure: &StartFailure, now: Timestamp) -> PodStatus {
    let state = |container: &Container| {
        let mut status = blank(container);
        let message = Some(failure.message.clone());
        status.state.waiting = Some(ContainerWaiting { reason: failure.reason.to_owned(), message });
        status
    };
    PodStatus {
        container_statuses: pod.spec.containers.iter().map(state).collect(),
        ..base(pod, None, "Pending", Ready::No("ContainersNotReady"), now)
    }
}

/// A pod that could not be started: its first container says why.
pub(crate) fn failed_to_start(pod: &Pod, failure: &StartFailure, now: Timestamp) -> PodStatus {
    let record = ExitRecord {
        epoch: epoch(pod),
        ranks: vec![RankEnd { rank: Rank(0), end: failure.end, at: now }],
        ..ExitRecord::default()
    };
    let exit = ContainerExit {
        name: pod.spec.containers.first().map_or_else(String::new, |container| container.name.clone()),
        kind: ContainerKind::Main,
        started_at: None,
        finished_at: now,
        end: failure.end,
        reason: failure.reason.to_owned(),
        message: failure.message.clone(),
        record,
    };
    let mut status = exited(pod, None, &PodExit { containers: vec![exit], finished_at: now }, now);
    status.reason = Some(failure.reason.to_owned());
    status.message = Some(failure.message.clone());
    status
}

/// A pod that has ended.
pub(crate) fn ended(pod: &Pod, started: Option<&Started>, end: &PodEnd, now: Timestamp) -> PodStatus {
    match end {
        PodEnd::Exit(exit) => exited(pod, started, exit, now),
        PodEnd::Lost(lost) => {
            let state = |container: &Container| {
                let mut status = blank(container);
                let before = pod.status.container_statuses.iter().find(|known| known.name == container.name);
                let started_at =
                    before.and_then(|known| known.state.running.as_ref()).map(|running| running.started_at);
                status.state.terminated = Some(ContainerTerminated {
                    exit_code: EXIT_CODE_UNKNOWN,
                    signal: None,
                    reason: lost.reason.to_owned(),
                    message: Some(lost.message.clone()),
                    started_at: started_at.unwrap_or(lost.at),
                    finished_at: lost.at,
                });
                status
            };
            PodStatus {
                reason: Some(lost.reason.to_owned()),
                message: Some(lost.message.clone()),
                container_statuses: pod.spec.containers.iter().map(state).collect(),
                ..base(pod, started, "Failed", Ready::No("PodFailed"), now)
            }
        }
    }
}

fn exited(pod: &Pod, started: Option<&Started>, exit: &PodExit, now: Timestamp) -> PodStatus {
    let state = |kind, container: &Container| {
        let mut status = blank(container);
        match exit.containers.iter().find(|exit| exit.kind == kind && exit.name == container.name) {
            Some(exit) => status.state.terminated = Some(terminated(exit)),
            None => status.state.waiting = Some(waiting("PodInitializing")),
        }
        status
    };
    let all_well = exit.containers.iter().all(|container| container.end == ProcessEnd::Exited(0));
    let all_ran = pod.spec.containers.iter().all(|container| {
        exit.containers.iter().any(|exit| exit.kind == ContainerKind::Main && exit.name == container.name)
    });
    let (phase, ready) = if all_well && all_ran {
        ("Succeeded", Ready::No("PodCompleted"))
    } else {
        ("Failed", Ready::No("PodFailed"))
    };
    with_containers(pod, state, base(pod, started, phase, ready, now))
}

fn terminated(exit: &ContainerExit) -> ContainerTerminated {
    let signal = match exit.end {
        ProcessEnd::Signaled(signal) => Some(signal),
        ProcessEnd::Exited(_) | ProcessEnd::NotStarted(_) => None,
    };
    ContainerTerminated {
        exit_code: exit.end.exit_code(),
        signal,
        reason: exit.reason.clone(),
        message: Some(termination_message(&exit.message, &exit.record)),
        started_at: exit.started_at.unwrap_or(exit.finished_at),
        finished_at: exit.finished_at,
    }
}

fn waiting(reason: &str) -> ContainerWaiting {
    ContainerWaiting { reason: reason.to_owned(), message: None }
}

fn blank(container: &Container) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ..ContainerStatus::default()
    }
}

fn epoch(pod: &Pod) -> Epoch {
    let text = pod.metadata.annotations.get(regatta_types::labels::EPOCH);
    text.and_then(|text| text.parse().ok()).map_or(Epoch(0), Epoch)
}

#[derive(Debug, Clone, Copy)]
enum Ready {
    Yes,
    No(&'static str),
}

fn base(pod: &Pod, started: Option<&Started>, phase: &str, ready: Ready, now: Timestamp) -> PodStatus {
    let mut status = PodStatus {
        phase: phase.to_owned(),
        conditions: pod.status.conditions.clone(),
        start_time: Some(pod.status.start_time.or(started.map(|started| started.at)).unwrap_or(now)),
        host_ip: Some(HOST_IP.to_owned()),
        ..PodStatus::default()
    };
    if let Some(address) = started.and_then(|started| started.pod_ip.clone()) {
        status.other.insert("podIPs".to_owned(), json!([{"ip": address}]));
        status.pod_ip = Some(address);
    }
    let mut set = |type_: &str, ready: &Ready| {
        let (value, reason) = match ready {
            Ready::Yes => ("True", ""),
            Ready::No(reason) => ("False", *reason),
        };
        let condition = Condition {
            type_: type_.to_owned(),
            status: value.to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            last_transition_time: now,
        };
        conditions::set(&mut status.conditions, condition);
    };
    set(POD_SCHEDULED, &Ready::Yes);
    set("Initialized", if phase == "Pending" { &ready } else { &Ready::Yes });
    set(READY, &ready);
    set("ContainersReady", &ready);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Lost;
    use regatta_agent::exit::parse_termination_message;

    const NOW: Timestamp = Timestamp::from_unix_ms(1_000);

    fn pod() -> Pod {
        let mut pod = Pod::default();
        for name in ["main", "beside"] {
            pod.spec.containers.push(Container { name: name.to_owned(), ..Container::default() });
        }
        pod.spec.init_containers.push(Container { name: "first".to_owned(), ..Container::default() });
        pod
    }

    fn pulse(name: &str, kind: ContainerKind) -> ContainerPulse {
        ContainerPulse { name: name.to_owned(), kind, started_at: NOW, pid: 7, ended: false }
    }

    fn exit(name: &str, kind: ContainerKind, end: ProcessEnd) -> ContainerExit {
        ContainerExit {
            name: name.to_owned(),
            kind,
            started_at: Some(NOW),
            finished_at: NOW,
            end,
            reason: "Error".to_owned(),
            message: "it ended".to_owned(),
            record: ExitRecord {
                epoch: Epoch(2),
                ranks: vec![RankEnd { rank: Rank(0), end, at: NOW }],
                last_step: Some(9),
                ..ExitRecord::default()
            },
        }
    }

    fn ready(status: &PodStatus) -> &str {
        &status.conditions.iter().find(|condition| condition.type_ == READY).unwrap().status
    }

    #[test]
    fn a_pod_runs_when_all_its_containers_do() {
        let started = Started { at: NOW, pod_ip: Some("10.0.0.4".to_owned()), gpu_devices: vec![] };
        let first = [pulse("first", ContainerKind::Init)];
        let status = running(&pod(), &started, &first, NOW);
        assert_eq!((status.phase.as_str(), ready(&status)), ("Pending", "False"));
        assert!(status.init_container_statuses[0].state.running.is_some());
        assert_eq!(status.container_statuses[0].state.waiting.as_ref().unwrap().reason, "PodInitializing");
        let all = [pulse("main", ContainerKind::Main), pulse("beside", ContainerKind::Main)];
        let status = running(&pod(), &started, &all, NOW);
        assert_eq!((status.phase.as_str(), ready(&status)), ("Running", "True"));
        assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.4"));
        assert_eq!(status.container_statuses[1].container_id.as_deref(), Some("process://7"));
    }

    #[test]
    fn an_end_is_told_with_code_signal_and_record() {
        let both = |end| {
            vec![
                exit("main", ContainerKind::Main, end),
                exit("beside", ContainerKind::Main, ProcessEnd::Exited(0)),
            ]
        };
        for (end, phase, code, signal) in [
            (ProcessEnd::Exited(0), "Succeeded", 0, None),
            (ProcessEnd::Exited(3), "Failed", 3, None),
            (ProcessEnd::Signaled(9), "Failed", 137, Some(9)),
            (ProcessEnd::NotStarted(2), "Failed", 127, None),
        ] {
            let exit = PodExit { containers: both(end), finished_at: NOW };
            let status = ended(&pod(), None, &PodEnd::Exit(exit), NOW);
            let terminated = status.container_statuses[0].state.terminated.as_ref().unwrap();
            assert_eq!(
                (status.phase.as_str(), terminated.exit_code, terminated.signal),
                (phase, code, signal)
            );
            let record = parse_termination_message(terminated.message.as_ref().unwrap()).unwrap();
            assert_eq!((record.last_step, record.ranks[0].end), (Some(9), end));
        }
    }

    #[test]
    fn a_pod_whose_init_container_failed_has_failed() {
        let exit = PodExit {
            containers: vec![exit("first", ContainerKind::Init, ProcessEnd::Exited(1))],
            finished_at: NOW,
        };
        let status = ended(&pod(), None, &PodEnd::Exit(exit), NOW);
        assert_eq!(status.phase, "Failed");
        assert_eq!(status.init_container_statuses[0].state.terminated.as_ref().unwrap().exit_code, 1);
        assert!(status.container_statuses[0].state.waiting.is_some());
    }

    #[test]
    fn what_could_not_start_and_what_was_lost_say_so() {
        let failure = StartFailure {
            end: ProcessEnd::NotStarted(2),
            ..StartFailure::refused("NoCommand", "no command")
        };
        let mut pod = pod();
        pod.metadata.annotations.insert(regatta_types::labels::EPOCH.to_owned(), "4".to_owned());
        let status = failed_to_start(&pod, &failure, NOW);
        let terminated = status.container_statuses[0].state.terminated.as_ref().unwrap();
        assert_eq!(
            (status.phase.as_str(), terminated.reason.as_str(), terminated.exit_code),
            ("Failed", "NoCommand", 127)
        );
        assert_eq!(parse_termination_message(terminated.message.as_ref().unwrap()).unwrap().epoch, Epoch(4));

        let lost = PodEnd::Lost(Lost { reason: "AgentLost", message: "gone".to_owned(), at: NOW });
        let status = ended(&pod, None, &lost, NOW);
        assert_eq!((status.phase.as_str(), status.reason.as_deref()), ("Failed", Some("AgentLost")));
        assert!(
            status
                .container_statuses
                .iter()
                .all(|c| c.state.terminated.as_ref().unwrap().reason == "AgentLost")
        );
    }

    #[test]
    fn conditions_of_others_are_kept() {
        let mut pod = pod();
        let other = Condition {
            type_: "Custom".to_owned(),
            status: "True".to_owned(),
            reason: String::new(),
            message: String::new(),
            last_transition_time: NOW,
        };
        pod.status.conditions.push(other.clone());
        assert!(running(&pod, &Started::default(), &[], NOW).conditions.contains(&other));
    }
}

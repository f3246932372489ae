//! The daemon's life: killed, started twice, stopped while jobs run. No acknowledged state and no exit code is lost.

use crate::{FOREVER, Gate, daemon};
use regatta_types::job::{Job, JobPhase};
use serde_json::json;

#[test]
fn a_job_outlives_the_daemon_and_ends_well() {
    let daemon = daemon().nodes(2, 1).start();
    let gate = Gate::new(&daemon, "gate");
    let script = format!("echo ready; [ $RANK = 1 ] || {{ {}; }}; echo over", gate.wait());
    daemon
        .script(&["--detach", "--name", "through", "--nodes", "2", "--gpus", "1"], &script)
        .status()
        .unwrap();
    daemon.api().wait_job("through", "running", |job| job.status.phase == JobPhase::Running);
    daemon.kill();
    // Rank 0 is still there to take this, without a daemon.
    gate.open();
    daemon.start();
    let job = daemon.api().wait_end("through");
    assert_eq!((job.status.phase, job.status.epochs.len()), (JobPhase::Succeeded, 1), "{:#?}", job.status);
    daemon.regatta(["logs", "through"]).ok().prints(&["[worker-0 r0] over", "[worker-1 r1] over"]);
}

#[test]
fn an_exit_code_is_not_lost_with_the_daemon() {
    let daemon = daemon().start();
    let gate = Gate::new(&daemon, "gate");
    let script = format!("{}; exit 42", gate.wait());
    daemon.script(&["--detach", "--name", "coded", "--max-restarts", "0"], &script).status().unwrap();
    daemon.api().wait_job("coded", "running", |job| job.status.phase == JobPhase::Running);
    let pid = daemon.ranks("coded")[0].pid;
    daemon.kill();
    gate.open();
    regatta_testkit::processes::wait_gone(pid);
    daemon.start();
    assert_eq!(daemon.api().wait_end("coded").status.exit_code, Some(42));
    daemon.regatta(["wait", "coded"]).expect_code(42);
}

#[test]
fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let daemon = daemon().nodes(2, 4).start();
    let jobs: Vec<String> = (0..24).map(|index| format!("burst-{index}")).collect();
    for (index, chunk) in jobs.chunks(6).enumerate() {
        let api = daemon.api();
        for name in chunk {
            let container = json!({"name": "main", "command": ["sh", "-c", "exit 0"], "resources": {"limits": {"nvidia.com/gpu": 1}}});
            let role =
                json!({"name": "worker", "replicas": 1, "template": {"spec": {"containers": [container]}}});
            let job = json!({"apiVersion": "regatta.dev/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": {"roles": [role]}});
            let made: Job = api.submit(&job).unwrap();
            assert!(made.metadata.uid.is_some(), "acknowledged");
            // Each round kills at another moment: after the first acknowledgement, the second, …
            if chunk.iter().position(|one| one == name) == Some(index) {
                break;
            }
        }
        daemon.kill();
        daemon.start();
    }
    let api = daemon.api();
    let acknowledged = jobs.chunks(6).enumerate().flat_map(|(index, chunk)| chunk[..=index].to_vec());
    for name in acknowledged {
        assert_eq!(api.wait_end(&name).status.phase, JobPhase::Succeeded, "{name}");
    }
}

#[test]
fn killing_the_daemon_while_it_recovers_a_job_starts_no_rank_twice() {
    let daemon = daemon().nodes(2, 1).start();
    // Each attempt writes its name; an attempt whose ranks ran twice would have two lines of one rank.
    let marks = daemon.work().join("marks");
    let script = format!(
        "echo $REGATTA_EPOCH-$RANK >> {}; if [ $REGATTA_EPOCH = 1 ]; then exec sleep 100000; fi",
        marks.display()
    );
    daemon.script(&["--detach", "--name", "twice", "--nodes", "2", "--gpus", "1"], &script).status().unwrap();
    daemon.api().wait_job("twice", "running", |job| job.status.phase == JobPhase::Running);
    daemon.kill_rank("twice", 0);
    daemon.api().wait_job("twice", "past its first epoch", |job| {
        job.status.phase != JobPhase::Running || job.status.epoch.0 > 1
    });
    daemon.kill();
    daemon.start();
    let job = daemon.api().wait_end("twice");
    assert_eq!(job.status.phase, JobPhase::Succeeded, "{:#?}", job.status);
    let text = std::fs::read_to_string(&marks).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let count = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), count, "{text}");
}

#[test]
fn one_daemon_for_one_data_directory() {
    let daemon = daemon().start();
    let pid = daemon.pid();
    daemon.up().expect_code(3).says(&["already runs", "regatta down"]);
    daemon.regatta(["up"]).expect_code(3).says(&["already runs"]);
    assert_eq!(daemon.pid(), pid);
    daemon.regatta(["ps"]).ok();
}

#[test]
fn what_a_dead_daemon_left_is_no_daemon() {
    let daemon = daemon().start();
    daemon.kill();
    assert!(daemon.pid().is_some(), "the announcement of the dead daemon is still there");
    daemon.regatta(["ps"]).expect_code(5).says(&["does not run", "regatta up"]);
    daemon.regatta(["down", "--yes"]).ok();
    let run = daemon.regatta(["run", "--", "echo", "back"]).ok();
    assert_eq!(run.stdout, "back\n");
}

#[test]
fn down_never_stops_a_job_by_accident() {
    let daemon = daemon().start();
    daemon.script(&["--detach", "--name", "precious"], FOREVER).status().unwrap();
    daemon.api().wait_job("precious", "running", |job| job.status.phase == JobPhase::Running);
    let rank = daemon.ranks("precious");
    daemon.regatta(["down"]).expect_code(3).says(&["precious", "--yes", "--keep-jobs"]);
    assert_eq!(daemon.ranks("precious"), rank, "nothing was touched");

    daemon.regatta(["down", "--keep-jobs"]).ok();
    assert_eq!(daemon.ranks("precious"), rank, "the job goes on without a daemon");
    daemon.start();
    let job = daemon.api().wait_job("precious", "adopted", |job| job.status.phase == JobPhase::Running);
    assert_eq!(job.status.epoch.0, 1);
    assert_eq!(daemon.ranks("precious"), rank);

    daemon.regatta(["down", "--yes"]).ok();
    assert_eq!(daemon.ranks("precious"), [], "stopped, as was asked");
    daemon.start();
    let job = daemon.api().wait_job("precious", "running again", |job| {
        job.status.phase == JobPhase::Running && job.status.epoch.0 == 2
    });
    assert_eq!(job.status.user_restarts, 0);
}

#[test]
fn down_does_not_end_a_bare_pod_unasked() {
    let daemon = daemon().start();
    let container = json!({"name": "main", "image": "x", "command": ["sleep", "100000"]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"}, "spec": {"containers": [container]}});
    daemon.api().request::<serde_json::Value>("POST", "/api/v1/namespaces/default/pods", &pod).unwrap();
    daemon.api().wait_pod("alone", "running", |pod| pod["status"]["phase"] == "Running");
    daemon.regatta(["down"]).expect_code(3).says(&["pod default/alone (ends for good)", "--yes"]);
    daemon.api().wait_pod("alone", "still running", |pod| pod["status"]["phase"] == "Running");
    daemon.regatta(["down", "--yes"]).ok();
}

#[test]
fn limits_are_checked_when_they_change_too() {
    let daemon = daemon().start();
    daemon.script(&["--detach", "--name", "limited"], FOREVER).status().unwrap();
    let patch = json!({"spec": {"limits": {"runtimeSeconds": 0}}});
    let path = "/apis/regatta.dev/v1alpha1/namespaces/default/jobs/limited";
    let refusal = daemon.api().request::<serde_json::Value>("PATCH", path, &patch).unwrap_err();
    assert_eq!(refusal.code, 422, "{refusal:?}");
    daemon.regatta(["cancel", "limited"]).ok();
}

//! More work than the machine holds: what waits, what it is told, and that it starts when there is room.

use crate::{Gate, daemon};
use regatta_types::job::JobPhase;
use regatta_types::reason::WaitReason;

#[test]
fn a_gang_waits_whole_and_starts_when_there_is_room() {
    let daemon = daemon().nodes(2, 2).start();
    let api = daemon.api();
    let gate = Gate::new(&daemon, "gate");
    daemon.script(&["--detach", "--name", "first", "--gpus", "1"], &gate.wait()).status().unwrap();
    api.wait_job("first", "running", |job| job.status.phase == JobPhase::Running);
    daemon
        .script(&["--detach", "--name", "second", "--nodes", "2", "--gpus", "2"], "echo in")
        .status()
        .unwrap();
    let waiting = api.wait_job("second", "waiting with a reason", |job| {
        job.status.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitReason::InsufficientCapacity)
    });
    assert!(waiting.status.placement.is_empty(), "no partial start");
    daemon.regatta(["why", "second"]).ok().prints(&["InsufficientCapacity", "3 GPUs free"]);
    daemon.regatta(["ps"]).ok().prints(&["second", "Queued"]);
    // What fits beside runs meanwhile only when it is not behind; the first goes, the second comes.
    gate.open();
    assert_eq!(api.wait_end("first").status.phase, JobPhase::Succeeded);
    assert_eq!(api.wait_end("second").status.phase, JobPhase::Succeeded);
}

#[test]
fn more_nodes_than_there_are_is_a_wait_and_more_gpus_than_a_node_has_a_refusal() {
    let daemon = daemon().nodes(2, 2).start();
    daemon.regatta(["run", "--detach", "--name", "wide", "--nodes", "5", "--gpus", "1", "--", "true"]).ok();
    daemon.regatta(["run", "--detach", "--name", "wider", "--nodes", "3", "--gpus", "2", "--", "true"]).ok();
    daemon.regatta(["why", "wider"]).ok().prints(&["waits", "2 nodes"]);
    daemon.regatta(["why", "wide"]).ok().prints(&["waits", "5"]);
    daemon
        .regatta(["run", "--detach", "--gpus", "3", "--", "true"])
        .expect_code(3)
        .says(&["3 GPUs", "has 2"]);
}

#[test]
fn priority_goes_before_age() {
    let daemon = daemon().nodes(1, 1).start();
    let api = daemon.api();
    let gate = Gate::new(&daemon, "gate");
    let order = daemon.work().join("order");
    let submit = |name: &str, priority: &str, script: &str| {
        daemon
            .script(&["--detach", "--name", name, "--gpus", "1", "--priority", priority], script)
            .status()
            .unwrap();
    };
    submit("holder", "0", &gate.wait());
    api.wait_job("holder", "running", |job| job.status.phase == JobPhase::Running);
    for (name, priority) in [("old", "0"), ("young", "0"), ("urgent", "5")] {
        submit(name, priority, &format!("echo {name} >> {}", order.display()));
        api.wait_job(name, "planned", |job| {
            job.status.waiting.as_ref().is_some_and(|w| w.reason != WaitReason::NotPlanned)
        });
    }
    gate.open();
    for name in ["old", "young", "urgent"] {
        api.wait_end(name);
    }
    assert_eq!(std::fs::read_to_string(order).unwrap(), "urgent\nold\nyoung\n");
}

#[test]
fn nodes_and_queues_are_listed() {
    let daemon = daemon().nodes(2, 4).start();
    daemon.regatta(["nodes"]).ok().prints(&["vm-0", "vm-1", "simulated"]);
    daemon.regatta(["queues"]).ok().prints(&["default"]);
    let nodes = daemon.regatta(["nodes", "-o", "json"]).ok().json();
    assert_eq!(nodes["items"].as_array().unwrap().len(), 2);
    assert_eq!(daemon.regatta(["nodes", "-o", "name"]).ok().stdout.lines().count(), 2);
}

//! kubectl on the embedded API server.

use crate::{FOREVER, daemon, skip};
use regatta_testkit::{Finished, TestDaemon};
use regatta_types::job::JobPhase;

/// Runs kubectl, or says that there is none.
macro_rules! kubectl {
    ($daemon:expr, $($argument:expr),+ $(,)?) => {
        match $daemon.kubectl([$($argument),+]) {
            Some(finished) => finished,
            None => return skip(module_path!(), "no kubectl on the PATH"),
        }
    };
}

#[test]
fn jobs_are_listed_described_and_deleted() {
    let daemon = daemon().nodes(2, 1).start();
    daemon.script(&["--detach", "--name", "seen", "--nodes", "2", "--gpus", "1"], FOREVER).status().unwrap();
    daemon.api().wait_job("seen", "running", |job| job.status.phase == JobPhase::Running);
    kubectl!(daemon, "get", "jobs.regatta.dev").ok().prints(&["NAME", "seen", "Running"]);
    kubectl!(daemon, "get", "rjob", "seen", "-o", "name").ok().prints(&["job.regatta.dev/seen"]);
    kubectl!(daemon, "describe", "rjob", "seen").ok().prints(&["seen", "Running"]);
    kubectl!(daemon, "get", "nodes").ok().prints(&["vm-0", "Ready"]);
    kubectl!(daemon, "get", "pods").ok().prints(&["seen-worker-0-", "seen-worker-1-", "Running"]);
    kubectl!(daemon, "get", "queues").ok().prints(&["default"]);
    kubectl!(daemon, "logs", "-l", "regatta.dev/job=seen").ok().prints(&["ready"]);
    kubectl!(daemon, "delete", "rjob", "seen").ok().prints(&["deleted"]);
    kubectl!(daemon, "get", "rjob", "seen").expect_code(1).says(&["NotFound"]);
    assert_eq!(daemon.ranks("seen"), [], "deleted means stopped");
}

#[test]
fn a_bare_pod_runs() {
    let daemon = daemon().nodes(1, 1).start();
    kubectl!(
        daemon,
        "run",
        "bare",
        "--image=ignored",
        "--restart=Never",
        "--command",
        "--",
        "sh",
        "-c",
        "echo hello from $HOSTNAME; exit 4"
    )
    .ok();
    let pod = daemon.api().wait_pod("bare", "ended", |pod| {
        matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
    });
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 4, "{pod:#}");
    kubectl!(daemon, "logs", "bare").ok().prints(&["hello"]);
    kubectl!(daemon, "get", "pod", "bare").ok().prints(&["bare"]);
    kubectl!(daemon, "delete", "pod", "bare").ok();
}

#[test]
fn a_pod_without_command_fails_with_a_reason() {
    let daemon = daemon().start();
    kubectl!(daemon, "run", "empty", "--image=some/image", "--restart=Never").ok();
    let pod = daemon.api().wait_pod("empty", "failed", |pod| pod["status"]["phase"] == "Failed");
    assert!(pod.to_string().contains("NoCommand"), "{pod:#}");
}

#[test]
fn objects_are_applied_and_waited_for() {
    let daemon = daemon().nodes(1, 2).start();
    let file = daemon.write(
        "job.yaml",
        "apiVersion: regatta.dev/v1alpha1\nkind: Job\nmetadata: {name: applied}\nspec:\n  roles:\n  - name: worker\n    replicas: 1\n    template:\n      spec:\n        containers:\n        - {name: main, command: [sh, -c, 'echo from a file']}\n",
    );
    kubectl!(daemon, "create", "-f", file.to_str().unwrap()).ok();
    kubectl!(daemon, "wait", "--for=condition=Succeeded", "job.regatta.dev/applied", "--timeout=60s").ok();
    kubectl!(daemon, "create", "configmap", "settings", "--from-literal=rate=3").ok();
    kubectl!(daemon, "get", "configmap", "settings", "-o", "jsonpath={.data.rate}").ok().prints(&["3"]);
    kubectl!(daemon, "get", "events").ok().prints(&["applied"]);
    kubectl!(daemon, "get", "runs.runs.regatta.dev", "-o", "name")
        .ok()
        .prints(&["run.runs.regatta.dev/applied"]);
    unknown_fields_are_told(&daemon);
}

fn unknown_fields_are_told(daemon: &TestDaemon) {
    let file = daemon.write(
        "bad.yaml",
        "apiVersion: regatta.dev/v1alpha1\nkind: Job\nmetadata: {name: bad}\nspec: {rolls: []}\n",
    );
    let answer: Option<Finished> = daemon.kubectl(["create", "-f", file.to_str().unwrap()]);
    if let Some(answer) = answer {
        answer.expect_code(1).says(&["rolls"]);
    }
}

#[test]
fn a_command_runs_in_a_pod() {
    let daemon = daemon().start();
    daemon.script(&["--detach", "--name", "inside"], FOREVER).status().unwrap();
    daemon.api().wait_job("inside", "running", |job| job.status.phase == JobPhase::Running);
    let exec = kubectl!(daemon, "exec", "inside-worker-0-0", "--", "sh", "-c", "echo $REGATTA_JOB; exit 5");
    if exec.stderr.contains("not found") {
        // The first incarnation's number is part of the pod's name; ask for it instead of guessing.
        let pods = kubectl!(daemon, "get", "pods", "-o", "name").ok().stdout;
        let pod = pods.trim();
        kubectl!(daemon, "exec", pod, "--", "sh", "-c", "echo $REGATTA_JOB; exit 5")
            .expect_code(5)
            .prints(&["inside"]);
    } else {
        exec.expect_code(5).prints(&["inside"]);
    }
}

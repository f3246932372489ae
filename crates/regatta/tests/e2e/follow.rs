//! Following a run: what is seen of it, also while the daemon is away, and what an interrupt does.

use crate::{FOREVER, Gate, daemon};
use regatta_testkit::Running;
use regatta_types::job::JobPhase;
use rustix::process::Signal;

#[test]
fn each_line_is_shown_once_though_the_daemon_was_killed() {
    let daemon = daemon().start();
    let (first, second) = (Gate::new(&daemon, "first"), Gate::new(&daemon, "second"));
    let script = format!("echo one; {}; echo two; echo three; {}; echo four", first.wait(), second.wait());
    let mut run = Running::start(&mut daemon.script(&["--name", "watched"], &script));
    run.wait_for("one");
    daemon.kill();
    run.wait_for("does not answer");
    // Nobody but the rank and its agent is there for these lines.
    first.open();
    daemon.start();
    run.wait_for("three");
    daemon.regatta(["down", "--keep-jobs"]).ok();
    second.open();
    daemon.start();
    let run = run.finish().ok();
    assert_eq!(run.stdout, "one\ntwo\nthree\nfour\n");
}

#[test]
fn one_interrupt_leaves_and_two_cancel() {
    let daemon = daemon().start();
    let mut run = Running::start(&mut daemon.script(&["--name", "left"], FOREVER));
    run.wait_for("ready");
    run.signal(Signal::INT);
    run.finish().expect_code(130).says(&["goes on", "regatta logs -f left"]);
    daemon.api().wait_job("left", "running", |job| job.status.phase == JobPhase::Running);

    let mut logs = daemon.spawn(["logs", "-f", "left"]);
    logs.wait_for("ready");
    daemon.regatta(["cancel", "left"]).ok();
    logs.finish().ok();

    let mut run = Running::start(&mut daemon.script(&["--name", "cancelled"], FOREVER));
    run.wait_for("ready");
    run.signal(Signal::INT);
    run.wait_for("goes on");
    run.signal(Signal::INT);
    let run = run.finish();
    assert!(run.stderr.contains("cancelled"), "{}", run.stderr);
    let job = daemon.api().job("cancelled");
    assert_eq!((job.status.phase, job.status.exit_code), (JobPhase::Cancelled, Some(run.code)));
}

#[test]
fn what_setup_prints_is_shown_and_its_failure_is_the_runs() {
    let daemon = daemon().start();
    let run = |name: &str, setup: &str| {
        daemon.run_script(&["--name", name, "--max-restarts", "0", "--setup", setup], "cat made")
    };
    run("good", "echo preparing; echo ready > made").ok().prints(&["preparing", "ready"]);
    let said = ["no such package", "regatta: setup failed with exit code 4"];
    run("bad", "echo no such package; exit 4; echo not reached").expect_code(4).prints(&said);
    daemon.regatta(["logs", "bad"]).ok().prints(&said);
}

#[test]
fn a_name_can_be_used_again_once_its_job_has_ended() {
    let daemon = daemon().start();
    daemon.run_script(&["--name", "again"], "echo 1").ok();
    let second = daemon.run_script(&["--name", "again"], "echo 2").ok();
    assert_eq!(second.stdout, "2\n");
    daemon.regatta(["logs", "again"]).ok().prints(&["2"]);
    let runs = daemon.regatta(["runs", "-o", "name"]).ok();
    assert_eq!(runs.stdout, "again\nagain\n", "both records are kept");

    daemon.script(&["--detach", "--name", "busy"], FOREVER).status().unwrap();
    daemon.api().wait_job("busy", "running", |job| job.status.phase == JobPhase::Running);
    daemon.run_script(&["--name", "busy"], "echo 2").expect_code(6).says(&["busy", "regatta cancel busy"]);
    daemon.regatta(["cancel", "busy"]).ok();
}

#[test]
fn a_reader_that_leaves_is_no_success_of_the_job() {
    let daemon = daemon().start();
    let script = "while :; do echo line; done";
    let mut command = daemon.script(&["--name", "endless"], script);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    // Reading one line and closing, as `head -1` does.
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("line\n", Some(141)));
    daemon.regatta(["cancel", "endless"]).ok();
}

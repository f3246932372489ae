//! One run from the command line: output, exit codes, what ranks are told, bad input.

use crate::{FOREVER, daemon};
use regatta_types::job::JobPhase;

#[test]
fn a_run_streams_its_output_and_ends_with_its_code() {
    let daemon = daemon().start();
    let check = |script: &str, code: i32, stdout: &str| {
        let run = daemon.run_script(&["--max-restarts", "0"], script).expect_code(code);
        assert_eq!(run.stdout, stdout);
    };
    check("echo hello; exit 3", 3, "hello\n");
    check("echo one; echo two; exit 0", 0, "one\ntwo\n");
    check("exit 255", 255, "");
    daemon.regatta(["run", "--", "echo", "a b", "$HOME"]).ok().prints(&["a b $HOME\n"]);
}

#[test]
fn a_run_starts_the_daemon_when_there_is_none() {
    let daemon = daemon().prepare();
    let run = daemon.regatta(["run", "--", "echo", "hello"]).ok();
    assert_eq!(run.stdout, "hello\n");
    assert!(daemon.pid().is_some());
    daemon.regatta(["ps", "-a", "-o", "name"]).ok().prints(&["echo-"]);
}

#[test]
fn ranks_are_told_their_place() {
    let daemon = daemon().nodes(2, 2).start();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $REGATTA_SLOT $REGATTA_EPOCH $CUDA_VISIBLE_DEVICES";
    let flags = ["--nodes", "2", "--gpus", "2", "--procs-per-node", "2", "--name", "places"];
    let run = daemon.run_script(&flags, script).ok();
    let mut lines: Vec<&str> = run.stdout.lines().map(|line| line.split_once("] ").unwrap().1).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 0 4 2 0 1 0,1", "1 1 4 2 0 1 0,1", "2 0 4 2 1 1 0,1", "3 1 4 2 1 1 0,1"]);
    let mut prefixes: Vec<&str> = run.stdout.lines().map(|line| line.split_once(']').unwrap().0).collect();
    prefixes.sort_unstable();
    assert_eq!(prefixes, ["[worker-0 r0", "[worker-0 r1", "[worker-1 r2", "[worker-1 r3"]);
}

#[test]
fn torchrun_gets_its_variables() {
    let daemon = daemon().nodes(2, 2).start();
    // A program of this name that tells what it was given, as torchrun itself may not be installed.
    let torchrun = daemon.write(
        "torchrun",
        "#!/bin/sh\necho $PET_NNODES $PET_NPROC_PER_NODE $PET_NODE_RANK $PET_MAX_RESTARTS\n",
    );
    std::process::Command::new("chmod").arg("755").arg(&torchrun).status().unwrap();
    let run = daemon
        .regatta(["run", "--nodes", "2", "--gpus", "2", "--", torchrun.to_str().unwrap(), "train.py"])
        .ok();
    let mut lines: Vec<&str> = run.stdout.lines().map(|line| line.split_once("] ").unwrap().1).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["2 2 0 0", "2 2 1 0"]);
}

#[test]
fn logs_outlive_the_run() {
    let daemon = daemon().nodes(2, 1).start();
    daemon.run_script(&["--nodes", "2", "--name", "two"], "echo from $RANK; echo err >&2").ok();
    daemon.regatta(["logs", "two"]).ok().prints(&["from 0", "from 1", "err"]);
    let one = daemon.regatta(["logs", "two", "--rank", "1"]).ok();
    assert!(one.stdout.contains("from 1") && !one.stdout.contains("from 0"), "{}", one.stdout);
    daemon.regatta(["logs", "tow"]).expect_code(4).says(&["tow", "did you mean two?"]);
}

#[test]
fn a_failure_that_is_retried_keeps_the_logs_of_each_attempt() {
    let daemon = daemon().start();
    let script = "echo attempt $REGATTA_EPOCH; [ $REGATTA_EPOCH = 2 ]";
    daemon.run_script(&["--name", "again"], script).ok().prints(&["attempt 1\n", "attempt 2\n"]);
    let check = |flags: &[&str], expected: &str| {
        let logs = daemon.regatta([&["logs", "again"], flags].concat()).ok();
        assert_eq!(logs.stdout, expected);
    };
    check(&[], "attempt 2\n");
    check(&["--previous"], "attempt 1\n");
    check(&["--epoch", "1"], "attempt 1\n");
}

#[test]
fn exec_runs_beside_a_rank_with_its_environment() {
    let daemon = daemon().nodes(2, 1).start();
    let flags = ["run", "--nodes", "2", "--gpus", "1", "--procs-per-node", "2", "--name", "host"];
    let mut run = daemon.spawn([&flags[..], &["--", "sh", "-c", FOREVER]].concat());
    daemon.api().wait_job("host", "running", |job| job.status.phase == JobPhase::Running);
    run.wait_for("[worker-1 r3] ready");
    let script = "echo $REGATTA_JOB $REGATTA_RANK $LOCAL_RANK $WORLD_SIZE; exit 7";
    let exec = daemon.regatta(["exec", "host", "--rank", "3", "--", "sh", "-c", script]).expect_code(7);
    assert_eq!(exec.stdout, "host 3 1 4\n");
    daemon.regatta(["exec", "host", "--rank", "9", "--", "true"]).expect_code(4).says(&["rank 9"]);
    daemon.regatta(["cancel", "host"]).ok();
    run.finish().expect_code(130);
}

#[test]
fn cancel_stops_the_processes_and_wait_tells_the_end() {
    let daemon = daemon().start();
    daemon.regatta(["run", "--detach", "--name", "long", "--", "sh", "-c", FOREVER]).ok().prints(&["long\n"]);
    daemon.regatta(["wait", "long", "--for", "running"]).ok();
    let pid = daemon.ranks("long")[0].pid;
    daemon.regatta(["wait", "long", "--timeout", "1s"]).expect_code(124).says(&["long"]);
    daemon.regatta(["cancel", "long"]).ok();
    assert!(!regatta_testkit::processes::exists(pid), "the rank is gone once cancel returns");
    daemon.regatta(["wait", "long"]).expect_code(130);
    let job = daemon.api().job("long");
    assert_eq!(job.status.phase, JobPhase::Cancelled);
    daemon.regatta(["ps"]).ok();
    daemon.regatta(["ps", "-a", "-o", "name"]).ok().prints(&["long"]);
}

#[test]
fn a_program_has_time_to_end_by_itself() {
    let daemon = daemon().start();
    let script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do read -t 1 line < /dev/zero; done";
    let run = daemon.command(["run", "--name", "kind", "--", "bash", "-c", script]);
    let mut run = regatta_testkit::Running::start(&mut { run });
    run.wait_for("ready");
    daemon.regatta(["cancel", "kind"]).ok();
    run.finish().expect_code(130).prints(&["saved"]);
}

#[test]
fn the_record_of_a_run_is_kept() {
    let daemon = daemon().start();
    let git = |arguments: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@example.com"])
            .args(arguments)
            .current_dir(daemon.work());
        assert!(git.output().unwrap().status.success(), "git {arguments:?}");
    };
    daemon.write(
        "train.sh",
        "echo '::regatta:: {\"type\":\"step\",\"step\":7,\"total\":9,\"metrics\":{\"loss\":\"0.25\"}}'\n",
    );
    git(&["init", "-q"]);
    git(&["add", "train.sh"]);
    git(&["commit", "-qm", "first"]);
    daemon.write(
        "train.sh",
        &(std::fs::read_to_string(daemon.work().join("train.sh")).unwrap() + "echo changed\n"),
    );
    daemon
        .regatta(["run", "--name", "kept", "--env", "SECRET_THING=hidden", "--", "sh", "train.sh"])
        .ok()
        .prints(&["changed"]);
    daemon.regatta(["runs"]).ok().prints(&["kept", "sh train.sh"]);
    let record = daemon.regatta(["runs", "kept", "-o", "json"]).ok();
    let value = record.json();
    let entries = value["entries"].as_array().unwrap();
    let fact = |name: &str| {
        entries.iter().find(|entry| entry["fact"] == name).unwrap_or_else(|| panic!("{name}: {value:#}"))
    };
    let submitted = fact("submitted");
    assert_eq!(submitted["source"]["command"], "sh train.sh");
    assert_eq!(submitted["source"]["gitCommit"].as_str().unwrap().len(), 40);
    assert!(submitted["source"]["gitDiffHash"].is_string(), "the working tree differs from the commit");
    assert!(submitted["envNames"].as_array().unwrap().iter().any(|name| name == "SECRET_THING"));
    assert!(!record.stdout.contains("hidden"), "values of variables are never recorded");
    assert_eq!(fact("progress")["progress"]["step"], 7);
    assert_eq!(fact("progress")["progress"]["metrics"]["loss"], "0.25");
    assert_eq!(fact("finished")["phase"], "Succeeded");
    daemon
        .api()
        .request::<serde_json::Value>(
            "DELETE",
            "/apis/regatta.dev/v1alpha1/namespaces/default/jobs/kept",
            &serde_json::Value::Null,
        )
        .unwrap();
    daemon.regatta(["runs", "kept"]).ok().prints(&["sh train.sh"]);
}

#[test]
fn a_dry_run_submits_nothing() {
    let daemon = daemon().nodes(2, 2).start();
    let check = |flags: &[&str], code: i32, said: &str| {
        let flags = [&["run", "--dry-run", "--name", "maybe"], flags, &["--", "true"]].concat();
        daemon.regatta(flags).expect_code(code).prints(&["kind: Job", "name: maybe"]).says(&[said]);
    };
    check(&["--nodes", "2", "--gpus", "2"], 0, "it would start now");
    check(&["--nodes", "3", "--gpus", "2"], 0, "it would wait");
    check(&["--gpus", "3"], 3, "it would be refused");
    assert_eq!(daemon.regatta(["ps", "-a", "-o", "name"]).ok().stdout, "");
}

#[test]
fn a_file_describes_a_run() {
    let daemon = daemon().nodes(2, 2).start();
    daemon.write(
        "regatta.yaml",
        "name: filed\nnodes: 2\ngpus: 1\nenv: {COLOR: red}\nrun: echo $COLOR $REGATTA_SLOT\n",
    );
    let run = daemon.regatta(["run", "-f", "regatta.yaml"]).ok();
    assert!(run.stdout.contains("red 0") && run.stdout.contains("red 1"), "{}", run.stdout);
    let job = daemon.regatta(["describe", "filed", "-o", "json"]).ok().json();
    assert_eq!(job["spec"]["roles"][0]["replicas"], 2);
    let yaml = daemon.regatta(["describe", "filed", "-o", "yaml"]).ok();
    assert!(yaml.stdout.contains("kind: Job"), "{}", yaml.stdout);
}

#[test]
fn bad_input_gets_a_sentence() {
    let daemon = daemon().nodes(2, 2).start();
    let check_file = |content: &str, parts: &[&str]| {
        daemon.write("bad.yaml", content);
        daemon.regatta(["run", "-f", "bad.yaml"]).expect_code(2).says(parts);
    };
    check_file("run: x\nnods: 2\n", &["bad.yaml:2", "nods", "did you mean nodes?"]);
    check_file("run: x\nlimits: {runtme: 1h}\n", &["runtme", "limits.runtime"]);
    check_file("nodes: 2\n", &["run"]);
    check_file("run: [\n", &["bad.yaml"]);
    check_file("run: x\nnodes: none\n", &["nodes", "none"]);
    let check = |arguments: &[&str], code: i32, parts: &[&str]| {
        daemon.regatta(arguments).expect_code(code).says(parts);
    };
    check(&["run", "-f", "missing.yaml"], 2, &["missing.yaml"]);
    check(&["run", "--gpus", "8", "--", "true"], 3, &["8 GPUs", "has 2"]);
    check(&["run", "--workdir", "/no/such", "--", "true"], 2, &["/no/such"]);
    check(&["rum"], 2, &["rum", "run"]);
    check(&["describe", "nobody"], 4, &["nobody"]);
    check(&["cancel", "nobody"], 4, &["nobody"]);
    assert_eq!(daemon.regatta(["ps", "-a", "-o", "name"]).ok().stdout, "", "nothing of this was submitted");
}

#[test]
fn completion_and_help_need_no_daemon() {
    let daemon = daemon().prepare();
    daemon.regatta(["completion", "bash"]).ok().prints(&["regatta"]);
    daemon.regatta(["--help"]).ok().prints(&["run", "logs"]);
    assert!(daemon.pid().is_none());
}

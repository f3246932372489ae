//! Ranks that die, checkpoints, budgets: what is restarted, from where, and what is not.

use crate::{daemon, is_root, skip};
use regatta_testkit::TestDaemon;
use regatta_types::job::{Job, JobPhase};
use regatta_types::reason::EndReason;

/// A trainer in shell: 6 steps, a checkpoint after every second one, resumes where it is told to. In its first epoch it
/// stops at step 5 and waits to be killed.
const TRAINER: &str = r#"
step=${REGATTA_RESUME_STEP:-0}
say() { echo "::regatta:: $1"; }
echo "begins at $step in epoch $REGATTA_EPOCH"
while [ $step -lt 6 ]; do
  step=$((step + 1))
  say "{\"type\":\"step\",\"step\":$step,\"total\":6}"
  if [ "$REGATTA_EPOCH" = 1 ] && [ $step = 5 ]; then echo "stuck at 5"; exec sleep 100000; fi
  if [ $((step % 2)) = 0 ] && [ "$REGATTA_RANK" = 0 ]; then
    file="$REGATTA_CHECKPOINT_DIR/ckpt-$step"
    echo "step $step" > "$file.pt"
    printf '{"step":%d,"epoch":1,"files":[{"path":"ckpt-%d.pt","bytes":%d}]}' $step $step ${CLAIMED_BYTES:-7} > "$file.partial"
    mv "$file.partial" "$file.json"
    say "{\"type\":\"checkpoint\",\"step\":$step,\"path\":\"$file.json\"}"
  fi
done
echo done
"#;

/// Runs the trainer on two nodes, kills rank 1 in its first epoch at step 5, and gives the job as it ended.
fn killed_at_step_5(daemon: &TestDaemon, flags: &[&str]) -> (Job, String) {
    let arguments = [&["--name", "trainer", "--nodes", "2", "--checkpoint", "ckpt"], flags].concat();
    let mut run = regatta_testkit::Running::start(&mut daemon.script(&arguments, TRAINER));
    run.wait_for("[worker-0 r0] stuck at 5");
    run.wait_for("[worker-1 r1] stuck at 5");
    daemon.kill_rank("trainer", 1);
    let finished = run.finish().ok();
    (daemon.api().job("trainer"), finished.stdout + &finished.stderr)
}

#[test]
fn a_killed_rank_restarts_the_gang_from_the_newest_checkpoint() {
    let daemon = daemon().nodes(2, 1).start();
    let (job, output) = killed_at_step_5(&daemon, &["--gpus", "1"]);
    let [first, second] = job.status.epochs.as_slice() else { panic!("{:#?}", job.status.epochs) };
    assert_eq!(first.reason, Some(EndReason::Signaled));
    assert!(first.message.contains("rank 1") && first.message.contains("SIGKILL"), "{}", first.message);
    assert_eq!((first.last_step, first.lost_steps), (Some(5), Some(1)));
    assert_eq!(second.resumed_from.as_ref().unwrap().step, 4);
    assert_eq!(second.reason, Some(EndReason::Completed));
    assert_eq!(job.status.phase, JobPhase::Succeeded);
    assert_eq!(job.status.user_restarts, 0, "a kill from outside is not the program's fault");
    assert!(job.status.usage.lost_gpu_ms > 0 && job.status.usage.lost_gpu_ms < job.status.usage.gpu_ms);
    for part in
        ["[worker-0 r0] begins at 4 in epoch 2", "[worker-1 r1] begins at 4 in epoch 2", "[worker-0 r0] done"]
    {
        assert!(output.contains(part), "{part:?} is not in {output}");
    }
    daemon
        .regatta(["describe", "trainer"])
        .ok()
        .prints(&["recovered from the checkpoint of step 4", "GPU time"]);
    daemon.regatta(["runs", "trainer"]).ok().prints(&[
        "checkpoint of step 4",
        "resuming at step 4",
        "succeeded",
    ]);
}

#[test]
fn checkpoints_that_are_not_complete_do_not_count() {
    let daemon = daemon().nodes(2, 0).start();
    // The manifests promise more than the files have, as after a copy that was cut short.
    let (job, output) = killed_at_step_5(&daemon, &["--env", "CLAIMED_BYTES=100"]);
    assert_eq!(job.status.epochs[1].resumed_from, None);
    assert!(output.contains("[worker-0 r0] begins at 0 in epoch 2"), "{output}");
}

#[test]
fn an_unreadable_checkpoint_falls_back_by_one() {
    let daemon = daemon().start();
    // Two good manifests are there from before. The program cannot read the newer one, and says so.
    let script = r#"
        if [ -z "$REGATTA_RESUME_STEP" ]; then
          for step in 10 20; do
            echo "step $step" > "$REGATTA_CHECKPOINT_DIR/ckpt-$step.pt"
            printf '{"step":%d,"files":[{"path":"ckpt-%d.pt","bytes":8}]}' $step $step > "$REGATTA_CHECKPOINT_DIR/ckpt-$step.json"
          done
          exit 75
        fi
        echo "resumes at $REGATTA_RESUME_STEP"
        if [ "$REGATTA_RESUME_STEP" = 20 ]; then
          echo "::regatta:: {\"type\":\"bad_checkpoint\",\"path\":\"$REGATTA_RESUME_FROM\"}"
          exit 1
        fi
    "#;
    let run = daemon.run_script(&["--name", "careful", "--checkpoint", "ckpt"], script).ok();
    assert_eq!(run.stdout.matches("resumes at 20").count(), 1, "{}", run.stdout);
    assert_eq!(run.stdout.matches("resumes at 10").count(), 1, "{}", run.stdout);
    let job = daemon.api().job("careful");
    assert_eq!(job.status.bad_checkpoints.len(), 1);
    daemon.regatta(["events", "careful"]).ok().prints(&["BadCheckpoint"]);
}

#[test]
fn a_program_that_fails_has_three_more_tries() {
    let daemon = daemon().start();
    let run = daemon.run_script(&["--name", "broken"], "echo try $REGATTA_EPOCH; exit 9").expect_code(9);
    assert_eq!(run.stdout, "try 1\ntry 2\ntry 3\ntry 4\n");
    let status = daemon.api().job("broken").status;
    assert_eq!((status.phase, status.reason), (JobPhase::Failed, Some(EndReason::BudgetExhausted)));
    assert_eq!((status.user_restarts, status.exit_code), (3, Some(9)));
    daemon.regatta(["why", "broken"]).ok().prints(&["BudgetExhausted", "exited with 9"]);
}

#[test]
fn what_cannot_succeed_is_not_retried() {
    let daemon = daemon().start();
    let check = |command: &[&str], code: i32, reason: EndReason| {
        let arguments = [&["run", "--name", "once", "--"], command].concat();
        daemon.regatta(&arguments).expect_code(code).says(&[reason.as_str()]);
        let status = daemon.api().job("once").status;
        assert_eq!(
            (status.phase, status.reason, status.epochs.len()),
            (JobPhase::Failed, Some(reason), 1),
            "{command:?}"
        );
        daemon
            .api()
            .request::<serde_json::Value>(
                "DELETE",
                "/apis/regatta.dev/v1alpha1/namespaces/default/jobs/once",
                &serde_json::Value::Null,
            )
            .unwrap();
        daemon.api().wait_gone("once");
    };
    check(&["/no/such/program"], 127, EndReason::ConfigError);
    check(&["sh", "-c", "no-such-program"], 127, EndReason::ConfigError);
    check(&["/etc/passwd"], 126, EndReason::ConfigError);
    check(&["sh", "-c", "exit 93"], 93, EndReason::NoRestartRequested);
}

#[test]
fn memory_is_limited_and_running_out_of_it_is_told() {
    let daemon = daemon().start();
    let node: serde_json::Value = daemon.api().get("/api/v1/nodes").unwrap();
    if !is_root() || node.to_string().contains("limits on memory") {
        return skip("memory_is_limited", "no control groups for memory here");
    }
    // tail keeps the last line, and this input has only one.
    let run = daemon.regatta([
        "run",
        "--name",
        "greedy",
        "--memory",
        "64Mi",
        "--max-restarts",
        "0",
        "--",
        "tail",
        "/dev/zero",
    ]);
    let run = run.expect_code(137);
    let status = daemon.api().job("greedy").status;
    assert_eq!(status.epochs[0].reason, Some(EndReason::OutOfMemory), "{run:?} {status:#?}");
}

#[test]
fn suspending_gives_the_resources_back_and_resuming_goes_on() {
    let daemon = daemon().start();
    let api = daemon.api();
    let script = "if [ $REGATTA_EPOCH = 1 ]; then exec sleep 100000; fi; echo resumed";
    daemon.script(&["--detach", "--name", "nap"], script).status().unwrap();
    api.wait_job("nap", "running", |job| job.status.phase == JobPhase::Running);
    let path = "/apis/regatta.dev/v1alpha1/namespaces/default/jobs/nap";
    let suspend = |on: bool| {
        let patch = serde_json::json!({"spec": {"suspend": on}});
        api.request::<serde_json::Value>("PATCH", path, &patch).unwrap();
    };
    suspend(true);
    api.wait_job("nap", "suspended", |job| job.status.phase == JobPhase::Suspended);
    assert_eq!(daemon.ranks("nap"), []);
    suspend(false);
    assert_eq!(api.wait_end("nap").status.phase, JobPhase::Succeeded);
    daemon.regatta(["logs", "nap"]).ok().prints(&["resumed"]);
}

#[test]
fn a_run_time_limit_suspends() {
    let daemon = daemon().start();
    daemon
        .regatta(["run", "--name", "short", "--max-runtime", "1s", "--", "sleep", "100000"])
        .expect_code(1)
        .says(&["RuntimeLimit"]);
    let status = daemon.api().job("short").status;
    assert_eq!((status.phase, status.reason), (JobPhase::Suspended, Some(EndReason::RuntimeLimit)));
    assert_eq!(daemon.ranks("short"), []);
}

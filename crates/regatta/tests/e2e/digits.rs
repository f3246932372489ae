//! The example, with real PyTorch: a run that loses a rank ends with the weights of one that does not.
//!
//! Needs a Python that has torch, numpy and scikit-learn: the one that `REGATTA_PYTHON` names (`make test` sets it), else
//! the `python3` on the path.

use crate::{daemon, skip};
use regatta_testkit::{Running, TestDaemon};
use regatta_types::job::JobPhase;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Steps of one epoch, after each of which there is a checkpoint.
const STEPS_PER_EPOCH: u64 = 22;
/// How far two weights may be apart.
const WEIGHTS_APART_MAX: f64 = 1e-5;

pub(crate) fn python() -> Option<PathBuf> {
    let python = std::env::var_os("REGATTA_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let imports = Command::new(&python).args(["-c", "import torch, numpy, sklearn"]).output().ok()?;
    imports.status.success().then_some(python)
}

fn start(daemon: &TestDaemon, python: &Path, name: &str) -> (Running, PathBuf) {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/regatta.yaml");
    let result = daemon.work().join(format!("{name}.json"));
    let mut command = daemon.command(["run", "--name", name, "-f"]);
    command.arg(example);
    command.arg("--checkpoint").arg(daemon.work().join(format!("checkpoints-{name}")));
    command
        .args(["--env", "DIGITS_STEP_DELAY_MS=10", "--env"])
        .arg(format!("DIGITS_RESULT={}", result.display()));
    let path = std::env::var("PATH").unwrap_or_default();
    let directory = python.parent().filter(|directory| directory.is_absolute());
    let path = directory.map_or(path.clone(), |directory| format!("{}:{path}", directory.display()));
    command.env("PATH", path);
    (Running::start(&mut command), result)
}

fn read(result: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(result).unwrap()).unwrap()
}

/// All weights, by layer and in order.
fn weights(result: &Value) -> Vec<f64> {
    let layers = result["weights"].as_object().unwrap().values();
    layers.flat_map(|layer| layer.as_array().unwrap()).map(|weight| weight.as_f64().unwrap()).collect()
}

#[test]
fn a_killed_rank_changes_nothing_in_the_end() {
    let Some(python) = python() else {
        return skip("digits", "no Python with torch, numpy and scikit-learn; `make test` sets one up");
    };
    let daemon = daemon().nodes(2, 2).start();
    let (whole, whole_result) = start(&daemon, &python, "whole");
    whole.finish().ok();
    let (mut killed, killed_result) = start(&daemon, &python, "killed");
    killed.wait_for("epoch 5/15");
    daemon.kill_rank("killed", 3);
    killed.finish().ok();

    let status = daemon.api().job("killed").status;
    assert_eq!((status.phase, status.epochs.len()), (JobPhase::Succeeded, 2), "{status:#?}");
    let resumed = status.epochs[1].resumed_from.as_ref().unwrap().step;
    assert!(resumed >= 5 * STEPS_PER_EPOCH, "resumed at {resumed}");
    let lost = status.epochs[0].lost_steps.unwrap();
    assert!(lost <= STEPS_PER_EPOCH, "{lost} steps lost, more than one checkpoint interval");
    assert!(
        status.usage.lost_gpu_ms > 0 && status.usage.lost_gpu_ms < status.usage.gpu_ms,
        "{:?}",
        status.usage
    );

    let (whole, killed) = (read(&whole_result), read(&killed_result));
    for result in [&whole, &killed] {
        assert!(result["accuracy"].as_f64().unwrap() >= 0.97, "{}", result["accuracy"]);
    }
    let (expected, found) = (weights(&whole), weights(&killed));
    assert_eq!(expected.len(), found.len());
    let apart = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart <= WEIGHTS_APART_MAX, "weights are {apart} apart");
}

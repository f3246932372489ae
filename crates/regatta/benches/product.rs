//! What a person feels: how soon a command's first line appears, how fast many short jobs go through, what the daemon
//! costs while nothing happens. Medians, ratios against a bound, a table for people and `target/bench.json` for machines.
//!
//! `make bench`. Run it on a quiet machine: everything here shares the processors with what it measures.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement reads the real clock and prints"
)]

use regatta_testkit::{Api, TestDaemon};
use regatta_types::job::{Job, JobPhase};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const COLD_RUNS: usize = 7;
const WARM_RUNS: usize = 21;
const JOBS: usize = 1_000;
const SLOTS: usize = 64;
const SUBMITTERS: usize = 4;
const IDLE: Duration = Duration::from_secs(10);

fn daemon() -> TestDaemon {
    TestDaemon::of(env!("CARGO_BIN_EXE_regatta")).prepare()
}

fn main() {
    let mut results = Vec::new();
    let mut tell = |name: &str, value: f64, unit: &str, hold: f64| {
        println!("{name:<58} {value:>9.2} {unit:<5} hold {hold} {unit}");
        results.push(json!({"name": name, "value": value, "unit": unit, "hold": hold}));
    };
    tell("`regatta run` to the first line, daemon cold (median)", cold(), "ms", 400.0);
    tell("`regatta run` to the first line, daemon warm (median)", warm(), "ms", 150.0);
    let (cpu_percent, rss_mib) = idle();
    tell("daemon, idle: processor", cpu_percent, "%", 1.0);
    tell("daemon, idle: resident memory", rss_mib, "MiB", 60.0);
    let (wall_s, peak_mib) = short_jobs();
    let bound_s = (JOBS as f64 / SLOTS as f64).ceil();
    println!("{JOBS} jobs of 1 s through {SLOTS} slots: {wall_s:.2} s; {bound_s} s cannot be beaten");
    tell("1,000 one-second jobs through 64 slots, against the bound", wall_s / bound_s, "×", 1.15);
    tell("daemon after them: resident memory", peak_mib, "MiB", 250.0);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench.json");
    std::fs::write(file, format!("{:#}\n", Value::from(results))).unwrap();
}

/// Milliseconds until a command says its first line.
fn first_line_ms(command: &mut Command) -> f64 {
    let started = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let elapsed = started.elapsed();
    assert_eq!(line, "hello\n");
    assert!(child.wait().unwrap().success());
    elapsed.as_secs_f64() * 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cold() -> f64 {
    let once = |_| {
        let daemon = daemon();
        let ms = first_line_ms(&mut daemon.command(["run", "--", "echo", "hello"]));
        daemon.regatta(["down", "--yes"]).ok();
        ms
    };
    median((0..COLD_RUNS).map(once).collect())
}

fn warm() -> f64 {
    let daemon = daemon();
    daemon.start();
    let ms =
        (0..WARM_RUNS).map(|_| first_line_ms(&mut daemon.command(["run", "--", "echo", "hello"]))).collect();
    daemon.regatta(["down", "--yes"]).ok();
    median(ms)
}

/// Processor time in hundredths of a second, as the kernel counts it.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn rss_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}

fn idle() -> (f64, f64) {
    let daemon = daemon();
    daemon.start();
    let pid = daemon.pid().unwrap();
    let before = cpu_ticks(pid);
    std::thread::sleep(IDLE);
    let ticks = cpu_ticks(pid) - before;
    let result = (ticks as f64 / IDLE.as_secs_f64(), rss_mib(pid));
    daemon.regatta(["down", "--yes"]).ok();
    result
}

fn short_jobs() -> (f64, f64) {
    let daemon =
        TestDaemon::of(env!("CARGO_BIN_EXE_regatta")).nodes(1, u32::try_from(SLOTS).unwrap()).start();
    let pid = daemon.pid().unwrap();
    let kubeconfig = daemon.kubeconfig();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for submitter in 0..SUBMITTERS {
            let kubeconfig = &kubeconfig;
            scope.spawn(move || {
                let api = Api::connect(kubeconfig);
                (submitter..JOBS).step_by(SUBMITTERS).for_each(|index| {
                    api.submit(&job(index)).unwrap();
                });
            });
        }
    });
    let api = daemon.api();
    // Older jobs go first, so the last ones to be submitted end last.
    let jobs: Vec<Job> =
        (0..JOBS).rev().take(2 * SLOTS).map(|index| api.wait_end(&format!("short-{index}"))).collect();
    let wall_s = started.elapsed().as_secs_f64();
    let peak_mib = rss_mib(pid);
    assert!(jobs.iter().all(|job| job.status.phase == JobPhase::Succeeded));
    for index in 0..JOBS {
        assert_eq!(api.wait_end(&format!("short-{index}")).status.phase, JobPhase::Succeeded);
    }
    daemon.regatta(["down", "--yes"]).ok();
    (wall_s, peak_mib)
}

fn job(index: usize) -> Value {
    let container =
        json!({"name": "main", "command": ["sleep", "1"], "resources": {"limits": {"nvidia.com/gpu": 1}}});
    let role = json!({"name": "worker", "replicas": 1, "template": {"spec": {"containers": [container]}}});
    json!({
        "apiVersion": "regatta.dev/v1alpha1", "kind": "Job",
        "metadata": {"name": format!("short-{index}")}, "spec": {"roles": [role]},
    })
}

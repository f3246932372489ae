//! How fast pods are started and ended: many pods that each do next to nothing, on two virtual nodes, against an API in
//! memory. Prints pods a second, and the processor time that each cost.
//!
//! This program is the agent, too, when its first argument is `agent`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement has nobody to report to but its reader"
)]
#![allow(dead_code, reason = "the tests' support has more than a measurement needs")]

#[path = "../tests/support/mod.rs"]
mod support;

use regatta_node::NetworkMode;
use regatta_types::{Clock, SystemClock};
use std::ffi::OsString;
use std::process::ExitCode;
use support::{World, script};

const PODS: usize = 300;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|verb| verb == "agent") {
        return regatta_agent::main(args[1..].to_vec());
    }
    for network in [NetworkMode::Host, NetworkMode::Auto] {
        support::run(measure(network));
    }
    ExitCode::SUCCESS
}

async fn measure(network: NetworkMode) {
    let world = World::new(network);
    let node = world.start().await;
    let before = (SystemClock.monotonic_ms(), cpu_ms());
    for n in 0..PODS {
        let mut spec = script("");
        spec["containers"][0]["command"] = serde_json::json!(["sleep", "1"]);
        world.create(&node, n % 2, &format!("pod-{n}"), spec);
    }
    for n in 0..PODS {
        world.wait_phase(&format!("pod-{n}"), "Succeeded").await;
    }
    // The last pod sleeps for a second that is not ours.
    let wall_ms = SystemClock.monotonic_ms() - before.0 - 1_000;
    let cpu_ms = cpu_ms() - before.1;
    let pods = PODS as u64;
    println!("{}", node.node.facts().network);
    println!(
        "  {} pods/s, {} µs of processor time a pod",
        pods * 1_000 / wall_ms.max(1),
        cpu_ms * 1_000 / pods
    );
    node.finish(&world).await;
}

/// Processor time of the whole machine so far, in milliseconds.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let fields =
        stat.lines().next().unwrap().split_whitespace().skip(1).map(|field| field.parse::<u64>().unwrap());
    // user, nice, system, idle, iowait, irq, softirq: all but the two idle ones; in hundredths of a second.
    let busy: u64 =
        fields.take(7).enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, ticks)| ticks).sum();
    busy * 10
}

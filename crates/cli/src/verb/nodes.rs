//! `regatta nodes`: what there is, and what is free.

use crate::api::{ListScope, items};
use crate::args::Output;
use crate::context::Context;
use crate::error::Result;
use crate::output::{Table, print};
use regatta_types::node::Node;
use regatta_types::pod::{Pod, Quantities};
use regatta_types::{labels, resource};
use std::process::ExitCode;

pub(crate) async fn nodes(context: &Context<'_>, args: Output) -> Result<ExitCode> {
    let api = context.api().await?;
    let list = api.list(&resource::NODES, ListScope::Everywhere, "").await?;
    let pods: Vec<Pod> = items(api.list(&resource::PODS, ListScope::Everywhere, "").await?);
    let table = || {
        let mut table = Table::new(&["NAME", "STATUS", "CPU", "MEMORY", "GPUS", "FREE GPUS", "PODS"]);
        for node in items::<Node>(list.clone()) {
            table.row(row(&node, &pods));
        }
        table
    };
    print(args.output, &list, table, "there are no nodes")?;
    Ok(ExitCode::SUCCESS)
}

fn row(node: &Node, pods: &[Pod]) -> Vec<String> {
    let name = &node.metadata.name;
    let here = || pods.iter().filter(|pod| pod.spec.node_name.as_ref() == Some(name) && !pod.is_finished());
    let allocatable = &node.status.allocatable;
    let gpus = allocatable.units(labels::GPU_RESOURCE);
    let used: i64 = here().map(|pod| pod.requests().gpus()).sum();
    let ready = node
        .status
        .conditions
        .iter()
        .any(|c| c.type_ == regatta_types::conditions::READY && c.status == "True");
    let cordoned = if node.spec.unschedulable == Some(true) { ", cordoned" } else { "" };
    let simulated = node.metadata.annotations.contains_key(labels::SIMULATED_GPUS) && gpus > 0;
    let model =
        node.metadata.labels.get(labels::GPU_MODEL).map_or_else(String::new, |model| format!(" {model}"));
    vec![
        name.clone(),
        format!("{}{cordoned}", if ready { "ready" } else { "not ready" }),
        cores(allocatable.milli("cpu")),
        format!("{:.1} GiB", gib(allocatable.units("memory"))),
        format!("{gpus}{model}{}", if simulated { " (simulated: no such hardware)" } else { "" }),
        (gpus - used).max(0).to_string(),
        here().count().to_string(),
    ]
}

fn cores(milli: i64) -> String {
    if milli % 1000 == 0 {
        (milli / 1000).to_string()
    } else {
        format!("{}.{}", milli / 1000, milli % 1000 / 100)
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people; a tenth of a GiB is all that is shown")]
fn gib(bytes: i64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

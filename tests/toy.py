"""Runs of about a second, and the methods that tests need; Ray's workers can import this file."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import METHODS
from methods.fedavg import FedAvg
from methods.fedfip import FedFIP
from raysim.checkpoint import Checkpoint
from raysim.config import RunConfig, build_config
from raysim.data.datasets import Dataset, open_dataset
from raysim.data.partition import make_partition
from raysim.data.shards import HELD_OUT, Partition
from raysim.executor import Executor, InProcessExecutor
from raysim.federation import Federation
from raysim.messages import JsonDict, Snapshot, Update
from raysim.method import ClientView, Method

TRAIN_ROWS, TEST_ROWS, TEST_SIZE = 48, 12, 100
"""Examples of a client that toy runs use, and test examples of a domain."""
TOY: dict[str, Any] = {
    "rounds": 2,
    "method": {"name": "fedavg"},
    "data": {"clients": 10, "image_size": 16},
    "model": {"name": "cnn", "width": 4},
    "local": {"batch_size": 16},
    "participation": {"fraction": 0.4},
    "evaluation": {"every": 2},
    "execution": {"backend": "inprocess"},
    "output": {"tensorboard": False},
}
# What makes FedFIP show all it can within 3 rounds: masks that change, private units, prototypes.
FEDFIP: dict[str, Any] = {
    "name": "fedfip",
    "warmup_rounds": 0,
    "mask_every": 2,
    "reactivation_threshold": 0.5,
    "fisher_samples": 8,
}


@dataclass(frozen=True)
class ToyRun:
    """A finished run: its folder, summary and last snapshot."""

    folder: Path
    summary: JsonDict
    snapshot: Snapshot

    @property
    def bits(self) -> tuple[bytes, str]:
        """What has to be equal wherever and however a run was run."""
        return (self.folder / "metrics.parquet").read_bytes(), self.summary["weights_sha256"]


def toy_tree(**overrides: Any) -> dict[str, Any]:
    """Return the toy config as a plain tree.

    Args:
        **overrides: whole values by key; `a__b` and `**{"a.b": ...}` reach into sections. A
            section given as a dict is laid over the toy's, `method` replaces it.
    """
    tree = {key: dict(v) if isinstance(v, dict) else v for key, v in TOY.items()}
    for key, value in overrides.items():
        *path, leaf = key.replace("__", ".").split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        if leaf == "method":
            value = {"name": value} if isinstance(value, str) else dict(value)
        elif isinstance(value, dict) and isinstance(node.get(leaf), dict):
            value = node[leaf] | value
        node[leaf] = value
    return tree


def toy_config(**overrides: Any) -> RunConfig:
    """Return the toy config; see `toy_tree` for the overrides."""
    return build_config(toy_tree(**overrides), METHODS | TEST_METHODS)


def dealt(config: RunConfig) -> tuple[Dataset, Partition]:
    """Open a config's data, deal it to the clients, and leave each about `TRAIN_ROWS` of it."""
    dataset = open_dataset(config.data, config.seed)
    data = config.data
    whole = make_partition(dataset, data.partition, data.clients, config.seed, data.unseen)
    shards = [
        replace(s, train=_thinned(s.train, TRAIN_ROWS), test=_thinned(s.test, TEST_ROWS))
        for s in whole.shards
    ]
    return dataset, replace(whole, shards=tuple(shards))


def _thinned(rows: dict[int, NDArray[np.int64]], wanted: int) -> dict[int, NDArray[np.int64]]:
    """Keep every k-th row of each domain, so that about `wanted` are left and no domain is lost."""
    step = max(1, sum(map(len, rows.values())) // wanted)
    return {domain: index[::step] for domain, index in rows.items()}


def federation(config: RunConfig, executor: Executor, folder: Path, **more: Any) -> Federation:
    """Return the round loop of a config in a folder that is made if need be."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    dataset, partition = dealt(config)
    held_out = {
        split: [min(TEST_SIZE, len(dataset.labels(d, split))) for d in dataset.domains]
        for split in HELD_OUT
    }
    return Federation(
        config,
        executor,
        folder,
        domains=dataset.domains,
        held_out=held_out,
        unseen=partition.unseen(dataset.domains),
        **more,
    )


def run_toy(
    config: RunConfig,
    folder: Path,
    *,
    resume: Checkpoint | None = None,
    executor: Executor | None = None,
) -> ToyRun:
    """Run a config to its end, by default in this process.

    Args:
        config: the run.
        folder: its run directory.
        resume: where to go on from.
        executor: closed at the end.
    """
    dataset, partition = dealt(config)
    executor = executor or InProcessExecutor(config, partition, dataset)
    try:
        loop = federation(config, executor, folder)
        if resume is not None:
            loop.resume(resume)
        summary, end = loop.run(), executor.snapshot()
        # The executor's own view of the clients' states ends with it.
        return ToyRun(folder, summary, replace(end, clients=dict(end.clients)))
    finally:
        executor.close()


def dawdle(client: ClientView) -> None:
    """Wait for up to 60 ms, differently in every process and call."""
    time.sleep(float(np.random.default_rng().random()) * 0.06)


class LateFedAvg(FedAvg):
    """FedAvg whose clients finish in any order."""

    name: str = "late_fedavg"

    def client_step(self, client: ClientView) -> Update:
        dawdle(client)
        return super().client_step(client)


class LateFedFIP(FedFIP):
    """FedFIP whose clients finish in any order."""

    name: str = "late_fedfip"

    def client_step(self, client: ClientView) -> Update:
        dawdle(client)
        return super().client_step(client)


class FailingFedAvg(FedAvg):
    """FedAvg whose client `culprit` raises in round `when` (0-based)."""

    name: str = "failing_fedavg"
    culprit: int = 0
    when: int = 1

    def client_step(self, client: ClientView) -> Update:
        if (client.client, client.round) == (self.culprit, self.when):
            raise ValueError("a cable was pulled")
        return super().client_step(client)


class PrivateHead(Method):
    """Keeps the head on the client: the smallest method with private state."""

    name: str = "private_head"

    def is_private(self, entry: str, model: Any) -> bool:
        return entry.startswith("head.")


TEST_METHODS: dict[str, type[Method]] = {
    "late_fedavg": LateFedAvg,
    "late_fedfip": LateFedFIP,
    "failing_fedavg": FailingFedAvg,
    "private_head": PrivateHead,
}


# Real processes --------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
# Six rounds of FedFIP on all of the data: masks, private units and prototypes are at stake.
CLI = [
    *("rounds=6", "method.warmup_rounds=0", "method.mask_every=2", "method.phi=0.5"),
    *("method.fisher_samples=8", "data.clients=40", "data.image_size=16", "model.name=cnn"),
    *("model.width=4", "local.batch_size=16", "participation.fraction=0.1", "evaluation.every=2"),
    *("output.tensorboard=false", "output.checkpoint_every=2", "output.keep_checkpoints=9"),
    "output.report=false",
]
# Long enough for a node to come, or to be noticed as lost.
LONG = [*CLI, "rounds=120", "evaluation.every=20", "output.checkpoint_every=20"]
INPROCESS = "execution.backend=inprocess"


def command(*words: str) -> list[str]:
    """Return the command line of `python -m raysim.run`."""
    return [sys.executable, "-m", "raysim.run", *words]


def environment(**more: str) -> dict[str, str]:
    """Return this environment without what a Ray of the tests has put there."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return plain | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"} | more


def run_command(*words: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end, with some environment variables more."""
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(**more),
        cwd=cwd,
        check=False,
    )


def only_run(folder: Path) -> Path:
    """Return the one run directory in an output folder."""
    (found,) = folder.iterdir()
    return found


def bits_of(run: Path) -> tuple[bytes, str]:
    """Return metrics and weights of a finished run directory."""
    summary = json.loads((run / "summary.json").read_text())
    return (run / "metrics.parquet").read_bytes(), summary["weights_sha256"]

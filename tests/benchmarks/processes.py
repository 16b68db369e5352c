"""What a run's processes hold, for the benchmarks: resident memory, open files, object store."""

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private.internal_api import memory_summary
from rich.console import Console

from cluster.executor import RayExecutor
from raysim.config import RunConfig
from raysim.run import open_data, read_config


@contextmanager
def on_ray(words: Sequence[str]) -> Iterator[tuple[RunConfig, RayExecutor, Path]]:
    """Start a run's actors; yields its config, executor and directory, which the block outlives."""
    config, dataset, partition = open_data(read_config(words), Console(quiet=True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        executor = RayExecutor(config, partition, dataset, spill=folder / "states")
        try:
            yield config, executor, folder
        finally:
            executor.close()


def pids(executor: RayExecutor) -> dict[str, int]:
    """Return the process ids of driver, server and hosts by name."""
    server = ray.get(executor._server.__ray_call__.remote(_pid))
    hosts = executor._hosts.hosts.values()
    named = {host.name: int(host.where.split()[1]) for host in hosts}
    return {"driver": os.getpid(), "server": server} | named


def _pid(actor: Any) -> int:
    return os.getpid()


def resident_mib(pid: int, *, peak: bool = False) -> float:
    """Return a process's resident memory, or its highest so far, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", text)
    assert found is not None, "the kernel does not say"
    return int(found[1]) / 1024


def open_files(pid: int) -> int:
    """Return the number of a process's open file descriptors."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def object_store() -> dict[str, float]:
    """Return what Ray's object store holds, in MiB and objects, and what it has spilled."""
    here = ray.get_runtime_context().gcs_address
    text = memory_summary(here, stats_only=True)
    used = re.search(r"Plasma memory usage (\d+) MiB, (\d+) objects", text)
    spilled = re.search(r"Spilled (\d+) MiB", text)
    return {
        "store MiB": float(used[1]) if used else 0.0,
        "store objects": float(used[2]) if used else 0.0,
        "spilled MiB": float(spilled[1]) if spilled else 0.0,
    }

"""Run directories: their names, and what stands in them before the first round."""

import fcntl
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import yaml

from raysim import __version__
from raysim.config import RunConfig
from raysim.data.datasets import Dataset
from raysim.data.partition_file import write_partition
from raysim.data.shards import Partition
from raysim.errors import ConfigError, ResumeError
from raysim.hardware import cpu_name
from raysim.results import write_json, write_text

METHOD_FILE = "method.py"
"""The user's own method, as it was when the run began."""
_PACKAGES = ("torch", "ray", "numpy", "pyarrow", "pandas")


def check_output(folder: Path) -> None:
    """Make the output folder now rather than after an hour's training.

    Raises:
        ConfigError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output.dir={folder}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"output.dir={folder}: no permission to write there")


def prepare_folder(
    config: RunConfig, dataset: Dataset, partition: Partition, folder: Path | None = None
) -> Path:
    """Make a new run directory with `config.yaml`, `partition.csv` and `data.json`.

    A method from a user's file is kept as `METHOD_FILE`.

    Args:
        config: the run as the user wants it.
        dataset: its data.
        partition: who holds which examples.
        folder: its place; None for one below `output.dir`, named by time, method, data and seed.

    Returns:
        Its absolute path.

    Raises:
        ConfigError: the output folder cannot be written.
    """
    try:
        if folder is None:
            name = f"{config.method.label}-{config.data.name}-s{config.seed}"
            folder = new_folder(config.output.dir, name)
        else:
            folder.mkdir(parents=True)
        write_config(config, folder)
        if config.method_text is not None:
            write_text(config.method_text, folder / METHOD_FILE)
        write_partition(partition, dataset, folder / "partition.csv")
        write_text(_held(dataset, partition), folder / "data.json")
        (folder / "checkpoints").mkdir()
    except OSError as error:
        raise ConfigError(f"output.dir={config.output.dir}: {error.strerror or error}") from None
    return folder


def write_config(config: RunConfig, folder: Path) -> None:
    """Write `config.yaml`; a run that goes on may have other rounds, hosts or outputs than before.

    Raises:
        ConfigError: it cannot be written; what was there stays.
    """
    path = folder / "config.yaml"
    text = yaml.safe_dump(config.resolved(), sort_keys=False, allow_unicode=True)
    try:
        write_text(text, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None


def _held(dataset: Dataset, partition: Partition) -> str:
    """Return JSON: names by domain and class id, and [client, domain, class, training images]."""
    counts = partition.counts(dataset)
    places = np.argwhere(counts)
    held = [
        [*place, n] for place, n in zip(places.tolist(), counts[counts > 0].tolist(), strict=True)
    ]
    found = {"domains": list(dataset.domains), "classes": list(dataset.classes), "held": held}
    return json.dumps(found, ensure_ascii=False) + "\n"


@contextmanager
def kept_if_started(folder: Path, *, new: bool) -> Iterator[None]:
    """Remove a new run directory if the block fails: nothing has run in it yet."""
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Keep other processes from working in a run directory; the lock dies with the process.

    Args:
        folder: the run directory; its `partition.csv` is what is locked, as it never changes.

    Raises:
        ResumeError: another process is at work there, or it cannot be written.
    """
    lock = folder / "partition.csv"
    try:
        held = lock.open("r+")
    except OSError as error:
        raise ResumeError(f"{lock} cannot be written: {error.strerror or error}") from None
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResumeError(
                f"another process is at work in {folder}: wait for it, or end it (Ctrl-C, kill)"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def write_environment(
    folder: Path,
    data_sha256: str,
    partition_sha256: str,
    method_sha256: str | None,
    placement: str,
    processors: Sequence[str],
) -> None:
    """Write `environment.json`: equal bits are promised for equal versions and hardware only.

    Args:
        folder: the run directory.
        data_sha256: hash of the data.
        partition_sha256: hash of who holds which examples.
        method_sha256: hash of the method's file, if it is the user's.
        placement: hosts and cluster in words.
        processors: what the hosts compute on.
    """
    found = {
        "raysim": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "processors": list(processors),
        "packages": {name: _version(name) for name in _PACKAGES},
        "placement": placement,
        "data_sha256": data_sha256,
        "partition_sha256": partition_sha256,
        "method_sha256": method_sha256,
    }
    write_json(found, folder / "environment.json")


def new_folder(parent: Path, label: str) -> Path:
    """Make a folder that was not there, named by time and label: two at once never share one.

    Args:
        parent: made if need be.
        label: characters that file names should not have are replaced.

    Returns:
        Its absolute path.

    Raises:
        OSError: it cannot be made.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{_label(label)}"
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        folder = parent.resolve() / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise ConfigError(f"output.dir={parent}: a thousand runs are called {name}")


def _label(name: str) -> str:
    """Return a name as a part of a folder's name, whoever chose it."""
    return re.sub(r"[^\w.-]", "_", name)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

"""Checkpoints: everything a run needs to go on, in safetensors and JSON, never half-written.

A checkpoint is a folder `round_00005/`. It is written under another name, flushed to the disk and
then renamed; what is not called `round_NNNNN` or fails its checksums is not a checkpoint. Nothing
in it can run code.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from raysim.errors import ResumeError
from raysim.messages import JsonDict, Snapshot
from raysim.states import StateFiles, save_arrays

FORMAT = 1
_MANIFEST = "checkpoint.json"
_METRICS = "metrics.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk.

    Attributes:
        path: its folder.
        round: rounds that were complete when it was written.
        experiment: the experiment part of the config.
        passed_over: names of newer ones that are incomplete or damaged, newest first.
    """

    path: Path
    round: int
    experiment: JsonDict
    passed_over: tuple[str, ...] = ()

    def load(self) -> Snapshot:
        """Read the state; the clients' states are read one by one, when asked for."""
        return Snapshot(
            model=load_file(self.path / "model.safetensors"),
            memory=load_file(self.path / "memory.safetensors"),
            clients=StateFiles(self.path / "clients"),
        )

    @property
    def metrics(self) -> Path:
        """The metrics of the rounds so far."""
        return self.path / _METRICS


def save_checkpoint(
    folder: Path, round_: int, snapshot: Snapshot, experiment: JsonDict, metrics: Path, keep: int
) -> Path:
    """Write a checkpoint atomically and drop the oldest ones.

    Args:
        folder: the run's `checkpoints` folder.
        round_: rounds that are complete.
        snapshot: the state.
        experiment: stands in the manifest, so that another experiment is not resumed from it.
        metrics: a Parquet file of the metrics so far, copied in.
        keep: newest checkpoints to keep, >= 1.

    Raises:
        OSError: the disk is full or read-only; nothing is left behind.
    """
    final = folder / f"round_{round_:05d}"
    aside = folder / f".writing-{os.getpid()}-{final.name}"
    try:
        (aside / "clients").mkdir(parents=True)
        save_arrays(snapshot.model, aside / "model.safetensors")
        save_arrays(snapshot.memory, aside / "memory.safetensors")
        clients = StateFiles(aside / "clients")
        for client in sorted(snapshot.clients):
            save_arrays(snapshot.clients[client], clients.path(client))
        shutil.copyfile(metrics, aside / _METRICS)
        sums = {str(f.relative_to(aside)): _sha256(f) for f in _files(aside)}
        manifest = {"format": FORMAT, "round": round_, "experiment": experiment, "sha256": sums}
        (aside / _MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
        for file in _files(aside):
            _flush(file)
        shutil.rmtree(final, ignore_errors=True)  # the same round, saved again after a resume
        aside.rename(final)
        _flush(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for path in _round_folders(folder)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
    return final


def latest_checkpoint(folder: Path) -> Checkpoint:
    """Return the newest complete checkpoint of a run.

    Incomplete or damaged ones are passed over, and named in it.

    Args:
        folder: the run's `checkpoints` folder.

    Raises:
        ResumeError: there is none.
    """
    damaged: list[str] = []
    for path in reversed(_round_folders(folder)):
        checkpoint = _read(path)
        if checkpoint is not None:
            return replace(checkpoint, passed_over=tuple(damaged))
        damaged.append(path.name)
    detail = f" (damaged: {', '.join(damaged)})" if damaged else ""
    raise ResumeError(f"{folder} holds no complete checkpoint{detail}; start a new run instead")


def discard_after(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Remove folders that a resume from this checkpoint leaves behind it: damaged later ones."""
    later = [p for p in _round_folders(folder) if _age(p) > _age(checkpoint.path)]
    for path in later:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in later]


def _read(path: Path) -> Checkpoint | None:
    with suppress(OSError, ValueError, KeyError, TypeError, SafetensorError):
        manifest = json.loads((path / _MANIFEST).read_text())
        intact = manifest["format"] == FORMAT and all(
            _sha256(path / name) == sha for name, sha in manifest["sha256"].items()
        )
        if intact and "model.safetensors" in manifest["sha256"]:
            return Checkpoint(
                path=path, round=int(manifest["round"]), experiment=manifest["experiment"]
            )
    return None


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _round_folders(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("round_*") if path.is_dir()), key=_age)


def _age(path: Path) -> tuple[int, str]:
    return len(path.name), path.name  # round_100000 comes after round_99999


def _sha256(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

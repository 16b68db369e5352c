"""Finished runs as cells of another table.

Equal experiments end with equal bits wherever they run, so one that has been run need not be run
again. A run is known by its settings and by the hashes of its data, of who holds which images, and
of its method's file if that is the user's.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from raysim.config import RunConfig, build_config
from raysim.errors import ConfigError, UserError
from raysim.run import method_table, open_data
from raysim.yaml_text import parse_yaml
from tune_jobs.outcome import Outcome
from tune_jobs.study import TUNE
from tune_jobs.trainable import trial_config

REUSED = "reused"
_NEEDED = ("config.yaml", "environment.json", "summary.json")
_PART = ".part"
_UNFIT = (OSError, ValueError, KeyError, TypeError, AttributeError, UserError)


def take_over(
    base: RunConfig, cells: Sequence[Mapping[str, Any]], sources: Sequence[Path], study: Path
) -> list[Outcome]:
    """Copy finished runs of some cells into a study, without their checkpoints.

    A study that Tune has begun keeps to what was there then.

    Args:
        base: the study's config.
        cells: values of each run, by dotted key.
        sources: folders that hold run directories, at any depth.
        study: its folder.

    Returns:
        What became of these cells; those without a finished run are left out.
    """
    home = study / REUSED
    begun = (study / TUNE).exists()
    known = dict(pair for place in [home, *([] if begun else sources)] for pair in finished(place))
    if not known:
        return []
    dealt: dict[str, tuple[str, str]] = {}
    found = []
    for values in cells:
        identity = _identity(base, values, dealt)
        if identity in known:
            run = home / identity[:12]
            _copy(known[identity], run)
            found.append(Outcome(trial=run.name, values=dict(values), status="done", folder=run))
    return found


def finished(source: Path) -> Iterator[tuple[str, Path]]:
    """Yield identity and folder of the runs that came to their end, in the order of their names.

    What is no such run, or one that this version cannot read, is passed over.
    """
    for path in sorted(source.rglob("summary.json")):
        run = path.parent
        if run.suffix != _PART and all((run / name).is_file() for name in _NEEDED):
            identity = ""
            with suppress(*_UNFIT):
                identity = _read(run)
            if identity:
                yield identity, run


def _read(run: Path) -> str:
    """Return the identity of a run.

    Raises:
        ValueError: it has not ended, lacks figures, or its method's file has changed since.
    """
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    text = (run / "config.yaml").read_text(encoding="utf-8")
    config = build_config(parse_yaml(text, str(run)), method_table())
    for figures in (summary, summary["val"]):
        for own in (figures, figures and figures["personal"]):
            if own is not None:
                float(own["last"]["avg"])
    if summary["status"] != "done" or summary["rounds"] != config.rounds:
        raise ValueError("it has not ended")
    if environment.get("method_sha256") != config.method_sha256:
        raise ValueError("its method's file has changed")
    return _hash(config, environment["data_sha256"], environment["partition_sha256"])


def _identity(base: RunConfig, values: Mapping[str, Any], dealt: dict[str, tuple[str, str]]) -> str:
    """Return the identity of a cell.

    Args:
        base: the study's config.
        values: by dotted key.
        dealt: hashes of data and partition by what they depend on; grows.
    """
    config = trial_config(base, values)
    key = json.dumps([config.data.model_dump(mode="json"), config.seed], sort_keys=True)
    if key not in dealt:
        _, dataset, partition = open_data(config, Console(quiet=True))
        dealt[key] = dataset.sha256, partition.digest()
    return _hash(config, *dealt[key])


def _hash(config: RunConfig, data_sha256: str, partition_sha256: str) -> str:
    experiment = config.experiment(data_sha256, partition_sha256)
    return hashlib.sha256(json.dumps(experiment, sort_keys=True).encode()).hexdigest()


def _copy(run: Path, home: Path) -> None:
    """Copy the files of a run directory, all or none; its folders (checkpoints) stay behind.

    Raises:
        ConfigError: they cannot be written.
    """
    if home.exists():
        return
    partial = home.with_suffix(_PART)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for path in run.iterdir():
            if path.is_file():
                shutil.copy2(path, partial)
        os.replace(partial, home)
    except OSError as error:
        raise ConfigError(f"output.dir: {home}: {error.strerror or error}") from None

"""What became of a trial, and what its run directory says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raysim.messages import JsonDict

Status = Literal["done", "stopped", "failed", "unfinished"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trial at the end of a study.

    Attributes:
        trial: its id, the name of its run directory.
        values: what it ran with, by dotted key.
        status: "done"; "stopped" early by the scheduler; "failed"; "unfinished" when the study was
            stopped.
        folder: its run directory; it may be missing if the trial never started.
        error: why it failed, "" if it has not.
    """

    trial: str
    values: Mapping[str, Any]
    status: Status
    folder: Path
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether its run directory is that of a complete run."""
        return self.status in ("done", "stopped")

    @property
    def headline(self) -> str:
        """The first line of the error."""
        return self.error.partition("\n")[0]

    def summary(self) -> JsonDict:
        """Return the run's `summary.json`, empty if there is none."""
        return _summary(self.folder)


def outcome_of(trial: Any, runs: Path, *, live: bool) -> Outcome:
    """Return what became of one of Tune's trials.

    Args:
        trial: `ray.tune.experiment.Trial`.
        runs: folder of the study's run directories.
        live: whether it still had rounds to run when the study ended.
    """
    from tune_jobs.trainable import VALUES

    folder = runs / trial.trial_id
    status: Any = _summary(folder).get("status")
    error = ""
    if live or trial.status not in ("TERMINATED", "ERROR"):
        status = "unfinished"
    elif trial.status == "ERROR":
        status, error = "failed", reason(trial)
    elif status not in ("done", "stopped"):
        status, error = "failed", "its process died as it ended"
    return Outcome(
        trial=trial.trial_id,
        values=trial.config[VALUES],
        status=status,
        folder=folder,
        error=error,
    )


def reason(trial: Any) -> str:
    """Say why a trial failed, in the words of what it raised."""
    error = trial.get_pickled_error()
    cause = getattr(error, "cause", None) or error
    return str(cause or trial.get_error() or "it ended without a word").strip()


def short(values: Mapping[str, Any]) -> str:
    """Return a trial's values in a few words, e.g. "rho=0.412 lambda=0.01"."""
    return " ".join(f"{key.rpartition('.')[2]}={brief(value)}" for key, value in values.items())


def brief(value: Any) -> str:
    """Return a value as people read it: two or three digits of a fraction."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) >= 0.1 else f"{value:.2g}"


def _summary(folder: Path) -> JsonDict:
    try:
        found: JsonDict = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found

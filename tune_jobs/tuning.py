"""Tuning the rows of a table before it is made: the same trials for each, judged on validation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from raysim.errors import RunError
from tune_jobs.outcome import Outcome
from tune_jobs.records import reports, write_frame
from tune_jobs.reuse import take_over
from tune_jobs.study import FAILURES, RUNS, conducted
from tune_jobs.table_settings import TableSettings

TUNING = "tuning"


def tuned(settings: TableSettings, folder: Path, console: Console) -> TableSettings:
    """Choose each row's values of `--tune`, on each data set by itself.

    Every combination runs once, with the first seed. The highest validation AVG wins, as a mean of
    the last evaluations; equal ones by the lower STD, then by the order in which they were given.

    Args:
        settings: of the table.
        folder: the table's; trials go to a folder in it.
        console: where progress goes.

    Returns:
        The settings with what was chosen.

    Raises:
        RunError: a trial failed.
    """
    if not settings.tune:
        return settings
    trials, home = settings.trials(), folder / TUNING
    (home / RUNS).mkdir(parents=True, exist_ok=True)
    known = take_over(settings.base(), trials, settings.sources(), home)
    console.print(f"{settings.tuning_words()}; {len(known)} are there already", soft_wrap=True)
    plan = settings.plan(trials, known)
    with conducted(plan, home, console, "tune_jobs.table", study=folder) as outcomes:
        write_frame(reports(outcomes), home / "trials.parquet")
    if failed := sum(outcome.status == "failed" for outcome in outcomes):
        raise RunError(
            f"{failed} of {len(trials)} trials of tuning failed, and rows would not have the same "
            f"chances: see {home / FAILURES}. `--resume {folder}` tries them again; with "
            "participation.nonfinite=skip a value that lets training diverge loses, and fails not"
        )
    by_values = {_key(outcome.values): outcome for outcome in outcomes}
    combinations = settings.combinations()
    rows = [trials[i : i + len(combinations)] for i in range(0, len(trials), len(combinations))]
    found = [[by_values[_key(trial)] for trial in own] for own in rows]
    chosen = tuple(combinations[best(own, settings.compared)] for own in found)
    return settings.model_copy(update={"chosen": chosen})


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def best(outcomes: Sequence[Outcome], compared: str) -> int:
    """Return the index of the highest validation AVG."""

    def rank(index: int) -> tuple[float, float]:
        figures = judged(outcomes[index].summary()["val"], compared)
        return -figures["avg"], figures["std"]

    return min(range(len(outcomes)), key=rank)


def judged(figures: Any, compared: str) -> dict[str, float]:
    """Return the means over the last evaluations that a run is judged by.

    Args:
        figures: a run's summary, or what it says of validation.
        compared: "avg" of the global model; "personal" of the personal ones, where there are any.
    """
    own = figures["personal"] if compared == "personal" else None
    found: dict[str, float] = (own or figures)["last"]
    return found

"""Tuning the rows of a table before it is made: the same trials for each, judged on validation."""

from __future__ import annotations

from collections.abc import Sequence
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
        RunError: every trial of a row failed.
    """
    if not settings.tune:
        return settings
    trials, home = settings.trials(), folder / TUNING
    (home / RUNS).mkdir(parents=True, exist_ok=True)
    known = take_over(settings.base(), trials, settings.sources(), home)
    outcomes = known
    console.print(f"{settings.tuning_words()}; {len(known)} are there already", soft_wrap=True)
    if len(known) < len(trials):
        plan = settings.plan(trials, known)
        with conducted(plan, home, console, "tune_jobs.table", study=folder) as ended:
            outcomes = [*known, *ended]
    write_frame(reports(outcomes), home / "trials.parquet")
    combinations = settings.combinations()
    rows = [trials[i : i + len(combinations)] for i in range(0, len(trials), len(combinations))]
    chosen = []
    for own in rows:
        winner = best([o for t in own for o in outcomes if o.values == t], settings.compared)
        if winner is None:
            raise RunError(f"every trial of {own[0]} failed: see {home / FAILURES}")
        chosen.append(combinations[own.index(dict(winner.values))])
    return settings.model_copy(update={"chosen": tuple(chosen)})


def best(outcomes: Sequence[Outcome], compared: str) -> Outcome | None:
    """Return the outcome of the highest validation AVG; None if none is done."""

    def rank(outcome: Outcome) -> tuple[float, float]:
        figures = judged(outcome.summary()["val"], compared)
        return -figures["avg"], figures["std"]

    return min((o for o in outcomes if o.status == "done"), key=rank, default=None)


def judged(figures: Any, compared: str) -> dict[str, float]:
    """Return the means over the last evaluations that a run is judged by.

    Args:
        figures: a run's summary, or what it says of validation.
        compared: "avg" of the global model; "personal" of the personal ones, where there are any.
    """
    own = figures["personal"] if compared == "personal" else None
    found: dict[str, float] = (own or figures)["last"]
    return found

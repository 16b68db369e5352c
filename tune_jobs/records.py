"""What a study's run directories say, as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from raysim.results import MetricsTable, main_figures, write_table
from tune_jobs.outcome import Outcome
from tune_jobs.trainable import score

COSTS = ("params", "params_sliced", "flops", "flops_sliced")
SENT = ("bytes_up", "bytes_down")


def reports(outcomes: Sequence[Outcome], std_weight: float = 0.0) -> pd.DataFrame:
    """Return every evaluation of every trial.

    Args:
        outcomes: the trials.
        std_weight: k of the score AVG - k * STD.

    Returns:
        A row a trial and evaluated round, in the order of the trials: `trial`, `status`, `round`,
        the values by dotted key, AVG and STD of the main model (`val_avg`, `test_std`, ...),
        `score`, bytes and seconds so far, and size and work of the last model (empty where the run
        did not come to its end).
    """
    rows = [row for outcome in outcomes for row in _rows(outcome, std_weight)]
    keys = list(dict.fromkeys(key for outcome in outcomes for key in outcome.values))
    columns = ["trial", "status", "round", *keys]
    columns += ["val_avg", "val_std", "test_avg", "test_std", "score", *SENT, "seconds", *COSTS]
    table = pd.DataFrame(rows, columns=columns)
    for key in keys:
        if table[key].map(type).nunique() > 1 or table[key].map(_is_nested).any():
            table[key] = table[key].map(json.dumps)  # a column of a file has one type
    return table


def write_frame(table: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet, whole or not at all."""
    write_table(pa.Table.from_pandas(table, preserve_index=False), path)


def last_reports(table: pd.DataFrame) -> pd.DataFrame:
    """Return what each complete trial is judged by: its last report."""
    over = table[table["status"].isin(["done", "stopped"])]
    return over.loc[over.groupby("trial", sort=False)["round"].idxmax()]


def ranked(table: pd.DataFrame) -> pd.DataFrame:
    """Return the last reports of complete trials, the best first.

    The score decides, then the lower STD, then who came first.
    """
    last = last_reports(table).dropna(subset=["score"])
    return last.sort_values(["score", "val_std"], ascending=[False, True], kind="stable")


def _rows(outcome: Outcome, std_weight: float) -> Iterable[dict[str, Any]]:
    path = outcome.folder / "metrics.parquet"
    if not path.exists():
        return
    metrics = MetricsTable(())
    metrics.resume(path)
    sent = {name: _by_round(metrics.table().to_pandas(), name) for name in SENT}
    seconds = _seconds(outcome.folder / "timings.parquet")
    summary = outcome.summary() if outcome.is_over else {}
    head = {"trial": outcome.trial, "status": outcome.status, **outcome.values}
    for round_ in metrics.evaluated_rounds():
        row = head | {"round": round_}
        for split in ("val", "test"):
            found = metrics.evaluation(round_, split)
            figures = main_figures(found) if found else {}
            row |= {f"{split}_{name}": value for name, value in figures.items()}
        if "val_avg" in row:
            row["score"] = score(row["val_avg"], row["val_std"], std_weight)
        row |= {name: int(total.get(round_, 0)) for name, total in sent.items()}
        row |= {"seconds": round(seconds.get(round_, float("nan")), 3)}
        yield row | {name: summary.get(name) for name in COSTS}


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | dict)


def _by_round(metrics: pd.DataFrame, name: str) -> dict[int, float]:
    """Return a figure of the whole run, summed up to each round."""
    own = metrics[(metrics["metric"] == name) & (metrics["client"] < 0)]
    return _so_far(own, "value")


def _seconds(path: Path) -> dict[int, float]:
    if not path.exists():
        return {}
    timings = pq.read_table(path, columns=["round", "what", "seconds"]).to_pandas()
    return _so_far(timings[timings["what"] == "round"], "seconds")


def _so_far(rows: pd.DataFrame, column: str) -> dict[int, float]:
    sums = rows.groupby("round")[column].sum().sort_index().cumsum()
    return dict(zip(sums.index.tolist(), sums.tolist(), strict=True))

"""The charts of a study: hyperparameters, parallel coordinates, learning curves, costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from raysim.chart import Chart, Table
from raysim.charts import Series, lines, points
from tune_jobs.outcome import brief, short
from tune_jobs.spaces import Entry, is_logarithmic

_NAMED = 6
"""Learning curves that have a name of their own."""
PRICES = {"params": "parameters (k)", "flops": "multiply-adds (M)", "mb": "MB up and down"}
"""What accuracy is weighed against, by column."""


def hyperparameter(key: str, entry: Entry, last: pd.DataFrame) -> list[Chart]:
    """Return how AVG and STD go with one hyperparameter, a point a trial.

    Args:
        key: dotted config key.
        entry: of the search space.
        last: what each complete trial is judged by.
    """
    name = key.rpartition(".")[2]
    axis = {"type": "log"} if is_logarithmic(entry) else {}
    if any(isinstance(value, str | bool) for value in last[key]):
        axis = {"type": "category"}
    found = []
    for column, title in (("val_avg", "AVG"), ("val_std", "STD")):
        found.append(
            points(
                f"by-{name}-{title.lower()}",
                f"{name}: {title}",
                f"Validation {title} of each trial by its {key}; the other values differ as well.",
                [
                    Series(
                        word,
                        [_place(v) for v in own[key]],
                        own[column].tolist(),
                        labels=own["trial"].tolist(),
                    )
                    for word, own in _by_status(last)
                ],
                x=name,
                y=f"validation {title}, %",
                xaxis=axis,
            )
        )
    return found


def parallel(space: Mapping[str, Entry], best_first: pd.DataFrame) -> Chart:
    """Return all trials as lines over their hyperparameters and their AVG, each from low to high.

    Args:
        space: the search space.
        best_first: what trials are judged by, the best first.
    """
    keys = [*space, "val_avg"]
    heights = {key: _heights(best_first[key], space.get(key)) for key in keys}
    names = [key.rpartition(".")[2] for key in space] + ["AVG"]
    size = math.ceil(len(best_first) / 3)
    thirds = [range(len(best_first))[i : i + size] for i in range(0, len(best_first), size)]
    series = []
    for word, rows in zip(("best third", "middle third", "last third"), thirds, strict=False):
        x, y, labels = [], [], []
        for row in rows:
            x += [*names, names[-1]]
            y += [*(heights[key][row] for key in keys), None]  # a gap before the next trial
            labels += [str(best_first["trial"].iloc[row])] * (len(names) + 1)
        series.append(Series(word, x, y, labels=labels))
    chart = lines(
        "parallel",
        "Parallel coordinates",
        "A line a trial: where its values lie between the lowest and the highest of the search, "
        "and its validation AVG between those of all trials.",
        series,
        x="hyperparameter",
        y="from lowest to highest",
        xaxis={"type": "category"},
        yaxis={"range": [-0.05, 1.05]},
    )
    cells = [[_cell(v) for v in row] for row in best_first[["trial", *keys]].to_numpy().tolist()]
    return replace(chart, table=Table(("trial", *names), tuple(map(tuple, cells))))


def curves(table: pd.DataFrame, best_first: pd.DataFrame, space: Mapping[str, Entry]) -> Chart:
    """Return validation AVG by round: the best trials by name, the others together."""
    named = best_first["trial"].head(_NAMED).tolist()
    series = []
    for trial in named:
        own = table[table["trial"] == trial]
        label = short({key: own[key].iloc[0] for key in space})
        series.append(Series(f"{trial} ({label})", own["round"].tolist(), own["val_avg"].tolist()))
    x, y = [], []
    for _, own in table[~table["trial"].isin(named)].groupby("trial"):
        rounds = own["round"].tolist()
        x += [*rounds, rounds[-1]]
        y += [*own["val_avg"].tolist(), None]
    if x:
        series.append(Series("other trials", x, y))
    return lines(
        "curves",
        "Learning curves",
        "Validation AVG of the main model by round; short lines are trials that were stopped.",
        series,
        x="round",
        y="validation AVG, %",
    )


def prices(last: pd.DataFrame, accuracy: str, label: str, what: str) -> list[Chart]:
    """Return accuracy against each of `PRICES`, with the front that no other is better than.

    Args:
        last: a row a trial or variant, with the columns of `PRICES`.
        accuracy: column of the accuracy.
        label: column of the names.
        what: the accuracy in words.
    """
    found = []
    for column, title in PRICES.items():
        rows = last.dropna(subset=[column, accuracy]).sort_values([column, accuracy])
        if not len(rows):
            continue
        front = rows[pareto(rows[column].tolist(), rows[accuracy].tolist())]
        rest = rows.drop(front.index)
        found.append(
            points(
                f"price-{column}",
                f"AVG against {title}",
                f"The {what} against {title}; on the front nothing is both better and cheaper.",
                [
                    Series(
                        word,
                        own[column].tolist(),
                        own[accuracy].tolist(),
                        labels=[str(value) for value in own[label]],
                    )
                    for word, own in (("on the front", front), ("behind it", rest))
                    if len(own)
                ],
                x=title,
                y=f"{what}, %",
            )
        )
    return found


def pareto(costs: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Say which points no other point beats: none costs at most as much and gains more, or less."""
    return [
        not any(
            (c <= cost and g > gain) or (c < cost and g >= gain)
            for c, g in zip(costs, gains, strict=True)
        )
        for cost, gain in zip(costs, gains, strict=True)
    ]


def priced(last: pd.DataFrame) -> pd.DataFrame:
    """Return reports with the columns of `PRICES`: sliced sizes, and all bytes."""
    return last.assign(
        params=pd.to_numeric(last["params_sliced"]) / 1e3,
        flops=pd.to_numeric(last["flops_sliced"]) / 1e6,
        mb=(last["bytes_up"] + last["bytes_down"]) / 1e6,
    )


def _by_status(last: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    words = {"done": "to the end", "stopped": "stopped early"}
    parts = [(word, last[last["status"] == status]) for status, word in words.items()]
    return [(word, own) for word, own in parts if len(own)]


def _heights(values: pd.Series, entry: Entry | None) -> list[float]:
    """Return where values lie between the lowest and the highest, 0 to 1."""
    found = values.tolist()
    if any(isinstance(value, str | bool) for value in found):
        order = sorted(set(map(str, found)))
        found = [order.index(str(value)) for value in found]
    elif entry is not None and is_logarithmic(entry):
        found = [math.log(value) for value in found]
    low, high = min(found), max(found)
    return [(value - low) / (high - low) if high > low else 0.5 for value in found]


def _place(value: Any) -> Any:
    return str(value) if isinstance(value, bool) else value


def _cell(value: Any) -> str | int | float | None:
    return brief(value) if isinstance(value, bool) else value

"""From runs to a paper's table: means and deviations over seeds, paired differences, text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from raysim import table_text
from raysim.chart import Table
from tune_jobs.outcome import Outcome, short
from tune_jobs.table_settings import TableSettings
from tune_jobs.tuning import judged

ACCURACIES = {"avg": "AVG", "std": "STD", "personal_avg": "personal"}
"""Accuracies of a run that the table shows, and their headings."""
COSTS = {"params": "params (k)", "flops": "MFLOPs", "mb": "MB", "seconds": "s"}
"""What a run costs, and its headings."""
FIGURES = ACCURACIES | COSTS
_LEVEL = 0.95
Pair = tuple[float, float]


def cells(settings: TableSettings, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return a row a run, in the order of the grid; figures are empty where a run is not done.

    Returns:
        `row`, `data`, `seed`, `trial`, `status`; the tuned keys; `compared`, the accuracy that
        differences are made of; `avg` and `std` over domains and `personal_avg`
        over clients, in percent, means of the last evaluations;
        `final_avg`, `final_std`; `params` and `flops` of the sliced model in thousands and
        millions; `mb` up and down; `seconds`.
    """
    grid = settings.cells()
    found = []
    for outcome in sorted(outcomes, key=lambda o: grid.index(dict(o.values))):
        row, data, seed = settings.place(grid.index(dict(outcome.values)))
        head = {"row": row, "data": data, "seed": seed, "trial": outcome.trial}
        tuned = {key: outcome.values[key] for key in settings.tune}
        figures = _figures(outcome, settings.compared)
        found.append(head | {"status": outcome.status} | tuned | figures)
    return pd.DataFrame(found)


def compare(runs: pd.DataFrame, settings: TableSettings) -> pd.DataFrame:
    """Return a row a line of the table.

    Returns:
        `data`, `row`, `seeds`; mean and deviation (ddof 1) over seeds of each of `FIGURES` as
        `avg_mean`, `avg_std` and so on; the mean difference of `compared` to the baseline over the
        seeds that both have, and the ends of its paired 95 % t interval, as `diff`, `diff_low`,
        `diff_high`.
    """
    lines = []
    for data in settings.data:
        of_data = runs[(runs["data"] == data) & (runs["status"] == "done")]
        base = of_data[of_data["row"] == settings.baseline].set_index("seed")["compared"]
        for row in settings.rows:
            own = of_data[of_data["row"] == row.label].set_index("seed")
            line = {"data": data, "row": row.label, "seeds": len(own)}
            for name in FIGURES:
                mean, deviation = _mean_std(own[name].dropna().to_numpy(float))
                line |= {f"{name}_mean": mean, f"{name}_std": deviation}
            differences = (own["compared"] - base).dropna().to_numpy(float)
            ends = paired(differences if row.label != settings.baseline else differences[:0])
            line |= dict(zip(("diff", "diff_low", "diff_high"), ends, strict=True))
            lines.append(line)
    return pd.DataFrame(lines)


def paired(differences: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float, float]:
    """Return the mean of paired differences and the ends of its 95 % t interval.

    The ends are NaN for fewer than two pairs.
    """
    number = len(differences)
    if number == 0:
        return math.nan, math.nan, math.nan
    mean = float(differences.mean())
    if number == 1:
        return mean, math.nan, math.nan
    error = float(differences.std(ddof=1)) / math.sqrt(number)
    half = float(stats.t.ppf((1 + _LEVEL) / 2, number - 1)) * error
    return mean, mean - half, mean + half


def headings(settings: TableSettings, shown: Mapping[str, str] = FIGURES) -> list[str]:
    """Return the headings of `text_rows`."""
    name = ACCURACIES["avg" if settings.compared == "avg" else "personal_avg"]
    return [settings.title, *shown.values(), f"{name} vs {settings.baseline}"]


def text_rows(lines: pd.DataFrame, shown: Mapping[str, str] = FIGURES) -> list[list[str]]:
    """Return the cells of one data set's lines as text.

    Args:
        lines: of one data set, from `compare`.
        shown: figures and their headings.
    """
    return [_text_row(line, shown) for _, line in lines.iterrows()]


def markdown(table: pd.DataFrame, settings: TableSettings) -> str:
    """Return the table as Markdown, a section a data set."""
    parts = [
        f"## {data}\n\n{table_text.markdown(_of(table, data, settings))}" for data in settings.data
    ]
    return "\n".join([*parts, caption(settings)]) + "\n"


def latex(table: pd.DataFrame, settings: TableSettings) -> str:
    """Return the table as LaTeX (needs the package booktabs), a tabular a data set."""
    parts = [f"% {data}\n{table_text.latex(_of(table, data, settings))}" for data in settings.data]
    return "\n".join([*parts, f"% {caption(settings)}"]) + "\n"


def _of(table: pd.DataFrame, data: str, settings: TableSettings) -> Table:
    rows = text_rows(table[table["data"] == data])
    return Table(tuple(headings(settings)), tuple(map(tuple, rows)))


def caption(settings: TableSettings) -> str:
    """Say what the figures are."""
    last = settings.base().evaluation.last
    return (
        f"Mean ± deviation over {settings.seeds} seeds. AVG and STD over domains on test images, "
        f"in percent, and AVG of personal models over clients: means of the last {last} "
        "evaluations; parameters and multiply-adds of the sliced model, MB up and down and seconds "
        "of a whole run: means. Last column: mean difference over seeds and its paired 95 % t "
        f"interval.{_compared_words(settings)}{_tuned_words(settings)}"
    )


def _compared_words(settings: TableSettings) -> str:
    if settings.compared == "avg":
        return ""
    return " A method without personal models is compared by its global one's AVG over domains."


def _tuned_words(settings: TableSettings) -> str:
    """Say what tuning has chosen."""
    if not settings.chosen:
        return ""
    words = [
        f"{label} {short(values)}" + (f" ({data})" if len(settings.data) > 1 else "")
        for (data, label), values in zip(settings.labels(), settings.chosen, strict=True)
    ]
    return f" Chosen on validation images with the first seed: {', '.join(words)}."


def _figures(outcome: Outcome, compared: str) -> dict[str, float | None]:
    found = outcome.summary()
    if outcome.status != "done":
        found = {}
    last, personal = found.get("last") or {}, (found.get("personal") or {}).get("last") or {}
    return {
        "compared": judged(found, compared)["avg"] if found else None,
        "avg": last.get("avg"),
        "std": last.get("std"),
        "personal_avg": personal.get("avg"),
        "final_avg": found.get("avg"),
        "final_std": found.get("std"),
        "params": found["params_sliced"] / 1e3 if found else None,
        "flops": found["flops_sliced"] / 1e6 if found else None,
        "mb": (found["bytes_up"] + found["bytes_down"]) / 1e6 if found else None,
        "seconds": found.get("wall_s"),
    }


def _mean_std(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Pair:
    if len(values) == 0:
        return math.nan, math.nan
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _text_row(line: pd.Series, shown: Mapping[str, str]) -> list[str]:
    cells = [str(line["row"])]
    for name in shown:
        mean, deviation = line[f"{name}_mean"], line[f"{name}_std"]
        text = "" if pd.isna(mean) else f"{mean:.1f}" if name in COSTS else f"{mean:.2f}"
        if text and name in ACCURACIES and not pd.isna(deviation):
            text += f" ± {deviation:.2f}"
        cells.append(text)
    diff = line.get("diff", math.nan)
    text = "" if pd.isna(diff) else f"{diff:+.2f}"
    if text and not pd.isna(line["diff_low"]):
        text += f" [{line['diff_low']:+.2f}, {line['diff_high']:+.2f}]"
    return [*cells, text]

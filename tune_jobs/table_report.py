"""`report.html` of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import yaml

from raysim.chart import Chart, Table
from raysim.charts import Series, bars, lines
from raysim.pages.sections import Card, Section, page_of
from tune_jobs.charts import PRICES, prices
from tune_jobs.outcome import Outcome
from tune_jobs.sections import failed
from tune_jobs.table_settings import TableSettings
from tune_jobs.tables import caption, headings, text_rows


def render(
    settings: TableSettings,
    outcomes: Sequence[Outcome],
    table: pd.DataFrame,
    reports: pd.DataFrame,
    runs: pd.DataFrame,
) -> str:
    """Draw a table as HTML.

    Args:
        settings: what was asked for.
        outcomes: what became of the runs.
        table: see `tables.compare`.
        reports: see `records.reports`.
        runs: see `tables.cells`.
    """
    done = sum(outcome.status == "done" for outcome in outcomes)
    cards = [Card("runs", str(len(settings.cells())), f"{done} done")]
    sections = [Section(name="overview", title="Overview", text=settings.words(), cards=cards)]
    for number, data in enumerate(settings.data):
        lines_of = table[table["data"] == data]
        rows = tuple(tuple(row) for row in text_rows(lines_of))
        found = {"Accuracy and cost": Table(tuple(headings(settings)), rows)}
        charts = _charts(settings, lines_of, reports, runs[runs["data"] == data])
        named = [_renamed(chart, number) for chart in charts]
        sections.append(
            Section(
                name=f"data{number}",
                title=data,
                text=caption(settings),
                tables=found,
                charts=named,
            )
        )
    sections += failed(outcomes)
    config = yaml.safe_dump(settings.config, sort_keys=False)
    listings = {"the config that runs start from": config}
    sections.append(Section(name="settings", title="Settings", listings=listings))
    return page_of(f"table: {settings.title}", sections)


def _renamed(chart: Chart, number: int) -> Chart:
    return replace(chart, name=f"data{number}-{chart.name}")


def _charts(
    settings: TableSettings, table: pd.DataFrame, reports: pd.DataFrame, runs: pd.DataFrame
) -> list[Chart]:
    known = table.dropna(subset=["avg_mean"])
    if not len(known):
        return []
    found = [_figures(known), *_differences(known, settings)]
    found += _sweeps(known, settings)
    found += _curves(reports, runs)
    priced = known.rename(columns={f"{name}_mean": name for name in (*PRICES, "avg")})
    return found + prices(priced, "avg", "row", "test AVG")


def _figures(table: pd.DataFrame) -> Chart:
    rows = table["row"].tolist()
    return bars(
        "figures",
        "AVG and STD",
        "Mean over seeds of AVG and STD over domains; the whiskers are deviations over seeds.",
        [
            Series(title, rows, table[f"{name}_mean"].tolist(), spread=_spread(table, name))
            for name, title in (("avg", "AVG"), ("std", "STD"))
        ],
        x="",
        y="%",
    )


def _differences(table: pd.DataFrame, settings: TableSettings) -> list[Chart]:
    others = table[table["row"] != settings.baseline].dropna(subset=["diff"])
    if not len(others):
        return []
    halves = ((others["diff_high"] - others["diff_low"]) / 2).fillna(0.0)
    return [
        bars(
            "differences",
            headings(settings)[-1],
            "Mean difference over the seeds that both have; the whiskers are its paired 95 % t "
            "interval.",
            [
                Series(
                    "difference",
                    others["row"].tolist(),
                    others["diff"].tolist(),
                    spread=halves.tolist(),
                )
            ],
            x="",
            y="points",
        )
    ]


def _sweeps(table: pd.DataFrame, settings: TableSettings) -> list[Chart]:
    """Return AVG and STD along each hyperparameter that is swept."""
    by_label = table.set_index("row")
    found = []
    for key in dict.fromkeys(row.swept for row in settings.rows if row.swept):
        rows = [row for row in settings.rows if row.swept == key and row.label in by_label.index]
        own = by_label.loc[[row.label for row in rows]]
        values = [row.values[key] for row in rows]
        name = key.rpartition(".")[2]
        for column, title in (("avg", "AVG"), ("std", "STD")):
            found.append(
                lines(
                    f"sweep-{name}-{column}",
                    f"{name}: {title}",
                    f"{title} by {key}, all else equal; whiskers are deviations over seeds.",
                    [
                        Series(
                            title,
                            values,
                            own[f"{column}_mean"].tolist(),
                            spread=_spread(own, column),
                        )
                    ],
                    x=name,
                    y=f"{title}, %",
                    xaxis=_axis(values),
                )
            )
    return found


def _axis(values: Sequence[object]) -> dict[str, str]:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return {"type": "category"}
    spans_decades = min(numbers) > 0 and max(numbers) / min(numbers) >= 30
    return {"type": "log"} if spans_decades else {}


def _curves(reports: pd.DataFrame, runs: pd.DataFrame) -> list[Chart]:
    """Return the curves of the runs whose metrics are there."""
    own = reports.merge(runs[["trial", "row"]], on="trial")
    series = []
    for row in runs["row"].drop_duplicates():
        mean = own[own["row"] == row].groupby("round")["test_avg"].mean()
        if len(mean):
            series.append(Series(row, mean.index.tolist(), mean.tolist()))
    if not series:
        return []
    number = own["trial"].nunique()
    text = f"Test AVG of the main model by round, mean over seeds; {number} of {len(runs)} runs."
    return [
        lines("curves", "Learning curves", text, series, x="round", y="test AVG, %"),
    ]


def _spread(table: pd.DataFrame, name: str) -> list[float]:
    return [float(value) for value in table[f"{name}_std"].fillna(0.0)]

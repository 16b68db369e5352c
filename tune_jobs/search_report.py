"""`report.html` of a search."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import yaml

from raysim.chart import Table
from raysim.pages.sections import Card, Section, page_of
from tune_jobs.charts import curves, hyperparameter, parallel, priced, prices
from tune_jobs.outcome import Outcome, brief, short
from tune_jobs.records import last_reports, ranked
from tune_jobs.search_settings import SearchSettings
from tune_jobs.sections import failed


def render(settings: SearchSettings, outcomes: Sequence[Outcome], table: pd.DataFrame) -> str:
    """Draw a search as HTML.

    Args:
        settings: what was asked for.
        outcomes: what became of the trials.
        table: their reports.
    """
    base = settings.base()
    best, last = ranked(table), last_reports(table)
    sections = [_overview(settings, outcomes, best)]
    if len(best):
        entries = settings.space.items()
        sections += [
            Section(
                name="hyperparameters",
                title="Hyperparameters",
                charts=[c for key, entry in entries for c in hyperparameter(key, entry, last)]
                + [parallel(settings.space, best)],
            ),
            Section(name="curves", title="Learning", charts=[curves(table, best, settings.space)]),
            Section(
                name="prices",
                title="Accuracy and cost",
                text="Size and work are those of the sliced global model at the end of a trial.",
                charts=prices(priced(last), "val_avg", "trial", "validation AVG"),
            ),
            Section(name="trials", title="Trials", tables={"The best first": _trials(best)}),
        ]
    sections += failed(outcomes)
    sections.append(
        Section(name="settings", title="Settings", listings=_listings(settings)),
    )
    return page_of(f"search of {base.method.label} on {base.data.name}", sections)


def _overview(settings: SearchSettings, outcomes: Sequence[Outcome], best: pd.DataFrame) -> Section:
    count = dict.fromkeys(("done", "stopped", "failed", "unfinished"), 0)
    for outcome in outcomes:
        count[outcome.status] += 1
    cards = [Card("trials", str(len(outcomes)), _counted(count))]
    if len(best):
        top = best.iloc[0]
        values = short({key: top[key] for key in settings.space})
        cards = [
            Card("best validation AVG", f"{top['val_avg']:.2f} %", f"{top['trial']}: {values}"),
            Card("its STD", f"{top['val_std']:.2f}", f"after round {int(top['round'])}"),
            Card("its test AVG", f"{top['test_avg']:.2f} %", "which chose nothing"),
            *cards,
        ]
    return Section(name="overview", title="Overview", text=settings.words() + ".", cards=cards)


def _counted(count: dict[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in count.items() if number)


def _trials(best: pd.DataFrame) -> Table:
    start = ["trial", "status", "round"]
    figures = ["val_avg", "val_std", "test_avg", "test_std", "seconds"]
    known = {*start, *figures, "score"}
    others = ("bytes_up", "bytes_down", "params", "params_sliced", "flops", "flops_sliced")
    keys = [column for column in best.columns if column not in known and column not in others]
    rows = [
        (
            *(row[column] for column in start),
            *(brief(row[key]) for key in keys),
            *(round(float(row[column]), 2) for column in figures),
        )
        for _, row in best.iterrows()
    ]
    names = ("validation AVG", "STD", "test AVG", "STD", "s")
    return Table((*start, *(key.rpartition(".")[2] for key in keys), *names), tuple(rows))


def _listings(settings: SearchSettings) -> dict[str, str]:
    return {
        "the space": yaml.safe_dump(settings.space, sort_keys=False),
        "the config that trials start from": yaml.safe_dump(settings.config, sort_keys=False),
    }

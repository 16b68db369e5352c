"""What the reports of searches and tables share."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.chart import Table
from raysim.pages.sections import Section
from tune_jobs.outcome import Outcome, short


def failed(outcomes: Sequence[Outcome]) -> list[Section]:
    """Return the section on trials that failed; none if none has."""
    rows = [
        (outcome.trial, short(outcome.values), outcome.headline)
        for outcome in outcomes
        if outcome.status == "failed"
    ]
    if not rows:
        return []
    table = Table(("trial", "values", "error"), tuple(rows))
    return [Section(name="failed", title="Failed", tables={"Trials that failed": table})]

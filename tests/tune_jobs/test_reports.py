"""Reports of studies: what they draw, from trials that never ran."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.browser import browser, opened, overlaps
from tests.tune_jobs.test_search import asked as asked_search
from tests.tune_jobs.test_table import asked as asked_table
from tests.tune_jobs.test_table import outcomes as table_outcomes
from tune_jobs import search_report, table_report
from tune_jobs.charts import parallel, pareto, priced, prices
from tune_jobs.outcome import Outcome
from tune_jobs.records import ranked, reports
from tune_jobs.tables import cells, compare


def trial_rows(trials: int = 9, rounds: int = 3) -> pd.DataFrame:
    """Return reports of trials whose AVG grows with rho; every third one is stopped at round 1."""
    rows: list[dict[str, Any]] = []
    for number in range(trials):
        stopped = number % 3 == 1
        for round_ in range(1, 2 if stopped else rounds + 1):
            avg = 50.0 + 3 * number + round_
            rows.append(
                {
                    **{"trial": f"t_{number:02d}", "status": "stopped" if stopped else "done"},
                    **{"round": round_, "method.rho": 0.2 + 0.05 * number, "method.phi": 1.0},
                    **{"method.mu": 0.5, "method.lambda": 10.0**-number, "val_avg": avg},
                    **{"val_std": 5.0, "test_avg": avg - 1, "test_std": 6.0, "score": avg},
                    **{"bytes_up": 10**6 * round_, "bytes_down": 10**6, "seconds": 2.0 * round_},
                    **{"params": 9000, "params_sliced": 1000 * (number + 1)},
                    **{"flops": 10**7, "flops_sliced": 10**6 * (trials - number)},
                }
            )
    return pd.DataFrame(rows)


def search_page() -> str:
    settings = asked_search(space="fedfip", samples=9)
    statuses: list[Any] = ["done", "stopped", "done"]
    found = [
        Outcome(
            trial=f"t_{i:02d}", values={"method.rho": 0.2}, status=statuses[i % 3], folder=Path("/")
        )
        for i in range(9)
    ]
    broken = Outcome(
        trial="t_09",
        values={"method.rho": 0.3},
        status="failed",
        folder=Path("/"),
        error="a <b>cable</b> was pulled\nTraceback",
    )
    return search_report.render(settings, [*found, broken], trial_rows())


def table_page(tmp_path: Path, **more: Any) -> str:
    settings = asked_table(seeds=3, **more)
    runs_of = table_outcomes(settings, tmp_path, run0={"status": "failed"})
    runs = cells(settings, runs_of)
    every = pd.DataFrame(
        {"trial": o.trial, "round": r, "test_avg": 10.0 * r} for o in runs_of for r in (1, 2)
    )
    return table_report.render(settings, runs_of, compare(runs, settings), every, runs)


def test_a_search_shows_every_hyperparameter_and_what_failed() -> None:
    page = search_page()
    for name in ("rho", "phi", "mu", "lambda"):
        assert f'id="by-{name}-avg"' in page
        assert f'id="by-{name}-std"' in page
    for chart in ("parallel", "curves", "price-params", "price-flops", "price-mb"):
        assert f'id="{chart}"' in page
    assert "t_08: rho=0.6" in page  # the best
    assert "6 done, 3 stopped, 1 failed" in page
    assert "a &lt;b&gt;cable&lt;/b&gt; was pulled" in page
    assert "Traceback" not in page


def test_a_search_without_a_complete_trial_has_a_report() -> None:
    table = trial_rows().assign(status="unfinished")
    page = search_report.render(asked_search(space="fedfip"), [], table)
    assert "Overview" in page


@pytest.mark.parametrize(
    ("more", "charts"),
    [
        ({}, ("figures", "differences", "curves", "price-flops")),
        ({"sparsity": "0.2:0.8:0.3"}, ("sweep-rho-avg", "sweep-rho-std")),
        ({"sensitivity": "fedprox"}, ("sweep-mu-avg",)),
    ],
)
def test_a_table_shows_its_rows(tmp_path: Path, more: dict[str, Any], charts: Any) -> None:
    page = table_page(tmp_path, **more)
    for chart in charts:
        assert f'id="data0-{chart}"' in page
    assert "paired 95 % t interval" in page


def test_the_front_is_what_nothing_beats() -> None:
    assert pareto([1, 2, 3, 2], [5, 7, 6, 4]) == [True, True, False, False]
    assert pareto([1, 1], [5, 5]) == [True, True]
    found = prices(priced(ranked(trial_rows())), "val_avg", "trial", "validation AVG")
    flops = next(chart for chart in found if chart.name == "price-flops")
    assert [trace["name"] for trace in flops.data] == ["on the front", "behind it"]
    assert flops.data[0]["text"] == ["t_08"]  # the most accurate is the cheapest, too


def test_parallel_coordinates_keep_trials_apart_and_tell_real_values() -> None:
    settings = asked_search(space="fedfip")
    chart = parallel(settings.space, ranked(trial_rows()))
    best = chart.data[0]
    assert best["name"] == "best third"
    assert best["x"][:6] == ["rho", "phi", "mu", "lambda", "AVG", "AVG"]
    assert best["y"][:6] == [1.0, 0.5, 0.5, 0.0, 1.0, None]
    assert chart.table.rows[0][:2] == ("t_08", pytest.approx(0.6))


def test_reports_of_runs_that_never_started_are_none() -> None:
    lost = Outcome(trial="t", values={"a": 1}, status="failed", folder=Path("/nowhere"))
    assert reports([lost]).empty


def test_pages_open_without_overlaps(tmp_path: Path) -> None:
    (tmp_path / "search.html").write_text(search_page(), encoding="utf-8")
    (tmp_path / "table.html").write_text(table_page(tmp_path, methods="all"), encoding="utf-8")
    with browser() as chromium:
        for name, width in (("search", 400), ("table", 1280)):
            with opened(chromium, tmp_path / f"{name}.html", width=width) as page:
                assert overlaps(page) == []

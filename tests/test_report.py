import json
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner

from methods import METHODS
from raysim import run_charts
from raysim.chart import Chart
from raysim.cli import app
from raysim.errors import RecordError
from raysim.panels_units import thinned
from raysim.record import Record
from raysim.report import render_report, write_report
from raysim.skeleton import method_of
from tests.browser import browser, opened, overlaps
from tests.toy import INPROCESS, only_run

Finished = tuple[Path, CompletedProcess[str]]
SMALL = [
    *("rounds=2", "data.clients=8", "data.image_size=16", "model=cnn", "model.width=4"),
    *("local.batch_size=16", "participation.fraction=0.5", "evaluation.every=2"),
    *("output.tensorboard=false", INPROCESS),
]


@pytest.fixture(scope="module")
def fdse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FDSE with an unseen domain, from the command line, with its report."""
    folder = tmp_path_factory.mktemp("fdse")
    words = ["method=fdse", "method.adapt_epochs=1", "data.unseen=[syn]", *SMALL]
    done = CliRunner().invoke(app, ["run", *words, f"output.dir={folder}"])
    assert done.exit_code == 0, done.output
    return only_run(folder)


def panels(run: Record) -> dict[str, Chart]:
    return {chart.name: chart for chart in method_of(run.settings()).panels(run)}


def test_a_record_reads_a_run_back(finished: Finished) -> None:
    run = Record(finished[0], METHODS)
    assert run.is_done
    assert run.rounds == 6
    assert run.domains == ["mnist", "optdigits", "mnist_m", "syn"]
    assert run.held.shape == (40, 4, 10)
    assert run.held.sum() == len((run.folder / "partition.csv").read_text().splitlines()) - 1 - (
        sum(",test," in line for line in (run.folder / "partition.csv").open())
    )
    assert run.series("accuracy_avg", split="test")[6] == run.summary["avg"]
    assert f"AVG {run.summary['avg']:.2f}" in repr(run)


def test_a_run_that_goes_on_to_more_rounds_has_not_ended(
    finished: Finished, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("rounds: 6\n", "rounds: 9\n", 1))
    record = Record(run, METHODS)
    assert (record.is_done, record.summary) == (False, {"status": "unfinished"})
    done = CliRunner().invoke(app, ["compare", str(finished[0]), str(run)])
    assert done.exit_code == 2
    assert "has not ended (unfinished)" in done.stderr


def test_what_is_no_run_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"not a run directory.*config.yaml"):
        Record(tmp_path, METHODS)
    config = "seed: 0\nrounds: 3\nmethod: {name: fedavg}\ndata: {name: a, clients: 2, unseen: []}\n"
    (tmp_path / "config.yaml").write_text(config)
    with pytest.raises(RecordError, match="no round is saved yet"):
        Record(tmp_path, METHODS)
    shown = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert shown.exit_code == 2


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.yaml", b"", "no keys and values"),
        ("config.yaml", b"\x1f\x8b\xff\x00", "utf-8"),
        ("config.yaml", b"seed: 0\nrounds: 3\nmethod:\n  name: fedavg\n", "lacks data.name"),
        ("config.yaml", b"seed: [", "not valid YAML"),
        ("summary.json", b"[]", "no keys and values"),
        ("data.json", b"7", "no keys and values"),
    ],
)
def test_a_damaged_file_is_named_with_its_folder(
    finished: Finished, tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    (run / name).write_bytes(content)
    for command in (["report"], ["compare", str(finished[0])]):
        done = CliRunner().invoke(app, [*command, str(run)])
        assert done.exit_code == 2, done.output
        assert f"{run / name} is damaged: " in done.output
        assert why in done.output
        assert "leave the run out" in done.output


@pytest.mark.parametrize(
    "name", ["metrics.parquet", "timings.parquet", "environment.json", "data.json"]
)
def test_a_lost_file_is_named(finished: Finished, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    (run / name).unlink()
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 2, done.output
    assert f"{run / name} is not there\nput a copy of the file back" in done.output


def test_charts_hold_the_figures_of_the_tables(finished: Finished) -> None:
    run = Record(finished[0], METHODS)
    domains = run_charts.domains(run).table
    assert domains.columns == ("round", *run.domains)
    assert [row[0] for row in domains.rows] == [2, 4, 6]
    assert domains.rows[-1][1:] == tuple(run.summary["domains"].values())
    personal = run_charts.personal(run)
    assert personal is not None
    last = [row[-1] for row in personal.table.rows]
    assert sum(map(float, last)) / len(last) == pytest.approx(run.summary["personal"]["avg"])  # type: ignore[arg-type]
    up = run_charts.traffic(run).table.rows[-1][1]
    assert float(up or 0) == pytest.approx(run.summary["bytes_up"] / 1e6)


def test_a_method_with_masks_has_its_panels(finished: Finished) -> None:
    run = Record(finished[0], METHODS)
    found = panels(run)
    assert list(found) == [
        *("mask", "kept", "churn", "reactivated"),
        *("importance", "importance-units", "prototypes"),
    ]
    kept = sum(int(row[-1]) for row in found["mask"].table.rows)  # type: ignore[arg-type]
    assert kept == run.series("kept_units")[6]
    assert list(found["prototypes"].frames) == ["1", "3", "5"]


def test_a_method_that_weighs_clients_has_its_panels(fdse: Path) -> None:
    found = panels(Record(fdse, METHODS))
    assert list(found) == ["attention", "consensus", "consensus-tensors"]


def test_a_run_writes_its_report_and_says_what_it_says(fdse: Path) -> None:
    page = (fdse / "report.html").read_text(encoding="utf-8")
    summary = json.loads((fdse / "summary.json").read_text())
    assert f"{summary['avg']:.2f} %" in page
    assert "syn (unseen)" in page
    assert page == render_report([Record(fdse, METHODS)])


def test_the_method_of_a_report_may_be_gone(finished: Finished) -> None:
    lost = {name: method for name, method in METHODS.items() if name != "fedfip"}
    page = render_report([Record(finished[0], lost)])
    assert "own charts are left out: method.name: no method" in page


def test_an_unfinished_run_has_a_report_of_its_saved_rounds(
    finished: Finished, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    (run / "summary.json").unlink()
    page = render_report([Record(run, METHODS)])
    assert "The run is unfinished" in page
    assert "6 saved rounds" in page


def test_several_runs_share_a_page_that_says_if_their_data_differ(
    finished: Finished, fdse: Path, tmp_path: Path
) -> None:
    out = tmp_path / "both.html"
    shown = CliRunner().invoke(app, ["report", str(finished[0]), str(fdse), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    page = out.read_text(encoding="utf-8")
    assert "The runs differ in data or partition" in page
    assert 'id="run1-mask"' in page
    assert 'id="run2-attention"' in page
    assert '<a href="#run1-summary">Summary</a>' in page
    assert page.index("<bdi>fedfip s0</bdi>:</li>") < page.index('href="#run1-summary"')
    assert page.index('href="#run1-summary"') < page.index("<bdi>fdse s0</bdi>:</li>")


def test_runs_of_equal_labels_are_numbered(finished: Finished, fdse: Path) -> None:
    runs = [Record(folder, METHODS) for folder in (finished[0], fdse, finished[0])]
    assert run_charts.names_of(runs) == ["fedfip s0 #1", "fdse s0", "fedfip s0 #3"]


def test_a_report_that_cannot_be_written_is_the_users_to_mend(finished: Finished) -> None:
    with pytest.raises(RecordError, match="give another --out"):
        write_report([Record(finished[0], METHODS)], Path("/proc/none/report.html"))


def test_rounds_are_thinned_evenly_and_keep_their_ends() -> None:
    assert thinned([1, 2, 3], 5) == [1, 2, 3]
    assert thinned(list(range(1, 101)), 4) == [1, 34, 67, 100]


@pytest.mark.slow
def test_a_browser_draws_the_reports(finished: Finished, fdse: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks.html"
    write_report([Record(finished[0], METHODS)], masks)
    with browser() as chromium:
        for path in (masks, fdse / "report.html"):
            for width, scheme in ((1280, "dark"), (400, "light")):
                with opened(chromium, path, width=width, scheme=scheme) as page:
                    drawn = page.locator(".plot[data-drawn=yes] .main-svg").count()
                    assert drawn >= page.locator("figure.chart").count() >= 10
                    assert overlaps(page) == []
                    assert page.evaluate("() => document.documentElement.scrollWidth") <= width

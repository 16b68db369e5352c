"""The kept runs of the papers' tables: complete, without machines in them, and what pages say."""

import json
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from raysim import run
from tests.benchmarks import evidence
from tests.benchmarks.evidence import RESULTS, TABLES, Evidence, beside, keep
from tests.toy import ROOT
from tune_jobs import table
from tune_jobs.reuse import finished
from tune_jobs.table_settings import TableSettings
from tune_jobs.trainable import trial_config

PAGES = sorted(path.stem for path in RESULTS.glob("*.md") if path.stem in TABLES)


def test_a_kept_run_is_the_run_without_its_place(tmp_path: Path) -> None:
    there = tmp_path / "there"
    run(
        quiet=True,
        method="fedavg",
        rounds=1,
        data={"clients": 4, "image_size": 16, "split": {"use": 0.1}, "cache": tmp_path},
        model={"name": "cnn", "width": 4},
        execution={"backend": "inprocess"},
        output={"dir": there, "tensorboard": False},
    )
    pool = tmp_path / "pool"
    pool.mkdir()
    keep(there, pool)
    keep(there, pool)
    ((identity, original),) = finished(there)
    assert [found for found, _ in finished(pool)] == [identity]
    (home,) = pool.iterdir()
    texts = {path.name: path.read_text() for path in home.iterdir()}
    assert set(texts) == {"config.yaml", "environment.json", "summary.json"}
    assert not [name for name, text in texts.items() if str(tmp_path) in text]
    assert texts["summary.json"] == (original / "summary.json").read_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", json.loads(texts["environment.json"])["date"])


def test_signs_and_order_beside_the_paper() -> None:
    lines = pd.DataFrame(
        [
            {"row": "up", "diff": 2.0, "diff_low": 1.0, "diff_high": 3.0},
            {"row": "fedavg", "diff": None, "diff_low": None, "diff_high": None},
            {"row": "down", "diff": -2.0, "diff_low": -3.0, "diff_high": -1.0},
            {"row": "near", "diff": 0.5, "diff_low": -1.0, "diff_high": 2.0},
            {"row": "ours", "diff": 9.0, "diff_low": 8.0, "diff_high": 10.0},
        ]
    )
    paper = {"fedavg": 50.0, "up": 53.0, "down": 51.0, "near": 52.0}
    text = beside(lines, Evidence(asked=(), paper=paper, source="Somebody, Table 1"))
    assert "| up | +2.00 [+1.00, +3.00] | 53.00 | +3.00 | agrees |" in text
    assert "| down | -2.00 [-3.00, -1.00] | 51.00 | +1.00 | opposite |" in text
    assert "| near | +0.50 [-1.00, +2.00] | 52.00 | +2.00 | within noise |" in text
    assert "ours" not in text
    assert "two orders: 0.67" in text  # of six pairs one is the other way round


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_asked_for_in_words_that_are_understood(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[TableSettings] = []
    monkeypatch.setattr(table, "_table", lambda asked, _: found.append(asked()))
    for data in ("DIGITS", "PACS"):
        monkeypatch.setenv(data, f"/nowhere/{data}")
    monkeypatch.chdir(ROOT)
    app = typer.Typer()
    app.command()(table.table)
    words = [os.path.expandvars(word) for word in TABLES[name].asked]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    labels = {row.label for row in found[0].rows}
    assert not TABLES[name].paper or len(labels & set(TABLES[name].paper)) >= 3
    for cell in found[0].cells()[: len(found[0].lines())]:
        trial_config(found[0].base(), cell)


def test_no_kept_file_names_a_place() -> None:
    files = [path for path in (RESULTS / "runs").rglob("*") if path.is_file()]
    assert not [
        path for path in files if re.search(r"/(home|work|root|tmp|mnt)/", path.read_text())
    ]


def test_the_readmes_rows_are_the_pages() -> None:
    section = (ROOT / "README.md").read_text().split("## Does it reproduce?")[1].split("\n## ")[0]
    page = (RESULTS / "several_domains.md").read_text()
    page = page.partition("## Beside the paper")[0]
    known = {cells[0]: cells for cells in map(_cells, page.splitlines()) if cells}
    rows = [cells for cells in map(_cells, section.splitlines()) if cells and cells[0] in known]
    assert len(rows) >= 8
    assert not [cells for cells in rows if not set(cells) <= set(known[cells[0]])]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_of_its_kept_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "$" in os.path.expandvars(" ".join(TABLES[name].asked)):
        pytest.skip("its data is not here")
    shutil.copytree(RESULTS / "runs", tmp_path / "runs")
    for attribute, path in {"RESULTS": tmp_path, "POOL": tmp_path / "runs"}.items():
        monkeypatch.setattr(evidence, attribute, path)
    monkeypatch.setattr(evidence, "_WORK", tmp_path / "work")
    kept = len(list((tmp_path / "runs").iterdir()))
    assert evidence.make(name) == 0
    assert len(list((tmp_path / "runs").iterdir())) == kept, "a run was missing"
    assert (tmp_path / f"{name}.md").read_text() == (RESULTS / f"{name}.md").read_text()

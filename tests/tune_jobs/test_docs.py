"""The commands of the studies' README: each is read as it stands, the first is run, made small."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.test_docs import blocks
from tests.toy import INPROCESS, ROOT
from tune_jobs import search, table

TEXT = (ROOT / "tune_jobs" / "README.md").read_text(encoding="utf-8")
LINES = [shlex.split(line, comments=True) for b in blocks(TEXT, "bash") for line in b.splitlines()]
MODULES: dict[str, Any] = {"tune_jobs.search": search, "tune_jobs.table": table}


def command(module: Any) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(module.search if module is search else module.table)
    return app


def test_every_line_is_a_study() -> None:
    assert len(LINES) >= 10
    assert {words[0] for words in LINES} == {"python"}
    assert {words[2] for words in LINES} == MODULES.keys()


@pytest.mark.parametrize("words", LINES, ids=lambda words: " ".join(words[2:6]))
def test_every_command_is_accepted(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to where the data would be opened."""
    space, rows = blocks(TEXT, "yaml")
    (tmp_path / "mine.yaml").write_text(rows if "--rows" in words else space)
    (tmp_path / "runs").mkdir()  # of earlier tables
    monkeypatch.chdir(tmp_path)
    module = MODULES[words[2]]
    read: list[Any] = []
    take = lambda asked, resume: read.append(resume or asked())  # noqa: E731
    monkeypatch.setattr(module, "_search" if module is search else "_table", take)
    result = CliRunner().invoke(command(module), words[3:])
    assert result.exit_code == 0, result.output
    assert len(read) == 1


def test_the_options_that_the_readme_names_exist() -> None:
    shown = {
        option
        for module in MODULES.values()
        for option in re.findall(
            r"--[a-z-]+", CliRunner().invoke(command(module), ["--help"]).output
        )
    }
    named = set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", TEXT))
    assert named - {"--logdir", "--working-dir"} <= shown


@pytest.mark.slow
def test_the_first_command_runs(tmp_path: Path) -> None:
    small = ["data.image_size=16", "model=cnn", "model.width=4", "participation.fraction=0.1"]
    words = [
        sys.executable,
        *LINES[0][1:],
        "--samples",
        "2",
        "--max-rounds",
        "1",
        *small,
        INPROCESS,
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=tmp_path, check=False, env=None
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    files = {path.name for path in folder.iterdir()}
    assert files >= {"report.html", "trials.parquet", "best.yaml", "study.yaml", "runs", "tune"}
    assert done.stderr == ""

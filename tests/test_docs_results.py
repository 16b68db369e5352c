"""The README's commands and code on results, run as they stand."""

import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner

from raysim.cli import app
from tests.test_docs import ROOT, blocks, commands

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## See what happened")[2].partition("\n## ")[0]
Finished = tuple[Path, CompletedProcess[str]]


@pytest.mark.parametrize("words", commands(SECTION), ids=" ".join)
def test_the_commands_do_what_they_say(
    words: list[str], finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[1] == "doctor":
        words = [*words, "execution.backend=inprocess"]  # without the wait for a Ray
    shutil.copytree(finished[0], tmp_path / "runs" / "one")
    shutil.copytree(finished[0], tmp_path / "runs" / "two")
    config = tmp_path / "runs" / "two" / "config.yaml"  # as if of another setting
    config.write_text(config.read_text().replace("min_keep: 0.05", "min_keep: 0.1"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    if words[1] == "report":
        assert Path("both.html" if "--out" in words else "runs/one/report.html").is_file()


def test_the_notebook_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks(SECTION, "python")
    small = (
        'rounds=1, execution={"backend": "inprocess"}, model={"name": "cnn", "width": 4}, '
        'evaluation={"every": 1}, output={"tensorboard": False}, quiet=True, '
    )
    assert "rounds=3, " in code
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code.replace("rounds=3, ", small), names)
    assert {"result", "model", "weights", "again"} <= names.keys()

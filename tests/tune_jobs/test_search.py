"""The command line of a search: what it refuses, what it reads, what it leaves."""

import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from raysim.data.datasets import open_dataset
from raysim.run import execute, read_config
from tests.toy import (
    INPROCESS,
    ROOT,
    TEST_METHODS,
    bits_of,
    environment,
    only_run,
    toy_config,
)
from tune_jobs import search as command_line
from tune_jobs.search_settings import SearchSettings, read_settings, with_validation

SMALL = [
    *("data.clients=20", "data.image_size=16", "model=cnn", "model.width=4"),
    *("participation.fraction=0.1", "output.tensorboard=false"),
]


def asked(*overrides: str, **more: Any) -> SearchSettings:
    """Return the settings of a command line."""
    options: dict[str, Any] = {
        **{"space": None, "data": None, "max_rounds": None, "grace": None},
        **{"config": None, "preset": None},
        **{"samples": 4, "scheduler": "asha", "searcher": "random", "std_weight": 0.0},
    }
    return read_settings(overrides, **options | more)


def call(*words: str) -> Result:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command_line.search)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--space", "fedfib"], "neither a method nor a YAML file; did you mean 'fedfip'?"),
        (["--space", "mine.yaml"], "--space mine.yaml"),
        (["--space", "fdse", "method=fedfip"], "searches fdse, not method=fedfip"),
        (["--space", "fedfip", "method.roh=1"], "did you mean 'rho'?"),
        (["--grace", "9", "rounds=5"], "--grace 9: a trial has 5 rounds"),
        (["--searcher", "grid", "--samples", "3"], "the coarsest grid"),
        (["--space", "fedprox", "method.mu=0.1"], "nothing is left to search"),
        (["--resume", "/nowhere"], "not a study's folder"),
        (["--resume", "/nowhere", "--samples", "9", "rounds=3"], "leave out key=value, samples"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["data.root=/nowhere", "data=pacs"], "/nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    words: list[str], said: str, tmp_path: Path
) -> None:
    result = call(*words, *([] if "--resume" in words else [f"output.dir={tmp_path}"]))
    assert result.exit_code == 2, result.output
    assert said in result.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_optuna_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = call("--searcher", "optuna")
    assert result.exit_code == 2
    assert "pip install 'raysim[search]'" in result.stderr


def test_help_is_quick_and_names_everything() -> None:
    words = [sys.executable, "-X", "importtime", "-m", "tune_jobs.search", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert not re.search(r"\| +(torch|ray|pandas)\n", done.stderr)
    for option in ("--space", "--samples", "--scheduler", "--searcher", "--max-rounds", "--resume"):
        assert option in done.stdout


def test_the_space_says_the_method_and_hand_set_keys_are_not_searched() -> None:
    settings = asked("method.keep_ratio=0.4", "method.lambda=0", space="fedfip")
    assert settings.base().method.name == "fedfip"
    assert list(settings.space) == ["method.phi", "method.mu"]
    assert asked(space="fdse").base().method.name == "fdse"
    assert list(asked("method=fedbn").space) == ["local.lr"]


def test_grace_is_a_third_of_the_rounds_and_a_multiple_of_reports() -> None:
    fedavg = "method=fedavg"
    assert asked(fedavg, max_rounds=30).grace == 10
    assert asked(fedavg, "evaluation.every=5", max_rounds=100).grace == 30
    assert asked(fedavg, "evaluation.every=5", max_rounds=10).grace == 5


def test_grace_outlasts_rounds_that_are_all_alike() -> None:
    assert asked("method.warmup_rounds=5", max_rounds=12).grace == 6
    assert asked("method.warmup_rounds=5", "evaluation.every=4", max_rounds=12).grace == 8
    assert asked("method.warmup_rounds=9", max_rounds=8).grace == 2


def test_settings_survive_their_file() -> None:
    settings = asked(space="fdse", searcher="grid", samples=100, std_weight=0.5)
    again = SearchSettings.model_validate(yaml.safe_load(yaml.safe_dump(settings.model_dump())))
    assert again == settings
    assert again.base() == settings.base()


def test_a_grid_is_the_same_when_it_is_made_again() -> None:
    settings = asked(space="fedfip", searcher="grid", samples=16)
    first, second = settings.plan().values["grid_search"], settings.plan().values["grid_search"]
    assert first == second
    assert len(first) == 16


def test_validation_images_are_held_out_only_where_there_are_none() -> None:
    config, console = toy_config(), Console(file=io.StringIO(), width=200)
    held = with_validation(config, open_dataset(config.data, config.seed), console)
    assert held.data.split.val == 0.2
    assert "(data.split.val=0.2)" in console.file.getvalue()  # type: ignore[attr-defined]
    own = toy_config(data__split={"val": 0.1})
    assert with_validation(own, open_dataset(own.data, own.seed), console) == own


@pytest.mark.usefixtures("local_ray")
def test_the_best_trial_wins_by_validation_and_can_be_run_again(tmp_path: Path) -> None:
    """One search, from the command line to its files."""
    space = tmp_path / "space.yaml"
    space.write_text("local.lr: {choice: [0.1, 0.00001]}\n")
    words = ["--space", str(space), "--searcher", "grid", "--samples", "2", "--max-rounds", "3"]
    result = call(*words, "--grace", "1", *SMALL, "method=fedavg", f"output.dir={tmp_path / 'o'}")
    assert result.exit_code == 0, result.output
    folder = only_run(tmp_path / "o")
    assert folder.name.endswith("-search-fedavg-digits_mini-s0")
    assert "(data.split.val=0.2)" in result.output
    table = pd.read_parquet(folder / "trials.parquet")
    last = table.groupby("trial").last()
    winner = last["val_avg"].idxmax()
    assert f"the best again: python -m raysim.run --config {folder / 'best.yaml'}" in (
        result.output.replace("\n", "")
    )
    head, *_ = (folder / "best.yaml").read_text().splitlines()
    assert head.startswith(f"# Trial {winner}: validation AVG {last.loc[winner, 'val_avg']:.2f}")
    check_reports(table, folder)
    again = [f"output.dir={tmp_path / 'again'}", INPROCESS]
    execute(read_config(again, folder / "best.yaml"), Console(quiet=True))
    assert bits_of(only_run(tmp_path / "again")) == bits_of(folder / "runs" / str(winner))


def check_reports(table: pd.DataFrame, folder: Path) -> None:
    """Compare the table with the runs' own summaries."""
    for trial, rows in table.groupby("trial"):
        summary = json.loads((folder / "runs" / str(trial) / "summary.json").read_text())
        last = rows.iloc[-1]
        assert last["round"] == summary["rounds"]
        assert last["status"] == summary["status"]
        assert last["test_avg"] == summary["avg"]
        assert last["val_std"] == summary["val"]["std"]
        assert last["bytes_up"] == summary["bytes_up"]
        assert last["flops_sliced"] == summary["flops_sliced"]
        assert last["seconds"] == pytest.approx(summary["wall_s"], abs=0.002)
        assert list(rows["round"]) == list(range(1, summary["rounds"] + 1))
        assert (rows["score"] == rows["val_avg"]).all()


@pytest.mark.slow
def test_a_killed_search_goes_on_in_another_folder(tmp_path: Path) -> None:
    """SIGKILL in the middle; resumed by a relative path; no trial twice, no round twice."""
    words = [sys.executable, "-m", "tune_jobs.search", "--space", "fedfip", "--samples", "2"]
    more = ["--max-rounds", "6", "--scheduler", "none", "method.warmup_rounds=0", *SMALL]
    where = environment(PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        [*words, *more, "output.checkpoint_every=2"],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
        env=where,
    ) as process:
        while process.poll() is None and not list(tmp_path.glob("runs/*/runs/*/checkpoints/r*")):
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    folder = only_run(tmp_path / "runs")
    time.sleep(5)  # its actors die with it
    done = subprocess.run(
        [*words[:3], "--resume", f"runs/{folder.name}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=where,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(folder / "trials.parquet")
    assert table.groupby("trial")["round"].apply(list).tolist() == [list(range(1, 7))] * 2
    assert len(list((folder / "runs").iterdir())) == 2


@pytest.mark.slow
def test_sigterm_to_the_whole_process_group_ends_a_search_in_order(tmp_path: Path) -> None:
    """As `timeout` and SLURM do it: Ray must outlive its driver's last words."""
    words = [sys.executable, "-m", "tune_jobs.search", "--space", "fedfip", "--samples", "2"]
    with subprocess.Popen(
        [*words, "--max-rounds", "900", "--scheduler", "none", *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        start_new_session=True,
    ) as process:
        while process.poll() is None and not list(tmp_path.glob("runs/*/runs/*/checkpoints/r*")):
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGTERM)
        told = process.communicate(timeout=50)[0]
    assert process.returncode == 128 + signal.SIGTERM, told
    assert f"tune_jobs.search --resume {only_run(tmp_path / 'runs')}" in told


def test_test_methods_are_not_methods_of_the_command_line() -> None:
    assert call("--space", next(iter(TEST_METHODS))).exit_code == 2

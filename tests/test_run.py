"""The command line: exit statuses, messages and what a run directory holds."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from raysim import cli
from raysim.checkpoint import latest_checkpoint
from raysim.hardware import processor
from raysim.results import METRICS
from raysim.run import run
from tests.toy import CLI, INPROCESS, bits_of, command, environment, only_run, run_command

Finished = tuple[Path, CompletedProcess[str]]
SMALL = [*CLI, INPROCESS, "rounds=1"]

FAILING = """
from raysim.method import Method


class Failing(Method):
    def client_step(self, client):
        if client.round == 1:
            raise ValueError("a cable was pulled")
        return super().client_step(client)
"""


def call(*words: str) -> Result:
    """Run a command line in this process; for commands that fail early."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    return CliRunner().invoke(app, list(words))


def refused(*words: str) -> str:
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


def test_a_run_says_where_it_is_and_how_well_it_did(finished: Finished) -> None:
    folder, done = finished
    assert str(folder.resolve()) in done.stdout
    assert "fedfip on digits_mini: 40 clients" in done.stdout
    for word in ("mnist", "optdigits", "mnist_m", "syn", "AVG", "STD", "round 6/6", "loss"):
        assert word in done.stdout
    assert done.stderr == ""


def test_the_name_of_a_run_directory(finished: Finished) -> None:
    stamp, _, rest = finished[0].name.partition("-")
    assert len(stamp) == 8
    assert rest[6:] == "-fedfip-digits_mini-s0"


def test_what_a_run_directory_holds(finished: Finished) -> None:
    folder, _ = finished
    names = {p.name for p in folder.iterdir()}
    assert names >= {
        *("config.yaml", "environment.json", "metrics.parquet", "timings.parquet"),
        *("summary.json", "checkpoints"),
    }
    assert not [n for n in names if n.startswith(".")]
    checkpoints = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert checkpoints == ["round_00002", "round_00004", "round_00006"]
    where = json.loads((folder / "environment.json").read_text())
    assert where["packages"]["torch"]
    assert where["processors"] == [processor("cpu")]
    assert len(where["partition_sha256"]) == 64


def test_metrics_are_the_contracts(finished: Finished) -> None:
    table = pq.read_table(finished[0] / "metrics.parquet")
    assert table.schema.equals(METRICS)
    rows = table.to_pylist()
    keys = [tuple(r[k] for k in METRICS.names[:6]) for r in rows]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert {r["round"] for r in rows} == set(range(1, 7))
    assert {r["model"] for r in rows} == {"global", "personal"}
    tests = [r for r in rows if r["metric"] == "accuracy" and r["model"] == "global"]
    assert {r["count"] for r in tests} == {400}
    assert {r["round"] for r in tests} == {2, 4, 6}


def test_the_summary_agrees_with_the_metrics(finished: Finished) -> None:
    summary = json.loads((finished[0] / "summary.json").read_text())
    rows = pq.read_table(finished[0] / "metrics.parquet").to_pylist()
    last = {r["metric"]: r["value"] for r in rows if r["round"] == 6 and r["model"] == "global"}
    assert summary["avg"] == last["accuracy_avg"]
    assert summary["status"] == "done"
    assert summary["avg"] == pytest.approx(sum(summary["domains"].values()) / 4)
    assert 0 < summary["params_sliced"] <= summary["params"]
    assert summary["bytes_up"] > 0
    assert len(summary["weights_sha256"]) == 64


@pytest.mark.slow
def test_config_yaml_runs_again_to_the_same_bits(finished: Finished, tmp_path: Path) -> None:
    config = finished[0] / "config.yaml"
    done = run_command("--config", str(config), f"output.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    again = only_run(tmp_path)
    assert bits_of(again) == bits_of(finished[0])
    a, b = (f.read_text().splitlines() for f in (config, again / "config.yaml"))
    assert [x for x, y in zip(a, b, strict=True) if x != y and "dir:" not in x] == []


def test_a_failing_client_is_named_and_the_last_round_saved(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAILING)
    out = tmp_path / "runs"
    words = [w for w in CLI if not w.startswith("method")]
    words += [INPROCESS, "local.epochs=1", f"method={tmp_path}/mine.py:Failing"]
    done = run_command(*words, f"output.dir={out}")
    assert done.returncode == 1
    assert "round 2, phase 'fit'" in done.stderr
    assert "a cable was pulled" in done.stderr
    assert "client " in done.stderr
    assert f"--resume {only_run(out)}" in done.stderr
    summary = json.loads((only_run(out) / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["loca.lr=1"], "did you mean 'local'"),
        (["method.rho=0"], "(0"),
        (["rounds"], "key=value"),
        (["--preset", "stabel"], "did you mean 'stable'"),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
        (["--config", "/etc"], "/etc"),
        (["--config", "x", "--preset", "stable"], "exclude"),
        (["data.name=digits_mink", INPROCESS], "digits_mini"),
        (["--resume", "/no/such/run"], "config.yaml"),
        (["--resume", "/tmp", "--preset", "stable"], "leave out"),
        ([*SMALL, "output.dir=/proc/nowhere"], "output.dir"),
        ([*SMALL, "data.clients=5000"], "5000"),
        ([*SMALL, "method=/no/such/file.py:Mine"], "/no/such/file.py"),
    ],
)
def test_what_the_user_can_put_right_exits_2(words: list[str], said: str) -> None:
    assert said in refused(*words)


def test_unknown_options_exit_2() -> None:
    assert call("--frobnicate").exit_code == 2


def test_the_output_folder_is_refused_before_training(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "output.dir" in refused(*SMALL, f"output.dir={blocked}")


def test_resume_refuses_other_experiments_by_name(finished: Finished, tmp_path: Path) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "run")
    message = refused("--resume", str(folder), "seed=1", "local.lr=0.5", "method.rho=0.25")
    for key in ("seed", "local.lr", "method.keep_ratio"):
        assert key in message
    assert "rounds" in refused("--resume", str(folder), "rounds=3")


def test_resume_without_a_checkpoint_is_refused(finished: Finished, tmp_path: Path) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    assert "no complete checkpoint" in refused("--resume", str(folder))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["methods"], "fedavg"),
        (["methods", "fedfip"], "rho"),
        (["presets"], "literal"),
        (["presets", "stable"], "fedfip"),
        (["data", "list"], "digits_mini"),
        (["data", "inspect", "digits_mini"], "optdigits"),
        (["--help"], "resume"),
        (["run", "--help"], "--preset"),
    ],
)
def test_the_raysim_command(words: list[str], said: str) -> None:
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, result.output
    assert said in result.stdout


@pytest.mark.parametrize("words", [["presets", "stabel"], ["data", "inspect", "digitz"]])
def test_the_raysim_command_refuses(words: list[str]) -> None:
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 2
    assert "did you mean" in result.stderr or "known:" in result.stderr


def test_the_contact_sheet_is_written(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    result = CliRunner().invoke(cli.app, ["data", "inspect", "digits_mini", "--out", str(sheet)])
    assert result.exit_code == 0
    assert sheet.read_bytes().startswith(b"\x89PNG")


def test_a_reader_that_goes_away_loses_no_round(tmp_path: Path) -> None:
    words = command(*CLI, INPROCESS, f"output.dir={tmp_path}", "output.checkpoint_every=100")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("round 2/6"):
                break
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 1
    folder = only_run(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert latest_checkpoint(folder / "checkpoints").round == summary["rounds"] >= 2
    assert f"--resume {folder}" in errors


def test_a_method_that_exits_has_failed(tmp_path: Path) -> None:
    file = tmp_path / "leaves.py"
    file.write_text(
        "from raysim.method import Method\n\n\nclass Leaves(Method):\n"
        "    def loss(self, model, batch, client):\n        raise SystemExit(0)\n"
    )
    done = run_command(
        "--preset", "quick", f"method={file}:Leaves", f"output.dir={tmp_path / 'runs'}"
    )
    assert done.returncode == 1
    assert re.search(r"client 0 \(domains: .*\) failed in round 1, phase 'fit'", done.stderr)


@pytest.mark.parametrize(
    ("hook", "where"),
    [
        ("build_model", "the server could not be built"),
        ("init_server", "the server could not be built"),
        ("active_phases", "the phases of round 1 could not be had"),
        ("broadcast", "the server failed in round 1, phase 'fit'"),
        ("bytes_down", "the server failed in round 1, phase 'fit'"),
        ("load_global", "the global model of round 1 could not be tested"),
        ("load_personal", "client 0's own model of round 1 could not be tested"),
        ("costs", "the method's costs could not be counted"),
    ],
)
def test_a_hook_that_raises_is_told_with_its_place(hook: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = f"    def {hook}(self, *given, **named):\n        raise ValueError('a slip')\n"
    file.write_text(f"from methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n{text}")
    words = [w for w in SMALL if not w.startswith("method")]
    done = call(*words, f"method={file}:Mine", f"output.dir={tmp_path}/runs")
    assert done.exit_code == 1
    assert f"the run failed: {where}: ValueError: a slip" in done.stderr


def test_a_metric_that_is_no_number_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import replace\n\nfrom methods.fedavg import FedAvg\n\n\n"
        "class Mine(FedAvg):\n    def client_step(self, client):\n"
        "        return replace(super().client_step(client), metrics={'loss': 'low'})\n"
    )
    words = [w for w in SMALL if not w.startswith("method")]
    done = call(*words, f"method={file}:Mine", f"output.dir={tmp_path}/runs")
    assert done.exit_code == 1
    assert re.search(r"client \d+ .* failed in round 1, phase 'fit': ValueError", done.stderr)


def test_what_a_mask_cannot_keep_is_the_users_to_put_right(tmp_path: Path) -> None:
    words = ["method.rho=0.05", "method.min_keep=0.5", f"output.dir={tmp_path}"]
    done = run_command(*SMALL, *words)
    assert done.returncode == 2, done.stderr
    assert "raise keep_ratio or lower min_keep" in done.stderr
    assert not list(tmp_path.iterdir())  # before anything has run
    assert "Traceback" not in done.stderr

"""A run that was stopped, killed or damaged ends with the bits of an unbroken one."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from raysim.api import load_run
from raysim.checkpoint import latest_checkpoint
from raysim.cli import app
from raysim.errors import ResumeError, RunError
from tests.toy import (
    CLI,
    FEDFIP,
    INPROCESS,
    ROOT,
    bits_of,
    command,
    environment,
    only_run,
    run_command,
    run_toy,
    toy_config,
)

Finished = tuple[Path, CompletedProcess[str]]
METHODS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "private_head"},
    FEDFIP | {"keep_ratio": 0.4, "reactivation_cap": 0.3},
]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m["name"])


@contextmanager
def running(folder: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run in a process and give it when its third round is done."""
    with subprocess.Popen(
        command(*CLI, *(words or [INPROCESS]), f"output.dir={folder}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if re.match(r"round +3/", line):
                break
        yield process


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_goes_on(
    finished: Finished, tmp_path: Path, signum: int, status: int
) -> None:
    assert stopped_and_resumed(tmp_path, signum) == (status, bits_of(finished[0]))


@pytest.mark.ray
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_on_ray_goes_on_without_it(
    finished: Finished, tmp_path: Path, local_ray: str, signum: int, status: int
) -> None:
    token = {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH")}
    where = {"RAY_ADDRESS": local_ray, **token}
    found = stopped_and_resumed(tmp_path, signum, "execution.hosts=2", **where)
    assert found == (status, bits_of(finished[0]))


def stopped_and_resumed(
    folder: Path, signum: int, *words: str, **more: str
) -> tuple[int, tuple[bytes, str]]:
    """Send a run a signal and resume it; returns its exit status and the bits at the end."""
    with running(folder, *words, **more) as process:
        process.send_signal(signum)
        _, errors = process.communicate(timeout=180)
    assert "Traceback" not in errors
    folder = only_run(folder)
    assert f"python -m raysim.run --resume {folder}" in errors
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["rounds"] >= 3
    assert latest_checkpoint(folder / "checkpoints").round == summary["rounds"]
    return process.returncode, resumed(folder)


def test_a_killed_run_goes_on(finished: Finished, tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    folder = only_run(tmp_path)
    assert latest_checkpoint(folder / "checkpoints").round >= 2
    assert resumed(folder) == bits_of(finished[0])


def resumed(folder: Path) -> tuple[bytes, str]:
    """Resume a run; returns its bits at the end."""
    done = run_command("--resume", str(folder), INPROCESS)
    assert done.returncode == 0, done.stderr
    return bits_of(folder)


def settings(method: dict[str, Any], rounds: int) -> dict[str, Any]:
    output = {"checkpoint_every": 1, "keep_checkpoints": 9}
    return {"method": method, "rounds": rounds, "output": output, "evaluation": {"every": 1}}


@each_method
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_every_round_can_be_resumed_from(method: dict[str, Any], stop: int, tmp_path: Path) -> None:
    config = toy_config(**settings(method, 4))
    whole = run_toy(config, tmp_path / "whole")
    part = tmp_path / "part"
    shutil.copytree(whole.folder, part)
    for later in range(stop + 1, 5):
        shutil.rmtree(part / "checkpoints" / f"round_{later:05d}")
    found = run_toy(config, part, resume=latest_checkpoint(part / "checkpoints"))
    assert found.bits == whole.bits


@each_method
def test_a_longer_run_has_the_same_rounds_so_far(method: dict[str, Any], tmp_path: Path) -> None:
    whole = run_toy(toy_config(**settings(method, 4)), tmp_path / "whole")
    short = run_toy(toy_config(**settings(method, 2)), tmp_path / "short")
    checkpoint = latest_checkpoint(short.folder / "checkpoints")
    longer = run_toy(toy_config(**settings(method, 4)), short.folder, resume=checkpoint)
    assert longer.bits == whole.bits


@pytest.mark.parametrize("damage", ["half-written", "truncated", "flipped"])
def test_a_damaged_checkpoint_is_passed_over(damage: str, tmp_path: Path) -> None:
    config = toy_config(**settings(METHODS[1], 3))
    run = run_toy(config, tmp_path)
    folder = tmp_path / "checkpoints" / "round_00003"
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "half-written":
        (folder / "checkpoint.json").unlink()
    elif damage == "truncated":
        file.write_bytes(content[:-7])
    else:
        content[-3] ^= 16
        file.write_bytes(content)
    checkpoint = latest_checkpoint(tmp_path / "checkpoints")
    assert checkpoint.round == 2
    assert run_toy(config, tmp_path, resume=checkpoint).bits == run.bits
    assert latest_checkpoint(tmp_path / "checkpoints").round == 3


def test_with_every_checkpoint_damaged_there_is_nothing_to_resume(tmp_path: Path) -> None:
    run_toy(toy_config(**settings(METHODS[0], 2)), tmp_path)
    for file in (tmp_path / "checkpoints").rglob("model.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(ResumeError, match="damaged"):
        latest_checkpoint(tmp_path / "checkpoints")


def test_nobody_else_works_in_the_directory_of_a_run(tmp_path: Path) -> None:
    with running(tmp_path, INPROCESS, "rounds=900") as process:
        folder = only_run(tmp_path)
        second = run_command("--resume", str(folder), INPROCESS)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=180)
    assert second.returncode == 2
    assert f"another process is at work in {folder}" in second.stderr
    assert process.returncode == 130
    saved = json.loads((folder / "summary.json").read_text())["rounds"]
    assert latest_checkpoint(folder / "checkpoints").round == saved


def copied(finished: Finished, folder: Path) -> Path:
    return Path(shutil.copytree(finished[0], folder / "copy"))


def test_a_resume_that_fails_at_once_leaves_the_results(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, checkpoint: object) -> None:
        raise RunError("no state")

    folder = copied(finished, tmp_path)
    before = (folder / "summary.json").read_text()
    monkeypatch.setattr("raysim.host.Host.restore", broken)
    done = CliRunner().invoke(app, ["run", "--resume", str(folder), INPROCESS, "rounds=8"])
    assert done.exit_code == 1
    assert "6 of 8 rounds are saved" in done.stderr
    assert (folder / "summary.json").read_text() == before


def test_a_run_that_was_made_longer_is_one_of_so_many_rounds(
    finished: Finished, tmp_path: Path
) -> None:
    folder = copied(finished, tmp_path)
    longer = ["run", "--resume", str(folder), INPROCESS, "rounds=7"]
    assert CliRunner().invoke(app, longer).exit_code == 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["rounds"] == 7
    again = CliRunner().invoke(app, ["run", "--resume", str(folder)])
    assert again.exit_code == 0, again.stderr
    shorter = CliRunner().invoke(app, ["run", "--resume", str(folder), "rounds=6"])
    assert "rounds=6: " in shorter.stderr
    other = CliRunner().invoke(app, ["run", "--resume", str(folder), "rounds=6", "data.clients=5"])
    assert "not as in" in other.stderr
    assert "data.clients" in other.stderr


def test_damaged_timings_cost_only_timings(finished: Finished, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path)
    (folder / "timings.parquet").write_text("junk")
    done = run_command("--resume", str(folder), INPROCESS)
    assert done.returncode == 0, done.stderr
    assert "timings.parquet is damaged" in done.stdout
    assert bits_of(folder) == bits_of(finished[0])


def test_a_method_file_that_has_changed_is_told_of_and_kept_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    head = "from methods.fedavg import FedAvg\n\n\nclass Méin(FedAvg):\n"
    file.write_text(f"{head}    pass\n")
    quick = [w for w in CLI if not w.startswith(("rounds", "method"))]
    words = [f"method={file}:Méin", *quick, INPROCESS, "rounds=1", f"output.dir={tmp_path}/runs"]
    assert CliRunner().invoke(app, ["run", *words]).exit_code == 0
    folder = only_run(tmp_path / "runs")
    again = ["run", "--resume", str(folder), "rounds=2"]
    file.write_text(f"{head}    title = 'another'\n")
    refused = CliRunner().invoke(app, again)
    assert refused.exit_code == 2
    assert f"method.file_sha256 (as it was: {folder}/method.py)." in refused.stderr
    file.unlink()
    gone = CliRunner().invoke(app, again)
    assert gone.exit_code == 0, gone.stderr
    assert latest_checkpoint(folder / "checkpoints").round == 2
    assert type(load_run(folder).settings().method).__name__ == "Méin"

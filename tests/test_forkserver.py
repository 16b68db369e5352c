"""Ray's workers are forked from a process that has imported torch, or start by themselves."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.forkserver import forkserver
from tests.killing import children, is_running, kill
from tests.toy import ROOT, command, environment, only_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")

WORKER = """
import json, os, sys, time
from pathlib import Path
loaded = [name for name in ("torch", "raysim.host", "ray", "sympy") if name in sys.modules]
cuda = "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()
print(json.dumps({
    "name": __name__, "words": sys.argv, "path": sys.path, "loaded": loaded, "cuda": cuda,
    "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "folder": os.getcwd(),
    "variable": os.environ.get("VARIABLE"), "size": len(os.environ.get("LONG", "")),
}), flush=True)
print("to the other file", file=sys.stderr)
if "wait" in sys.argv:
    time.sleep(600)
"""
HOLDER = """
import subprocess, sys, time
from cluster.forkserver import forkserver
with forkserver(sys.argv[1]) as script:
    subprocess.run([sys.executable, script, "wait"])
    time.sleep(600)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """A script in the place of Ray's worker."""
    path = tmp_path / "wörker.py"
    path.write_text(WORKER)
    return path


def ask(script: str, *words: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    """Start the script as Ray does."""
    return subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=60, **more
    )


def told(script: str, *words: str, **more: Any) -> dict[str, Any]:
    """Return what the worker that the script becomes, or asks for, says of itself."""
    return dict(json.loads(ask(script, *words, **more).stdout))


def test_a_worker_is_forked_as_it_would_have_started(worker: Path, tmp_path: Path) -> None:
    place = tmp_path / "ö"
    place.mkdir()
    with forkserver(str(worker)) as script:
        more = {"VARIABLE": "ü", "LONG": "x" * 100_000, "PYTHONPATH": str(tmp_path)}
        done = ask(script, "one", "--two=3", cwd=place, env=os.environ | more)
        alone = told(str(worker), "one", "--two=3", cwd=place, env=os.environ | more)
    found = json.loads(done.stdout)
    assert done.stderr == "to the other file\n"
    assert found.pop("loaded") == ["torch", "raysim.host"]
    assert alone.pop("loaded") == []
    assert found.pop("group") == found.pop("pid")
    del alone["group"], alone["pid"], alone["parent"], found["parent"]
    assert found == alone
    assert found["words"] == [str(worker), "one", "--two=3"]
    assert not found["cuda"], "a forked process could not use it"


def test_workers_of_one_server_are_processes_of_their_own(worker: Path) -> None:
    with forkserver(str(worker)) as script:
        first, second = told(script), told(script)
    assert first["parent"] == second["parent"]
    assert first["pid"] != second["pid"]


def test_without_its_server_a_worker_starts_by_itself(worker: Path) -> None:
    with forkserver(str(worker)) as script:
        kill(told(script)["parent"])
        found = told(script, "one")
    assert found["loaded"] == []
    assert found["words"] == [str(worker), "one"]


def test_it_leaves_nothing_in_the_environment(worker: Path) -> None:
    before = dict(os.environ)
    with forkserver(str(worker)):
        assert dict(os.environ) != before
    assert dict(os.environ) == before


def test_it_ends_with_who_began_it_and_workers_do_not(worker: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(worker)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None
        found = json.loads(holder.stdout.readline())
        holder.kill()
    while is_running(found["parent"]):
        time.sleep(0.1)
    assert is_running(found["pid"])
    kill(found["pid"])


@pytest.mark.ray
def test_a_run_goes_on_without_it_and_without_a_host(tmp_path: Path) -> None:
    small = ("method=fedavg", "model.name=cnn", "data.clients=4", "data.split.use=0.2")
    words = command("rounds=6", *small, f"output.dir={tmp_path}")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("round"))
        (server,) = [p for p, name in children(process.pid).items() if "cluster.fork" in name]
        hosts = [p for p, name in children(server).items() if "Host" in name]
        assert len(hosts) == 2
        kill(server)
        kill(hosts[0])
        process.stdout.read()
    assert process.returncode == 0
    summary = json.loads((only_run(tmp_path) / "summary.json").read_text())
    assert summary["recoveries"] == 1

"""Real jobs on a real `ray start --head` that wants a token."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from raysim.checkpoint import latest_checkpoint
from tests.test_manifests import pods
from tests.test_session import dead_address
from tests.toy import CLI, INPROCESS, ROOT, bits_of, environment, only_run, run_command

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.xdist_group("jobs")]

Finished = tuple[Path, subprocess.CompletedProcess[str]]
RAY = str(Path(sys.executable).with_name("ray"))
METHOD = """
from methods.fedavg import FedAvg


class Mine(FedAvg):
    pass
"""


def free_port() -> int:
    return int(dead_address().rpartition(":")[2])


@dataclass(frozen=True)
class Head:
    """A running head: where it is asked, and with what environment."""

    url: str
    agent_port: int
    env: dict[str, str]

    def ray(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._call(RAY, "job", words[0], "--address", self.url, *words[1:])

    def raysim(self, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return self._call(*self.raysim_words(*words), cwd=cwd)

    def raysim_words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "raysim.cli", "submit", "--address", self.url, *words]

    def _call(self, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=300, env=self.env, cwd=cwd, check=False
        )

    def asked(self, path: str) -> object:
        """Return what the dashboard says at a path."""
        headers = {"Authorization": f"Bearer {self.env['RAY_AUTH_TOKEN']}"}
        with urlopen(Request(f"{self.url}{path}", headers=headers), timeout=60) as answer:
            return json.load(answer)

    def status(self, job: str) -> str:
        found = self.asked(f"/api/jobs/{job}")
        assert isinstance(found, dict)
        return str(found["status"])

    def log(self, job: str) -> str:
        found = self.asked(f"/api/jobs/{job}/logs")
        assert isinstance(found, dict)
        return str(found["logs"])


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """One head with two CPUs; ended by its own process, since `ray stop` would end every Ray."""
    port, agent = free_port(), free_port()
    env = environment(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
        RAY_USAGE_STATS_ENABLED="0",
    )
    env.pop("PYTHONPATH", None)  # jobs bring their code
    # The job's `python` is the one that these tests run in.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    folder = tempfile.mkdtemp(prefix="rj", dir="/tmp")  # short: Ray's sockets lie in it
    words = [RAY, "start", "--head", "--block", "--num-cpus=2", f"--temp-dir={folder}"]
    words += [f"--port={free_port()}", f"--dashboard-port={port}"]
    words += [f"--dashboard-agent-listen-port={agent}", "--node-ip-address=127.0.0.1"]
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = Head(f"http://127.0.0.1:{port}", agent, env)
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                found.asked("/api/version")
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.3)
        yield found
    finally:
        process.terminate()
        process.wait(120)
        shutil.rmtree(folder, ignore_errors=True)


def test_ray_job_submit_as_the_readme_has_it(
    head: Head, finished: Finished, tmp_path: Path
) -> None:
    words = ["python", "-m", "raysim.run", *CLI, f"output.dir={tmp_path}"]
    done = head.ray("submit", "--working-dir", ".", "--", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path)
    assert f"run directory: {run}\n" in done.stdout
    assert bits_of(run) == bits_of(finished[0])


def test_a_job_that_fails_says_why_in_its_last_lines(head: Head, tmp_path: Path) -> None:
    done = head.raysim(*CLI, f"output.dir={tmp_path}", "data=pacs", "data.root=/no/such/folder")
    assert done.returncode == 1
    job = done.stderr.split()[2]
    assert head.status(job) == "FAILED"
    assert "/no/such/folder" in "\n".join(head.log(job).strip().splitlines()[-3:])
    assert f"the run failed: job {job}: exit status 2, its log is above" in done.stderr
    assert not list(tmp_path.iterdir()), "nothing half-written"


def test_the_users_method_and_config_run_on_the_cluster(head: Head, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "my.yaml").write_text("method: mine.py:Mine\nrounds: 2\n")
    small = [word for word in CLI if not word.startswith(("method", "rounds"))]
    words = ["--config", "my.yaml", "--working-dir", str(ROOT)]
    done = head.raysim(*words, *small, f"output.dir={tmp_path / 'runs'}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "runs")
    assert "-Mine-" in run.name
    assert json.loads((run / "summary.json").read_text())["rounds"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.py", "my.yaml", "runs"]


def test_a_stopped_job_saves_its_rounds_and_another_goes_on(head: Head, tmp_path: Path) -> None:
    words = [*CLI, "rounds=80", f"output.dir={tmp_path / 'job'}"]
    following = subprocess.Popen(
        head.raysim_words(*words),
        env=head.env,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert following.stdout is not None
    for line in following.stdout:
        if line.startswith("round  2/80"):
            break
    following.send_signal(signal.SIGINT)
    _, told = following.communicate(timeout=180)
    assert following.returncode == 130
    assert "the job goes on" in told
    job = told.split()[2]
    assert head.status(job) == "RUNNING"
    assert f"ray job stop --address {head.url} {job}" in told

    stopped = head.ray("stop", job)
    assert stopped.returncode == 0, stopped.stdout
    assert head.status(job) == "STOPPED"
    run = only_run(tmp_path / "job")
    assert f"go on with\n  python -m raysim.run --resume {run}" in head.log(job)
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    deadline = time.monotonic() + 60
    while living(head):
        assert time.monotonic() < deadline, "actors stay behind"
        time.sleep(0.5)

    saved = latest_checkpoint(run / "checkpoints").round
    rounds = f"rounds={saved + 4}"  # enough to see that it goes on
    done = head.raysim("--resume", str(run), rounds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^round +(\d+)", done.stdout, re.M) == [str(saved + n) for n in range(1, 5)]
    whole = run_command(*CLI, rounds, INPROCESS, f"output.dir={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    assert bits_of(run) == bits_of(only_run(tmp_path / "whole"))


def living(head: Head) -> list[object]:
    """Return the actors that are not dead."""
    found = head.asked("/api/v0/actors?detail=false")
    assert isinstance(found, dict)
    return [a for a in found["data"]["result"]["result"] if a["state"] != "DEAD"]


FETCH = """
import sys
from pathlib import Path
from cluster import submit

url, there, here = sys.argv[1:]
for name, content in submit._read_there(submit._client(url), Path(there)).items():
    (Path(here) / name).write_bytes(content)
"""


def test_results_come_back_through_the_dashboard(
    head: Head, finished: Finished, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    shutil.copytree(finished[0], there)
    here.mkdir()
    # 5 MB as in a report, of which nothing can be squeezed out.
    (there / "report.html").write_bytes(secrets.token_bytes(5_000_000))
    # A process of its own, since Ray keeps the first token that it sees.
    done = head._call(sys.executable, "-c", FETCH, head.url, str(there), str(here))
    assert done.returncode == 0, done.stderr
    fetched = {file.name: file.read_bytes() for file in here.iterdir()}
    assert fetched == {f.name: f.read_bytes() for f in there.iterdir() if f.is_file()}


@pytest.mark.parametrize("more", [{"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}])
def test_a_missing_or_wrong_token_is_told(head: Head, more: dict[str, str], tmp_path: Path) -> None:
    env = head.env | more
    done = subprocess.run(
        head.raysim_words(f"output.dir={tmp_path}"),
        capture_output=True,
        text=True,
        env=env,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "copy its ~/.ray/auth_token" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("group", ["head", "gpu"])
def test_the_manifests_probes_tell_life_from_death(head: Head, group: str) -> None:
    command = pods()[group]["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    port = head.url.rpartition(":")[2]
    code = command[2].replace(":8265/", f":{port}/").replace(":52365/", f":{head.agent_port}/")
    alive = subprocess.run([sys.executable, "-c", code], env=head.env, check=False)
    assert alive.returncode == 0
    closed = code.replace(f":{head.agent_port}/", f":{free_port()}/")
    dead = subprocess.run([sys.executable, "-c", closed], capture_output=True, check=False)
    assert dead.returncode != 0

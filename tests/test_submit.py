"""`raysim submit` up to the cluster's door: what is sent, what is refused, how it ends."""

import base64
import io
import os
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner, Result

from cluster import submit as submission
from raysim.cli import app
from raysim.cli_submit import _shipped
from raysim.errors import ClusterError, RunError
from tests.test_session import dead_address
from tests.toy import ROOT

METHOD = "from methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
DIR = "output.dir=/shared/runs"


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what a command leaves in the environment."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    monkeypatch.setenv("RAY_ADDRESS", "")


def submitted(*words: str) -> Result:
    return CliRunner().invoke(app, ["submit", *words])


def test_an_output_folder_that_would_vanish_is_refused() -> None:
    done = submitted("method=fedavg")
    assert done.exit_code == 2
    assert "output.dir=runs: a job's working directory is a copy" in done.output


def test_wrong_words_are_refused_before_anything_is_sent() -> None:
    done = submitted("roundz=3", DIR, "--address", f"http://{dead_address()}")
    assert done.exit_code == 2
    assert "rounds" in done.output
    for words in (["--resume", "runs/one"], ["--resume", "/runs/one", "--preset", "literal"]):
        assert submitted(*words).exit_code == 2
    assert "no such folder" in submitted(DIR, "--working-dir", "/no/where").output


def test_no_dashboard_at_the_address_is_told_at_once() -> None:
    address, started = dead_address(), time.perf_counter()
    done = submitted(DIR, "--address", address)
    assert done.exit_code == 2
    assert f"no Ray dashboard answers at http://{address}" in done.output
    assert "ray start --head" in done.output
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize(
    ("variables", "argument", "expected"),
    [
        ({}, None, "http://127.0.0.1:8265"),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, None, "http://127.0.0.1:8265"),
        ({"RAY_ADDRESS": "http://head:8265"}, None, "http://head:8265"),
        (
            {"RAY_ADDRESS": "http://head:8265", "RAY_API_SERVER_ADDRESS": "http://b"},
            None,
            "http://b",
        ),
        ({"RAY_API_SERVER_ADDRESS": "http://b"}, "c:8265", "http://c:8265"),
    ],
)
def test_the_argument_comes_before_rays_variables(
    variables: dict[str, str],
    argument: str | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert submission._dashboard(argument) == expected


class Door(BaseHTTPRequestHandler):
    """A dashboard that says its version and refuses the rest with the server's `answer`."""

    def _refuse(self) -> None:
        status, text = self.server.answer  # type: ignore[attr-defined]
        if self.path == "/api/version" and status != 401:
            status, text = 200, '{"ray_version": "2.60.0"}'
        if self.path.startswith("/api/packages") and self.command == "GET":
            status, text = 404, ""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_POST = _refuse

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@pytest.fixture
def door() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [
        (401, "Unauthorized: Missing authentication token", "~/.ray/auth_token"),
        (500, "Package size (600.0MiB) exceeds the maximum size of 512.0MiB.", ".rayignore"),
    ],
)
def test_refusals_have_a_remedy(
    status: int, text: str, told: str, door: HTTPServer, tmp_path: Path
) -> None:
    door.answer = status, text  # type: ignore[attr-defined]
    address = f"http://127.0.0.1:{door.server_port}"
    done = submitted(DIR, "--address", address, "--working-dir", str(tmp_path))
    assert done.exit_code == 2, done.output
    assert told in done.output
    assert "Traceback" not in done.output


def test_the_users_files_go_with_the_job(tmp_path: Path) -> None:
    method, config = tmp_path / "mine.py", tmp_path / "my.yaml"
    method.write_text(METHOD)
    config.write_text(f"method: {{name: '{method}:Mine'}}\n")
    words, files = _shipped(["rounds=3", DIR], config, None)
    assert words == [
        *("--config", ".submitted/my.yaml", "rounds=3", DIR),
        "method.name=.submitted/mine.py:Mine",
    ]
    assert files == {".submitted/my.yaml": config, ".submitted/mine.py": method}
    assert _shipped([DIR], None, "literal") == (["--preset", "literal", DIR], {})


def packed(folder: Path, zip_file: Path) -> dict[str, int]:
    """Return what Ray packs of a folder: names and bytes."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    excludes = get_runtime_env_default_excludes()
    create_package(str(folder), zip_file, include_gitignore=True, excludes=excludes)
    with ZipFile(zip_file) as archive:
        return {e.filename: e.file_size for e in archive.infolist() if not e.is_dir()}


def test_ray_packs_the_code_and_the_users_files_and_nothing_large(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    with submission._staged(ROOT, {".submitted/mine.py": tmp_path / "mine.py"}) as folder:
        found = packed(folder, tmp_path / "with.zip")
    assert found.keys() - packed(ROOT, tmp_path / "plain.zip").keys() == {".submitted/mine.py"}
    assert {"raysim/run.py", "methods/fedfip.py", "cluster/submit.py"} <= found.keys()
    tops = {name.split("/")[0] for name in found}
    assert not tops & {".git", ".venv", "runs", "data", "tests", ".mypy_cache", ".hypothesis"}
    assert sum(found.values()) < 32 * 2**20


def test_a_checkout_keeps_its_runs_and_data_to_itself(tmp_path: Path) -> None:
    for name in (".rayignore", ".gitignore"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    for name in (".venv/bin/x", "runs/one/summary.json", "data/a.png", "raysim/data/a.py", "a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = packed(tmp_path, tmp_path.parent / f"{tmp_path.name}.zip")
    assert found.keys() == {".rayignore", ".gitignore", "raysim/data/a.py", "a.py"}


def test_requirements_leave_ray_and_extras_out() -> None:
    names = {line.split(">")[0] for line in submission.requirements()}
    assert {"torch", "pydantic"} <= names
    assert not names & {"ray[default,tune]", "pytest", "wandb"}
    env = submission._runtime_env(ROOT, pip=True)
    assert env["pip"] == submission.requirements()
    assert "pip" not in submission._runtime_env(ROOT, pip=False)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("run directory: /a b/runs/20260101-120000-fedavg-pacs-s0\n", "/a b/runs/{}"),
        ("  python -m raysim.run --resume '/a b/20260101-120000-fedavg-pacs-s0'\n", "/a b/{}"),
        ('{"event": "end", "folder": "/r/20260101-120000-fedavg-pacs-s0"}', "/r/{}"),
        ("no round of /r/20260101-120000-fedavg-pacs-s0 was complete.", "/r/{}"),
    ],
)
def test_run_directories_are_found_in_logs(log: str, expected: str) -> None:
    assert submission._RUN.findall(log) == [expected.format("20260101-120000-fedavg-pacs-s0")]


class Cluster:
    """A client whose one job has ended, or is left by Ctrl-C."""

    def __init__(self, status: str, log: str, code: int | None = None) -> None:
        self.status, self.log, self.code = status, log, code
        self.sent: list[dict[str, Any]] = []
        self.left = False

    def submit_job(self, **job: Any) -> str:
        self.sent.append(job)
        return f"job-{len(self.sent)}"

    def get_address(self) -> str:
        return "http://head:8265"

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield self.log
        if self.left:
            raise KeyboardInterrupt

    def get_job_info(self, job: str) -> Any:
        status = submission.JobStatus(self.status)
        return SimpleNamespace(status=status, message="no such image", driver_exit_code=self.code)

    def get_job_logs(self, job: str) -> str:
        command = self.sent[-1]["entrypoint"]
        return os.popen(command).read()  # what the head's shell would do


def send(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    monkeypatch.setattr(submission, "_client", lambda url: cluster)
    submission.submit(["rounds=3", "name=a b"], ROOT, {}, **how)


def test_a_run_that_cannot_be_seen_from_here_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "there" / "20260101-120000-fedavg-pacs-s0"
    (run / "checkpoints").mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    (run / "report.html").write_bytes(os.urandom(3000))
    cluster = Cluster("SUCCEEDED", f"run directory: {run}\n", 0)
    monkeypatch.chdir(tmp_path)
    send(cluster, monkeypatch)
    assert len(cluster.sent) == 1, "it can be seen, so nothing is fetched"
    assert cluster.sent[0]["entrypoint"] == "python -m raysim.run rounds=3 'name=a b'"
    monkeypatch.setattr(Path, "is_dir", lambda path: False)
    send(cluster, monkeypatch)
    here = tmp_path / "runs" / run.name
    assert (here / "report.html").read_bytes() == (run / "report.html").read_bytes()
    assert sorted(file.name for file in here.iterdir()) == ["report.html", "summary.json"]
    assert f"fetched report.html, summary.json to {here}" in capfd.readouterr().err
    send(cluster, monkeypatch)
    assert "could not be fetched" in capfd.readouterr().err, "what is here is not overwritten"


def test_an_archive_cannot_write_outside_the_run(tmp_path: Path) -> None:
    packed_files = io.BytesIO()
    with tarfile.open(fileobj=packed_files, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../../evil.json"))
    text = base64.b64encode(packed_files.getvalue()).decode()
    cluster = Cluster("SUCCEEDED", "", 0)
    cluster.get_job_logs = lambda job: f"a notice\n{text}"  # type: ignore[method-assign]
    assert submission._read_there(cluster, tmp_path) == {"evil.json": b""}
    cluster.get_job_logs = lambda job: "sh: tar: not found"  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="not what was sent"):
        submission._read_there(cluster, tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        ("FAILED", 2, "exit status 2, its log is above"),
        ("FAILED", None, "no such image"),
        ("STOPPED", 143, "it was stopped"),
    ],
)
def test_a_job_that_failed_says_why_and_how_to_go_on(
    status: str, code: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = "/r/20260101-120000-fedavg-pacs-s0"
    with pytest.raises(RunError) as failed:
        send(Cluster(status, f"  python -m raysim.run --resume {run}\n", code), monkeypatch)
    assert f"job job-1: {told}" in str(failed.value)
    assert f"raysim submit --address http://head:8265 --resume {run}" in str(failed.value)


def test_ctrl_c_leaves_the_job_and_says_how_to_come_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster("RUNNING", "round 1/9\n")
    cluster.left = True
    with pytest.raises(KeyboardInterrupt):
        send(cluster, monkeypatch)
    told = capfd.readouterr()
    assert told.out == "round 1/9\n"
    for words in ("goes on", "ray job logs --address http://head:8265 --follow job-1", "job stop"):
        assert words in told.err


def test_a_detached_job_writes_its_name_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    send(Cluster("RUNNING", ""), monkeypatch, follow=False)
    assert capfd.readouterr().out == "job-1\n"


def test_a_lost_connection_is_no_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("RUNNING", "")

    async def broken(job: str) -> AsyncIterator[str]:
        raise RuntimeError("WebSocket connection closed unexpectedly")
        yield ""

    cluster.tail_job_logs = broken  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match=r"lost the job's log: WebSocket[^\n]*\nfollow it: ray"):
        send(cluster, monkeypatch)

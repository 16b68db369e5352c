"""Joining a cluster, or saying quickly and plainly why that is not possible."""

import json
import os
import socket
import subprocess
import sys
import time
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from subprocess import CompletedProcess
from threading import Thread

import pytest

from cluster.executor import RayExecutor
from cluster.session import _join, _probe, session
from raysim.errors import ClusterError
from raysim.execution import ExecutionSettings
from tests.toy import CLI, ROOT, bits_of, dealt, environment, only_run, run_command, toy_config

pytestmark = pytest.mark.ray


def dead_address() -> str:
    """Return an address of this machine where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_dead_address_is_refused_at_once() -> None:
    started = time.perf_counter()
    with pytest.raises(ClusterError, match=r"no Ray cluster answers.*\n.*ray start --head"):
        _probe(dead_address())
    assert time.perf_counter() - started < 5


def test_a_server_that_is_no_ray_head_is_told_at_once() -> None:
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(ClusterError, match=r"no Ray head\n.*6379.*raysim submit"):
            _probe(f"127.0.0.1:{server.server_port}")


@pytest.mark.parametrize("way", ["execution.address", "RAY_ADDRESS"])
def test_a_run_against_a_dead_address_exits_2(way: str, tmp_path: Path) -> None:
    address, words = dead_address(), [*CLI, f"output.dir={tmp_path}"]
    started = time.perf_counter()
    if way == "RAY_ADDRESS":
        done = run_command(*words, RAY_ADDRESS=address)
    else:
        done = run_command(*words, f"execution.address={address}")
    assert done.returncode == 2
    assert address in done.stderr
    assert "Traceback" not in done.stderr
    assert time.perf_counter() - started < 40
    assert not list(tmp_path.iterdir()), "no run directory for a run that could not start"


def test_the_ray_client_is_not_supported() -> None:
    done = run_command("execution.address=ray://127.0.0.1:10001")
    assert done.returncode == 2
    assert "ray job submit" in done.stderr


def test_what_is_no_ray_head_is_asked_after_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> None:
        raise RuntimeError("Timed out while\nwaiting for GCS")

    monkeypatch.setattr("cluster.session.ray.init", refused)
    with pytest.raises(ClusterError) as caught:
        _join("auto")
    found, remedy = str(caught.value).split("\n")
    assert found.endswith("at auto: Timed out while waiting for GCS")
    assert remedy.startswith("is that the address of a Ray head")


ENVIRONMENTS = """
import json, os, ray
from cluster.session import session
from raysim.execution import ExecutionSettings

with session(ExecutionSettings()):
    task = ray.get(ray.remote(lambda: dict(os.environ)).remote())
print(json.dumps([task, dict(os.environ)]))
"""


def test_processes_of_ray_keep_what_they_free_and_the_users_own_settings_stand() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENVIRONMENTS],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment(MALLOC_ARENA_MAX="7"),
    )
    task, after = json.loads(done.stdout.splitlines()[-1])
    assert task["MALLOC_ARENA_MAX"] == after["MALLOC_ARENA_MAX"] == "7"
    assert task["MALLOC_TRIM_THRESHOLD_"] == str(2**31 - 1)
    assert "MALLOC_TRIM_THRESHOLD_" not in after


def test_too_many_hosts_are_refused_with_both_sides(local_ray: str) -> None:
    config = toy_config(execution={"backend": "ray", "hosts": 9})
    dataset, partition = dealt(config)
    with pytest.raises(ClusterError, match=r"wanted: 9 hosts.*has 3 CPU.*enough for 3"):
        RayExecutor(config, partition, dataset)


def test_a_session_of_this_process_is_used_and_left_alone(local_ray: str) -> None:
    import ray

    before = dict(os.environ)
    with session(ExecutionSettings()) as description:
        assert "of this process" in description
    assert ray.is_initialized()
    assert dict(os.environ) == before


def test_hosts_that_find_no_room_are_not_waited_for_forever(local_ray: str) -> None:
    import ray

    blocker = ray.remote(num_cpus=3)(Blocker).remote()
    ray.get(blocker.ready.remote())
    config = toy_config(execution={"backend": "ray", "hosts": 2, "wait_s": 2})
    dataset, partition = dealt(config)
    try:
        with pytest.raises(ClusterError, match=r"2 of 2 hosts did not start within 2 s"):
            RayExecutor(config, partition, dataset)
    finally:
        ray.kill(blocker)


class Blocker:
    """Holds CPUs."""

    def ready(self) -> bool:
        return True


def test_a_run_joins_the_cluster_of_ray_address_quietly(
    local_ray: str, finished: tuple[Path, CompletedProcess[str]], tmp_path: Path
) -> None:
    token = {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH")}
    words = [*CLI, "execution.hosts=2", f"output.dir={tmp_path}"]
    done = run_command(*words, RAY_ADDRESS=local_ray, **token)
    assert done.returncode == 0, done.stderr
    assert f"2 hosts on Ray cluster {local_ray}" in done.stdout
    assert done.stderr == ""
    assert "WARNING" not in done.stdout
    assert bits_of(only_run(tmp_path)) == bits_of(finished[0])


LISTEN = """
import os, re
from contextlib import suppress
from pathlib import Path
from cluster.session import session
from raysim.execution import ExecutionSettings

def family(pid):
    found = [pid]
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += family(int(child))
    return found

with session(ExecutionSettings()):
    inodes = set()
    for pid in family(os.getpid()):
        with suppress(FileNotFoundError):  # files come and go
            for fd in list(Path(f"/proc/{pid}/fd").iterdir()):
                with suppress(FileNotFoundError):
                    inodes |= set(re.findall(r"socket:.(\\d+)", os.readlink(fd)))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and cells[9] in inodes:
                print(cells[1].partition(":")[0])
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_a_ray_of_our_own_listens_on_loopback_only() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LISTEN], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert len(found.stdout.split()) > 3, found.stderr
    ipv6 = {"0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert set(found.stdout.split()) <= {"0100007F", *ipv6}

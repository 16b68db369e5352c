"""Machines of their own, as Ray sees them: network namespaces with addresses and cables."""

import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import summary_of, watching
from tests.killing import HEALTH, eventually, kill
from tests.toy import LONG, ROOT, bits_of, command, environment, only_run

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.xdist_group("ray")]

BRIDGE = "raysim-br"
HEAD = "10.77.0.1"
PORT = 6400


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


class Machines:
    """Namespaces on one bridge, each with a Ray node; the first holds head, driver and server."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._names: list[str] = []
        self._folder = tempfile.mkdtemp(prefix="rs", dir="/tmp")  # short: sockets lie there
        stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self.env = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            **{f"RAY_{name}": str(value) for name, value in HEALTH.items()},
        }
        ip("link", "add", BRIDGE, "type", "bridge")
        stack.callback(_quietly, "link", "del", BRIDGE)
        ip("link", "set", BRIDGE, "up")

    def add(self, *words: str) -> str:
        """Give Ray a machine of its own; returns its name.

        Args:
            *words: further options of `ray start`.
        """
        number = len(self._names) + 1
        name, link = f"raysim-{number}", f"rsv{number}"
        ip("netns", "add", name)
        self._stack.callback(_quietly, "netns", "del", name)
        self._stack.callback(_end_all, name)
        ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", name)
        self._stack.callback(_quietly, "link", "del", link)
        ip("link", "set", link, "master", BRIDGE, "up")
        ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "e0")
        for device in ("lo", "e0"):
            ip("-n", name, "link", "set", device, "up")
        address = f"10.77.0.{number}"
        where = [f"--node-ip-address={address}", f"--temp-dir={self._folder}/{number}"]
        if number == 1:
            where += ["--head", f"--port={PORT}", "--include-dashboard=false"]
        else:
            where = [where[0], f"--address={HEAD}:{PORT}"]
        ray = str(Path(sys.executable).parent / "ray")
        done = subprocess.run(
            self.inside(name, ray, "start", *where, "--object-store-memory=200000000", *words),
            env=environment(**self.env),
            capture_output=True,
            text=True,
            timeout=90,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self._names.append(name)
        return name

    @staticmethod
    def inside(name: str, *words: str) -> list[str]:
        """Return the command line that runs a command on a machine."""
        return ["ip", "netns", "exec", name, *words]


def _quietly(*words: str) -> None:
    with suppress(subprocess.SubprocessError):
        ip(*words)


def _end_all(name: str) -> None:
    """End the processes of a namespace, and of no other."""

    def is_empty() -> bool:
        pids = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in pids:
            with suppress(ProcessLookupError):
                kill(int(pid))
        return not pids

    eventually(is_empty)  # a node that dies may still start workers


def has_namespaces() -> bool:
    """Tell whether this user may make network namespaces."""
    if shutil.which("ip") is None:
        return False
    name = "raysim-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode == 0:
        _quietly("netns", "del", name)
    return made.returncode == 0


@pytest.fixture
def machines() -> Iterator[Machines]:
    """No machine yet; what a test adds is removed."""
    if not has_namespaces():
        pytest.skip("needs root and iproute2, for network namespaces")
    with ExitStack() as stack:
        yield Machines(stack)


def test_a_cable_is_pulled_and_the_run_goes_on(
    machines: Machines, quiet_long: Path, tmp_path: Path
) -> None:
    head = machines.add("--num-cpus=0")
    machines.add("--num-cpus=1")
    cut = machines.add("--num-cpus=2")
    words = [f"execution.address={HEAD}:{PORT}", f"output.dir={tmp_path}"]
    run = machines.inside(head, *command(*LONG, *words))
    with watching(run, **machines.env) as until:
        until("3 hosts on Ray cluster")
        until("^round   3/120")
        ip("-n", cut, "link", "set", "e0", "down")
        told = "".join(until("^run directory"))
    assert "on 10.77.0.3) died with its node" in told
    assert "Traceback" not in told
    summary: dict[str, Any] = summary_of(tmp_path)
    assert summary["recoveries"] >= 1
    assert bits_of(only_run(tmp_path)) == bits_of(quiet_long)

"""What goes wrong on purpose, and how tests look at what is left; Ray's workers can import this.

A fault strikes once: whoever meets it first makes its flag file. It is a field of a test method, so
that it reaches every process; the undisturbed run is the method without faults.

`python -m tests.killing` holds a cluster of nodes for `Nodes`, in a process of its own: Ray reads
its environment when it is imported.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray

from cluster.executor import RayExecutor
from methods.ditto import Ditto
from methods.fedfip import FedFIP
from raysim.aggregation import Partial
from raysim.config import RunConfig, build_config
from raysim.messages import Update
from raysim.method import ClientView, Method, ServerState, ServerView
from raysim.tensors import Arrays
from tests.toy import (
    FEDFIP,
    ROOT,
    PrivateHead,
    ToyRun,
    dealt,
    environment,
    federation,
    toy_tree,
)

NOBODY = -1
"""The "client" of faults that strike the server."""


def fault(what: str, hook: str, round_: int, client: int = NOBODY, *, every: bool = False) -> str:
    """Return a fault as the field `faults` takes it.

    Args:
        what: "kill", "stop" (SIGSTOP), "sleep", "raise", "nan" or "hog".
        hook: a phase of the clients, "evaluate" for the test of their own models, or the server's
            "aggregate-PHASE" or "broadcast-PHASE".
        round_: 0-based round.
        client: whom it strikes.
        every: strike each time, not only once.
    """
    return " ".join([what, hook, str(round_), str(client), "every" if every else "once"])


def _strike(what: str) -> None:
    if what in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
    elif what == "sleep":
        time.sleep(10**6)
    elif what == "raise":
        raise ValueError("a cable was pulled")
    elif what == "hog":
        hoard = []
        while True:
            hoard.append(np.ones(2**23))  # 64 MiB that are really there
            time.sleep(0.01)


class Faulty(Method):
    """A method that faults strike; put it before the method's class."""

    faults: tuple[str, ...] = ()
    flags: str = ""

    def _meet(self, hook: str, round_: int, client: int = NOBODY) -> str:
        """Strike if there is a fault for this place and time; returns what is left to do."""
        for number, text in enumerate(self.faults):
            what, *place, often = text.split()
            if place == [hook, str(round_), str(client)] and (
                often == "every" or self._flag(number)
            ):
                _strike(what)
                return what
        return ""

    def _flag(self, number: int) -> bool:
        try:
            with open(Path(self.flags) / str(number), "x"):
                return True
        except FileExistsError:
            return False

    def client_step(self, client: ClientView) -> Update:
        what = self._meet(client.phase, client.round, client.client)
        update = super().client_step(client)
        if what == "nan":
            name = sorted(update.sums)[0]
            update.sums[name].value.reshape(-1)[0] = np.nan
        return update

    def load_personal(self, client: ClientView) -> bool:
        self._meet("evaluate", client.round, client.client)
        return super().load_personal(client)

    def broadcast(self, server: ServerView) -> Arrays:
        self._meet(f"broadcast-{server.phase}", server.round)
        return super().broadcast(server)

    def aggregate(self, server: ServerView, partial: Partial) -> ServerState:
        self._meet(f"aggregate-{server.phase}", server.round)
        return super().aggregate(server, partial)


class FaultyFedFIP(Faulty, FedFIP):
    """Two phases, private units, server memory."""

    name: str = "faulty_fedfip"


class FaultyDitto(Faulty, Ditto):
    """A whole private model for each client."""

    name: str = "faulty_ditto"


class FaultyHead(Faulty, PrivateHead):
    """A private head for each client."""

    name: str = "faulty_head"


FAULTY: dict[str, type[Method]] = {
    "fedfip": FaultyFedFIP,
    "ditto": FaultyDitto,
    "private_head": FaultyHead,
}
_TABLE = {str(cls.model_fields["name"].default): cls for cls in FAULTY.values()}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedfip": FEDFIP | {"keep_ratio": 0.4, "reactivation_cap": 0.3},
    "ditto": {},
    "private_head": {},
}


def faulty_config(
    method: str, faults: Iterable[str] = (), flags: Path | None = None, **overrides: Any
) -> RunConfig:
    """Return a toy config whose clients all take part in three rounds that faults strike.

    Args:
        method: a key of `FAULTY`.
        faults: see `fault`.
        flags: a folder for the flag files; made if need be.
        **overrides: see `toy_tree`.
    """
    if flags is not None:
        flags.mkdir(parents=True, exist_ok=True)
    name = str(FAULTY[method].model_fields["name"].default)
    section = {"faults": list(faults), "flags": str(flags or "")}
    base: dict[str, Any] = {"rounds": 3, "participation.fraction": 1.0, "evaluation.every": 1}
    tree = toy_tree(**(base | overrides), method=SETTINGS[method] | {"name": name} | section)
    return build_config(tree, _TABLE)


def on_ray(hosts: int = 2, **settings: Any) -> dict[str, Any]:
    """Return the override that runs a toy on Ray."""
    return {"execution": {"backend": "ray", "hosts": hosts, **settings}}


class Told:
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def on_round(self, summary: Any) -> None:
        pass

    def on_notice(self, text: str) -> None:
        self.notices.append(text)


def run_on_ray(
    config: RunConfig,
    folder: Path,
    prepare: Callable[[RayExecutor], None] | None = None,
    spill: Path | None = None,
) -> tuple[ToyRun, list[str]]:
    """Run a config on Ray to its end; returns the run and what was told.

    Args:
        config: the run.
        folder: its run directory.
        prepare: called with the executor before the first round.
        spill: folder for private states; None for the run's own.
    """
    dataset, partition = dealt(config)
    folder.mkdir(parents=True, exist_ok=True)
    executor = RayExecutor(config, partition, dataset, spill=spill or folder / "states")
    try:
        if prepare is not None:
            prepare(executor)
        told = Told()
        summary = federation(config, executor, folder, observers=[told]).run()
        end = executor.snapshot()
        return ToyRun(folder, summary, replace(end, clients=dict(end.clients))), told.notices
    finally:
        executor.close()


def before(thing: Any, call: str, nth: int, deed: Callable[[], None]) -> None:
    """Do a deed right before the n-th call (from 1) of a method of a thing."""
    original, calls = getattr(thing, call), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            deed()
        return original(*args, **kwargs)

    setattr(thing, call, wrapped)


def server_pid(executor: RayExecutor) -> int:
    """Return the process id of the server."""
    return int(ray.get(executor._server.__ray_call__.remote(_pid)))


def host_pid(executor: RayExecutor, index: int = 0) -> int:
    """Return the process id of a host, also of one that is at work."""
    return int(executor._hosts.hosts[index].where.split()[1])


def _pid(actor: Any) -> int:
    return os.getpid()


def kill(pid: int) -> None:
    """Kill a process as `kill -9` does."""
    os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> dict[int, str]:
    """Return the command lines of a process's children, by process id."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # they come and go
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
    return found


def leftovers(wait_s: float = 60.0) -> list[str]:
    """Return the actors and placement groups of the connected Ray that do not go away."""
    import ray._private.state as state

    until = time.monotonic() + wait_s
    while True:
        left = [v["ActorClassName"] for v in state.actors().values() if v["State"] != "DEAD"]
        groups = ray.util.placement_group_table().values()
        left += [g["placement_group_id"] for g in groups if g["state"] != "REMOVED"]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.2)


def eventually(is_so: Callable[[], bool], wait_s: float = 60.0) -> bool:
    """Wait until something is so; returns whether it came to be."""
    until = time.monotonic() + wait_s
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


# Whole nodes -----------------------------------------------------------------------------------

# A lost node is noticed within about 1.5 s.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """A cluster whose head, where driver and server live, has no CPU for hosts."""

    def __init__(self) -> None:
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.killing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(**self.token, **quiet),
            cwd=ROOT,
        )
        self._added: set[str] = set()
        self.address = self._answer()

    def add(self, **what: Any) -> str:
        """Add a node; returns its name.

        Args:
            **what: as `Cluster.add_node` takes it; a node has one CPU by default.
        """
        name = self._ask(f"add {json.dumps({'num_cpus': 1} | what)}")
        self._added.add(name)
        return name

    def kill(self, name: str) -> None:
        """Let a node die as if its plug was pulled."""
        self._ask(f"kill {name}")

    def remove(self, name: str) -> None:
        """Take a node away in good order, or what is left of it."""
        self._ask(f"remove {name}")
        self._added.discard(name)

    def drain(self, name: str) -> None:
        """Announce that a node will be taken away, as clouds do for machines lent cheaply."""
        self._ask(f"drain {name}")

    def clear(self) -> None:
        """Remove all nodes but the head."""
        for name in sorted(self._added):
            self.remove(name)

    def close(self) -> None:
        """Stop the cluster."""
        self._process.communicate(timeout=180)

    def _ask(self, words: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        for line in self._process.stdout or []:
            if line.startswith("> "):
                return line[2:].strip()
        raise AssertionError("the cluster has ended")


def serve_nodes() -> None:
    """Hold a cluster and obey lines of standard input until it ends."""
    from ray._raylet import GcsClient
    from ray.cluster_utils import Cluster
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: list[Any] = []
    sys.stdout.write(f"> {cluster.address}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        what, _, which = line.strip().partition(" ")
        if what == "add":
            nodes.append(cluster.add_node(**json.loads(which)))
        elif what == "kill":
            kill(nodes[int(which)].all_processes["raylet"][0].process.pid)
        elif what == "drain":
            client = GcsClient(address=cluster.address)
            reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
            accepted, why = client.drain_node(nodes[int(which)].node_id, reason, "a test", 0)
            assert accepted, why
        else:
            cluster.remove_node(nodes[int(which)])
        sys.stdout.write(f"> {len(nodes) - 1}\n")
        sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    serve_nodes()

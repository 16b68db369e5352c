"""Joining a Ray cluster, or starting one of our own, without noise and without hanging."""

import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import parameter, ray_constants, services
from ray._private.node import Node

from cluster.forkserver import forkserver
from raysim.cpus import usable_cpus
from raysim.errors import ClusterError, remedy
from raysim.execution import ExecutionSettings

_NO_HEAD = (
    "is that the address of a Ray head (6379 is its usual port)? If it is, set RAY_AUTH_MODE "
    "(token or disabled) as it was for `ray start`"
)
# How HTTP/2, and so Ray's gRPC, begins: both sides send a frame of settings (RFC 9113, 3.4).
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_FRAME, _SETTINGS = 9, b"\4"
# One for the process: Ray caches the first token it sees.
_TOKEN = secrets.token_hex(32)
_beginning: Future[str] | None = None
_UNASKED = ("start_api_server", "start_monitor", "start_log_monitor")
"""What a node starts beside Ray itself: the dashboard, the autoscaler, and who reads log files."""
_WORKER = str(Path(services.__file__).parent / "workers" / "default_worker.py")
_ABSENT = object()
_KEEP_FREED = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}
"""glibc's malloc in Ray's processes: what a step of training frees is there for the next one.

Else it goes back to the kernel, whose fresh pages are a tenth of a large model's step on a CPU. One
arena: only the first can grow beyond 64 MiB, and actors do not compute in the thread that has it.
"""


@contextmanager
def session(settings: ExecutionSettings) -> Iterator[str]:
    """Hold a connection to Ray: the one there is, the named cluster, or a local one of our own.

    Yields:
        A description of the cluster.

    Raises:
        ClusterError: the named cluster does not answer, or Ray does not start.
    """
    if _beginning is None:
        with _held(settings) as description:
            yield description
    else:
        yield _beginning.result()


@contextmanager
def _held(settings: ExecutionSettings) -> Iterator[str]:
    if ray.is_initialized():
        yield "the Ray session of this process"
        return
    address = settings.address or os.environ.get("RAY_ADDRESS")
    before = dict(os.environ)
    # A failed call has several results; what is told of it is the run's affair, once.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        if address:
            _join(address)
            yield f"Ray cluster {address}"
        else:
            _prepare_local()
            forking = forkserver if sys.platform == "linux" else nullcontext
            with forking(_WORKER) as worker:
                _start_local(worker)
                yield "a local Ray"
    finally:
        ray.shutdown()
        _restore(before)


@contextmanager
def beginning(settings: ExecutionSettings) -> Iterator[None]:
    """Let Ray start beside what the block does; the next `session` in it waits for that.

    Starting Ray is mostly waiting for other processes: time enough to import torch.
    """
    global _beginning
    held = _held(settings)
    with ThreadPoolExecutor(1) as pool:
        _beginning = pool.submit(held.__enter__)
        try:
            yield
        finally:
            begun, _beginning = _beginning, None
            if begun.exception() is None:
                held.__exit__(None, None, None)


def _prepare_local() -> None:
    """Set what a Ray of our own reads: loopback only, with a token that dies with it."""
    if "RAY_AUTH_MODE" not in os.environ:  # Ray then turns tokens on, and would write a file
        os.environ.setdefault("RAY_AUTH_TOKEN", _TOKEN)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15, Ray's own, starves beside other work
    for name, value in _KEEP_FREED.items():
        os.environ.setdefault(name, value)
    # Ray answers 127.0.0.1 with the machine's outer address, and then listens on all of them,
    # unless it is told that there is no cluster: by a constant here, by the variable elsewhere.
    os.environ.setdefault(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "0")


def _start_local(worker: str) -> None:
    """Start Ray for this run alone.

    Args:
        worker: path of the script that its workers run.
    """
    replaced = [_replaced(ray_constants, "ENABLE_RAY_CLUSTER", False)]
    # Nobody asks them, and Ray waits for some; the dashboard's agent imports all of the dashboard
    # unless it believes that the dashboard's dependencies are not installed.
    replaced += [_replaced(Node, name, lambda *_, **__: None) for name in _UNASKED]
    replaced += [_replaced(Node, "_webui_url", None)]
    settings = partial(parameter.RayParams, worker_path=worker)
    replaced += [_replaced(parameter, "RayParams", settings)]
    replaced += [_replaced(ray._private.utils, "get_dashboard_dependency_error", ImportError)]
    if ray._private.utils.detect_fate_sharing_support():  # it dies with this process all the same
        # What ends a whole process group (timeout, SLURM) must not take Ray from under its driver.
        own = partial(services.ConsolePopen, start_new_session=True)
        replaced += [_replaced(services, "ConsolePopen", own)]
    try:
        with ExitStack() as stack:
            for replacement in replaced:
                stack.enter_context(replacement)
            ray.init(
                address="local",
                num_cpus=usable_cpus(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _node_ip_address="127.0.0.1",
            )
    except Exception as error:
        raise ClusterError(
            f"Ray did not start on this machine: {error}\n"
            "execution.backend=inprocess runs without Ray"
        ) from error


@contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    """Give a name of a module or class another value for the block."""
    before = getattr(module, name, _ABSENT)
    setattr(module, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(module, name)
        else:
            setattr(module, name, before)


def _join(address: str) -> None:
    if address.startswith("ray://"):
        raise ClusterError(
            f"{address}: the Ray Client is not supported\nrun on the cluster instead: "
            "ray job submit --working-dir . -- python -m raysim.run"
        )
    _probe(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise ClusterError(
            f"cannot join the Ray cluster at {address}: {' '.join(str(error).split())}\n"
            f"{remedy(error) or _NO_HEAD}; "
            "unset RAY_ADDRESS and execution.address to use a Ray of your own"
        ) from error


def _probe(address: str) -> None:
    """Fail fast where `ray.init` would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return  # "auto" and the like
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=3) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(_FRAME, socket.MSG_WAITALL)
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster answers at {address} ({error})\nstart one with `ray start --head`, "
            "or unset RAY_ADDRESS and execution.address to use a local one"
        ) from None
    secured = os.environ.get("RAY_USE_TLS", "0") not in ("", "0")
    if not secured and answer[3:4] != _SETTINGS:
        raise ClusterError(
            f"what answers at {address} is no Ray head\n{_NO_HEAD}; "
            "the dashboard's port is for raysim submit"
        )


def _restore(environment: Mapping[str, str]) -> None:
    for key in os.environ.keys() - environment.keys():
        if key.startswith("RAY_") or key in _KEEP_FREED:
            del os.environ[key]
    os.environ.update(environment)

"""A process that has imported torch, for Ray's workers on this machine to be forked from.

A worker that starts by itself imports torch by itself: two seconds of a core, and some 200 MiB that
it shares with nobody. This file is two programs: Ray runs it where it would run a worker
(`request`), and `python -m cluster.forkserver SOCKET` is the process that forks one then (`serve`).
Where the latter is not there, the former becomes the worker.

Ray itself is not imported before the fork: it has threads, which would be missing after it.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

_ADDRESS = "RAYSIM_FORKSERVER"
_WORKER = "RAYSIM_RAY_WORKER"
_STANDARD_FILES = (0, 1, 2)
_PEER = struct.Struct("3i")  # process, user, group
_PATIENCE_S = 10.0


@contextmanager
def forkserver(worker: str) -> Iterator[str]:
    """Have a fork server while the block lasts; it ends with this process, however that ends.

    Workers live on without it.

    Args:
        worker: path of the script that Ray runs as a worker.

    Yields:
        Path of the script that Ray is to run instead.
    """
    import secrets
    import subprocess
    from pathlib import Path

    # In Linux's abstract namespace, which leaves no file behind.
    address = f"raysim-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{address}")
        listener.listen(socket.SOMAXCONN)  # requests wait until there is somebody to answer
        process = subprocess.Popen(
            [sys.executable, *_flags(), "-m", "cluster.forkserver", str(listener.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which then ends the other
        )
    os.environ.update({_ADDRESS: address, _WORKER: worker})
    try:
        yield __file__
    finally:
        for key in (_ADDRESS, _WORKER):
            del os.environ[key]
        with process:
            process.kill()


@dataclass(frozen=True)
class Start:
    """How a Python process starts.

    Attributes:
        words: script and arguments.
        path: where modules are looked for.
        environment: its variables.
        folder: the current one.
    """

    words: list[str]
    path: list[str]
    environment: dict[str, str]
    folder: str

    def run(self) -> None:
        """Be that process."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.argv, sys.path[:] = self.words, self.path
        runpy.run_path(self.words[0], run_name="__main__")


def serve(listener: socket.socket) -> Start | None:
    """Fork a process for each request, until standard input ends.

    Args:
        listener: of a Unix socket.

    Returns:
        What a forked process is to be; nothing in this one.
    """
    import pandas  # noqa: F401  # hosts read data with it

    import raysim.host
    import raysim.server  # noqa: F401

    gc.freeze()  # a collection writes to pages, and so copies what is shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    # The threads that there are, of OpenBLAS and jemalloc, know of forks.
    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            start = _fork(connection)
            if start is not None:
                return start
    return None


def _fork(connection: socket.socket) -> Start | None:
    """Fork what is asked for; return it in the forked process."""
    connection.settimeout(_PATIENCE_S)
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(credentials)[1] != os.getuid():
        return None
    start: Start | None = None
    files: list[int] = []
    with suppress(OSError, ValueError):  # who asked is gone
        _, files, *_ = socket.recv_fds(connection, 1, len(_STANDARD_FILES))
        with connection.makefile("rb") as stream:
            start = Start(**json.load(stream))
    forked = start is not None and os.fork() == 0
    if forked:
        os.setpgid(0, 0)  # Ray ends a worker's process group with the worker
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for standard, file in zip(_STANDARD_FILES, files, strict=True):
            os.dup2(file, standard)
        connection.sendall(b"\n")
    for file in files:
        os.close(file)
    return start if forked else None


def request(words: Sequence[str]) -> None:
    """Ask the fork server for a worker, or become it.

    Args:
        words: arguments of Ray's worker script.
    """
    worker = os.environ[_WORKER]
    path = [os.path.dirname(worker), *sys.path[1:]]
    start = Start([worker, *words], path, dict(os.environ), os.getcwd())
    forked = b""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{os.environ[_ADDRESS]}")
        socket.send_fds(connection, [b"\n"], _STANDARD_FILES)
        connection.sendall(json.dumps(asdict(start)).encode())
        connection.shutdown(socket.SHUT_WR)
        forked = connection.recv(1)
    if not forked:
        os.execv(sys.executable, [sys.executable, *_flags(), worker, *words])


def _flags() -> list[str]:
    """Return what this interpreter was started with."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def main() -> None:
    """Entry point of both programs."""
    if __spec__ is None:  # run by its path
        request(sys.argv[1:])
    else:
        with socket.socket(fileno=int(sys.argv[1])) as listener:
            start = serve(listener)
        if start is not None:
            start.run()


if __name__ == "__main__":
    main()

"""What a machine needs for runs, looked at without starting one; each problem with its remedy."""

import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from raysim.cpus import usable_cpus

_GIB = 2**30
_MIB = 2**20
_LEAST_DISK = 2 * _GIB
_LEAST_SHM = 256 * _MIB
_LEAST_FILES, _MANY_FILES = 4096, 65536
_LONGEST_SOCKET = 107  # bytes of a Unix socket's path on Linux
_SESSION = "ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
_LARGEST_PACKAGE = 512 * _MIB  # that Ray copies to a cluster as a working directory
_PYTHONS = ((3, 10), (3, 13))


class State(Enum):
    """How a check ended."""

    GOOD = "ok"
    DOUBTFUL = "warning"
    BAD = "problem"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        what: what was looked at.
        found: in words.
        state: whether runs will work.
        remedy: what to do, if something is wrong.
    """

    what: str
    found: str
    state: State = State.GOOD
    remedy: str = ""


def machine_checks(output: Path) -> list[Finding]:
    """Look at this machine.

    Args:
        output: where run directories will be made.
    """
    return [
        _python(),
        _versions(),
        _processors(),
        *_gpus(),
        _disk("disk of output.dir", output, "set output.dir to a folder on another disk"),
        _disk(
            "disk of temporary files", _ray_folder(), "set RAY_TMPDIR to a folder on another disk"
        ),
        shared_memory(Path("/dev/shm")),
        open_files(),
        socket_path(_ray_folder()),
        working_directory(Path()),
    ]


def shared_memory(folder: Path) -> Finding:
    """Look at the folder that Ray's object store lies in on Linux."""
    what = "shared memory"
    if not folder.is_dir():
        return Finding(what, f"no {folder}: Ray keeps objects in temporary files")
    size = shutil.disk_usage(folder).total
    found = f"{size / _GIB:.1f} GiB in {folder}"
    if size >= _LEAST_SHM:
        return Finding(what, found)
    remedy = "Ray is slow without it; in a container: docker run --shm-size=2g"
    return Finding(what, found, State.DOUBTFUL, remedy)


def open_files() -> Finding:
    """Look at how many files a process may have open; Ray needs some for each worker."""
    what = "open files"
    try:
        import resource
    except ImportError:  # Windows
        return Finding(what, "no limit known")
    soft, hard = (
        math.inf if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft >= _LEAST_FILES:
        return Finding(what, f"{soft:,} may be open at once")
    found = f"{soft:,} may be open at once, {hard:,} at most; Ray wants {_LEAST_FILES:,} or more"
    remedy = f"ulimit -n {min(hard, _MANY_FILES)}"
    if hard < _LEAST_FILES:
        remedy = (
            "raise the hard limit, as the administrator: nofile in /etc/security/limits.conf, then "
            f"log in anew; in a container: docker run --ulimit nofile={_MANY_FILES}"
        )
    return Finding(what, found, State.DOUBTFUL, remedy)


def socket_path(folder: Path) -> Finding:
    """Look at whether Ray's sockets below a folder have paths that Linux takes."""
    length = len(os.fsencode(folder / _SESSION))
    found = f"{length} bytes below {folder}"
    if length <= _LONGEST_SOCKET:
        return Finding("socket paths", found)
    remedy = f"more than {_LONGEST_SOCKET} are refused: set RAY_TMPDIR to a short path like /tmp"
    return Finding("socket paths", found, State.BAD, remedy)


def working_directory(folder: Path) -> Finding:
    """Look at what `ray job submit --working-dir .` would copy to a cluster."""
    what = "working directory"
    size, largest = _package_size(folder)
    found = f"{size / _MIB:,.0f} MiB would be copied by ray job submit"
    if size < _LARGEST_PACKAGE:
        return Finding(what, found)
    named = ", ".join(largest)
    remedy = (
        f"Ray refuses more than {_LARGEST_PACKAGE // _MIB} MiB: name the largest ({named}) in "
        ".rayignore, lines as in .gitignore"
    )
    return Finding(what, found, State.DOUBTFUL, remedy)


def _python() -> Finding:
    found = platform.python_version()
    lowest, highest = (f"{major}.{minor}" for major, minor in _PYTHONS)
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        return Finding("Python", found)
    return Finding("Python", found, State.BAD, f"use Python {lowest} to {highest}")


def _versions() -> Finding:
    names = ("raysim", "ray", "torch", "numpy", "pyarrow")
    return Finding("versions", ", ".join(f"{name} {_version(name)}" for name in names))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _processors() -> Finding:
    cpus = usable_cpus()
    more = f" of {os.cpu_count()}" if os.cpu_count() != cpus else ""
    return Finding("CPUs", f"{cpus}{more} usable; one host each by default")


def _gpus() -> Iterable[Finding]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            yield Finding("GPU", f"{device.name}, {device.total_memory / _GIB:.0f} GiB")
    elif shutil.which("nvidia-smi"):
        remedy = (
            "pip install a torch build for this CUDA driver (see pytorch.org), or train on CPUs"
        )
        yield Finding("GPU", "nvidia-smi is there, torch sees no GPU", State.DOUBTFUL, remedy)
    else:
        yield Finding("GPU", "none: clients train on CPUs")


def _disk(what: str, folder: Path, remedy: str) -> Finding:
    there = next(
        parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists()
    )
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()  # access rights alone say little to root
    except OSError as error:
        found = f"nothing can be made in {there}: {error.strerror or error}"
        return Finding(what, found, State.BAD, remedy)
    free = shutil.disk_usage(there).free
    found = f"{free / _GIB:,.1f} GiB free at {there}"
    if free >= _LEAST_DISK:
        return Finding(what, found)
    wanted = f"{found}, less than the {_LEAST_DISK / _GIB:.0f} GiB that runs want"
    return Finding(what, wanted, State.BAD, remedy)


def _ray_folder() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())


def _package_size(folder: Path) -> tuple[int, list[str]]:
    """Return the bytes of what Ray would send of a folder, and its largest entries.

    Left out is what `.gitignore` and `.rayignore` name; without git, nothing is.
    """
    listed = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"]
    if (folder / ".rayignore").is_file():
        listed.append("--exclude-from=.rayignore")
    try:
        names = subprocess.run(listed, capture_output=True, check=True).stdout.split(b"\0")
        files = [folder / os.fsdecode(name) for name in names if name]
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository
        files = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
    by_entry: dict[str, int] = {}
    for file in files:
        if file.is_file() and not file.is_symlink():
            entry = file.relative_to(folder).parts[0]
            by_entry[entry] = by_entry.get(entry, 0) + file.stat().st_size
    largest = sorted(by_entry, key=lambda name: -by_entry[name])[:3]
    return sum(by_entry.values()), largest

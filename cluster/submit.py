"""Runs as jobs of a Ray cluster: sent, followed and fetched through the cluster's dashboard."""

import asyncio
import base64
import binascii
import io
import logging
import os
import re
import shlex
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from raysim.errors import ClusterError, RunError, remedy
from raysim.exits import complain

_DEFAULT = "http://127.0.0.1:8265"
_TOKEN = (
    "every machine needs the head's token: copy its ~/.ray/auth_token here, or set RAY_AUTH_TOKEN; "
    "and RAY_AUTH_MODE=token"
)
_GRACE_S = "60"  # between SIGTERM and SIGKILL of `ray job stop`; Ray's own 3 s save no large model
_RUN = re.compile(r"(?<![^\s\"'])/[^\n\"']*?/\d{8}-\d{6}-[\w.-]*\w")
"""A run directory's absolute path, wherever a log names one."""
_POLL_S = 0.5
_LOST = (RuntimeError, OSError, aiohttp.ClientError)


def submit(
    words: Sequence[str],
    working_dir: Path,
    files: Mapping[str, Path],
    *,
    address: str | None = None,
    pip: bool = False,
    follow: bool = True,
) -> None:
    """Run a command line of `python -m raysim.run` as a job.

    Args:
        words: options and settings; paths among them are the cluster's.
        working_dir: folder whose copy the job runs in, without what .gitignore and .rayignore
            name.
        files: further files for the copy, by their path in it.
        address: URL of the dashboard; None takes Ray's variables, else this machine's.
        pip: install raysim's requirements on the nodes first.
        follow: stay, show the log, and fetch the results; else write the job's name and leave.

    Raises:
        ClusterError: no dashboard answers, it wants another token, or it refuses the job.
        RunError: the job failed or was stopped.
        KeyboardInterrupt: the user does not want to follow any more; the job goes on.
    """
    with _warnings_only():
        client = _client(_dashboard(address))
        job = _send(client, words, working_dir, files, pip=pip)
        url = client.get_address()
        how = (
            f"follow it: ray job logs --address {url} --follow {job}\n"
            f"stop it, the last complete round saved: ray job stop --address {url} {job}"
        )
        complain(f"job {job} at {url}", 0)
        if not follow:
            complain(how, 0)
            sys.stdout.write(f"{job}\n")
            return
        try:
            log = asyncio.run(_follow(client, job))
            _end(client, job, log)
        except KeyboardInterrupt:
            complain(f"the job goes on\n{how}", 0)
            raise
        except _LOST as error:
            raise ClusterError(f"lost the job's log: {error}\n{how}") from error


@contextmanager
def _warnings_only() -> Iterator[None]:
    """Keep Ray, which tells of every step of an upload, to what may be wrong."""
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _dashboard(address: str | None) -> str:
    """Return the URL to ask; RAY_ADDRESS counts only where it is one."""
    named = [address, os.environ.get("RAY_API_SERVER_ADDRESS")]
    named += [url for url in [os.environ.get("RAY_ADDRESS")] if url and url.startswith("http")]
    found = next(filter(None, named), _DEFAULT)
    return found if "://" in found else f"http://{found}"


def _client(url: str) -> JobSubmissionClient:
    os.environ["RAY_API_SERVER_ADDRESS"] = url  # Ray's variables overrule the argument
    try:
        return JobSubmissionClient(url)
    except AuthenticationError as error:
        raise ClusterError(f"{url}: {str(error).splitlines()[0]}\n{_TOKEN}") from None
    except Exception as error:
        raise ClusterError(
            f"no Ray dashboard answers at {url} ({error}); `ray start --head` of ray[default] says "
            "where it is, usually port 8265 of the head; from elsewhere: "
            "ssh -N -L 8265:127.0.0.1:8265 HEAD, or --address URL"
        ) from None


def _send(
    client: JobSubmissionClient,
    words: Sequence[str],
    working_dir: Path,
    files: Mapping[str, Path],
    *,
    pip: bool,
) -> str:
    """Upload the code and start the job; returns its name."""
    entrypoint = shlex.join(["python", "-m", "raysim.run", *words])
    try:
        with _staged(working_dir, files) as folder:
            found: str = client.submit_job(
                entrypoint=entrypoint, runtime_env=_runtime_env(folder, pip=pip)
            )
            return found
    except AuthenticationError as error:
        raise ClusterError(f"{str(error).splitlines()[0]}\n{_TOKEN}") from None
    except (RuntimeError, ValueError, OSError) as error:
        told = remedy(error) or "the dashboard's own log on the head says more"
        raise ClusterError(f"the cluster did not take the job: {error}\n{told}") from error


def _runtime_env(working_dir: Path, *, pip: bool) -> dict[str, Any]:
    env: dict[str, Any] = {
        "working_dir": str(working_dir),
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": _GRACE_S, "PYTHONUNBUFFERED": "1"},
    }
    if pip:
        env["pip"] = requirements()
        env["config"] = {"setup_timeout_seconds": 3600}  # torch alone may take Ray's own 600
    return env


def requirements() -> list[str]:
    """Return what raysim needs of PyPI, without Ray, which a cluster has in its own version.

    Raises:
        ClusterError: raysim is not installed here, so that nothing says what it needs.
    """
    try:
        found = requires("raysim") or []
    except PackageNotFoundError:
        raise ClusterError(
            "--pip reads the requirements of an installed raysim: pip install -e . first"
        ) from None
    return [line for line in found if "extra ==" not in line and not re.match(r"ray\b", line)]


@contextmanager
def _staged(working_dir: Path, files: Mapping[str, Path]) -> Iterator[Path]:
    """Yield a folder that looks like the working directory with some files more.

    Ray packs one folder and follows links, so that nothing is copied or written in the user's own.
    """
    with TemporaryDirectory(prefix="raysim-submit-") as scratch:
        folder = Path(scratch)
        # What Ray leaves out by itself it would warn of, each time.
        others = {Path(name).parts[0] for name in files} | {*get_runtime_env_default_excludes()}
        for entry in working_dir.resolve().iterdir():
            if entry.name not in others:
                (folder / entry.name).symlink_to(entry)
        for name, file in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(file.resolve())
        yield folder


async def _follow(client: JobSubmissionClient, job: str) -> str:
    """Write the log as it grows; returns it."""
    parts = []
    async for text in client.tail_job_logs(job):
        sys.stdout.write(text)
        sys.stdout.flush()
        parts.append(text)
    return "".join(parts)


def _end(client: JobSubmissionClient, job: str, log: str) -> None:
    """Fetch what a job has left, or say how it failed and how to go on."""
    details = _ended(client, job)
    runs = _RUN.findall(log)
    folder = Path(runs[-1]) if runs else None
    if details.status == JobStatus.SUCCEEDED:
        if folder is not None and not folder.is_dir():
            _fetch(client, folder)
        return
    code = details.driver_exit_code
    # Without a status of its own the command never ran, and the log does not say why.
    reason = details.message if code is None else f"exit status {code}, its log is above"
    if details.status == JobStatus.STOPPED:
        reason = "it was stopped"
    resume = ["--address", client.get_address(), "--resume", str(folder)]
    told = f"\nif rounds are saved: raysim submit {shlex.join(resume)}" if folder else ""
    raise RunError(f"job {job}: {reason}{told}")


def _ended(client: JobSubmissionClient, job: str) -> Any:
    """Wait for the status, which comes a little after the log's end."""
    while not (details := client.get_job_info(job)).status.is_terminal():
        time.sleep(_POLL_S)
    return details


def _fetch(client: JobSubmissionClient, folder: Path) -> None:
    """Bring a run's report, summary and tables here, by way of the log of a small job."""
    here = Path("runs") / folder.name
    try:
        files = _read_there(client, folder)
        here.mkdir(parents=True)
        for name, content in files.items():
            (here / name).write_bytes(content)
    except (*_LOST, ValueError, tarfile.TarError) as error:
        complain(f"{folder} is on the cluster, and could not be fetched: {error}", 0)
        return
    complain(f"fetched {', '.join(sorted(files))} to {here.resolve()}", 0)


def _read_there(client: JobSubmissionClient, folder: Path) -> dict[str, bytes]:
    """Return the files that lie directly in a folder of the head node; all of them are small."""
    command = f"cd {shlex.quote(str(folder))} && tar -cz *.* | base64 -w 0"
    job = client.submit_job(entrypoint=command)
    if _ended(client, job).status != JobStatus.SUCCEEDED:
        raise ValueError(client.get_job_logs(job).strip())
    packed = max(client.get_job_logs(job).splitlines(), key=len, default="")
    try:
        content = base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not what was sent: {error}") from None
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        opened = {m.name: archive.extractfile(m) for m in archive if m.isfile()}
        return {Path(name).name: file.read() for name, file in opened.items() if file is not None}

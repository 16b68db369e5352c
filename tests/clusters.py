"""Runs of the command line on a cluster of several nodes, watched line by line.

`python -m tests.clusters ADDRESS CASES` starts the hosts of toy runs and says where they lie.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cluster.executor import RayExecutor
from cluster.nodes import list_nodes
from cluster.session import session
from methods import METHODS
from raysim.config import load_config
from raysim.errors import UserError
from raysim.execution import ExecutionSettings
from tests.killing import Nodes
from tests.toy import LONG, ROOT, TOY, bits_of, command, dealt, environment, only_run

NAME = "node-name"
"""Label that names a node of a test."""


@contextmanager
def watching(words: Sequence[str], **more: str) -> Iterator[Callable[[str], list[str]]]:
    """Start a command; yields what reads its output up to a line that fits a pattern."""
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**more),
        cwd=ROOT,
    ) as process:
        lines = iter(process.stdout or [])

        def until(pattern: str) -> list[str]:
            seen = []
            for line in lines:
                seen.append(line)
                if re.search(pattern, line):
                    return seen
            raise AssertionError(f"no {pattern!r} in {''.join(seen)}")

        try:
            yield until
        finally:
            process.kill()


@contextmanager
def running(
    nodes: Nodes, folder: Path, *words: str, pace: Path | None = None
) -> Iterator[Callable[[str], list[str]]]:
    """Start a long run on the cluster; see `watching`.

    Args:
        nodes: the cluster.
        folder: for the output.
        *words: further settings.
        pace: see `PacedFedFIP`; no bit depends on it.
    """
    method = ["method=tests/paced.py:PacedFedFIP", f"method.pace={pace}"] if pace else []
    where = (f"execution.address={nodes.address}", f"output.dir={folder}")
    with watching(command(*method, *LONG, *where, *words), **nodes.token) as until:
        yield until


def summary_of(folder: Path) -> dict[str, Any]:
    """Return the summary of the one run in an output folder."""
    found: dict[str, Any] = json.loads((only_run(folder) / "summary.json").read_text())
    return found


def assert_undisturbed(folder: Path, quiet: Path) -> None:
    """The one run in an output folder lost nothing, and has the bits of a run without a cluster."""
    assert summary_of(folder)["recoveries"] == 0
    assert bits_of(only_run(folder)) == bits_of(quiet)


def hosts_by_node(nodes: Nodes, *cases: Sequence[str]) -> list[dict[str, int] | str]:
    """Start the hosts of a toy run, case by case, and end them.

    Args:
        nodes: the cluster; nodes have the label `NAME`.
        *cases: `key=value` words of `execution` each.

    Returns:
        The number of hosts by the node's name, or what is wrong, for each case.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.clusters", nodes.address, json.dumps(cases)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(**nodes.token),
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, int] | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _place(address: str, words: Sequence[str]) -> dict[str, int] | str:
    text = yaml.safe_dump(TOY | {"execution": {"backend": "ray", "address": address}})
    config = load_config(METHODS, text=text, overrides=[f"execution.{word}" for word in words])
    dataset, partition = dealt(config)
    try:
        executor = RayExecutor(config, partition, dataset)
    except UserError as error:
        return str(error)
    try:
        name = {node.id: node.labels.get(NAME, "head") for node in list_nodes()}
        return Counter(name[host.node] for host in executor._hosts.hosts.values())
    finally:
        executor.close()


def _place_all(address: str, cases: Sequence[Sequence[str]]) -> None:
    with session(ExecutionSettings(address=address)):
        found = [_place(address, words) for words in cases]
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    _place_all(sys.argv[1], json.loads(sys.argv[2]))

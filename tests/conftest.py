import os
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

from tests.toy import CLI, INPROCESS, LONG, only_run, run_command

if TYPE_CHECKING:
    from tests.killing import Nodes

hypothesis.settings.register_profile("raysim", deadline=None)  # no test is about seconds
hypothesis.settings.load_profile("raysim")
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it runs with &
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests' own processes must hear it


@pytest.fixture(scope="session")
def local_ray() -> Iterator[str]:
    """One Ray with three CPUs for all tests; yields its address."""
    from cluster import session  # before Ray, which reads its environment when it is imported

    import ray  # isort: skip

    before = dict(os.environ)
    here = str(Path(__file__).parent.parent)  # workers import test methods from here
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [before.get("PYTHONPATH")])])
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", session._TOKEN)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
    session._restore(before)
    os.environ.pop("PYTHONPATH", None)
    os.environ.update(before)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompletedProcess[str]]:
    """An unbroken run of the command line: its directory, status and output."""
    return _unbroken(tmp_path_factory.mktemp("finished"), CLI)


@pytest.fixture(scope="session")
def quiet_long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the undisturbed long run in this process."""
    return _unbroken(tmp_path_factory.mktemp("quiet"), LONG)[0]


def _unbroken(folder: Path, words: list[str]) -> tuple[Path, CompletedProcess[str]]:
    done = run_command(*words, INPROCESS, f"output.dir={folder}")
    assert done.returncode == 0, done.stderr
    return only_run(folder), done


@pytest.fixture
def pace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file: rounds of a run that is paced by it take seconds until it is deleted."""
    path = tmp_path_factory.mktemp("pace") / "pace"
    path.touch()
    return path


@pytest.fixture(scope="module")
def cluster() -> "Iterator[Nodes]":
    """A cluster for all tests of a module."""
    from tests.killing import Nodes

    found = Nodes()
    yield found
    found.close()


@pytest.fixture
def nodes(cluster: "Nodes") -> "Iterator[Nodes]":
    """The cluster without nodes; those that a test adds are removed."""
    yield cluster
    cluster.clear()


@pytest.hookimpl(tryfirst=True)  # before marks are selected by
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that use Ray to one process, and skip what needs an accelerator without one."""
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs an accelerator"))
        if "local_ray" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("ray"))
            item.add_marker(pytest.mark.ray)

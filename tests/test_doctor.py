import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cluster.checkup import _hosts
from cluster.rooms import Node
from raysim import doctor
from raysim.cli import app
from raysim.doctor import State, machine_checks, open_files, shared_memory, socket_path
from raysim.errors import failure, remedy
from raysim.run import read_config
from tests.toy import environment

RAYSIM = str(Path(sys.executable).with_name("raysim"))


def test_every_check_says_what_it_found_and_what_to_do(tmp_path: Path) -> None:
    found = machine_checks(tmp_path)
    assert [finding.what for finding in found][:3] == ["Python", "versions", "CPUs"]
    assert all(finding.found for finding in found)
    assert all(finding.remedy for finding in found if finding.state is not State.GOOD)


def test_few_open_files_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    for hard, most in ((10_000, 10_000), (1 << 20, 65536), (resource.RLIM_INFINITY, 65536)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, hard=hard: (256, hard))
        found = open_files()
        assert (found.state, found.remedy) == (State.DOUBTFUL, f"ulimit -n {most}")


def test_a_hard_limit_of_few_files_is_what_has_to_be_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1024))
    found = open_files()
    assert found.state is State.DOUBTFUL
    assert "ulimit -n" not in found.remedy
    assert "limits.conf" in found.remedy
    assert "docker run --ulimit nofile=65536" in found.remedy


def test_long_socket_paths_are_refused_before_ray_does() -> None:
    assert socket_path(Path("/tmp")).state is State.GOOD
    assert socket_path(Path("/tmp") / ("x" * 60)).state is State.BAD


def test_a_container_with_docker_s_default_shared_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(total=64 << 20))
    found = shared_memory(tmp_path)
    assert found.state is State.DOUBTFUL
    assert "--shm-size" in found.remedy


def test_a_full_or_closed_disk_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor._disk("disk", tmp_path / "new" / "folder", "").state is State.GOOD
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    full = doctor._disk("disk", tmp_path, "another")
    assert full.state is State.BAD
    assert "less than the 2 GiB" in full.found
    closed = doctor._disk("disk", Path("/proc/none"), "another")
    assert closed.state is State.BAD
    assert "nothing can be made in /proc: " in closed.found
    assert list(tmp_path.iterdir()) == []


def test_large_working_directories_name_what_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / ".rayignore").write_text("/raw\n.rayignore\n")
    for name, size in (("data", 3000), ("ignored", 9000), ("raw", 9000), ("code.py", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
    size, largest = doctor._package_size(tmp_path)
    assert size == 3000 + 10 + len("ignored\n")
    assert largest == ["data", "code.py", ".gitignore"]
    monkeypatch.setattr(doctor, "_LARGEST_PACKAGE", 2000)
    assert "data, code.py" in doctor.working_directory(tmp_path).remedy


def test_an_in_process_self_test_gives_equal_bits() -> None:
    done = CliRunner().invoke(app, ["doctor", "execution.backend=inprocess"])
    assert done.exit_code == 0, done.output
    assert "self-test: a round with and without Ray gives equal bits" in done.output


def test_one_client_is_one() -> None:
    config = read_config(["data=digits_mini", "data.clients=1"])
    node = Node("n", "127.0.0.1", {"CPU": 2.0}, {"CPU": 2.0})
    assert _hosts(config, [node]).found.startswith("1 for 1 client, ")


@pytest.mark.slow
def test_the_command_starts_ray_and_sees_what_hosts_would_be() -> None:
    done = subprocess.run([RAYSIM, "doctor"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    for word in ("a local Ray, 1 node", "object store", "hosts: auto", "equal bits"):
        assert word in done.stdout


def test_a_cluster_that_does_not_answer_is_a_problem() -> None:
    # A process of its own: this one may have a Ray, which would be looked at instead.
    words = [RAYSIM, "doctor", "execution.address=127.0.0.1:9"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 2
    assert "problem  Ray: no Ray cluster answers at 127.0.0.1:9" in done.stdout
    assert "\n         -> start one with `ray start --head`" in done.stdout


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), "lower local.batch_size"),
        (ArithmeticError("NaN or infinity in 'head.weight'"), "lower local.lr"),
        (OSError(28, "No space left on device"), "raysim resume RUN_DIR"),
        (RuntimeError("Version mismatch: The cluster was started with"), "ray job submit"),
        (RuntimeError("Package size (600MiB) exceeds the maximum size of 512MiB"), ".rayignore"),
        (ValueError("something else"), ""),
    ],
)
def test_errors_that_people_meet_have_a_remedy(error: Exception, told: str) -> None:
    assert told in remedy(error)
    assert bool(remedy(error)) == bool(told)
    assert str(failure("client 3 failed", error)).startswith(
        f"client 3 failed: {type(error).__name__}"
    )

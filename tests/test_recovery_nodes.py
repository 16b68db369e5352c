"""Whole nodes are lost, and memory runs out: the run goes on, or says what it waits for."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import running, summary_of
from tests.killing import Nodes, fault
from tests.toy import INPROCESS, bits_of, only_run, run_command

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.xdist_group("ray")]


@pytest.mark.parametrize("lose", [Nodes.kill, Nodes.remove])
def test_a_run_goes_on_with_the_nodes_that_are_left(
    nodes: Nodes, quiet_long: Path, lose: Any, tmp_path: Path
) -> None:
    nodes.add()
    lost = nodes.add()
    with running(nodes, tmp_path, "execution.hosts=2") as until:
        until("^round   3/120")
        lose(nodes, lost)
        told = "".join(until("^run directory"))
    assert re.search(
        r"host \d \(pid \d+ on .*\) died with its node.*; .*round \d+ is run again", told
    )
    assert re.search(r"[0-9]+ clients of host \d live elsewhere now", told)
    assert "Traceback" not in told
    assert summary_of(tmp_path)["recoveries"] == 1
    assert bits_of(only_run(tmp_path)) == bits_of(quiet_long)


def test_a_lost_host_starts_anew_where_there_is_room(
    nodes: Nodes, quiet_long: Path, pace: Path, tmp_path: Path
) -> None:
    nodes.add()
    second = nodes.add()
    with running(nodes, tmp_path, "execution.hosts=2", pace=pace) as until:
        until("^round   3/120")
        nodes.add()
        nodes.kill(second)
        until(r"^started anew: host \d$")
        pace.unlink()
        until("^run directory")
    assert bits_of(only_run(tmp_path)) == bits_of(quiet_long)


def test_without_any_room_a_run_says_what_it_waits_for_and_goes_on(
    nodes: Nodes, quiet_long: Path, tmp_path: Path
) -> None:
    lost = nodes.add()
    with running(nodes, tmp_path, "execution.hosts=1", "execution.wait_s=100") as until:
        until("^round   3/120")
        nodes.kill(lost)
        until(r"^waiting for 1 CPU, up to 100 s \(execution.wait_s\)")
        nodes.add()
        until("^started anew: host 0")
        until("^run directory")
    assert bits_of(only_run(tmp_path)) == bits_of(quiet_long)


def test_a_run_waits_no_longer_than_it_says(nodes: Nodes, quiet_long: Path, tmp_path: Path) -> None:
    lost = nodes.add()
    # The same limit holds for the first start.
    with running(nodes, tmp_path, "execution.hosts=1", "execution.wait_s=30") as until:
        until("^round   3/120")
        nodes.remove(lost)
        told = "".join(until("the run failed"))
    assert told.count("waiting for 1 CPU") == 1
    assert "no host is left, and none of 1 came up within 30 s (execution.wait_s)" in told
    folder = only_run(tmp_path)
    assert summary_of(tmp_path)["status"] == "failed"
    done = run_command("--resume", str(folder), INPROCESS)
    assert done.returncode == 0, done.stderr
    assert bits_of(folder) == bits_of(quiet_long)


# A process of its own: thresholds are read when Ray starts. Client 3 fills the memory.
HOG = [
    *("method.name=tests/killing.py:FaultyDitto", "rounds=3", "data.clients=10"),
    *("data.image_size=16", "model.name=cnn", "model.width=4", "local.batch_size=16"),
    *("data.partition.alpha=100", "output.tensorboard=false", "execution.retries=9"),
]


def test_a_host_without_memory_gives_its_clients_to_another(tmp_path: Path) -> None:
    quiet = run_command(*HOG, INPROCESS, f"output.dir={tmp_path / 'quiet'}")
    assert quiet.returncode == 0, quiet.stderr
    flags = tmp_path / "flags"
    flags.mkdir()
    sizes = dict(re.findall(r"(\w+): +(\d+) kB", Path("/proc/meminfo").read_text()))
    total, available = int(sizes["MemTotal"]), int(sizes["MemAvailable"])
    if available < 8e6:
        pytest.skip("needs 8 GB of free memory")
    done = run_command(
        *HOG,
        f"method.faults={[fault('hog', 'fit', 1, 3)]}",
        f"method.flags={flags}",
        "execution.hosts=2",
        f"output.dir={tmp_path / 'hog'}",
        RAY_memory_usage_threshold=f"{(total - available + 4e6) / total:.3f}",
        RAY_memory_monitor_refresh_ms="100",
    )
    assert done.returncode == 0, done.stderr
    assert "was killed for want of memory (if it happens again, lower local.batch" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert summary_of(tmp_path / "hog")["recoveries"] >= 1
    assert bits_of(only_run(tmp_path / "hog")) == bits_of(only_run(tmp_path / "quiet"))

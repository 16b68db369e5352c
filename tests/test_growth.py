"""Nodes come and are drained while a run is on: it makes use of them, and no bit changes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cluster.growth as growth
from cluster.crew import Crew
from cluster.executor import RayExecutor
from cluster.patience import Member
from raysim.errors import DataError
from raysim.execution import ExecutionSettings
from tests.clusters import assert_undisturbed, running
from tests.killing import (
    Nodes,
    before,
    eventually,
    faulty_config,
    leftovers,
    on_ray,
    run_on_ray,
)
from tests.toy import bits_of, only_run, run_toy

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]
slow = pytest.mark.slow


class Blocker:
    """Holds CPUs."""

    def ready(self) -> bool:
        return True


def freed_later(local_ray: str) -> Callable[[Any], None]:
    """Hold two of three CPUs; returns what prepares a run to find them free, and hosts come up.

    Rounds of a toy run are over before a host has started, so the third one waits for them.
    """
    import ray

    blocker = ray.remote(num_cpus=2)(Blocker).remote()
    ray.get(blocker.ready.remote())

    def prepare(executor: RayExecutor) -> None:
        changes = executor._changes
        assert len(executor._hosts.hosts) == 1, "a run starts on what is free"

        def launched() -> bool:
            changes.tend()
            return len(changes._coming) == 2

        def come_up() -> None:
            assert eventually(launched)
            ray.wait(list(changes._coming), num_returns=2, timeout=60)

        before(executor, "run_phase", 2, lambda: ray.kill(blocker))
        before(executor, "run_phase", 3, come_up)

    return prepare


def test_hosts_join_where_room_comes_free(local_ray: str, tmp_path: Path) -> None:
    quiet = run_toy(faulty_config("ditto"), tmp_path / "quiet")
    prepare = freed_later(local_ray)
    config = faulty_config("ditto", **on_ray(hosts="auto", max_hosts=3))
    found, told = run_on_ray(config, tmp_path / "growing", prepare)
    assert [re.sub(r" \(pid .*\)", "", text) for text in told] == [
        "host 1 has joined: 2 hosts now",
        "host 2 has joined: 3 hosts now",
    ]
    assert (found.bits, found.summary["recoveries"]) == (quiet.bits, 0)
    assert not leftovers()


class Broken:
    """A host whose node lacks the data."""

    def ready(self) -> None:
        raise DataError("data.root: no such folder there")


@slow
def test_a_node_that_takes_no_host_is_told_of_and_left_alone(
    local_ray: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    original = Crew._begin

    def begin(crew: Crew, index: int, own: Any, node: str) -> Any:
        if own:
            return original(crew, index, own, node)
        return Member(f"host {index}", ray.remote(Broken).remote(), node=node, index=index)

    prepare = freed_later(local_ray)
    monkeypatch.setattr(Crew, "_begin", begin)
    config = faulty_config("private_head", rounds=5, **on_ray(hosts="auto", max_hosts=3))
    found, told = run_on_ray(config, tmp_path, prepare)
    assert found.summary["status"] == "done"
    assert told == ["a new node takes no host: data.root: no such folder there"], "once"


def test_the_autoscaler_is_asked_and_the_request_withdrawn(
    local_ray: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    original = growth.request_resources

    def spied(**what: Any) -> None:
        asked.append(what)
        original(**what)  # Ray checks what it is asked for

    monkeypatch.setattr(growth, "request_resources", spied)
    labels = {"ray.io/market-type": "!spot"}
    settings = ExecutionSettings(max_hosts=2, placement={"labels": labels})
    demand = {"CPU": 0.5}
    with growth.requested(settings, demand, 2):
        assert asked == [{"bundles": [demand] * 2, "bundle_label_selectors": [labels] * 2}]
    assert asked[1:] == [{"bundles": []}]


@slow
def test_new_nodes_are_taken_in(nodes: Nodes, quiet_long: Path, pace: Path, tmp_path: Path) -> None:
    nodes.add()
    with running(nodes, tmp_path, pace=pace) as until:
        until("^round   3/120")
        nodes.add(num_cpus=2)
        until(r"^host 1 \(pid \d+ on .*\) has joined: 2 hosts now$")
        until(r"^host 2 \(pid \d+ on .*\) has joined: 3 hosts now$")
        pace.unlink()
        until("^run directory")
    assert_undisturbed(tmp_path, quiet_long)


@slow
def test_a_drained_node_hands_its_clients_on_before_it_goes(
    nodes: Nodes, quiet_long: Path, tmp_path: Path
) -> None:
    first = nodes.add()
    nodes.add()
    with running(nodes, tmp_path, "execution.hosts=2") as until:
        until("^round   3/120")
        nodes.drain(first)
        until(r"^node .* is drained: \d+ clients of host [01] live elsewhere now$")
        nodes.remove(first)
        told = "".join(until("^run directory"))
    assert "is drained" not in told, "it is told once"
    assert_undisturbed(tmp_path, quiet_long)


@slow
def test_a_drained_host_starts_anew_elsewhere(
    nodes: Nodes, quiet_long: Path, pace: Path, tmp_path: Path
) -> None:
    """The only host is drained: it works on until another has come up."""
    first = nodes.add()
    with running(nodes, tmp_path, "execution.hosts=1", pace=pace) as until:
        until("^round   3/120")
        nodes.drain(first)
        nodes.add()
        until(r"^host 1 .* has joined: 2 hosts now$")
        until(r"^node .* is drained: 40 clients of host 0 live elsewhere now$")
        nodes.remove(first)
        pace.unlink()
        until("^run directory")
    assert_undisturbed(tmp_path, quiet_long)


@slow
def test_a_run_waits_for_the_nodes_it_has_asked_for(
    nodes: Nodes, quiet_long: Path, pace: Path, tmp_path: Path
) -> None:
    words = ("execution.max_hosts=2", "execution.wait_s=60")
    with running(nodes, tmp_path, *words, pace=pace) as until:
        until(r"^waiting for a node with 1 CPU, up to 60 s \(execution.wait_s\)")
        nodes.add()
        until("1 hosts on Ray cluster")
        nodes.add(num_cpus=3)
        until("has joined: 2 hosts now$")
        pace.unlink()
        assert "3 hosts now" not in "".join(until("^run directory")), "no more than max_hosts"
    assert bits_of(only_run(tmp_path)) == bits_of(quiet_long)

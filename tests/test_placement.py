from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.placement import HostPlan, place_clients, plan_hosts
from raysim.config import ExecutionSettings
from raysim.errors import ClusterError


def plan(total: dict[str, float], clients: int = 20, **settings: Any) -> HostPlan:
    return plan_hosts(ExecutionSettings(**settings), total, clients)


@pytest.mark.parametrize(
    ("total", "settings", "wanted"),
    [
        ({"CPU": 2}, {}, HostPlan(2, 1, 0)),
        ({"CPU": 64}, {}, HostPlan(20, 1, 0)),  # no more hosts than clients
        ({"CPU": 2}, {"hosts": 1}, HostPlan(1, 1, 0)),
        ({"CPU": 2}, {"cpus_per_host": 0.5}, HostPlan(4, 0.5, 0)),
        ({"CPU": 0.3}, {"cpus_per_host": 0.1}, HostPlan(3, 0.1, 0)),
        ({"CPU": 16, "GPU": 2}, {}, HostPlan(2, 1, 1)),
        ({"CPU": 16, "GPU": 1}, {"gpus_per_host": 0.25}, HostPlan(4, 1, 0.25)),
        ({"CPU": 16, "GPU": 1}, {"gpus_per_host": 0}, HostPlan(16, 1, 0)),
        ({"CPU": 8, "GPU": 1}, {"hosts": 3, "gpus_per_host": 0.3}, HostPlan(3, 1, 0.3)),
    ],
)
def test_plans(total: dict[str, float], settings: Any, wanted: HostPlan) -> None:
    assert plan(total, **settings) == wanted


@pytest.mark.parametrize(
    ("total", "settings", "words"),
    [
        ({"CPU": 2}, {"hosts": 9}, ("wanted: 9 hosts", "1 CPU", "has 2 CPU", "execution.hosts")),
        ({"CPU": 2}, {"cpus_per_host": 4}, ("wanted: 1 hosts", "4 CPU", "enough for 0")),
        ({"CPU": 8}, {"gpus_per_host": 1}, ("1 GPU", "0 GPU", "enough for 0")),
        ({"CPU": 8, "GPU": 1}, {"hosts": 2}, ("wanted: 2 hosts", "1 GPU", "gpus_per_host")),
        ({}, {}, ("0 CPU", "enough for 0")),
    ],
)
def test_what_does_not_fit_is_said_on_both_sides(
    total: dict[str, float], settings: Any, words: tuple[str, ...]
) -> None:
    with pytest.raises(ClusterError) as caught:
        plan(total, **settings)
    for word in words:
        assert word in str(caught.value)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 8))
def test_work_is_shared_evenly(work: list[int], hosts: int) -> None:
    host_of = place_clients(work, hosts)
    assert len(host_of) == len(work)
    load = [
        sum(w for w, h in zip(work, host_of, strict=True) if h == host) for host in range(hosts)
    ]
    assert max(load) - min(load) <= max(work)
    if len(work) >= hosts:
        assert set(host_of) == set(range(hosts)), "no host without a client"
    assert place_clients(work, hosts) == host_of


def test_ties_go_to_the_lower_number() -> None:
    assert place_clients([5, 5, 5, 5], 2) == [0, 1, 0, 1]
    assert place_clients([1, 9, 5], 2) == [1, 0, 1]

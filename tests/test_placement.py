from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.placement import (
    HostPlan,
    balance,
    demand_of,
    hosts_that_fit,
    place_clients,
    plan_hosts,
    shelter,
)
from cluster.rooms import Node
from raysim.errors import ClusterError
from raysim.execution import ExecutionSettings


def cluster_of(*totals: dict[str, float], **more: Any) -> list[Node]:
    """Return nodes of some resources, of which nothing is reserved."""
    free = more.pop("free", totals)
    return [
        Node(id=f"n{i}", address=f"10.0.0.{i}", total=total, free=left, **more)
        for i, (total, left) in enumerate(zip(totals, free, strict=True))
    ]


def plan(*totals: dict[str, float], clients: int = 20, **settings: Any) -> HostPlan:
    return plan_hosts(ExecutionSettings(**settings), cluster_of(*totals), clients)


@pytest.mark.parametrize(
    ("totals", "settings", "hosts", "demand"),
    [
        ([{"CPU": 2}], {}, 2, {"CPU": 1}),
        ([{"CPU": 64}], {}, 20, {"CPU": 1}),  # no more hosts than clients
        ([{"CPU": 2}], {"hosts": 1}, 1, {"CPU": 1}),
        ([{"CPU": 2}], {"cpus_per_host": 0.5}, 4, {"CPU": 0.5}),
        ([{"CPU": 0.3}], {"cpus_per_host": 0.1}, 3, {"CPU": 0.1}),
        ([{"CPU": 16, "GPU": 2}], {}, 2, {"CPU": 1, "GPU": 1}),
        ([{"CPU": 16, "GPU": 1}], {"gpus_per_host": 0.25}, 4, {"CPU": 1, "GPU": 0.25}),
        ([{"CPU": 16, "GPU": 1}], {"gpus_per_host": 0}, 16, {"CPU": 1}),
        ([{"CPU": 8, "GPU": 1}], {"hosts": 3, "gpus_per_host": 0.3}, 3, {"CPU": 1, "GPU": 0.3}),
        # A third is what fits three times, though Ray counts in ten-thousandths.
        ([{"CPU": 8, "GPU": 1}], {"gpus_per_host": 1 / 3}, 3, {"CPU": 1, "GPU": 0.3333}),
        # A host lies on one node, a fraction of a GPU on one device.
        ([{"CPU": 3}, {"CPU": 3}], {"cpus_per_host": 2}, 2, {"CPU": 2}),
        ([{"CPU": 1}, {"CPU": 2}, {"CPU": 5}], {}, 8, {"CPU": 1}),
        ([{"CPU": 1}, {"CPU": 2}, {"CPU": 5}], {"cpus_per_host": 2}, 3, {"CPU": 2}),
        ([{"CPU": 9, "GPU": 2}], {"gpus_per_host": 0.4}, 4, {"CPU": 1, "GPU": 0.4}),
        ([{"CPU": 4}, {"CPU": 2, "GPU": 4}], {}, 2, {"CPU": 1, "GPU": 1}),
        ([{"memory": 9}, {"CPU": 4}], {}, 4, {"CPU": 1}),  # a head that is to hold no work
        (
            [{"CPU": 4, "disk": 2}, {"CPU": 4}],
            {"placement": {"resources": {"disk": 1}}},
            2,
            {"CPU": 1, "disk": 1},
        ),
        (
            [{"CPU": 4, "GPU": 1, "accelerator_type:H100": 1}, {"CPU": 4, "GPU": 4}],
            {"placement": {"accelerator_type": "H100"}},
            1,
            {"CPU": 1, "GPU": 1, "accelerator_type:H100": 0.001},
        ),
        ([{"CPU": 4}] * 3, {"max_hosts": 5}, 5, {"CPU": 1}),
    ],
)
def test_plans(
    totals: list[dict[str, float]], settings: Any, hosts: int, demand: dict[str, float]
) -> None:
    found = plan(*totals, **settings)
    assert (found.num_hosts, found.demand) == (hosts, demand)


def test_labels_choose_nodes() -> None:
    nodes = [
        Node("a", "10.0.0.1", {"CPU": 2}, {"CPU": 2}, {"zone": "a"}),
        Node("b", "10.0.0.2", {"CPU": 4, "GPU": 1}, {"CPU": 4, "GPU": 1}, {"zone": "b"}),
        Node("c", "10.0.0.3", {"CPU": 8}, {"CPU": 8}),
    ]

    def hosts(zone: str, **more: Any) -> tuple[int, float]:
        placement = {"labels": {"zone": zone}}
        found = plan_hosts(ExecutionSettings(placement=placement, **more), nodes, 99)
        return found.num_hosts, found.gpus

    assert hosts("a") == (2, 0), "a GPU elsewhere does not count"
    assert hosts("b") == (1, 1)
    assert hosts("b", gpus_per_host=0) == (4, 0)
    assert hosts("in(a, b)", gpus_per_host=0) == (6, 0)
    assert hosts("!b") == (10, 0), "no label is another label"


def test_auto_starts_on_what_is_free_and_may_grow() -> None:
    nodes = cluster_of({"CPU": 4}, {"CPU": 4}, free=({"CPU": 1}, {"CPU": 0}))
    found = plan_hosts(ExecutionSettings(), nodes, 20)
    assert (found.num_hosts, found.most) == (1, 20)
    assert plan_hosts(ExecutionSettings(max_hosts=6), nodes, 20).most == 6
    fixed = plan_hosts(ExecutionSettings(hosts=3), nodes, 20)
    assert (fixed.num_hosts, fixed.most) == (3, 3), "a number is waited for"
    taken = cluster_of({"CPU": 4}, free=({"CPU": 0},))
    assert plan_hosts(ExecutionSettings(), taken, 20).num_hosts == 1, "one is waited for"


def test_nodes_that_are_drained_do_not_count() -> None:
    nodes = [*cluster_of({"CPU": 4}), *cluster_of({"CPU": 2}, draining=True)]
    assert plan_hosts(ExecutionSettings(), nodes, 20).num_hosts == 4
    with pytest.raises(ClusterError, match=r"node 10.0.0.0 is being drained"):
        plan_hosts(ExecutionSettings(hosts=5), nodes, 20)


@pytest.mark.parametrize(
    ("totals", "settings", "words"),
    [
        ([{"CPU": 2}], {"hosts": 9}, ("wanted: 9 hosts", "1 CPU", "has 2 CPU", "execution.hosts")),
        ([{"CPU": 2}], {"cpus_per_host": 4}, ("wanted: 1 hosts", "4 CPU", "enough for 0")),
        ([{"CPU": 8}], {"gpus_per_host": 1}, ("gpus_per_host=1", "no GPU", "gpus_per_host=0 (or")),
        ([{"CPU": 8, "GPU": 1}], {"hosts": 2}, ("wanted: 2 hosts", "1 GPU", "gpus_per_host")),
        ([], {}, ("0 CPU", "enough for 0")),
        (
            [{"CPU": 3}, {"CPU": 3}],
            {"hosts": 3, "cpus_per_host": 2},
            ("has 6 CPU on 2 nodes, enough for 2", "node 10.0.0.1 with 3 CPU holds 1"),
        ),
        (
            [{"CPU": 8}],
            {"placement": {"resources": {"disk": 2}}},
            ("1 CPU and 2 disk each", "with 8 CPU and 0 disk holds 0", "execution.placement"),
        ),
        (
            [{"CPU": 8}],
            {"placement": {"labels": {"zone": "!in(a, b)", "kind": "big"}}},
            ("on nodes with zone=!in(a, b)", "its labels are zone=(none), kind=(none)"),
        ),
        (
            [{"CPU": 8, "GPU": 1, "accelerator_type:T4": 1}],
            {"placement": {"accelerator_type": "H100"}},
            ("accelerator_type:H100", "holds 0"),
        ),
        ([{"CPU": 1}] * 12, {"hosts": 13}, ("and 4 nodes more",)),
    ],
)
def test_what_does_not_fit_is_said_on_both_sides(
    totals: list[dict[str, float]], settings: Any, words: tuple[str, ...]
) -> None:
    with pytest.raises(ClusterError) as caught:
        plan(*totals, **settings)
    for word in words:
        assert word in str(caught.value)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=6),
    st.sampled_from([0.1, 0.5, 1, 1.5, 2, 3]),
    st.sampled_from([0, 0.1, 0.3, 0.5, 1]),
)
def test_what_is_counted_can_be_dealt(
    sizes: list[tuple[int, int]], cpus: float, gpus: float
) -> None:
    """Deal hosts to devices one by one, as Ray does, until none fits."""
    settings = ExecutionSettings(cpus_per_host=cpus, gpus_per_host=gpus)
    dealt = 0
    for num_cpus, num_gpus in sizes:
        left, devices = round(num_cpus * 10), [10] * num_gpus
        while left >= round(cpus * 10):
            if gpus:
                free = [i for i, d in enumerate(devices) if d >= round(gpus * 10)]
                if not free:
                    break
                devices[free[0]] -= round(gpus * 10)
            left -= round(cpus * 10)
            dealt += 1
    nodes = cluster_of(*({"CPU": c, "GPU": g} for c, g in sizes))
    demand = demand_of(settings, has_gpus=False)
    assert hosts_that_fit(nodes, demand, settings.placement) == dealt


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


Scene = tuple[list[int], dict[int, int], list[int], list[int]]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Draw the clients' work, where they live, the hosts' numbers (with gaps), and a cohort."""
    work = draw(st.lists(st.integers(1, 300), min_size=1, max_size=40))
    hosts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
    host_of = {c: draw(st.sampled_from(hosts)) for c in range(len(work))}
    cohort = draw(st.lists(st.sampled_from(range(len(work))), min_size=1, unique=True))
    return work, host_of, hosts, sorted(cohort)


def makespan(cohort: list[int], work: list[int], host_of: dict[int, int]) -> int:
    """Return the work of the host that has most."""
    load: dict[int, int] = {}
    for client in cohort:
        load[host_of[client]] = load.get(host_of[client], 0) + work[client]
    return max(load.values())


@given(scenes())
def test_moves_pay(scene: Scene) -> None:
    work, host_of, hosts, cohort = scene
    moves = balance(cohort, work, host_of, hosts)
    assert moves.keys() <= set(cohort)
    assert set(moves.values()) <= set(hosts)
    assert all(host_of[client] != host for client, host in moves.items())
    if moves:
        before, after = makespan(cohort, work, host_of), makespan(cohort, work, host_of | moves)
        assert after < 0.9 * before


def in_other_order(some: Any, work: Any, host_of: Any, hosts: Any, rng: Any) -> tuple[Any, ...]:
    """Return the arguments of `balance` and `shelter` as they were, in another order."""
    clients, numbers, order = list(host_of), list(hosts), list(some)
    for items in (clients, numbers, order):
        rng.shuffle(items)
    return order, work, {c: host_of[c] for c in clients}, numbers


@given(scenes(), st.randoms(use_true_random=False))
def test_moves_depend_on_nothing_but_the_scene(scene: Scene, shuffled: Any) -> None:
    work, host_of, hosts, cohort = scene
    moves = balance(cohort, work, host_of, hosts)
    again = balance(*in_other_order(cohort, work, host_of, hosts, shuffled))
    assert list(again.items()) == list(moves.items())


@given(scenes())
def test_a_round_that_was_evened_out_is_left_alone(scene: Scene) -> None:
    work, host_of, hosts, cohort = scene
    settled = host_of | balance(cohort, work, host_of, hosts)
    again = balance(cohort, work, settled, hosts)
    assert makespan(cohort, work, settled | again) <= makespan(cohort, work, settled)


def test_what_moves_and_what_stays() -> None:
    work = [100, 100, 100, 100, 5]
    lopsided, even = dict.fromkeys(range(5), 0), {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}
    assert balance([0, 1, 2, 3], work, lopsided, [0, 1]) in ({1: 1}, {1: 1, 3: 1})
    assert balance([0, 1, 2, 3, 4], work, even, [0, 1]) == {}
    assert balance([0], work, lopsided, [0, 1]) == {}, "alone it is no faster elsewhere"
    assert balance([0, 1, 2, 3], work, lopsided, [0]) == {}


@given(scenes(), st.data())
def test_everyone_finds_a_new_host(scene: Scene, data: st.DataObject) -> None:
    work, host_of, hosts, _ = scene
    left = data.draw(st.lists(st.sampled_from(hosts), min_size=1, unique=True))
    orphans = [client for client, host in host_of.items() if host not in left]
    found = shelter(orphans, work, host_of, left)
    assert found.keys() == set(orphans)
    assert set(found.values()) <= set(left)
    everyone = list(host_of)
    kept = dict.fromkeys(left, 0)
    for client, host in host_of.items():
        if host in kept:
            kept[host] += work[client]
    # The greedy rule's bound: nobody is put on a host that is above the mean of those left.
    mean = sum(work) / len(left)
    heaviest = max((work[c] for c in orphans), default=0)
    assert makespan(everyone, work, host_of | found) <= max(*kept.values(), mean + heaviest)


@given(scenes(), st.randoms(use_true_random=False))
def test_shelter_depends_on_nothing_but_the_scene(scene: Scene, shuffled: Any) -> None:
    work, host_of, hosts, orphans = scene
    found = shelter(orphans, work, host_of, hosts)
    again = shelter(*in_other_order(orphans, work, host_of, hosts, shuffled))
    assert list(again.items()) == list(found.items())

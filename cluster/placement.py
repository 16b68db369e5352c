"""How many hosts a cluster holds, and which clients live where: plain arithmetic."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.rooms import Node, Resources, room, suits
from raysim.errors import ClusterError
from raysim.execution import ExecutionSettings, PlacementSettings

_NODES_TOLD = 8


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Hosts to start, and what each reserves.

    Attributes:
        num_hosts: to start with.
        most: hosts that the run may come to have.
        demand: what a host reserves, by Ray's names.
        placement: which nodes will do, and how hosts lie on them.
    """

    num_hosts: int
    most: int
    demand: Resources
    placement: PlacementSettings

    @property
    def gpus(self) -> float:
        """GPUs of a host; 0 trains on the CPU."""
        return self.demand.get("GPU", 0.0)


def demand_of(settings: ExecutionSettings, has_gpus: bool) -> dict[str, float]:
    """Return what a host reserves, by Ray's names.

    Args:
        settings: what is wanted.
        has_gpus: decides what `gpus_per_host=auto` is.
    """
    auto = settings.gpus_per_host == "auto"
    gpus = float(has_gpus) if auto else _in_units(float(settings.gpus_per_host))
    kind = settings.placement.accelerator_type
    return {
        "CPU": _in_units(settings.cpus_per_host),
        **({"GPU": gpus} if gpus else {}),
        # Ray's own way to ask for a type: a bit of a resource that only its nodes have.
        **({f"accelerator_type:{kind}": 0.001} if kind else {}),
        **{name: _in_units(amount) for name, amount in settings.placement.resources.items()},
    }


def demand_on(settings: ExecutionSettings, nodes: Sequence[Node]) -> dict[str, float]:
    """Return what a host reserves, with a GPU if `auto` is asked for and a node has any."""
    good = [node for node in nodes if suits(node, settings.placement)]
    return demand_of(settings, any(node.total.get("GPU", 0.0) >= 1 for node in good))


def plan_hosts(settings: ExecutionSettings, nodes: Sequence[Node], num_clients: int) -> HostPlan:
    """Decide how many hosts to start.

    Args:
        settings: what is wanted.
        nodes: of the cluster.
        num_clients: there is no point in more hosts than clients.

    Raises:
        ClusterError: the wanted hosts do not fit; the message gives both sides, node by node.
    """
    placement = settings.placement
    demand = demand_on(settings, nodes)
    if "GPU" in demand and not any(node.total.get("GPU") for node in nodes):
        raise ClusterError(
            f"execution.gpus_per_host={demand['GPU']:g}, but the cluster has no GPU that Ray knows "
            "of: execution.gpus_per_host=0 (or auto) trains on CPUs; for GPUs, check `nvidia-smi` "
            "on the nodes and CUDA_VISIBLE_DEVICES where Ray was started"
        )
    if settings.hosts == "auto":
        most = min(settings.max_hosts or num_clients, num_clients)
        free = sum(room(node.free, demand) for node in nodes if suits(node, placement))
        wanted = max(free, 1)  # where nothing is free, the run waits for one host
    else:
        wanted = int(settings.hosts)
        most = min(wanted, num_clients)
    fits = hosts_that_fit(nodes, demand, placement)
    if wanted > fits:
        raise ClusterError(_refusal(wanted, fits, demand, nodes, placement))
    return HostPlan(min(wanted, most), most, demand, placement)


def hosts_that_fit(nodes: Sequence[Node], demand: Resources, placement: PlacementSettings) -> int:
    """Return how many hosts the nodes hold in all, each on one node, if nobody else is there."""
    return sum(room(node.total, demand) for node in nodes if suits(node, placement))


def words(resources: Resources) -> str:
    """Word resources, e.g. "2 CPU and 0.5 GPU"; what is 0 is left out, but for CPUs."""
    return " and ".join(f"{v:g} {k}" for k, v in resources.items() if v or k == "CPU")


def _in_units(amount: float) -> float:
    """Round down to what Ray can count: 1/3 of a GPU is 0.3333, of which three fit."""
    return math.floor(amount * 10_000 + 1e-6) / 10_000


def _refusal(
    wanted: int,
    fits: int,
    demand: Resources,
    nodes: Sequence[Node],
    placement: PlacementSettings,
) -> str:
    where = "".join(f", on nodes with {k}={v}" for k, v in placement.labels.items())
    total = {n: sum(node.total.get(n, 0.0) for node in nodes) for n in ("CPU", "GPU")}
    told = [f"  node {node.address} {_verdict(node, demand, placement)}" for node in nodes]
    more = len(told) - _NODES_TOLD
    lines = [
        f"wanted: {wanted} hosts with {words(demand)} each{where}; the cluster has {words(total)} "
        f"on {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}, enough for {fits}. "
        "Lower execution.hosts, execution.cpus_per_host or execution.gpus_per_host "
        "(fractions are fine), ask for less in execution.placement, or add nodes",
        *told[:_NODES_TOLD],
        *([f"  and {more} nodes more"] if more > 0 else []),
    ]
    return "\n".join(lines)


def _verdict(node: Node, demand: Resources, placement: PlacementSettings) -> str:
    """Say what a node means for the hosts."""
    if node.draining:
        return "is being drained"
    if not suits(node, placement):
        has = ", ".join(f"{name}={node.labels.get(name, '(none)')}" for name in placement.labels)
        return f"is left out: its labels are {has}"
    held = " and ".join(f"{node.total.get(name, 0.0):g} {name}" for name in demand)
    return f"with {held} holds {room(node.total, demand)}"


def place_clients(work: Sequence[int], num_hosts: int) -> list[int]:
    """Give each client a host so that the hosts' work is about equal.

    The heaviest client goes first, each to the least loaded host; ties go to the lower number.

    Args:
        work: a client's work by id, e.g. its training examples.
        num_hosts: number of hosts.

    Returns:
        Host by client id.
    """
    found = shelter(range(len(work)), work, {}, range(num_hosts))
    return [found[client] for client in range(len(work))]


def balance(
    cohort: Sequence[int], work: Sequence[int], host_of: Mapping[int, int], hosts: Sequence[int]
) -> dict[int, int]:
    """Say which clients of a round's cohort should move, so that its hosts end at about one time.

    A client's host is kept unless the move pays: the whole must shorten the longest host's work by
    `_GAIN`, and moving a client counts as `_MOVE` of its work, for reading its examples anew.

    Args:
        cohort: clients of the round.
        work: a client's work by id.
        host_of: where each client lives.
        hosts: numbers of the hosts that there are.

    Returns:
        New hosts of the clients that move.
    """
    load, before = dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0)
    moves = {}
    for client in sorted(cohort, key=lambda c: (-work[c], c)):
        home = host_of[client]
        before[home] += work[client]
        best = min(hosts, key=lambda h: (load[h], h))
        if load[home] > load[best] + _MOVE * work[client]:
            moves[client] = best
            load[best] += (1 + _MOVE) * work[client]
        else:
            load[home] += work[client]
    return moves if max(load.values()) < (1 - _GAIN) * max(before.values()) else {}


_MOVE, _GAIN = 0.5, 0.1


def shelter(
    orphans: Sequence[int], work: Sequence[int], host_of: Mapping[int, int], hosts: Sequence[int]
) -> dict[int, int]:
    """Give clients without a host one of those that there are, the least loaded first.

    Args:
        orphans: clients whose host is gone.
        work: a client's work by id.
        host_of: where each client lives; orphans are left out.
        hosts: numbers of the hosts that there are.
    """
    load, homeless = dict.fromkeys(hosts, 0), set(orphans)
    for client, host in host_of.items():
        if host in load and client not in homeless:
            load[host] += work[client]
    found = {}
    for client in sorted(orphans, key=lambda c: (-work[c], c)):
        host = min(hosts, key=lambda h: (load[h], h))
        found[client] = host
        load[host] += work[client]
    return found

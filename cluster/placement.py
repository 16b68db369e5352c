"""How many hosts a cluster holds, and which clients live where: plain arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raysim.config import ExecutionSettings
from raysim.errors import ClusterError


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Hosts to start, and what each reserves."""

    num_hosts: int
    cpus: float
    gpus: float


def plan_hosts(
    settings: ExecutionSettings, total: Mapping[str, float], num_clients: int
) -> HostPlan:
    """Decide how many hosts to start.

    Args:
        settings: what is wanted.
        total: the cluster's resources, as `ray.cluster_resources()` gives them.
        num_clients: there is no point in more hosts than clients.

    Raises:
        ClusterError: the wanted hosts do not fit; the message gives both sides.
    """
    cpus, gpus = total.get("CPU", 0.0), total.get("GPU", 0.0)
    per_host = settings.gpus_per_host
    wanted_gpus = (1.0 if gpus >= 1 else 0.0) if per_host == "auto" else float(per_host)
    fits = hosts_that_fit(total, settings.cpus_per_host, wanted_gpus)
    wanted = max(fits, 1) if settings.hosts == "auto" else int(settings.hosts)
    if wanted_gpus and not gpus:
        raise ClusterError(
            f"execution.gpus_per_host={wanted_gpus:g}, but the cluster has no GPU that Ray knows "
            "of: execution.gpus_per_host=0 (or auto) trains on CPUs; for GPUs, check `nvidia-smi` "
            "on the nodes and CUDA_VISIBLE_DEVICES where Ray was started"
        )
    if wanted > fits:
        raise ClusterError(
            f"wanted: {wanted} hosts with {settings.cpus_per_host:g} CPU"
            f"{f' and {wanted_gpus:g} GPU' if wanted_gpus else ''} each; "
            f"the cluster has {cpus:g} CPU and {gpus:g} GPU, enough for {fits}. "
            "Lower execution.hosts, execution.cpus_per_host or execution.gpus_per_host "
            "(fractions are fine), or add nodes"
        )
    return HostPlan(min(wanted, num_clients), settings.cpus_per_host, wanted_gpus)


def hosts_that_fit(total: Mapping[str, float], cpus: float, gpus: float) -> int:
    """Return how many hosts of so many CPUs and GPUs a cluster's resources allow."""
    fits = int(total.get("CPU", 0.0) / cpus + 1e-9)
    return min(fits, int(total.get("GPU", 0.0) / gpus + 1e-9)) if gpus else fits


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

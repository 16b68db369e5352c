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
    fits = int(cpus / settings.cpus_per_host + 1e-9)
    if wanted_gpus:
        fits = min(fits, int(gpus / wanted_gpus + 1e-9))
    wanted = max(fits, 1) if settings.hosts == "auto" else int(settings.hosts)
    if wanted > fits:
        raise ClusterError(
            f"wanted: {wanted} hosts with {settings.cpus_per_host:g} CPU"
            f"{f' and {wanted_gpus:g} GPU' if wanted_gpus else ''} each; "
            f"the cluster has {cpus:g} CPU and {gpus:g} GPU, enough for {fits}. "
            "Lower execution.hosts, execution.cpus_per_host or execution.gpus_per_host "
            "(fractions are fine), or add nodes"
        )
    return HostPlan(min(wanted, num_clients), settings.cpus_per_host, wanted_gpus)


def place_clients(work: Sequence[int], num_hosts: int) -> list[int]:
    """Give each client a host so that the hosts' work is about equal.

    The heaviest client goes first, each to the least loaded host; ties go to the lower number.

    Args:
        work: a client's work by id, e.g. its training examples.
        num_hosts: number of hosts.

    Returns:
        Host by client id.
    """
    load = [0] * num_hosts
    host_of = [0] * len(work)
    for client in sorted(range(len(work)), key=lambda c: (-work[c], c)):
        host = min(range(num_hosts), key=lambda h: (load[h], h))
        host_of[client] = host
        load[host] += work[client]
    return host_of

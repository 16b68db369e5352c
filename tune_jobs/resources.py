"""What a trial reserves, and whether a cluster can ever hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.placement import demand_of, words
from raysim.config import RunConfig
from raysim.errors import ClusterError

Bundle = dict[str, float]


def has_hosts(config: RunConfig) -> bool:
    """Say whether trials have host processes of their own: `execution.hosts` is a number."""
    return config.execution.backend == "ray" and config.execution.hosts != "auto"


def bundles(config: RunConfig, num_gpus: float) -> list[Bundle]:
    """Return what a trial reserves: a bundle for its own process, and one for each host.

    Args:
        config: the study's config.
        num_gpus: GPUs of the cluster, which `execution.gpus_per_host=auto` goes by.

    Raises:
        ClusterError: nodes are asked for by label, which Tune's own placement knows nothing of.
    """
    settings = config.execution
    if settings.placement.labels:
        raise ClusterError(
            "execution.placement.labels has no effect on trials, which Tune places: start the "
            "nodes with a custom resource and ask for it with execution.placement.resources"
        )
    host = demand_of(settings, has_gpus=num_gpus >= 1)
    if not has_hosts(config):
        return [host | {"CPU": float(config.local.threads)}]
    hosts = min(int(settings.hosts), config.data.clients)
    return [{"CPU": 1.0}] + [host] * hosts


def check_room(wanted: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse a trial that would wait for ever.

    Args:
        wanted: a trial's bundles.
        nodes: resources of each node; a bundle lies on one of them.

    Raises:
        ClusterError: the bundles do not fit; the message gives both sides.
    """
    if rooms(wanted, nodes, most=1):
        return
    own, hosts = wanted[0], wanted[1:]
    parts = [f"{words(own)} for itself"]
    if hosts:
        parts.append(f"{len(hosts)} hosts with {words(hosts[0])} each")
    total = {key: sum(bundle.get(key, 0.0) for bundle in wanted) for key in ("CPU", "GPU")}
    there = {key: sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU")}
    remedy = "execution.hosts, execution.cpus_per_host or " if hosts else "local.threads or "
    raise ClusterError(
        f"a trial wants {' and '.join(parts)}, {words(total)} in all; the cluster has "
        f"{words(there)} on {len(nodes)} {'nodes' if len(nodes) > 1 else 'node'}, so no trial "
        f"would ever start. Lower {remedy}execution.gpus_per_host, or add nodes"
    )


def rooms(wanted: Sequence[Bundle], nodes: Sequence[Mapping[str, float]], most: int) -> int:
    """Return how many trials fit at once, up to `most`: each bundle on the first node with room."""
    free = [dict(node) for node in nodes]
    for trial in range(most):
        for bundle in wanted:
            places = (n for n in free if all(n.get(k, 0.0) >= v - 1e-9 for k, v in bundle.items()))
            place = next(places, None)
            if place is None:
                return trial
            for key, value in bundle.items():
                place[key] -= value
    return most

"""What a trial reserves, and whether a cluster can ever hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    """
    settings = config.execution
    wanted = settings.gpus_per_host
    gpus = (1.0 if num_gpus >= 1 else 0.0) if wanted == "auto" else float(wanted)
    if not has_hosts(config):
        return [_bundle(float(config.local.threads), gpus)]
    hosts = min(int(settings.hosts), config.data.clients)
    return [_bundle(1.0, 0.0)] + [_bundle(float(settings.cpus_per_host), gpus)] * hosts


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
    parts = [f"{_words(own)} for itself"]
    if hosts:
        parts.append(f"{len(hosts)} hosts with {_words(hosts[0])} each")
    total = {key: sum(bundle.get(key, 0.0) for bundle in wanted) for key in ("CPU", "GPU")}
    there = {key: sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU")}
    remedy = "execution.hosts, execution.cpus_per_host or " if hosts else "local.threads or "
    raise ClusterError(
        f"a trial wants {' and '.join(parts)}, {_words(total)} in all; the cluster has "
        f"{_words(there)} on {len(nodes)} {'nodes' if len(nodes) > 1 else 'node'}, so no trial "
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


def _bundle(cpus: float, gpus: float) -> Bundle:
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


def _words(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{v:g} {k}" for k, v in resources.items() if v or k == "CPU")

"""What `raysim doctor` finds out about Ray: whether it starts or answers, and what fits on it."""

import time
from collections.abc import Callable, Iterator, Sequence

import ray

from cluster.nodes import list_nodes
from cluster.placement import plan_hosts, words
from cluster.rooms import Node
from cluster.session import session
from raysim.config import RunConfig
from raysim.doctor import Finding, State
from raysim.errors import ClusterError

_GIB = 2**30
_LEAST_STORE = 200 * 2**20


def ray_checks(config: RunConfig, then: Callable[[], Finding]) -> Iterator[Finding]:
    """Start or join Ray as a run of this config would, and look at it.

    Args:
        config: `execution` and the number of clients count.
        then: a last check, while Ray is still there, if hosts fit on it.
    """
    started = time.perf_counter()
    try:
        with session(config.execution) as where:
            seconds = time.perf_counter() - started
            total = ray.cluster_resources()
            nodes = list_nodes()
            found = f"{where}, {len(nodes)} node{'s' * (len(nodes) > 1)}, after {seconds:.1f} s"
            yield Finding("Ray", found)
            yield _store(total.get("object_store_memory", 0.0))
            hosts = _hosts(config, nodes)
            yield hosts
            if hosts.state is not State.BAD:
                yield then()
    except ClusterError as error:
        first, _, rest = str(error).partition("\n")
        yield Finding("Ray", first, State.BAD, rest)


def _store(size: float) -> Finding:
    found = f"{size / _GIB:.2f} GiB in all"
    if size >= _LEAST_STORE:
        return Finding("object store", found)
    remedy = "more shared memory, or ray start --object-store-memory=1000000000"
    return Finding("object store", found, State.DOUBTFUL, remedy)


def _hosts(config: RunConfig, nodes: Sequence[Node]) -> Finding:
    asked = config.execution.hosts
    try:
        plan = plan_hosts(config.execution, nodes, config.data.clients)
    except ClusterError as error:
        return Finding(f"hosts: {asked}", str(error), State.BAD, "see above")
    each = f"{words(plan.demand)} each"
    clients = config.data.clients
    found = f"{plan.num_hosts} for {clients} client{'s' * (clients > 1)}, {each}"
    return Finding(f"hosts: {asked}", found)

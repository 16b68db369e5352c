"""The nodes of a cluster as Ray shows them."""

import time

import ray
import ray._private.state as ray_state

from cluster.rooms import Node

_REST_S = 3.0


def list_nodes() -> list[Node]:
    """Return the nodes that are alive, in the order of their addresses."""
    free = ray_state.available_resources_per_node()
    draining = ray_state.state.get_draining_nodes()
    found = [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            total=node["Resources"],
            # A node that has just come up has not told yet.
            free=free.get(node["NodeID"], node["Resources"]),
            labels=node["Labels"],
            draining=node["NodeID"] in draining,
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))


def nodes_at_rest() -> list[Node]:
    """Return the nodes once all is free; what others hold for longer than moments is theirs."""
    until = time.monotonic() + _REST_S
    while True:
        nodes = list_nodes()
        if all(_is_free(node) for node in nodes) or time.monotonic() > until:
            return nodes
        time.sleep(0.1)


def _is_free(node: Node) -> bool:
    return all(node.free.get(name, 0.0) >= node.total.get(name, 0.0) for name in ("CPU", "GPU"))

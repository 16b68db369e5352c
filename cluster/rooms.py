"""What fits on which node of a cluster: plain arithmetic."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from raysim.execution import PlacementSettings

Resources = Mapping[str, float]
"""Amounts by Ray's names."""
_UNIT = 10_000  # Ray counts resources in ten-thousandths
_SELECTOR = re.compile(r"(?P<no>!?)(?:in\((?P<among>.*)\)|(?P<one>.*))")


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive.

    Attributes:
        id: Ray's hex id.
        address: its IP address.
        total: resources by name.
        free: the part of them that nobody reserves, as of about a second ago.
        labels: by name.
        draining: whether it is about to be taken away, so that nothing new starts there.
    """

    id: str
    address: str
    total: Resources
    free: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    draining: bool = False


def suits(node: Node, placement: PlacementSettings) -> bool:
    """Tell whether hosts may start on a node, whatever its resources."""
    if node.draining:
        return False
    return all(_selects(wanted, node.labels.get(name)) for name, wanted in placement.labels.items())


def _selects(selector: str, value: str | None) -> bool:
    found = _SELECTOR.fullmatch(selector)
    assert found is not None, "the config has checked it"
    among = found["one"] if found["among"] is None else found["among"]
    return (value in re.split(", ?", among)) != bool(found["no"])


def room(has: Resources, demand: Resources) -> int:
    """Return how many hosts fit into resources of one node.

    Args:
        has: amounts by name.
        demand: what a host reserves, none of it 0.
    """
    return min(_times(name, has.get(name, 0.0), amount) for name, amount in demand.items())


def _times(name: str, has: float, amount: float) -> int:
    """Return how often an amount fits, as Ray reckons: a fraction of a GPU is of one device."""
    units, wanted = round(has * _UNIT), round(amount * _UNIT)
    if name == "GPU":
        devices, rest = divmod(units, _UNIT)
        return devices * (_UNIT // wanted) + rest // wanted
    return units // wanted


def choose_nodes(
    left: Mapping[str, int], there: Mapping[str, int], strategy: str, count: int
) -> list[str]:
    """Choose a node for each of some new hosts.

    Args:
        left: hosts that still fit, by node id, in the order that ties are decided by.
        there: hosts that there are, by node id.
        strategy: "spread" or "pack".
        count: new hosts.

    Returns:
        Node ids; fewer than `count` if there is no more room.
    """
    room_left, held = dict(left), {node: there.get(node, 0) for node in left}
    chosen: list[str] = []
    sign = 1 if strategy == "spread" else -1
    while len(chosen) < count and any(n > 0 for n in room_left.values()):
        open_ = [node for node, n in room_left.items() if n > 0]
        node = min(open_, key=lambda n: (sign * held[n], -room_left[n]))
        chosen.append(node)
        room_left[node] -= 1
        held[node] += 1
    return chosen

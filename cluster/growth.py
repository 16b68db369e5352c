"""Hosts that join and leave between rounds, as nodes come and are drained.

New hosts start beside the work of a round and join at the beginning of a later one, so that no
round waits for them. No bit of a result depends on when.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayTaskError

from cluster.crew import Crew
from cluster.nodes import list_nodes
from cluster.patience import LOST, Member, reason
from cluster.placement import hosts_that_fit, words
from cluster.rooms import Node, Resources
from raysim.errors import UserError
from raysim.execution import ExecutionSettings

_LOOK_S = 1.0


class Growth:
    """Lets hosts join and leave a crew."""

    def __init__(
        self, crew: Crew, move: Callable[[Mapping[int, int]], None], wait_s: float
    ) -> None:
        """Watch over a crew.

        Args:
            crew: the hosts that work.
            move: lets clients live elsewhere, with their states.
            wait_s: longest time for a host to start, in seconds.
        """
        self._crew = crew
        self._move = move
        self._wait_s = wait_s
        self._coming: dict[Any, tuple[Member, float]] = {}
        self._unfit: set[str] = set()
        self._told: list[str] = []
        # The hosts of a trial are those that its placement group has room for.
        self._fixed = ray.util.get_current_placement_group() is not None

    def tend(self) -> None:
        """Let hosts join that have come up, and leave whose nodes are drained; start further ones.

        Raises:
            PlaceLost: a place was lost while clients moved.
        """
        if self._fixed:
            return
        nodes = list_nodes()
        self._join()
        leaving = self._leaving(nodes)
        self._launch([n for n in nodes if n.id not in self._unfit], len(leaving))
        if leaving and len(leaving) < len(self._crew.hosts):  # else they stay as long as they can
            self._leave(leaving, nodes)

    def told(self) -> list[str]:
        """Return what has happened since the last call, in words."""
        told, self._told = self._told, []
        return told

    def stop(self) -> None:
        """End the hosts that have not joined, so that others find their room free."""
        for member, _ in self._coming.values():
            ray.kill(member.actor)
        self._coming = {}

    def _join(self) -> None:
        done = set()
        if self._coming:
            done = set(ray.wait(list(self._coming), num_returns=len(self._coming), timeout=0)[0])
        for ref, (member, since) in list(self._coming.items()):
            if ref in done:
                del self._coming[ref]
                self._admit(ref, member)
            elif time.monotonic() - since > self._wait_s:
                del self._coming[ref]
                ray.kill(member.actor)

    def _admit(self, ref: Any, member: Member) -> None:
        try:
            member.is_up(ray.get(ref))
        except (*LOST, RayTaskError) as error:
            ray.kill(member.actor)
            if member.node not in self._unfit:
                self._unfit.add(member.node)
                self._told.append(f"a new node takes no host: {_why(error)}")
        else:
            self._crew.enroll(member)
            self._told.append(f"{member} has joined: {len(self._crew.hosts)} hosts now")

    def _leaving(self, nodes: Sequence[Node]) -> list[int]:
        draining = {node.id for node in nodes if node.draining}
        return [i for i, member in self._crew.hosts.items() if member.node in draining]

    def _leave(self, leaving: Sequence[int], nodes: Sequence[Node]) -> None:
        address = {node.id: node.address for node in nodes}
        where = sorted({address[self._crew.hosts[index].node] for index in leaving})
        moves = self._crew.evacuate(leaving)
        self._move(moves)
        self._crew.dismiss(leaving)
        self._told.append(
            f"node {', '.join(where)} is drained: {len(moves)} clients of host "
            f"{', '.join(map(str, leaving))} live elsewhere now"
        )

    def _launch(self, nodes: Sequence[Node], num_leaving: int) -> None:
        staying = len(self._crew.hosts) - num_leaving
        lacking = self._crew.wanted - staying - len(self._coming)
        if lacking > 0:
            coming = [member.node for member, _ in self._coming.values()]
            for member in self._crew.launch(lacking, nodes, coming):
                self._coming[member.actor.ready.remote()] = member, time.monotonic()


def _why(error: Exception) -> str:
    """Say why a host did not come up, in a line."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    text = str(cause) if isinstance(cause, UserError) else f"the process {reason(error)}"
    return text.partition("\n")[0]


@contextmanager
def requested(settings: ExecutionSettings, demand: Resources, most: int) -> Iterator[None]:
    """Ask Ray's autoscaler for room for hosts, as long as the block lasts.

    Args:
        settings: name the nodes' labels.
        demand: what a host reserves.
        most: hosts.
    """
    labels = settings.placement.labels
    request_resources(bundles=[dict(demand)] * most, bundle_label_selectors=[labels] * most)
    try:
        yield
    finally:
        if ray.is_initialized():
            request_resources(bundles=[])


def await_room(
    settings: ExecutionSettings,
    demand: Resources,
    poll: Callable[[], None],
    notify: Callable[[str], None],
) -> None:
    """Wait until a host fits on some node, but no longer than `execution.wait_s`.

    Args:
        settings: of the run.
        demand: what a host reserves.
        poll: raises a pending signal.
        notify: told that the run waits.
    """
    until, told = time.monotonic() + settings.wait_s, False
    while not hosts_that_fit(list_nodes(), demand, settings.placement):
        if time.monotonic() > until:
            return
        if not told:
            told = True
            notify(
                f"waiting for a node with {words(demand)}, up to {settings.wait_s:g} s "
                "(execution.wait_s)"
            )
        poll()
        time.sleep(_LOOK_S)

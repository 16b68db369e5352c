"""The host actors of a run: who lives where, and how lost ones are made good."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.actors import ClientHost
from cluster.devices import DeviceShare
from cluster.nodes import list_nodes
from cluster.patience import LOST, PROBE_S, Member, Patience, out_of_memory
from cluster.placement import (
    HostPlan,
    balance,
    hosts_that_fit,
    place_clients,
    shelter,
    words,
)
from cluster.rooms import Node, choose_nodes, room, suits
from raysim.config import RunConfig
from raysim.data.shards import Shard
from raysim.errors import ClusterError, RunError

# A restarted actor would answer from its constructor's state: recovery is the driver's affair.
_HOST = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"control": 1})(
    ClientHost
)
_LOOK_S = 1.0
_FAREWELL_S = 3.0
"""Seconds in which hosts may finish the client at hand; who stops a run waits for that."""


class Crew:
    """Starts the hosts, knows where each client lives, replaces hosts that are lost."""

    def __init__(
        self,
        config: RunConfig,
        shards: Sequence[Shard],
        plan: HostPlan,
        patience: Patience,
        spill: Path | None,
        share: DeviceShare | None = None,
    ) -> None:
        """Plan the hosts; `start` starts them.

        Args:
            config: the run.
            shards: every client's rows, and the guests' after them.
            plan: how many hosts, and what each reserves.
            patience: waits for them.
            spill: folder for private states beyond the memory they are given.
            share: what hosts need of a GPU, if they have one.
        """
        self._config = config
        self._shards = shards
        self._plan = plan
        self._patience = patience
        self._spill = spill
        self._share = share
        clients, guests = shards[: config.data.clients], shards[config.data.clients :]
        self._work = [shard.num_train for shard in shards]
        work = [shard.num_train for shard in clients], [shard.num_train for shard in guests]
        # Guests are tested, not trained: their work is balanced by itself.
        placed = [host for part in work for host in place_clients(part, plan.num_hosts)]
        self._host_of = dict(enumerate(placed))
        self._hosts: dict[int, Member] = {}
        self._starved = 0
        self._numbers = itertools.count(plan.num_hosts)

    @property
    def hosts(self) -> Mapping[int, Member]:
        """The hosts by number."""
        return self._hosts

    @property
    def plan(self) -> HostPlan:
        """What the hosts were planned to be."""
        return self._plan

    @property
    def wanted(self) -> int:
        """Hosts that the run would have if there was room: fewer where memory ran out."""
        return max(self._plan.most - self._starved, 1)

    def start(self) -> None:
        """Start all hosts.

        Raises:
            ClusterError: some did not start in time.
            UserError: a host cannot read the data, or has no room on its device.
        """
        missing = self._start(range(self._plan.num_hosts))
        if missing:
            free = ray.available_resources()
            raise ClusterError(
                f"{len(missing)} of {self._plan.num_hosts} hosts did not start within "
                f"{self._config.execution.wait_s:g} s: each wants {words(self._plan.demand)}, free "
                f"are {words({name: free.get(name, 0.0) for name in self._plan.demand})}. Wait for "
                "other work to end (execution.wait_s), or lower execution.hosts"
            )

    def by_host(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """Group clients by the number of their host."""
        groups: dict[int, list[int]] = {}
        for client in clients:
            groups.setdefault(self._host_of[client], []).append(client)
        return groups

    def settle(self, cohort: Sequence[int]) -> dict[int, int]:
        """Return the moves that even out a round's work; see `balance`."""
        return balance(cohort, self._work, self._host_of, list(self._hosts))

    def evacuate(self, leaving: Iterable[int]) -> dict[int, int]:
        """Return the moves that leave some hosts without clients.

        Args:
            leaving: numbers of hosts, not of all.
        """
        left = [index for index in self._hosts if index not in leaving]
        orphans = [client for client, host in self._host_of.items() if host in leaving]
        return shelter(orphans, self._work, self._host_of, left)

    def move(self, moves: Mapping[int, int]) -> None:
        """Let clients live elsewhere; their states are the caller's affair.

        Args:
            moves: new host by client.
        """
        calls: dict[Any, Any] = {}
        for host, clients in self.by_host(moves).items():
            if host in self._hosts:
                calls[self._hosts[host].actor.release.remote(clients)] = self._hosts[host]
        for host in set(moves.values()):
            own = {c: self._shards[c] for c, new in moves.items() if new == host}
            calls[self._hosts[host].actor.adopt.remote(own)] = self._hosts[host]
        self._host_of |= moves
        self._patience.get(calls)

    def launch(self, count: int, nodes: Sequence[Node], coming: Iterable[str] = ()) -> list[Member]:
        """Let hosts without clients start where nobody reserves what they need.

        They are none of `hosts` before `enroll`.

        Args:
            count: at most so many.
            nodes: of the cluster; those that will not do are left out.
            coming: ids of the nodes of such hosts as have been launched before.

        Returns:
            The hosts that were launched.
        """
        held = Counter(coming)
        left, there = self._room(nodes, held)
        # What was launched a moment ago is not seen to reserve anything yet.
        free = {node.id: room(node.free, self._plan.demand) - held[node.id] for node in nodes}
        left = {node: min(fits, free[node]) for node, fits in left.items()}
        chosen = choose_nodes(left, there, self._plan.placement.strategy, count)
        return [self._begin(next(self._numbers), {}, node) for node in chosen]

    def enroll(self, member: Member) -> None:
        """Count a host that has come up among the hosts."""
        self._hosts[member.index] = member

    def dismiss(self, indices: Iterable[int]) -> None:
        """End hosts that hold no clients any more, or never came up."""
        for index in indices:
            ray.kill(self._hosts.pop(index).actor)

    def repair(self, notify: Callable[[str], None]) -> None:
        """End what does not answer, start anew what fits, and house the rest's clients elsewhere.

        Raises:
            RunError: no host is left, and none came up in time.
        """
        for host in self._hosts.values():
            host.actor.abandon.remote()
        dead, starved = self._probe()
        self._starved += len(starved)
        self.dismiss(dead)
        # Also homes that an earlier repair, itself cut short by a loss, did not get to.
        lost = sorted({*dead, *self._host_of.values()} - self._hosts.keys())
        # Where memory ran out, fewer clients at once are the remedy.
        again = [i for i in lost if i not in starved] if self._hosts else lost
        missing = self._start(again, notify)
        gone = [index for index in lost if index not in self._hosts]
        if not self._hosts:
            raise RunError(
                f"no host is left, and none of {len(missing)} came up within "
                f"{self._config.execution.wait_s:g} s (execution.wait_s)"
            )
        orphans = [c for c, host in self._host_of.items() if host in gone]
        self.move(shelter(orphans, self._work, self._host_of, list(self._hosts)))
        began = ", ".join(str(i) for i in lost if i not in gone)
        moved = ", ".join(map(str, gone))
        told = [f"started anew: host {began}"] if began else []
        told += [f"{len(orphans)} clients of host {moved} live elsewhere now"] if moved else []
        if told:
            notify("; ".join(told))

    def close(self) -> None:
        """End all hosts; they clear up first, for nobody else can on another node."""
        up = [host.actor for host in self._hosts.values() if host.where]
        for actor in up:
            actor.abandon.remote()
        if farewells := [actor.close.remote() for actor in up]:
            ray.wait(farewells, num_returns=len(farewells), timeout=_FAREWELL_S)
        self.dismiss(list(self._hosts))

    def _start(
        self, indices: Sequence[int], notify: Callable[[str], None] | None = None
    ) -> list[int]:
        """Start hosts with their clients; returns those that did not come up."""
        left, there = self._room(list_nodes())
        chosen = choose_nodes(left, there, self._plan.placement.strategy, len(indices))
        # Those that no node has room for wait for one.
        homes = [*chosen, *[""] * (len(indices) - len(chosen))]
        waiting = {}
        for index, node in zip(indices, homes, strict=True):
            own = {c: self._shards[c] for c, host in self._host_of.items() if host == index}
            self._hosts[index] = self._begin(index, own, node)
            waiting[self._hosts[index].actor.ready.remote()] = index
        self.dismiss([waiting[ref] for ref in self._await(waiting, notify)])
        return [index for index in indices if index not in self._hosts]

    def _room(
        self, nodes: Sequence[Node], coming: Counter[str] | None = None
    ) -> tuple[dict[str, int], Counter[str]]:
        """Return how many hosts more each node holds, and how many it has, by id."""
        there = Counter(member.node for member in self._hosts.values()) + (coming or Counter())
        return {
            node.id: room(node.total, self._plan.demand) - there[node.id]
            for node in nodes
            if suits(node, self._plan.placement)
        }, there

    def _begin(self, index: int, own: Mapping[int, Shard], node: str) -> Member:
        """Let a host start, if possible on a node; Ray finds another if it has no room."""
        plan = self._plan
        # Without an environment of its own, an actor takes a process that Ray has started.
        options: dict[str, Any] = {
            "num_cpus": plan.demand["CPU"],
            "num_gpus": plan.gpus,
            "resources": {name: plan.demand[name] for name in plan.placement.resources},
            "accelerator_type": plan.placement.accelerator_type,
        }
        # A placement group, as that of a trial, says itself where its actors lie.
        if ray.util.get_current_placement_group() is None:
            options["label_selector"] = plan.placement.labels
            if node:
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                    node, soft=True, _spill_on_unavailable=True
                )
        actor = _HOST.options(**options).remote(self._config, own, index, self._spill, self._share)
        return Member(f"host {index}", actor, node=node, index=index)

    def _await(self, waiting: Mapping[Any, int], notify: Callable[[str], None] | None) -> list[Any]:
        """Wait for hosts to be ready, and give up those that the cluster has no room for."""
        until = time.monotonic() + self._config.execution.wait_s
        missing, told = list(waiting), False
        while missing and time.monotonic() < until:
            done, missing = ray.wait(missing, num_returns=len(missing), timeout=_LOOK_S)
            self._patience.poll()
            for ref in done:
                self._hosts[waiting[ref]].is_up(ray.get(ref))
            fits = hosts_that_fit(list_nodes(), self._plan.demand, self._plan.placement)
            surplus = len(self._hosts) - fits
            if notify is not None and surplus > 0 and fits > 0:
                self.dismiss([waiting[ref] for ref in missing[-surplus:]])
                missing = missing[:-surplus]
            elif notify is not None and missing and surplus > 0 and not told:
                told = True
                notify(
                    f"waiting for {words(self._plan.demand)}, up to "
                    f"{self._config.execution.wait_s:g} s (execution.wait_s)"
                )
        return missing

    def _probe(self) -> tuple[list[int], list[int]]:
        """Return the hosts that do not answer, and of these the ones that ran out of memory."""
        calls = {host.actor.steps.remote(): index for index, host in self._hosts.items()}
        ray.wait(list(calls), num_returns=len(calls), timeout=PROBE_S)
        dead, starved = [], []
        for ref, index in calls.items():
            try:
                ray.get(ref, timeout=0)
            except LOST as error:
                dead.append(index)
                if out_of_memory(error):
                    starved.append(index)
            except RayError:  # no answer in time
                dead.append(index)
        return dead, starved

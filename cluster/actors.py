"""The two kinds of actor: thin shells around `raysim.host.Host` and `raysim.server.Server`."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from cluster.devices import DeviceShare, own_device
from raysim.aggregation import Partial
from raysim.config import RunConfig
from raysim.data.shards import Shard
from raysim.errors import UserError
from raysim.hardware import processor
from raysim.host import Host
from raysim.messages import Costs, EvalSum, EvalUnit, HostReport
from raysim.server import Server
from raysim.tensors import Arrays


class ClientHost:
    """Stateful clients on the resources that Ray assigned to this process.

    Calls of the group "control" run beside a phase.
    """

    def __init__(
        self,
        config: RunConfig,
        shards: Mapping[int, Shard],
        index: int,
        spill: Path | None,
        share: DeviceShare | None = None,
    ) -> None:
        """Hold the given clients on the assigned device; see `Host`.

        Args:
            config: of the run.
            shards: row indices by client id.
            index: the host's number.
            spill: folder for private states beyond the memory they are given.
            share: what hosts need of a GPU, if they have one.
        """
        self._index = index
        self._spill = _own(spill)
        try:
            self._device = own_device(demanded=config.execution.gpus_per_host != "auto")
            if share is not None and self._device != "cpu":
                share.check(torch.cuda.get_device_properties(self._device).total_memory)
            self._host = Host(config, shards, index=index, device=self._device, spill=self._spill)
        except UserError as error:  # Ray would wrap it into a report of a dead actor
            self._failed: UserError | None = error
        else:
            self._failed = None

    def __repr__(self) -> str:
        """Name the actor, for Ray's dashboard and logs."""
        return f"host-{self._index}"

    def ready(self) -> tuple[str, str, str, str]:
        """Return process and address in words, node id, device and processor, once it is built.

        Raises:
            UserError: it cannot be built.
        """
        if self._failed is not None:
            raise self._failed
        where = f"pid {os.getpid()} on {ray.util.get_node_ip_address()}"
        node = ray.get_runtime_context().get_node_id()
        return where, node, self._device, processor(self._device)

    @ray.method(concurrency_group="control")
    def steps(self) -> int:
        """Return a number that grows while the host is at work."""
        return self._host.steps

    @ray.method(concurrency_group="control")
    def abandon(self) -> None:
        """See `Host.abandon`."""
        self._host.abandon()

    def adopt(self, shards: Mapping[int, Shard]) -> None:
        """See `Host.adopt`."""
        self._host.adopt(shards)

    def release(self, clients: Sequence[int]) -> None:
        """See `Host.release`."""
        self._host.release(clients)

    @ray.method(num_returns=2)
    def run_phase(
        self, round_: int, phase: str, clients: Sequence[int], weights: Arrays, message: Arrays
    ) -> tuple[Partial, HostReport]:
        """See `Host.run_phase`."""
        return self._host.run_phase(round_, phase, clients, weights, message)

    def commit(self) -> None:
        """See `Host.commit`."""
        self._host.commit()

    def evaluate(
        self,
        round_: int,
        units: Sequence[EvalUnit],
        weights: Arrays,
        message: Arrays,
        personal: bool,
    ) -> list[EvalSum]:
        """See `Host.evaluate`."""
        return self._host.evaluate(round_, units, weights, message, personal=personal)

    def staged(self, clients: Sequence[int]) -> dict[int, Arrays]:
        """See `Host.staged`."""
        return self._host.staged(clients)

    def restore(self, states: Mapping[int, Arrays]) -> None:
        """See `Host.restore`."""
        self._host.restore(_own_arrays(states))

    def add(self, states: Mapping[int, Arrays]) -> None:
        """See `Host.add`."""
        self._host.add(_own_arrays(states))

    def close(self) -> None:
        """Remove the files of private states; the last call that is made."""
        shutil.rmtree(self._spill, ignore_errors=True)


class ServerActor:
    """The server, on the driver's node; calls of the group "control" run beside others."""

    def __init__(self, config: RunConfig, num_classes: int, num_domains: int) -> None:
        """Build the server; see `Server`."""
        self._server = Server(config, num_classes, num_domains)

    def __repr__(self) -> str:
        """Name the actor, for Ray's dashboard and logs."""
        return "server"

    def ready(self) -> bool:
        """Return once the server is built."""
        return True

    @ray.method(concurrency_group="control")
    def steps(self) -> int:
        """Return a number that grows while the server is at work."""
        return self._server.steps

    @ray.method(num_returns=2)
    def staged(self) -> tuple[Arrays, Arrays]:
        """See `Server.staged`."""
        return self._server.staged()

    @ray.method(num_returns=2)
    def broadcast(self, round_: int, phase: str) -> tuple[Arrays, int]:
        """See `Server.broadcast`."""
        return self._server.broadcast(round_, phase)

    def aggregate(
        self, round_: int, phase: str, partials: Sequence[Any]
    ) -> tuple[dict[str, float], Arrays]:
        """Fetch the hosts' partial results one by one and aggregate; see `Server.aggregate`.

        Args:
            round_: 0-based round.
            phase: the phase.
            partials: object references, in a list so that Ray does not fetch all at once.
        """
        return self._server.aggregate(round_, phase, (ray.get(ref) for ref in partials))

    def commit(self) -> None:
        """See `Server.commit`."""
        self._server.commit()

    def costs(self) -> Costs:
        """See `Server.costs`."""
        return self._server.costs()

    def restore(self, model: Arrays, memory: Arrays) -> None:
        """See `Server.restore`."""
        self._server.restore(model, memory)


def _own(spill: Path | None) -> Path:
    """Return a folder of this process below the run's, or below this node's temporary one."""
    if spill is None or not spill.parent.is_dir():  # another node, without the run directory
        spill = Path(tempfile.gettempdir()) / f"raysim-states-{os.getuid()}"
    return spill / str(os.getpid())


def _own_arrays(states: Mapping[int, Arrays]) -> dict[int, Arrays]:
    """Copy what came through the object store, which would be kept there by a view."""
    return {c: {n: np.array(a) for n, a in state.items()} for c, state in states.items()}

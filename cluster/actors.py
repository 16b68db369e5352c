"""The two kinds of actor: thin shells around `raysim.host.Host` and `raysim.server.Server`."""

from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch

from raysim.aggregation import Partial
from raysim.config import RunConfig
from raysim.data.partition import Shard
from raysim.host import Host
from raysim.messages import ClientReport, Costs, EvalSum, EvalUnit
from raysim.server import Server
from raysim.tensors import Arrays


class ClientHost:
    """Stateful clients on the resources that Ray assigned to this process.

    Calls of the group "control" run beside a phase: a snapshot shows the committed states and
    need not wait for the round in flight.
    """

    def __init__(self, config: RunConfig, shards: Mapping[int, Shard], index: int) -> None:
        """Hold the given clients; see `Host`."""
        device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
        self._host = Host(config, shards, index=index, device=device)

    def ready(self) -> bool:
        """Return once the host is built."""
        return True

    @ray.method(num_returns=2)
    def run_phase(
        self, round_: int, phase: str, clients: Sequence[int], weights: Arrays, message: Arrays
    ) -> tuple[Partial, list[ClientReport]]:
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

    @ray.method(concurrency_group="control")
    def snapshot(self) -> dict[int, Arrays]:
        """See `Host.snapshot`."""
        return self._host.snapshot()

    def restore(self, states: Mapping[int, Arrays]) -> None:
        """See `Host.restore`."""
        self._host.restore(states)


class ServerActor:
    """The server, on the driver's node."""

    def __init__(self, config: RunConfig, num_classes: int, num_domains: int) -> None:
        """Build the server; see `Server`."""
        self._server = Server(config, num_classes, num_domains)

    def weights(self) -> Arrays:
        """See `Server.weights`."""
        return self._server.weights()

    @ray.method(num_returns=2)
    def broadcast(self, round_: int, phase: str) -> tuple[Arrays, int]:
        """See `Server.broadcast`."""
        return self._server.broadcast(round_, phase)

    def aggregate(self, round_: int, phase: str, partials: Sequence[Any]) -> dict[str, float]:
        """Fetch the hosts' partial results one by one and aggregate; see `Server.aggregate`.

        Args:
            round_: 0-based round.
            phase: the phase.
            partials: object references, in a list so that Ray does not fetch all at once.
        """
        return self._server.aggregate(round_, phase, (ray.get(ref) for ref in partials))

    def commit(self) -> Arrays:
        """See `Server.commit`."""
        return self._server.commit()

    def costs(self) -> Costs:
        """See `Server.costs`."""
        return self._server.costs()

    def digest(self) -> str:
        """See `Server.digest`."""
        return self._server.digest()

    def snapshot(self) -> tuple[Arrays, Arrays]:
        """See `Server.snapshot`."""
        return self._server.snapshot()

    def restore(self, model: Arrays, memory: Arrays) -> None:
        """See `Server.restore`."""
        self._server.restore(model, memory)

"""How the round loop reaches the server and the hosts, and the executor that needs no cluster."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from raysim.config import RunConfig
from raysim.data.datasets import Dataset
from raysim.data.shards import Partition
from raysim.hardware import processor
from raysim.host import Host
from raysim.messages import ClientReport, Costs, EvalSum, EvalUnit, HostReport, Snapshot
from raysim.server import Server
from raysim.skeleton import method_of
from raysim.tensors import Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """One phase of a round.

    Attributes:
        hosts: the hosts' reports; a host that was called several times has several.
        metrics: the method's figures after the phase.
        bytes_down: bytes sent to each client.
        seconds: wall time by step ("clients", "aggregate").
        watched: arrays that the method shows to the report.
        notices: what happened that a person should know.
    """

    hosts: Sequence[HostReport]
    metrics: Mapping[str, float]
    bytes_down: int
    seconds: Mapping[str, float]
    watched: Arrays = field(default_factory=dict)
    notices: Sequence[str] = ()

    @property
    def clients(self) -> list[ClientReport]:
        """The clients' reports in ascending id."""
        every = (client for host in self.hosts for client in host.clients)
        return sorted(every, key=lambda report: report.client)


class PlaceLost(Exception):
    """A process or node died or hangs; after `Executor.recover` the same step can be run again."""


class Executor(Protocol):
    """Runs the phases of a round on clients that live somewhere.

    `run_phase`, `commit`, `evaluate` and `costs` raise `PlaceLost` if a place was lost. A round
    whose `commit` has returned is never lost; one whose `commit` raised was not committed.
    """

    description: str
    processors: Sequence[str]
    """What the hosts compute on, each once."""

    def run_phase(self, round_: int, phase: str, cohort: Sequence[int]) -> PhaseReport:
        """Run a phase for the cohort and aggregate it."""

    def commit(self) -> None:
        """End the round: what its phases staged becomes the state of server and clients."""

    def recover(self, notify: Callable[[str], None]) -> None:
        """Make good what was lost, and go back to the last committed round.

        Args:
            notify: told what is waited for and what was done.
        """

    def evaluate(self, round_: int, units: Sequence[EvalUnit], *, personal: bool) -> list[EvalSum]:
        """Test the committed models."""

    def costs(self) -> Costs:
        """Return size and work of the global model."""

    def digest(self) -> str:
        """Return the sha256 of the global model."""

    def snapshot(self) -> Snapshot:
        """Return the state at the end of the last committed round."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot."""

    def close(self) -> None:
        """Stop everything that the executor started; safe to call twice."""


class InProcessExecutor:
    """One host with all clients, and the server, in this process."""

    description = "in this process"

    def __init__(
        self,
        config: RunConfig,
        partition: Partition,
        dataset: Dataset,
        spill: Path | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        """Build the host and the server.

        Args:
            config: the run.
            partition: every client's rows.
            dataset: names the classes and domains.
            spill: folder for private states that memory is not meant to hold.
            device: torch device of the host.
        """
        self.processors: Sequence[str] = [processor(device)]
        self._spill = spill
        self._server = Server(config, len(dataset.classes), len(dataset.domains))
        shards = dict(enumerate(partition.holders(method_of(config).adapts)))
        self._host = Host(config, shards, device=device, spill=spill)

    def run_phase(self, round_: int, phase: str, cohort: Sequence[int]) -> PhaseReport:
        """See `Executor.run_phase`."""
        started = time.perf_counter()
        message, bytes_down = self._server.broadcast(round_, phase)
        partial, report = self._host.run_phase(
            round_, phase, cohort, self._server.weights(), message
        )
        trained = time.perf_counter()
        metrics, watched = self._server.aggregate(round_, phase, [partial])
        return PhaseReport(
            hosts=[report],
            metrics=metrics,
            bytes_down=bytes_down,
            seconds={"clients": trained - started, "aggregate": time.perf_counter() - trained},
            watched=watched,
        )

    def recover(self, notify: Callable[[str], None]) -> None:
        """See `Executor.recover`; nothing is ever lost here."""

    def commit(self) -> None:
        """See `Executor.commit`."""
        self._server.commit()
        self._host.commit()

    def evaluate(self, round_: int, units: Sequence[EvalUnit], *, personal: bool) -> list[EvalSum]:
        """See `Executor.evaluate`."""
        message, _ = self._server.broadcast(round_, "evaluate")
        return self._host.evaluate(
            round_, units, self._server.weights(), message, personal=personal
        )

    def costs(self) -> Costs:
        """See `Executor.costs`."""
        return self._server.costs()

    def digest(self) -> str:
        """See `Executor.digest`."""
        return self._server.digest()

    def snapshot(self) -> Snapshot:
        """See `Executor.snapshot`."""
        model, memory = self._server.snapshot()
        return Snapshot(model=model, memory=memory, clients=self._host.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """See `Executor.restore`."""
        self._server.restore(snapshot.model, snapshot.memory)
        self._host.restore(snapshot.clients)

    def close(self) -> None:
        """See `Executor.close`."""
        if self._spill is not None:
            shutil.rmtree(self._spill, ignore_errors=True)

"""A host: a place that holds some clients' shards and private state and runs their steps.

It is a plain object; a Ray actor or the in-process executor wraps it. Running a phase changes
nothing that a second run of it could see: new client states are staged, and `commit` makes them
the clients' states at the end of the round.
"""

import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from raysim.aggregation import NonFiniteError, Partial
from raysim.config import RunConfig
from raysim.data.datasets import open_dataset
from raysim.data.shards import HELD_OUT, Shard
from raysim.errors import UserError, failure, telling
from raysim.evaluation import evaluate
from raysim.messages import ClientReport, EvalSum, EvalUnit, HostReport, Update
from raysim.method import ClientView
from raysim.seeds import Stream, torch_seed
from raysim.skeleton import build_skeleton, method_of, refresh
from raysim.states import ClientStates
from raysim.tensors import Array, Arrays, num_bytes
from raysim.training import ShardData, Stopwatch


class Host:
    """Holds clients and runs their steps on one device."""

    def __init__(
        self,
        config: RunConfig,
        shards: Mapping[int, Shard],
        *,
        index: int = 0,
        device: str = "cpu",
        spill: Path | None = None,
    ) -> None:
        """Open the data, decode the clients' examples and build the skeleton.

        Args:
            config: the run.
            shards: row indices by client id.
            index: the host's number, for reports only.
            device: a torch device.
            spill: folder for private states beyond `execution.state_memory_mb`; None for one of
                this process's own.
        """
        torch.set_num_threads(config.local.threads)
        # `use_deterministic_algorithms` would import torch's compiler: a second, and 80 MiB.
        torch.set_deterministic_debug_mode("warn")
        # Else every new tensor is filled, though nothing reads it before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self._config = config
        self._method = method_of(config)
        self._index = index
        self._device = torch.device(device)
        self._dataset = open_dataset(config.data, config.seed)
        self._model = build_skeleton(config, len(self._dataset.classes), self._device)
        self._shards: dict[int, Shard] = {}
        self._train: dict[int, ShardData] = {}
        self._held_out: dict[int, dict[str, ShardData]] = {}
        self._units: dict[EvalUnit, ShardData] = {}
        spill = spill or Path(tempfile.gettempdir()) / f"raysim-{os.getpid()}"
        budget = config.execution.state_memory_mb * 2**20
        self._states = ClientStates(budget, spill / f"host-{index}")
        self._staged = ClientStates(budget, spill / f"host-{index}-staged")
        self._stopwatch = Stopwatch()
        self._round = -1
        self._abandoned = False
        self.steps = 0
        """Clients stepped and tested; grows while the host is at work."""
        self.adopt(shards)

    def adopt(self, shards: Mapping[int, Shard]) -> None:
        """Read the training examples of further clients; guests' are read when they are tested.

        Args:
            shards: row indices by client id.
        """
        self._shards |= shards
        own = {client: s.train for client, s in shards.items() if not self._is_guest(client)}
        self._train |= ShardData.load_all(self._dataset, own, "train", self._device)
        self.steps += 1

    def release(self, clients: Iterable[int]) -> None:
        """Forget clients that live elsewhere from now on."""
        for client in clients:
            del self._shards[client]
            self._train.pop(client, None)
            self._held_out.pop(client, None)
            self._states.drop(client)
            self._staged.drop(client)

    def run_phase(
        self, round_: int, phase: str, clients: Sequence[int], weights: Arrays, message: Arrays
    ) -> tuple[Partial, HostReport]:
        """Run one phase for some of this host's clients.

        Args:
            round_: 0-based round.
            phase: one of the method's phases.
            clients: ids of the cohort's clients that live here.
            weights: the global model at the start of the round.
            message: what the server broadcast for this phase.

        Returns:
            The exact sums and gathered arrays for the server, and the clients' reports. Both are
            cut short if `abandon` was called.

        Raises:
            RunError: a client's step raised; names client, domains, round and phase.
        """
        if round_ != self._round:
            self._round = round_
            self._staged.clear()
        partial, reports = Partial(), []
        self._stopwatch, began = Stopwatch(), time.perf_counter()
        for client in clients:
            if self._abandoned:
                break
            started = time.perf_counter()
            try:
                update = self._step(round_, phase, client, weights, message)
                update = self._admit(client, update, partial)
                report = self._report(client, update, time.perf_counter() - started)
            except UserError:
                raise
            except (Exception, SystemExit) as error:
                raise failure(self._where(client, round_, phase), error) from error
            if update.state is not None:
                self._staged.put(client, update.state)
            reports.append(report)
            self.steps += 1
        seconds = {"fit": self._stopwatch.seconds, "busy": time.perf_counter() - began}
        return partial, HostReport(self._index, reports, partial.num_bytes(), seconds)

    def staged(self, clients: Iterable[int]) -> dict[int, Arrays]:
        """Return some of the states that the round has staged."""
        return {client: self._staged[client] for client in clients}

    def commit(self) -> None:
        """Make the staged states of the round the clients' states."""
        self._states.absorb(self._staged)

    def abandon(self) -> None:
        """End the call in progress after the client at hand; until `restore`, calls do nothing."""
        self._abandoned = True

    def evaluate(
        self,
        round_: int,
        units: Sequence[EvalUnit],
        weights: Arrays,
        message: Arrays,
        *,
        personal: bool,
    ) -> list[EvalSum]:
        """Test the global model on some units, and the own models of this host's clients.

        Args:
            round_: the round that has just been committed.
            units: slices of the domains' held-out splits.
            weights: the new global model.
            message: the server's "evaluate" broadcast.
            personal: test own models too, where the method has them, on the clients' own examples:
                personal models, and for guests the global one adapted to their unseen domain.

        Raises:
            RunError: the method raised; names the client whose own model it was.
        """
        sums: list[EvalSum] = []
        if units:
            refresh(self._model)
            with telling(f"the global model of round {round_ + 1} could not be tested"):
                self._method.load_global(self._model, weights, message)
        for unit in units if not self._abandoned else ():
            shard = self._unit(unit)
            sums += evaluate(self._model, shard, client=-1, start=unit.start, split=unit.split)
            self.steps += 1
        for client in self._shards if personal else ():
            if self._abandoned:
                break
            with telling(f"client {client}'s own model of round {round_ + 1} could not be tested"):
                loaded = self._load_own(round_, client, weights, message)
            if loaded:
                for split, shard in self._own_tests(client).items():
                    sums += evaluate(self._model, shard, client=client, split=split)
            self.steps += 1
        return sums

    def snapshot(self) -> Mapping[int, Arrays]:
        """Return the committed states of the clients that have any."""
        return self._states

    def restore(self, states: Mapping[int, Arrays]) -> None:
        """Replace all clients' states, and be ready for any round."""
        self._states.clear()
        self._staged.clear()
        self._round, self._abandoned = -1, False
        self.add(states)

    def add(self, states: Mapping[int, Arrays]) -> None:
        """Take the states of further clients."""
        for client in states:
            self._states.put(client, states[client])

    def _load_own(self, round_: int, client: int, weights: Arrays, message: Arrays) -> bool:
        """Load the model that is a client's own, if there is one."""
        refresh(self._model)
        view = self._view(round_, "evaluate", client, weights, message)
        if self._is_guest(client):
            return self._method.load_adapted(view)
        return self._method.load_personal(view)

    def _is_guest(self, client: int) -> bool:
        return client >= self._config.data.clients

    def _own_tests(self, client: int) -> dict[str, ShardData]:
        """Return a client's held-out examples by split; those of guests are not kept."""
        if client in self._held_out:
            return self._held_out[client]
        by_split = {split: self._shards[client].by_split[split] for split in HELD_OUT}
        loaded = {split: self._load(rows, split) for split, rows in by_split.items() if rows}
        if not self._is_guest(client):
            self._held_out[client] = loaded
        return loaded

    def _step(
        self, round_: int, phase: str, client: int, weights: Arrays, message: Arrays
    ) -> Update:
        refresh(self._model)
        index = self._method.phases.index(phase)
        self._seed(torch_seed(self._config.seed, Stream.METHOD, round_, client, index))
        return self._method.client_step(self._view(round_, phase, client, weights, message))

    def _seed(self, seed: int) -> None:
        """Seed torch's generators; `torch.manual_seed` remembers every call without a GPU."""
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _admit(self, client: int, update: Update, partial: Partial) -> Update:
        """Add an update to the sums; a non-finite one is refused, or leaves no trace if skipped."""
        try:
            partial.add(client, update.sums, update.gathered, update.watched)
        except NonFiniteError:
            if self._config.participation.nonfinite == "stop":
                raise
            partial.refused += 1
            return Update(metrics={"skipped": 1.0})
        return update

    def _view(
        self, round_: int, phase: str, client: int, weights: Arrays, message: Arrays
    ) -> ClientView:
        view = ClientView(
            seed=self._config.seed,
            round=round_,
            phase=phase,
            model=self._model,
            weights=weights,
            num_domains=len(self._dataset.domains),
            num_clients=self._config.data.clients,
            client=client,
            shard=self._train_of(client),
            state={},
            message=message,
            local=self._config.local,
            stopwatch=self._stopwatch,
        )
        state = self._staged.get(client)
        state = self._states.get(client) if state is None else state
        return replace(view, state=self._method.init_client(view) if state is None else state)

    def _train_of(self, client: int) -> ShardData:
        if not self._is_guest(client):
            return self._train[client]
        data = self._load(self._shards[client].train, "train")
        return replace(data, labels=torch.full_like(data.labels, -1))  # adaptation is without

    def _report(self, client: int, update: Update, seconds: float) -> ClientReport:
        return ClientReport(
            client=client,
            host=self._index,
            num_examples=len(self._train[client]),
            metrics={name: float(value) for name, value in update.metrics.items()},
            bytes_up=update.bytes_up(),
            state_bytes=num_bytes(update.state or {}),
            seconds=seconds,
        )

    def _where(self, client: int, round_: int, phase: str) -> str:
        ids = torch.unique(self._train[client].domains).tolist()
        domains = ", ".join(self._dataset.domains[i] for i in ids)
        return f"client {client} (domains: {domains}) failed in round {round_ + 1}, phase {phase!r}"

    def _unit(self, unit: EvalUnit) -> ShardData:
        if unit not in self._units:
            rows = {unit.domain: np.arange(unit.start, unit.stop, dtype=np.int64)}
            self._units[unit] = self._load(rows, unit.split)
        return self._units[unit]

    def _load(self, rows: Mapping[int, Array], split: str) -> ShardData:
        return ShardData.load(self._dataset, rows, split, self._device)

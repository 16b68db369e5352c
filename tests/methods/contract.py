"""The contract of every method: a suite to inherit.

class TestMine(MethodContract):
    @pytest.fixture
    def method(self) -> Method:
        return Mine(strength=0.5)
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.aggregation import NonFiniteError, Partial
from raysim.checkpoint import latest_checkpoint, save_checkpoint
from raysim.config import RunConfig
from raysim.data.shards import Shard
from raysim.evaluation import eval_units
from raysim.host import Host
from raysim.messages import EvalSum, Snapshot, Update
from raysim.method import Method
from raysim.server import Server
from raysim.tensors import Arrays, digest
from tests.toy import toy_config

# Domains by client: several a client, one shared by all but client 2, and none has domain 3.
DOMAINS = {0: (0, 1), 1: (1, 2), 2: (0,), 3: (2, 1)}
EVERYONE = tuple(DOMAINS)
NUM_CLASSES, NUM_DOMAINS = 10, 4


def rows(client: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return rows of a domain that no other client holds."""
    return np.arange(client, 400, 13, dtype=np.int64)[:size]


SHARDS = {
    client: Shard(
        train={d: rows(client, 14 + 3 * client + d) for d in domains},
        test={d: rows(client, 6) for d in domains},
    )
    for client, domains in DOMAINS.items()
}


class OpenHost(Host):
    """A host that remembers what its clients sent, and freezes and checks what steps are given."""

    def __init__(self, config: RunConfig, clients: Iterable[int]) -> None:
        super().__init__(config, {c: SHARDS[c] for c in clients})
        self.sent: list[tuple[int, str, int, Update]] = []

    def _step(
        self, round_: int, phase: str, client: int, weights: Arrays, message: Arrays
    ) -> Update:
        state = self._staged.get(client, self._states.get(client, {}))
        given = [freeze(weights), freeze(message), freeze(state)]
        update = super()._step(round_, phase, client, weights, message)
        assert [digest(weights), digest(message), digest(state)] == given, "an argument was changed"
        self.sent.append((round_, phase, client, update))
        return update


def freeze(arrays: Arrays) -> str:
    """Make arrays read-only where their memory is theirs; returns their digest."""
    for array in arrays.values():
        array.setflags(write=False)
    return digest(arrays)


class World:
    """A server and some hosts with four clients; one domain is held by nobody."""

    def __init__(
        self, method: Method, hosts: Sequence[Sequence[int]] = (EVERYONE,), **overrides: Any
    ) -> None:
        self.config = toy_config(**overrides, **{"data.clients": 4}).model_copy(
            update={"method": method}
        )
        self.server = Server(self.config, NUM_CLASSES, NUM_DOMAINS)
        self.hosts = [OpenHost(self.config, clients) for clients in hosts]
        self.method = method
        self.round = 0

    def play(self, cohort: Sequence[int] = EVERYONE) -> "World":
        """Play one round; hosts report in the order of `self.hosts`."""
        for phase in self.method.active_phases(self.round):
            self.phase(phase, cohort)
        self.server.commit()
        for host in self.hosts:
            host.commit()
        self.round += 1
        return self

    def phase(self, phase: str, cohort: Sequence[int]) -> Mapping[str, float]:
        message, down = self.server.broadcast(self.round, phase)
        assert isinstance(down, int)
        assert down >= 0
        partials = [self.on_host(host, phase, cohort, message) for host in self.hosts]
        for arrays in self.server.snapshot():
            freeze(arrays)
        return self.server.aggregate(self.round, phase, partials)[0]

    def on_host(
        self, host: OpenHost, phase: str, cohort: Sequence[int], message: Arrays
    ) -> Partial:
        own = [c for c in cohort if c in host._train]
        return host.run_phase(self.round, phase, own, self.server.weights(), message)[0]

    def evaluate(self) -> list[EvalSum]:
        """Test the global model and every client's personal one."""
        message, _ = self.server.broadcast(self.round - 1, "evaluate")
        units = eval_units([20] * NUM_DOMAINS)
        sums = []
        for index, host in enumerate(self.hosts):
            mine = units if index == 0 else []
            weights = self.server.weights()
            freeze(weights)
            sums += host.evaluate(self.round - 1, mine, weights, message, personal=True)
        return sorted(sums, key=lambda s: (s.client, s.domain))

    def snapshot(self) -> Snapshot:
        model, memory = self.server.snapshot()
        clients = {c: state for host in self.hosts for c, state in host.snapshot().items()}
        return Snapshot(model=model, memory=memory, clients=clients)

    def restore(self, snapshot: Snapshot, round_: int) -> "World":
        self.server.restore(snapshot.model, snapshot.memory)
        for host in self.hosts:
            own = {c: s for c, s in snapshot.clients.items() if c in host._train}
            host.restore(own)
        self.round = round_
        return self

    @property
    def sent(self) -> list[tuple[int, str, int, Update]]:
        return [item for host in self.hosts for item in host.sent]


def refuse(
    partial: Partial, client: int, sums: Mapping[str, Any], gathered: Arrays, _: Any
) -> None:
    """Stand in for `Partial.add`, where everything that is sent holds NaN."""
    if sums or gathered:
        raise NonFiniteError("NaN")


def bits(snapshot: Snapshot) -> dict[str, str]:
    """Return the digests of all parts of a snapshot."""
    clients = {f"client {c}": digest(s) for c, s in sorted(snapshot.clients.items())}
    return {"model": digest(snapshot.model), "memory": digest(snapshot.memory)} | clients


def arrays_of(update: Update) -> Arrays:
    """Return everything that an update sends, by name."""
    return {name: value for name, (value, _) in update.sums.items()} | update.gathered


def kind_of(arrays: Arrays) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (a.dtype.str, a.shape) for name, a in arrays.items()}


class MethodContract:
    """What every method must hold to; subclasses give the fixture `method`."""

    varying = ("structure/",)
    """Prefixes of names that only some clients or rounds send."""
    not_for_training = ("evaluation/",)
    """Prefixes of names that are sent although private, to test a global model only."""

    @pytest.fixture
    def method(self) -> Method:
        raise NotImplementedError

    def test_state_survives_a_checkpoint(self, method: Method, tmp_path: Path) -> None:
        world = World(method).play().play((0, 2))
        (tmp_path / "metrics").write_bytes(b"")
        args = (world.snapshot(), {}, tmp_path / "metrics", 1)
        save_checkpoint(tmp_path / "checkpoints", world.round, *args)
        found = latest_checkpoint(tmp_path / "checkpoints").load()
        assert bits(found) == bits(world.snapshot())
        again = World(method).restore(found, world.round)
        world.play((0, 1, 3)), again.play((0, 1, 3))
        assert bits(again.snapshot()) == bits(world.snapshot())
        assert again.evaluate() == world.evaluate()

    def test_order_and_grouping_of_clients_do_not_matter(self, method: Method) -> None:
        one = World(method)
        two = World(method, hosts=[(3, 1), (0, 2)])
        for cohort in (EVERYONE, (0, 1, 2)):
            one.play(cohort), two.play(cohort[::-1])
        assert bits(one.snapshot()) == bits(two.snapshot())
        assert one.evaluate() == two.evaluate()

    def test_a_phase_can_be_run_again(self, method: Method) -> None:
        once, twice = World(method).play(), World(method).play()
        cohort = (1, 2, 3)
        once.play(cohort)
        for phase in method.active_phases(twice.round):
            message, _ = twice.server.broadcast(twice.round, phase)
            lost = twice.on_host(twice.hosts[0], phase, cohort, message)
            assert lost is not None
            # A host that died starts over from the committed states and replays the phases.
        twice.hosts[0]._round = -1
        twice.play(cohort)
        assert bits(once.snapshot()) == bits(twice.snapshot())

    def test_updates_are_alike_over_clients_and_rounds(self, method: Method) -> None:
        world = World(method).play().play().play((2, 3))
        kinds: dict[str, dict[str, Any]] = {}
        for round_, phase, client, update in world.sent:
            sent = arrays_of(update)
            fixed = {n: a for n, a in sent.items() if not n.startswith(self.varying)}
            known = kinds.setdefault(phase, kind_of(fixed))
            assert kind_of(fixed) == known, f"client {client}, round {round_}, phase {phase}"
            for name, value in sent.items():
                assert value.dtype.kind in "fb", f"{name} is {value.dtype}"
            assert all(np.isfinite(v) for v in update.metrics.values())

    def test_private_entries_are_never_sent(self, method: Method) -> None:
        world = World(method).play().play()
        entries = world.server.weights()
        private = [e for e in entries if method.is_private(e, world.server._model)]
        for _, _, client, update in world.sent:
            sent = {
                name: value
                for name, value in arrays_of(update).items()
                if not name.startswith(self.not_for_training)
            }
            odd = [n for n in sent for e in private if n == e or n.endswith(f"/{e}")]
            assert not odd, f"client {client} sent {odd}"
            state = update.state or {}
            for entry in set(private) & state.keys():
                kept = state[entry]
                if kept.size >= 4 and np.ptp(kept) > 0:
                    assert not any(np.array_equal(kept, v) for v in sent.values()), entry

    def test_who_sits_out_keeps_his_state(self, method: Method) -> None:
        world = World(method).play()
        before = world.snapshot().clients
        world.play((1,)).play((1, 2)).play((1,))
        after = world.snapshot().clients
        for client in (0, 3):
            assert digest(after.get(client, {})) == digest(before.get(client, {}))
        world.play((0, 3))  # back after three rounds
        assert_finite(world.snapshot())

    def test_a_round_of_refused_updates_moves_no_model(
        self, method: Method, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(method, **{"participation.nonfinite": "skip"}).play()
        before = bits(world.snapshot())
        with monkeypatch.context() as patched:
            patched.setattr(Partial, "add", refuse)
            world.play()
        assert bits(world.snapshot())["model"] == before["model"]
        assert_finite(world.play().snapshot())

    def test_partial_participation_from_the_first_round(self, method: Method) -> None:
        world = World(method).play((2,))  # a single domain in all
        assert_finite(world.snapshot())
        world.evaluate()  # most clients have never trained
        world.play((1, 3)).play((0,))
        assert_finite(world.snapshot())
        sums = world.evaluate()
        assert {s.domain for s in sums if s.client < 0} == set(range(NUM_DOMAINS))
        assert all(np.isfinite(s.loss) for s in sums)

    def test_testing_changes_nothing(self, method: Method) -> None:
        world, other = World(method).play(), World(method).play()
        before = bits(world.snapshot())
        first, second = world.evaluate(), world.evaluate()
        assert first == second
        assert bits(world.snapshot()) == before
        assert bits(world.play().snapshot()) == bits(other.play().snapshot())

    def test_process_wide_randomness_is_left_alone(self, method: Method) -> None:
        world = World(method)
        before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        world.play()
        after = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        assert after == before

    def test_figures_and_costs_are_numbers(self, method: Method) -> None:
        world = World(method)
        for phase in method.active_phases(0):
            figures = world.phase(phase, EVERYONE)
            assert all(np.isfinite(float(v)) for v in figures.values())
        world.server.commit()
        costs = world.server.costs()
        assert costs.params_sliced > 0
        assert costs.flops_sliced > 0
        assert costs.params > 0
        assert costs.flops > 0

    def test_training_moves_something(self, method: Method) -> None:
        world = World(method)
        start = bits(world.snapshot())
        assert bits(world.play().snapshot()) != start


def assert_finite(snapshot: Snapshot) -> None:
    """Check every float of a snapshot."""
    parts = {"model": snapshot.model, "memory": snapshot.memory}
    parts |= {f"client {c}": state for c, state in snapshot.clients.items()}
    for part, arrays in parts.items():
        for name, array in arrays.items():
            if np.issubdtype(array.dtype, np.floating):
                assert np.isfinite(array).all(), f"{part}: {name}"

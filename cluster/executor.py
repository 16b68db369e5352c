"""The executor on Ray: hosts and server are actors, the driver moves references between them.

What was committed last is known to the driver: references to model and memory, and copies of the
clients' private states. So whatever dies, a new process can be given the state of the last complete
round, and the round in flight is run again.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.actors import ServerActor
from cluster.crew import Crew
from cluster.devices import device_share
from cluster.growth import Growth, await_room, requested
from cluster.meter import Meter
from cluster.nodes import list_nodes, nodes_at_rest
from cluster.patience import PROBE_S, Member, Patience
from cluster.placement import HostPlan, demand_on, plan_hosts
from cluster.session import session
from raysim.config import RunConfig
from raysim.data.datasets import Dataset
from raysim.data.shards import Partition
from raysim.errors import RunError
from raysim.executor import PhaseReport, PlaceLost
from raysim.messages import Costs, EvalSum, EvalUnit, Snapshot
from raysim.signals import Signals
from raysim.skeleton import method_of
from raysim.states import ClientStates
from raysim.tensors import digest, num_bytes

_SERVER = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"control": 1})(
    ServerActor
)
_GATHERED = 8
"""Clients whose updates a host sends together where the server needs them one by one."""
_BLOCK = 2**27
"""Bytes of private states that travel at a time."""


class RayExecutor:
    """Packs clients into `ClientHost` actors and keeps a `ServerActor` beside the driver."""

    def __init__(
        self,
        config: RunConfig,
        partition: Partition,
        dataset: Dataset,
        signals: Signals | None = None,
        spill: Path | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Connect to Ray and start the actors.

        Args:
            config: the run.
            partition: every client's rows.
            dataset: names the classes and domains.
            signals: may interrupt waiting, never a call into Ray.
            spill: folder for private states that memory is not meant to hold.
            notify: told what is waited for.

        Raises:
            ClusterError: the cluster cannot be reached or cannot hold the hosts.
        """
        self._config = config
        self._sizes = len(dataset.classes), len(dataset.domains)
        self._patience = Patience(signals or Signals(), config.execution.hang_s)
        self._stack = ExitStack()
        self._server: Any = None
        self._crew: Crew | None = None
        self._growth: Growth | None = None
        try:
            spill = spill or Path(tempfile.mkdtemp())
            self._stack.callback(shutil.rmtree, spill, ignore_errors=True)
            self._states = _states(config, spill / "committed")
            self._incoming = _states(config, spill / "incoming")
            self._stack.callback(self._states.clear)
            cluster = self._stack.enter_context(session(config.execution))
            plan = self._plan(len(partition.shards), notify)
            share = device_share(
                config, partition.shards, len(dataset.classes), plan.num_hosts, plan.gpus
            )
            shards = partition.holders(method_of(config).adapts)
            self._crew = Crew(config, shards, plan, self._patience, spill, share)
            self._growth = Growth(self._crew, self._move, config.execution.wait_s)
            self._server = self._start_server()
            with self._patience.calling("starting the hosts"):
                self._crew.start()
                self._model, self._memory = self._server.staged.remote()
                self._patience.get(self._of_server(self._model, self._memory))
        except PlaceLost as error:
            self.close()
            raise RunError(str(error)) from None
        except BaseException:
            self.close()
            raise
        self._round = -1
        self._staged: dict[int, int] = {}  # bytes of the states that the round has changed
        self._lost = ""
        self._meter = Meter(config.method.label, config.data.name, config.seed)
        self.description = f"{plan.num_hosts} hosts on {cluster}{self._devices()}"
        self.processors: Sequence[str] = sorted(
            {host.processor for host in self._hosts.hosts.values() if host.processor}
        )
        if len(self.processors) > 1:
            kinds = " and ".join(self.processors)
            notify(f"hosts compute on {kinds}: equal bits are promised for one kind only")

    def run_phase(self, round_: int, phase: str, cohort: Sequence[int]) -> PhaseReport:
        """See `Executor.run_phase`."""
        started = time.perf_counter()
        with self._patience.calling(f"round {round_ + 1}, phase {phase!r}"):
            self._ensure_whole()
            if round_ != self._round:
                self._changes.tend()
                self._move(self._hosts.settle(cohort))
                self._round, self._staged = round_, {}
            message, down = self._server.broadcast.remote(round_, phase)
            partials, reports = [], {}
            for index, clients in self._hosts.by_host(cohort).items():
                host = self._hosts.hosts[index]
                step = _GATHERED if method_of(self._config).gathers else len(clients)
                for start in range(0, len(clients), step):
                    partial, report = host.actor.run_phase.remote(
                        round_, phase, clients[start : start + step], self._model, message
                    )
                    partials.append(partial)
                    reports[report] = host
            # One after the other: hosts that wait for the server are not to blame.
            (bytes_down,) = self._patience.get(self._of_server(down))
            done = self._patience.get(reports)
            for report in done:
                self._staged |= {c.client: c.state_bytes for c in report.clients if c.state_bytes}
            trained = time.perf_counter()
            aggregated = self._server.aggregate.remote(round_, phase, partials)
            ((metrics, watched),) = self._patience.get(self._of_server(aggregated))
        report = PhaseReport(
            hosts=done,
            metrics=metrics,
            bytes_down=bytes_down,
            seconds={"clients": trained - started, "aggregate": time.perf_counter() - trained},
            watched=watched,
            notices=self._changes.told(),
        )
        self._meter.phase(report)
        return report

    def commit(self) -> None:
        """See `Executor.commit`.

        The round is committed once the driver holds all that it changed; then the actors are told.
        """
        with self._patience.calling("the end of the round"):
            self._ensure_whole()
            model, memory = self._server.staged.remote()
            self._incoming.clear()
            hosts = self._hosts.hosts
            for index, clients in self._hosts.by_host(self._staged).items():
                host = hosts[index]
                for block in _blocks({client: self._staged[client] for client in clients}):
                    (states,) = self._patience.get({host.actor.staged.remote(block): host})
                    for client, state in states.items():
                        # Copies: a view would keep the whole block in the object store.
                        self._incoming.put(client, {n: np.array(a) for n, a in state.items()})
            self._patience.get(self._of_server(model, memory))
            self._states.absorb(self._incoming)
            self._model, self._memory = model, memory
            self._meter.round()
            try:
                calls = self._of_server(self._server.commit.remote())
                calls |= {host.actor.commit.remote(): host for host in hosts.values()}
                self._patience.get(calls)
            except PlaceLost as error:  # the round stands; the next step finds what is missing
                self._lost = f"{error} at the end of the round before"
            except RayError:
                self._lost = "a process failed at the end of the round before"

    def evaluate(self, round_: int, units: Sequence[EvalUnit], *, personal: bool) -> list[EvalSum]:
        """See `Executor.evaluate`."""
        with self._patience.calling(f"the evaluation of round {round_ + 1}"):
            self._ensure_whole()
            message, sent = self._server.broadcast.remote(round_, "evaluate")
            hosts = list(self._hosts.hosts.values())
            calls = {
                host.actor.evaluate.remote(
                    round_, units[index :: len(hosts)], self._model, message, personal
                ): host
                for index, host in enumerate(hosts)
            }
            self._patience.get(self._of_server(sent))
            return [item for part in self._patience.get(calls) for item in part]

    def costs(self) -> Costs:
        """See `Executor.costs`."""
        with self._patience.calling("counting costs"):
            self._ensure_whole()
            (costs,) = self._patience.get(self._of_server(self._server.costs.remote()))
        return cast(Costs, costs)

    def digest(self) -> str:
        """See `Executor.digest`."""
        return digest(ray.get(self._model))

    def snapshot(self) -> Snapshot:
        """See `Executor.snapshot`; needs no actor to be alive."""
        with self._patience.calling("saving the last complete round"):
            model, memory = ray.get([self._model, self._memory])
        return Snapshot(model=model, memory=memory, clients=self._states)

    def restore(self, snapshot: Snapshot) -> None:
        """See `Executor.restore`."""
        self._model, self._memory = ray.put(snapshot.model), ray.put(snapshot.memory)
        self._states.clear()
        for client in snapshot.clients:
            self._states.put(client, snapshot.clients[client])
        try:
            with self._patience.calling("going back to a checkpoint"):
                self._send_committed()
        except PlaceLost as error:  # the driver has it all; the next step finds what is missing
            self._lost = str(error)

    def recover(self, notify: Callable[[str], None]) -> None:
        """See `Executor.recover`."""
        with self._patience.calling("making good what was lost"):
            if not self._answers(self._server):
                ray.kill(self._server)
                self._server = self._start_server()
                notify("started anew: the server")
            self._changes.stop()
            self._hosts.repair(notify)
            self._send_committed()
            self._lost = ""

    def close(self) -> None:
        """See `Executor.close`."""
        if ray.is_initialized():
            if self._growth is not None:
                self._growth.stop()
            if self._crew is not None:
                self._crew.close()
            if self._server is not None:
                ray.kill(self._server)
        self._crew = self._growth = self._server = None
        self._model = self._memory = None
        self._stack.close()

    @property
    def _hosts(self) -> Crew:
        assert self._crew is not None, "the executor is closed"
        return self._crew

    @property
    def _changes(self) -> Growth:
        assert self._growth is not None, "the executor is closed"
        return self._growth

    def _plan(self, num_clients: int, notify: Callable[[str], None]) -> HostPlan:
        settings = self._config.execution
        nodes = nodes_at_rest() if settings.hosts == "auto" else list_nodes()
        if settings.max_hosts is not None:
            demand = demand_on(settings, nodes)
            most = min(settings.max_hosts, num_clients)
            self._stack.enter_context(requested(settings, demand, most))
            await_room(settings, demand, self._patience.poll, notify)
            nodes = list_nodes()
        return plan_hosts(settings, nodes, num_clients)

    def _devices(self) -> str:
        """Say what the hosts train on, where that may not be what a person expects."""
        gpus = self._hosts.plan.gpus
        if gpus and any(host.device == "cpu" for host in self._hosts.hosts.values()):
            return ", on CPUs: torch cannot use the GPUs"
        if gpus:
            return f", with {gpus:g} GPU each"
        return ", without a GPU" if self._config.execution.gpus_per_host == "auto" else ""

    def _start_server(self) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "scheduling_strategy": here}
        return _SERVER.options(**options).remote(self._config, *self._sizes)

    def _of_server(self, *refs: Any) -> dict[Any, Member | None]:
        """Return calls that were made to the server, as `Patience.get` takes them."""
        return dict.fromkeys(refs, Member("the server", self._server))

    def _ensure_whole(self) -> None:
        """Refuse to go on with actors that may not have heard of the last committed round."""
        if self._lost:
            raise PlaceLost(self._lost)

    def _answers(self, actor: Any) -> bool:
        ref = actor.ready.remote()
        try:
            ray.get(ref, timeout=PROBE_S)
        except RayError:
            return False
        return True

    def _send_committed(self) -> None:
        """Bring server and hosts to the last committed round."""
        self._round = -1
        calls = self._of_server(self._server.restore.remote(self._model, self._memory))
        calls |= {host.actor.restore.remote({}): host for host in self._hosts.hosts.values()}
        self._patience.get(calls)
        for index, clients in self._hosts.by_host(self._states).items():
            self._send_states(index, clients)

    def _send_states(self, index: int, clients: Sequence[int]) -> None:
        sizes = {c: num_bytes(self._states[c]) for c in clients if c in self._states}
        host = self._hosts.hosts[index]
        for block in _blocks(sizes):
            states = {client: self._states[client] for client in block}
            self._patience.get({host.actor.add.remote(states): host})

    def _move(self, moves: Mapping[int, int]) -> None:
        if moves:
            self._hosts.move(moves)
            for index, clients in self._hosts.by_host(moves).items():
                self._send_states(index, clients)


def _states(config: RunConfig, folder: Path) -> ClientStates:
    return ClientStates(config.execution.state_memory_mb * 2**20, folder)


def _blocks(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Cut clients into blocks of about `_BLOCK` bytes of states."""
    block: list[int] = []
    total = 0
    for client, size in sizes.items():
        if block and total + size > _BLOCK:
            yield block
            block, total = [], 0
        block.append(client)
        total += size
    if block:
        yield block

"""The executor on Ray: hosts and server are actors, the driver moves references between them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.actors import ClientHost, ServerActor
from cluster.placement import HostPlan, place_clients, plan_hosts
from cluster.session import session
from raysim.config import RunConfig
from raysim.data.datasets import Dataset
from raysim.data.partition import Partition, Shard
from raysim.errors import ClusterError, RunError, UserError
from raysim.executor import PhaseReport
from raysim.messages import Costs, EvalSum, EvalUnit, Snapshot
from raysim.signals import Signals
from raysim.skeleton import method_of

# A restarted actor would answer from its constructor's state: recovery is the driver's affair.
_SERVER = ray.remote(max_restarts=0, max_task_retries=0)(ServerActor)
_HOST = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"control": 1})(
    ClientHost
)


_POLL_S = 0.2


class RayExecutor:
    """Packs clients into `ClientHost` actors and keeps a `ServerActor` beside the driver."""

    def __init__(
        self,
        config: RunConfig,
        partition: Partition,
        dataset: Dataset,
        signals: Signals | None = None,
    ) -> None:
        """Connect to Ray and start the actors.

        Args:
            config: the run.
            partition: every client's rows.
            dataset: names the classes and domains.
            signals: may interrupt waiting, never a call into Ray.

        Raises:
            ClusterError: the cluster cannot be reached or cannot hold the hosts.
        """
        self._wait_s = config.execution.wait_s
        self._signals = signals or Signals()
        self._stack = ExitStack()
        self._actors: list[Any] = []
        try:
            cluster = self._stack.enter_context(session(config.execution))
            shards = partition.holders(method_of(config).adapts)
            plan = plan_hosts(config.execution, ray.cluster_resources(), len(partition.shards))
            self._host_of = place_clients([shard.num_train for shard in shards], plan.num_hosts)
            self._start(config, shards, dataset, plan)
        except BaseException:
            self.close()
            raise
        self.num_hosts = plan.num_hosts
        self.description = f"{plan.num_hosts} hosts on {cluster}"

    def run_phase(self, round_: int, phase: str, cohort: Sequence[int]) -> PhaseReport:
        """See `Executor.run_phase`."""
        started = time.perf_counter()
        with self._calling(f"round {round_ + 1}, phase {phase!r}"):
            message, down = self._server.broadcast.remote(round_, phase)
            partials, reports = [], []
            for host, clients in self._by_host(cohort).items():
                partial, report = self._hosts[host].run_phase.remote(
                    round_, phase, clients, self._weights, message
                )
                partials.append(partial)
                reports.append(report)
            done = [client for report in self._get(reports) for client in report]
            trained = time.perf_counter()
            aggregated = self._server.aggregate.remote(round_, phase, partials)
            metrics, bytes_down = self._get([aggregated, down])
        return PhaseReport(
            clients=sorted(done, key=lambda report: report.client),
            metrics=metrics,
            bytes_down=bytes_down,
            seconds={"clients": trained - started, "aggregate": time.perf_counter() - trained},
        )

    def commit(self) -> None:
        """See `Executor.commit`."""
        with self._calling("the end of the round"):
            self._weights = self._server.commit.remote()
            self._get([host.commit.remote() for host in self._hosts])

    def evaluate(self, round_: int, units: Sequence[EvalUnit], *, personal: bool) -> list[EvalSum]:
        """See `Executor.evaluate`."""
        with self._calling(f"the evaluation of round {round_ + 1}"):
            message, _ = self._server.broadcast.remote(round_, "evaluate")
            sums = [
                host.evaluate.remote(
                    round_, units[index :: self.num_hosts], self._weights, message, personal
                )
                for index, host in enumerate(self._hosts)
            ]
            return [item for part in self._get(sums) for item in part]

    def costs(self) -> Costs:
        """See `Executor.costs`."""
        with self._calling("counting costs"):
            (costs,) = self._get([self._server.costs.remote()])
        return cast(Costs, costs)

    def digest(self) -> str:
        """See `Executor.digest`."""
        with self._calling("hashing the weights"):
            (digest,) = self._get([self._server.digest.remote()])
        return str(digest)

    def snapshot(self) -> Snapshot:
        """See `Executor.snapshot`."""
        with self._calling("saving the last complete round"):
            calls = [actor.snapshot.remote() for actor in (self._server, *self._hosts)]
            (model, memory), *states = ray.get(calls)  # an interrupted run waits for this too
        clients = {client: state for part in states for client, state in part.items()}
        return Snapshot(model=model, memory=memory, clients=clients)

    def restore(self, snapshot: Snapshot) -> None:
        """See `Executor.restore`."""
        with self._calling("going back to a checkpoint"):
            calls = [self._server.restore.remote(snapshot.model, snapshot.memory)]
            for index, host in enumerate(self._hosts):
                own = {c: s for c, s in snapshot.clients.items() if self._host_of[c] == index}
                calls.append(host.restore.remote(own))
            self._get(calls)
            self._weights = self._server.weights.remote()

    def close(self) -> None:
        """See `Executor.close`."""
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
        self._actors = []
        self._weights = None
        self._stack.close()

    def _start(
        self, config: RunConfig, shards: Sequence[Shard], dataset: Dataset, plan: HostPlan
    ) -> None:
        threads = {"env_vars": {"OMP_NUM_THREADS": str(config.local.threads)}}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._server = _SERVER.options(
            num_cpus=0, scheduling_strategy=here, runtime_env=threads
        ).remote(config, len(dataset.classes), len(dataset.domains))
        self._actors.append(self._server)
        self._hosts = []
        for index in range(plan.num_hosts):
            own = {c: s for c, s in enumerate(shards) if self._host_of[c] == index}
            host = _HOST.options(
                num_cpus=plan.cpus, num_gpus=plan.gpus, runtime_env=threads
            ).remote(config, own, index)
            self._actors.append(host)
            self._hosts.append(host)
        self._await_hosts(plan)
        self._weights = self._server.weights.remote()

    def _await_hosts(self, plan: HostPlan) -> None:
        waiting = [host.ready.remote() for host in self._hosts]
        _, missing = ray.wait(waiting, num_returns=len(waiting), timeout=self._wait_s)
        if missing:
            free = ray.available_resources()
            raise ClusterError(
                f"{len(missing)} of {plan.num_hosts} hosts did not start within "
                f"{self._wait_s:g} s: each wants {plan.cpus:g} CPU and {plan.gpus:g} GPU, free are "
                f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU. "
                "Wait for other work to end (execution.wait_s), or lower execution.hosts"
            )
        with self._calling("starting the hosts"):
            self._get(waiting)

    def _by_host(self, cohort: Sequence[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for client in cohort:
            groups.setdefault(self._host_of[client], []).append(client)
        return groups

    def _get(self, refs: list[Any]) -> list[Any]:
        """Wait for results; a signal ends the waiting, not the calls."""
        missing = refs
        while missing:
            _, missing = ray.wait(missing, num_returns=len(missing), timeout=_POLL_S)
            self._signals.poll()
        return cast(list[Any], ray.get(refs))

    @contextmanager
    def _calling(self, where: str) -> Iterator[None]:
        """Hold signals back from Ray, and turn its errors into `RunError` in their own words."""
        try:
            with self._signals.deferred():
                yield
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise cause from None
            text = str(cause) if isinstance(cause, RunError) else f"{where}: {error}"
            raise RunError(text) from None
        except RayActorError as error:
            raise RunError(f"{where}: a process of the run died: {error}") from None

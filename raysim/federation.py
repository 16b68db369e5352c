"""The round loop: cohort -> phases -> commit -> evaluate -> record -> checkpoint.

It knows no method, no Ray and no tensor: the executor runs phases, observers look on.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from raysim.checkpoint import Checkpoint, discard_after, save_checkpoint
from raysim.config import RunConfig
from raysim.errors import RunError
from raysim.evaluation import eval_units, mean_and_std
from raysim.executor import Executor, PhaseReport, PlaceLost
from raysim.messages import ClientReport, JsonDict
from raysim.results import MetricsTable, TimingsTable, write_json
from raysim.seeds import Stream, generator
from raysim.signals import Signals
from raysim.skeleton import method_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSummary:
    """A complete round as observers see it.

    Attributes:
        round: 1-based.
        cohort: clients that took part.
        loss: their example-weighted mean training loss.
        evaluation: `domains`, `avg`, `std`, `personal` if the round was evaluated.
        figures: the method's own figures.
        seconds: wall time of the round, evaluation included.
    """

    round: int
    cohort: int
    loss: float
    evaluation: JsonDict | None
    figures: JsonDict = field(default_factory=dict)
    seconds: float


class Observer(Protocol):
    """Looks on; must not change anything."""

    def on_round(self, summary: RoundSummary) -> None:
        """Called after each complete round."""

    def on_notice(self, text: str) -> None:
        """Called when something happened that a person should know."""


def draw_cohort(num_clients: int, fraction: float, seed: int, round_: int) -> list[int]:
    """Draw the clients of a round, uniformly without replacement, in ascending order.

    Args:
        num_clients: M.
        fraction: share of them, in (0, 1]; at least one client is drawn.
        seed: the run's seed.
        round_: 0-based round.
    """
    size = max(1, int(fraction * num_clients + 0.5))
    if size >= num_clients:
        return list(range(num_clients))
    rng = generator(seed, Stream.COHORT, round_)
    return sorted(int(c) for c in rng.choice(num_clients, size, replace=False))


class Federation:
    """One run."""

    def __init__(
        self,
        config: RunConfig,
        executor: Executor,
        folder: Path,
        *,
        domains: Sequence[str],
        held_out: Mapping[str, Sequence[int]],
        unseen: Sequence[str] = (),
        observers: Sequence[Observer] = (),
        signals: Signals | None = None,
        partition_sha256: str = "",
        data_sha256: str = "",
    ) -> None:
        """Get ready for the first round.

        Args:
            config: the run.
            executor: where its clients and server live.
            folder: the run directory.
            domains: names by domain id.
            held_out: examples by domain id, of each split that is evaluated.
            unseen: names of the domains that no client trains on.
            observers: called after each round.
            signals: holds interrupts back while a round is committed.
            partition_sha256: hash of who holds which examples, for summary and checkpoints.
            data_sha256: hash of the data, for checkpoints.
        """
        self._config = config
        self._method = method_of(config)
        self._executor = executor
        self._folder = folder
        self._units = [u for split, sizes in held_out.items() for u in eval_units(sizes, split)]
        self._observers = observers
        self._signals = signals or Signals()
        self._partition_sha256 = partition_sha256
        self._data_sha256 = data_sha256
        self._metrics = MetricsTable(domains, unseen)
        self._timings = TimingsTable()
        self._done = 0
        self._saved = -1
        self._recoveries = 0

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; its later remains are removed."""
        discard_after(self._folder / "checkpoints", checkpoint)
        self._executor.restore(checkpoint.load())
        self._metrics.resume(checkpoint.metrics)
        self._timings.resume(self._folder / "timings.parquet", checkpoint.round)
        self._done = self._saved = checkpoint.round
        if not self._is_evaluated(self._done):  # it was the last round of a shorter run
            self._metrics.drop_evaluation(self._done)

    def run(self) -> JsonDict:
        """Run the remaining rounds.

        Returns:
            The summary, as written to `summary.json`.

        Raises:
            Interrupted: after the last complete round was saved.
            RunError: a client failed; the last complete round was saved.
        """
        try:
            if self._done and self._is_evaluated(self._done):
                self._evaluate()  # the run may have been interrupted before it could
            while self._done < self._config.rounds:
                self._run_round(self._done)
                if self._done % self._config.output.checkpoint_every == 0:
                    self._save()
            self._save()
        except BaseException:  # whatever ends the run, a closed terminal too
            with suppress(RunError, OSError):  # the first error is the one to tell
                self._save()
            raise
        return self._finish()

    @property
    def saved_rounds(self) -> int:
        """Complete rounds in the newest checkpoint, 0 if there is none."""
        return max(self._saved, 0)

    def _run_round(self, round_: int) -> None:
        started = time.perf_counter()
        cohort = draw_cohort(
            self._config.data.clients,
            self._config.participation.fraction,
            self._config.seed,
            round_,
        )
        loss, figures = self._persist(f"round {round_ + 1}", lambda: self._train(round_, cohort))
        evaluation = self._evaluate() if self._is_evaluated(self._done) else None
        seconds = time.perf_counter() - started
        self._timings.add(self._done, "round", "round", seconds)
        summary = RoundSummary(
            round=self._done,
            cohort=len(cohort),
            loss=loss,
            evaluation=evaluation,
            figures=figures,
            seconds=seconds,
        )
        for observer in self._observers:
            observer.on_round(summary)

    def _train(self, round_: int, cohort: Sequence[int]) -> tuple[float, JsonDict]:
        """Run and commit the phases of a round; returns the mean loss and the figures."""
        phases = self._method.active_phases(round_)
        reports = {p: self._executor.run_phase(round_, p, cohort) for p in phases}
        with self._signals.deferred():
            self._executor.commit()
            self._done = round_ + 1
            return self._record(reports, cohort)

    def _persist(self, what: str, step: Callable[[], T]) -> T:
        """Run a step until nothing is lost in it, but not forever.

        Args:
            what: names the step.
            step: can be run again after `Executor.recover`.

        Raises:
            RunError: places were lost `execution.retries` + 1 times in a row.
        """
        lost = 0
        while True:
            try:
                if lost:
                    self._executor.recover(self._notify)
                return step()
            except PlaceLost as error:
                lost += 1
                if lost > self._config.execution.retries:
                    raise RunError(
                        f"{error}; {what} is given up after {lost} losses in a row "
                        "(execution.retries)"
                    ) from error
                self._recoveries += 1
                self._notify(f"{error}; {what} is run again")

    def _notify(self, text: str) -> None:
        for observer in self._observers:
            observer.on_notice(text)

    def _is_evaluated(self, done: int) -> bool:
        return done % self._config.evaluation.every == 0 or done == self._config.rounds

    def _evaluate(self) -> JsonDict:
        """Test the committed models, unless the round has been evaluated already."""
        known = self._metrics.evaluation(self._done)
        if known:
            return known
        started = time.perf_counter()
        sums = self._persist(
            f"the evaluation of round {self._done}",
            lambda: self._executor.evaluate(self._done - 1, self._units, personal=True),
        )
        with self._signals.deferred():
            found = self._metrics.add_evaluation(self._done, sums)
        self._timings.add(self._done, "evaluate", "evaluate", time.perf_counter() - started)
        return found

    def _record(
        self, reports: dict[str, PhaseReport], cohort: Sequence[int]
    ) -> tuple[float, JsonDict]:
        figures: JsonDict = {}
        sent_up = sent_down = 0
        for phase, report in reports.items():
            figures |= report.metrics
            sent_up += sum(r.bytes_up for r in report.clients)
            sent_down += report.bytes_down * len(report.clients)
            self._record_clients(report)
            self._record_times(phase, report)
        clients = [client for report in reports.values() for client in report.clients]
        loss = _weighted_loss(clients)
        skipped = sum("skipped" in client.metrics for client in clients)
        sent = {"bytes_up": sent_up, "bytes_down": sent_down}
        figures = {"loss": loss, "skipped_updates": skipped} | sent | figures
        for name, value in figures.items():
            self._metrics.add(self._done, name, value, count=len(cohort))
        return loss, figures

    def _record_clients(self, report: PhaseReport) -> None:
        for client in report.clients:
            for name, value in client.metrics.items():
                self._metrics.add(
                    self._done,
                    name,
                    value,
                    model="personal",
                    client=client.client,
                    count=client.num_examples,
                )

    def _record_times(self, phase: str, report: PhaseReport) -> None:
        for what, seconds in report.seconds.items():
            self._timings.add(self._done, phase, what, seconds)
        for host, size in report.partial_bytes.items():
            self._timings.add(self._done, phase, "partial", 0.0, host=host, num_bytes=size)
        for client in report.clients:
            self._timings.add(
                self._done,
                phase,
                "client_step",
                client.seconds,
                host=client.host,
                client=client.client,
                num_bytes=client.bytes_up,
            )

    def _save(self) -> None:
        """Save the last complete round, unless it is saved already or there is none."""
        if self._done == self._saved or self._done == 0:
            return
        started = time.perf_counter()
        self._metrics.write(self._folder / "metrics.parquet")
        save_checkpoint(
            self._folder / "checkpoints",
            self._done,
            self._executor.snapshot(),
            self._config.experiment(self._data_sha256, self._partition_sha256),
            self._folder / "metrics.parquet",
            self._config.output.keep_checkpoints,
        )
        self._saved = self._done
        self._timings.add(self._done, "checkpoint", "checkpoint", time.perf_counter() - started)
        self._timings.write(self._folder / "timings.parquet")

    def _finish(self) -> JsonDict:
        summary = self._summary()
        self._metrics.write(self._folder / "metrics.parquet")
        self._timings.write(self._folder / "timings.parquet")
        write_json(summary, self._folder / "summary.json")
        return summary

    def _validation(self) -> JsonDict | None:
        """Return the last validation figures and the round they would choose; None without any.

        The round with the highest AVG is chosen: of the personal models where there are any.
        """
        metrics = self._metrics
        found = {r: metrics.evaluation(r, "val") for r in metrics.evaluated_rounds()}
        if not found[self._done]:
            return None
        best = max(found, key=lambda r: ((found[r]["personal"] or found[r])["avg"], -r))
        chosen = {key: metrics.evaluation(best)[key] for key in ("avg", "std", "personal")}
        now = {key: found[self._done][key] for key in ("avg", "std", "personal")}
        return now | {"chosen": {"round": best, **chosen}}

    def _summary(self) -> JsonDict:
        config, metrics = self._config, self._metrics
        found = {r: metrics.evaluation(r) for r in metrics.evaluated_rounds()}
        window = list(found.values())[-config.evaluation.last :]
        best = max(found, key=lambda r: (found[r]["avg"], -r))
        now = found[self._done]
        costs = self._persist("the summary", self._executor.costs)
        return {
            "status": "done",
            "method": config.method.label,
            "dataset": config.data.name,
            "seed": config.seed,
            "rounds": self._done,
            "clients": config.data.clients,
            **{key: now[key] for key in ("domains", "avg", "std")},
            "last": {key: mean_and_std([e[key] for e in window])[0] for key in ("avg", "std")},
            "best": {"round": best, **{key: found[best][key] for key in ("avg", "std")}},
            "personal": now["personal"],
            "unseen": now["unseen"],
            "val": self._validation(),
            "params": costs.params,
            "params_sliced": costs.params_sliced,
            "flops": costs.flops,
            "flops_sliced": costs.flops_sliced,
            "skipped_updates": int(metrics.total("skipped_updates")),
            "bytes_up": int(metrics.total("bytes_up")),
            "bytes_down": int(metrics.total("bytes_down")),
            "recoveries": self._recoveries,
            "wall_s": round(self._timings.total("round"), 3),
            "partition_sha256": self._partition_sha256,
            "weights_sha256": self._executor.digest(),
        }


def _weighted_loss(clients: Iterable[ClientReport]) -> float:
    """Return the example-weighted mean of the clients' training losses, in client order."""
    trained = [client for client in clients if "loss" in client.metrics]
    size = sum(c.num_examples for c in trained)
    return sum(c.metrics["loss"] * c.num_examples for c in trained) / size if size else math.nan

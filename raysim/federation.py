"""The round loop: cohort -> phases -> commit -> evaluate -> record -> checkpoint.

It knows no method, no Ray and no tensor: the executor runs phases, observers look on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from raysim.bookkeeping import enter_clients, enter_times, round_figures
from raysim.checkpoint import Checkpoint, discard_after, save_checkpoint
from raysim.config import RunConfig
from raysim.errors import RunError, telling
from raysim.evaluation import eval_units, mean_and_std
from raysim.executor import Executor, PhaseReport, PlaceLost
from raysim.messages import JsonDict
from raysim.results import MetricsTable, TimingsTable, main_figures, write_json
from raysim.seeds import Stream, generator
from raysim.signals import Signals
from raysim.skeleton import method_of
from raysim.watched import WatchedFiles

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
        self._watched = WatchedFiles(folder / "watched")
        self._done = 0
        self._saved = -1
        self._recoveries = 0

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; its later remains are removed."""
        self._saved = checkpoint.round  # whatever goes wrong from here on
        discard_after(self._folder / "checkpoints", checkpoint)
        self._executor.restore(checkpoint.load())
        self._metrics.resume(checkpoint.metrics)
        if not self._timings.resume(self._folder / "timings.parquet", checkpoint.round):
            self._notify("timings.parquet is damaged: the seconds of the rounds so far are lost")
        self._watched.discard_after(checkpoint.round)
        self._done = checkpoint.round
        if not self._is_evaluated(self._done):  # it was the last round of a shorter run
            self._metrics.drop_evaluation(self._done)

    def run(self) -> JsonDict:
        """Run the remaining rounds.

        Returns:
            The summary, as written to `summary.json`.

        Raises:
            BaseException: see `advance`.
        """
        self.advance(self._config.rounds)
        return self.finish()

    def advance(self, rounds: int) -> None:
        """Run until so many rounds are complete.

        Args:
            rounds: at most the config's.

        Raises:
            Interrupted: after the last complete round was saved.
            RunError: a client failed; the last complete round was saved.
        """
        try:
            if self._done and self._is_evaluated(self._done):
                self._evaluate()  # the run may have been interrupted before it could
            while self._done < rounds:
                self._run_round(self._done)
                every = self._config.output.checkpoint_every
                if self._done % every == 0 or self._done == self._config.rounds:
                    self.save()
        except BaseException:  # whatever ends the run, a closed terminal too
            with suppress(RunError, OSError):  # the first error is the one to tell
                self.save()
            raise

    def figures(self, round_: int, split: str) -> JsonDict | None:
        """Return AVG and STD of the main model in a round; None if it was not evaluated so.

        Args:
            round_: 1-based.
            split: "test" or "val".
        """
        found = self._metrics.evaluation(round_, split)
        return main_figures(found) if found else None

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self._folder

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
        figures = self._persist(f"round {round_ + 1}", lambda: self._train(round_, cohort))
        evaluation = self._evaluate() if self._is_evaluated(self._done) else None
        seconds = time.perf_counter() - started
        self._timings.add(self._done, "round", "round", seconds)
        summary = RoundSummary(
            round=self._done,
            cohort=len(cohort),
            loss=figures["loss"],
            evaluation=evaluation,
            figures=figures,
            seconds=seconds,
        )
        for observer in self._observers:
            observer.on_round(summary)

    def _train(self, round_: int, cohort: Sequence[int]) -> JsonDict:
        """Run and commit the phases of a round; returns its figures."""
        with telling(f"the phases of round {round_ + 1} could not be had"):
            phases = self._method.active_phases(round_)
        reports = {}
        for phase in phases:
            reports[phase] = self._executor.run_phase(round_, phase, cohort)
            for text in reports[phase].notices:
                self._notify(text)
            if all("skipped" in client.metrics for client in reports[phase].clients):
                self._notify(
                    f"round {round_ + 1}, phase {phase!r}: every update had NaN or infinity, the "
                    "model stays as it was; lower local.lr or set local.max_grad_norm"
                )
        shown = {name: a for report in reports.values() for name, a in report.watched.items()}
        self._watched.write(round_ + 1, shown)  # what can fail comes before the round counts
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

    def _record(self, reports: Mapping[str, PhaseReport], cohort: Sequence[int]) -> JsonDict:
        for phase, report in reports.items():
            enter_clients(self._metrics, self._done, report.clients)
            enter_times(self._timings, self._done, phase, report)
        figures = round_figures(reports)
        for name, value in figures.items():
            self._metrics.add(self._done, name, value, count=len(cohort))
        return figures

    def save(self) -> None:
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

    def finish(self) -> JsonDict:
        """Save, and write what the run found so far; a run that ends here is evaluated here.

        Returns:
            The summary, as written to `summary.json`; its status is "stopped" if rounds are left.
        """
        self._evaluate()
        self.save()
        summary = self._summary()
        self._metrics.write(self._folder / "metrics.parquet")
        self._timings.write(self._folder / "timings.parquet")
        write_json(summary, self._folder / "summary.json")
        return summary

    def _validation(self) -> JsonDict | None:
        """Return the last validation figures and the round they would choose; None without any.

        The round in which the main model's AVG is highest is chosen.
        """
        metrics = self._metrics
        found = {r: metrics.evaluation(r, "val") for r in metrics.evaluated_rounds()}
        if not found[self._done]:
            return None
        best = max(found, key=lambda r: (main_figures(found[r])["avg"], -r))
        chosen = {key: metrics.evaluation(best)[key] for key in ("avg", "std", "personal")}
        return self._figures(list(found.values())) | {"chosen": {"round": best, **chosen}}

    def _figures(self, evaluations: Sequence[JsonDict]) -> JsonDict:
        """Return figures of the global model, and under `personal` those of personal models."""
        personal = [e["personal"] for e in evaluations if e["personal"]]
        own = self._averages(personal) if personal else None
        return self._averages(evaluations) | {"personal": own}

    def _averages(self, evaluations: Sequence[JsonDict]) -> JsonDict:
        """Return AVG and STD after the last round, and their means over the last evaluations."""
        window = evaluations[-self._config.evaluation.last :]
        last = {key: mean_and_std([e[key] for e in window])[0] for key in ("avg", "std")}
        return {key: window[-1][key] for key in ("avg", "std")} | {"last": last}

    def _summary(self) -> JsonDict:
        config, metrics = self._config, self._metrics
        found = {r: metrics.evaluation(r) for r in metrics.evaluated_rounds()}
        best = max(found, key=lambda r: (found[r]["avg"], -r))
        now = found[self._done]
        costs = self._persist("the summary", self._executor.costs)
        return {
            "status": "done" if self._done == config.rounds else "stopped",
            "method": config.method.label,
            "dataset": config.data.name,
            "seed": config.seed,
            "rounds": self._done,
            "clients": config.data.clients,
            "domains": now["domains"],
            **self._figures(list(found.values())),
            "best": {"round": best, **{key: found[best][key] for key in ("avg", "std")}},
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

"""The round loop over a fake executor: what is called when, recorded, saved and summed up."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim import checkpoint, states
from raysim.checkpoint import latest_checkpoint
from raysim.errors import Interrupted, RunError
from raysim.executor import PhaseReport, PlaceLost
from raysim.federation import Federation, RoundSummary, draw_cohort
from raysim.messages import ClientReport, Costs, EvalSum, EvalUnit, HostReport, Snapshot
from raysim.signals import Signals
from tests.toy import toy_config

SIZES = (250, 30)


class FakeExecutor:
    """Counts rounds; each client's loss is its id, accuracy in percent is ten times the round."""

    description = "nowhere"
    processors = ()

    def __init__(self, error: BaseException | None = None, error_round: int = -1) -> None:
        self.calls: list[Any] = []
        self.done = 0
        self._error, self._error_round = error, error_round

    def run_phase(self, round_: int, phase: str, cohort: Sequence[int]) -> PhaseReport:
        self.calls.append((round_, phase, tuple(cohort)))
        if round_ == self._error_round and self._error is not None:
            raise self._error
        clients = [
            ClientReport(
                client=c,
                host=0,
                num_examples=c + 1,
                metrics={"loss": float(c)},
                bytes_up=10,
                state_bytes=0,
                seconds=0.5,
            )
            for c in cohort
        ]
        seconds = {"clients": 1.0, "aggregate": 0.1}
        host = HostReport(0, clients, 7, {"fit": 0.4, "busy": 0.6})
        return PhaseReport(hosts=[host], metrics={"figure": 7.0}, bytes_down=3, seconds=seconds)

    def recover(self, notify: Callable[[str], None]) -> None:
        self.calls.append("recover")

    def commit(self) -> None:
        self.calls.append("commit")
        self.done += 1

    def evaluate(self, round_: int, units: Sequence[EvalUnit], *, personal: bool) -> list[EvalSum]:
        self.calls.append(("evaluate", round_))
        return [
            EvalSum(
                client=-1,
                domain=u.domain,
                start=u.start,
                num_examples=u.stop - u.start,
                num_correct=(u.stop - u.start) * self.done // 10,
                loss=float(u.stop - u.start),
            )
            for u in reversed(units)
        ]

    def costs(self) -> Costs:
        return Costs(params=4, params_sliced=3, flops=2, flops_sliced=1)

    def digest(self) -> str:
        return f"digest {self.done}"

    def snapshot(self) -> Snapshot:
        self.calls.append("snapshot")
        return Snapshot(model={"done": np.full(1, float(self.done))}, memory={}, clients={})

    def restore(self, snapshot: Snapshot) -> None:
        self.done = int(snapshot.model["done"][0])

    def close(self) -> None:
        pass


class Refusing(FakeExecutor):
    """Every update of round 2 is refused."""

    def run_phase(self, round_: int, phase: str, cohort: Sequence[int]) -> PhaseReport:
        report = super().run_phase(round_, phase, cohort)
        if round_ != 1:
            return report
        clients = [replace(c, metrics={"skipped": 1.0}) for c in report.clients]
        return replace(report, hosts=[HostReport(0, clients, 0, {})])


class Watcher:
    def __init__(self) -> None:
        self.seen: list[RoundSummary] = []
        self.told: list[str] = []

    def on_round(self, summary: RoundSummary) -> None:
        self.seen.append(summary)

    def on_notice(self, text: str) -> None:
        self.told.append(text)


def loop(folder: Path, executor: FakeExecutor, **overrides: Any) -> tuple[Federation, Watcher]:
    (folder / "checkpoints").mkdir(exist_ok=True)
    settings: dict[str, Any] = {"rounds": 5, "data.clients": 3, "participation.fraction": 1.0}
    settings |= {"evaluation": {"every": 1, "last": 2}}
    config = toy_config(**(settings | overrides))
    watcher = Watcher()
    run = Federation(
        config, executor, folder, domains=("a", "b"), held_out={"test": SIZES}, observers=[watcher]
    )
    return run, watcher


def test_a_round_without_a_finite_update_is_told_and_counted(tmp_path: Path) -> None:
    run, watcher = loop(tmp_path, Refusing())
    assert run.run()["skipped_updates"] == 3
    (told,) = watcher.told
    assert told.startswith("round 2, phase 'fit': every update had NaN or infinity")
    assert "local.lr" in told
    assert np.isnan([seen.loss for seen in watcher.seen]).tolist() == [False, True] + [False] * 3


def rounds_saved(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


@given(st.integers(1, 200), st.floats(0.001, 1), st.integers(0, 9), st.integers(0, 9))
def test_cohorts(clients: int, fraction: float, seed: int, round_: int) -> None:
    cohort = draw_cohort(clients, fraction, seed, round_)
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= set(range(clients))
    assert len(cohort) == max(1, int(fraction * clients + 0.5))
    assert cohort == draw_cohort(clients, fraction, seed, round_)


def test_cohorts_change_from_round_to_round_and_reach_everyone() -> None:
    cohorts = [tuple(draw_cohort(20, 0.25, 0, r)) for r in range(60)]
    assert len(set(cohorts)) > 50
    assert {c for cohort in cohorts for c in cohort} == set(range(20))


def test_order_of_calls(tmp_path: Path) -> None:
    executor = FakeExecutor()
    loop(tmp_path, executor, rounds=2)[0].run()
    one = [(0, "fit", (0, 1, 2)), "commit", ("evaluate", 0)]
    two = [(1, "fit", (0, 1, 2)), "commit", ("evaluate", 1), "snapshot"]
    assert executor.calls == one + two


def test_evaluation_every_and_at_the_end(tmp_path: Path) -> None:
    executor = FakeExecutor()
    run, watcher = loop(tmp_path, executor, evaluation={"every": 3})
    run.run()
    assert [c[1] for c in executor.calls if c[0] == "evaluate"] == [2, 4]
    assert [bool(s.evaluation) for s in watcher.seen] == [False, False, True, False, True]


def test_summary(tmp_path: Path) -> None:
    executor = FakeExecutor()
    run, watcher = loop(tmp_path, executor)
    summary = run.run()
    keys = (
        "status method dataset seed rounds clients domains avg std last best personal params "
        "params_sliced flops flops_sliced bytes_up bytes_down wall_s weights_sha256"
    )
    assert set(keys.split()) <= summary.keys()
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["status"] == "done"
    assert summary["domains"] == {"a": 50.0, "b": 50.0}
    assert (summary["avg"], summary["std"]) == (50.0, 0.0)
    assert summary["last"]["avg"] == 45.0
    assert summary["best"]["round"] == 5
    assert (summary["bytes_up"], summary["bytes_down"]) == (5 * 3 * 10, 5 * 3 * 3)
    assert summary["weights_sha256"] == "digest 5"
    assert summary["personal"] is None
    assert watcher.seen[0].loss == pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6)
    assert watcher.seen[0].figures["figure"] == 7.0
    assert [s.round for s in watcher.seen] == [1, 2, 3, 4, 5]


def test_timings_are_kept_apart(tmp_path: Path) -> None:
    loop(tmp_path, FakeExecutor())[0].run()
    times = pq.read_table(tmp_path / "timings.parquet").to_pylist()
    assert {"round", "evaluate", "client_step", "checkpoint"} <= {r["what"] for r in times}
    assert sum(r["bytes"] for r in times if r["what"] == "client_step") == 150
    names = {r["metric"] for r in pq.read_table(tmp_path / "metrics.parquet").to_pylist()}
    assert not {n for n in names if "second" in n or "time" in n}


def test_checkpoints_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    output = {"checkpoint_every": 2, "keep_checkpoints": 5}
    loop(tmp_path, FakeExecutor(), output=output)[0].run()
    assert rounds_saved(tmp_path) == ["round_00002", "round_00004", "round_00005"]


@pytest.mark.parametrize("error", [Interrupted(15), RunError("client 2 failed")])
def test_a_stopped_run_saves_the_last_complete_round(tmp_path: Path, error: BaseException) -> None:
    run, _ = loop(tmp_path, FakeExecutor(error, 3), output={"checkpoint_every": 2})
    with pytest.raises(type(error)):
        run.run()
    assert rounds_saved(tmp_path) == ["round_00002", "round_00003"]
    assert run.saved_rounds == 3


def test_stopped_in_the_first_round_there_is_nothing_to_save(tmp_path: Path) -> None:
    run, _ = loop(tmp_path, FakeExecutor(Interrupted(2), 0))
    with pytest.raises(Interrupted):
        run.run()
    assert rounds_saved(tmp_path) == []
    assert run.saved_rounds == 0


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_resumed_metrics_equal_unbroken_ones(tmp_path: Path, every: int, stop: int) -> None:
    evaluation = {"evaluation": {"every": every, "last": 2}}
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.mkdir(), part.mkdir()
    wanted = loop(whole, FakeExecutor(), **evaluation)[0].run()
    broken = loop(part, FakeExecutor(Interrupted(2), stop), **evaluation)[0]
    with pytest.raises(Interrupted):
        broken.run()
    again = loop(part, FakeExecutor(), **evaluation)[0]
    again.resume(latest_checkpoint(part / "checkpoints"))
    found = again.run()
    assert (part / "metrics.parquet").read_bytes() == (whole / "metrics.parquet").read_bytes()
    assert {**found, "wall_s": 0} == {**wanted, "wall_s": 0}


def test_a_longer_run_forgets_the_evaluation_of_the_old_end(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.mkdir(), part.mkdir()
    evaluation = {"evaluation": {"every": 4, "last": 2}}
    loop(whole, FakeExecutor(), **evaluation)[0].run()
    loop(part, FakeExecutor(), rounds=3, **evaluation)[0].run()
    longer = loop(part, FakeExecutor(), **evaluation)[0]
    longer.resume(latest_checkpoint(part / "checkpoints"))
    longer.run()
    assert (part / "metrics.parquet").read_bytes() == (whole / "metrics.parquet").read_bytes()


def test_a_finished_run_can_be_resumed(tmp_path: Path) -> None:
    wanted = loop(tmp_path, FakeExecutor())[0].run()
    executor = FakeExecutor()
    again = loop(tmp_path, executor)[0]
    again.resume(latest_checkpoint(tmp_path / "checkpoints"))
    found = again.run()
    assert found["weights_sha256"] == wanted["weights_sha256"]
    assert "commit" not in executor.calls


def test_deferred_signals_arrive_after_the_block() -> None:
    signals, order = Signals(), []
    with pytest.raises(Interrupted) as caught, signals.deferred():  # noqa: PT012
        with signals.deferred():
            signals._pending = 15
        order.append("inner")
    assert order == ["inner"]
    assert caught.value.signum == 15


class LosingExecutor(FakeExecutor):
    """Loses a place the n-th times that a call is made; what was not committed is not done."""

    def __init__(self, losses: dict[str, set[int]]) -> None:
        super().__init__()
        self._losses = losses
        self._counts = dict.fromkeys(losses, 0)

    def _lose(self, call: str) -> None:
        if call in self._losses:
            self._counts[call] += 1
            if self._counts[call] in self._losses[call]:
                self.calls.append(f"lost in {call}")
                raise PlaceLost(f"{call} {self._counts[call]}: a host died")

    def run_phase(self, round_: int, phase: str, cohort: Sequence[int]) -> PhaseReport:
        self._lose("run_phase")
        return super().run_phase(round_, phase, cohort)

    def commit(self) -> None:
        self._lose("commit")
        super().commit()

    def evaluate(self, round_: int, units: Sequence[EvalUnit], *, personal: bool) -> list[EvalSum]:
        self._lose("evaluate")
        return super().evaluate(round_, units, personal=personal)

    def costs(self) -> Costs:
        self._lose("costs")
        return super().costs()

    def recover(self, notify: Callable[[str], None]) -> None:
        super().recover(notify)
        self._lose("recover")
        notify("made good")


@pytest.mark.parametrize(
    ("losses", "recoveries"),
    [
        ({"run_phase": {2}}, 1),
        ({"run_phase": {1, 2, 3}}, 3),
        ({"run_phase": {1, 2, 4, 5, 7, 8}}, 6),  # never four in a row
        ({"commit": {3}}, 1),
        ({"evaluate": {1, 5}}, 2),
        ({"costs": {1}}, 1),
        ({"run_phase": {2}, "recover": {1, 2}}, 3),
        ({"run_phase": {3}, "commit": {2}, "evaluate": {2}, "costs": {1}}, 4),
    ],
)
def test_losses_change_nothing_but_their_count(
    losses: dict[str, set[int]], recoveries: int, tmp_path: Path
) -> None:
    quiet, lossy = tmp_path / "quiet", tmp_path / "lossy"
    quiet.mkdir(), lossy.mkdir()
    wanted = loop(quiet, FakeExecutor())[0].run()
    executor = LosingExecutor(losses)
    found = loop(lossy, executor)[0].run()
    assert found["recoveries"] == recoveries
    assert {**found, "wall_s": 0, "recoveries": 0} == {**wanted, "wall_s": 0}
    assert (lossy / "metrics.parquet").read_bytes() == (quiet / "metrics.parquet").read_bytes()
    assert executor.done == 5


def test_what_was_lost_is_made_good_before_the_step_is_run_again(tmp_path: Path) -> None:
    executor = LosingExecutor({"commit": {2}, "evaluate": {1}})
    run, watcher = loop(tmp_path, executor, rounds=2)
    run.run()
    fit = [(r, "fit", (0, 1, 2)) for r in (0, 1)]
    one = [fit[0], "commit", "lost in evaluate", "recover", ("evaluate", 0)]
    two = [fit[1], "lost in commit", "recover", fit[1], "commit", ("evaluate", 1), "snapshot"]
    assert executor.calls == one + two
    assert watcher.told == [
        "evaluate 1: a host died; the evaluation of round 1 is run again",
        "made good",
        "commit 2: a host died; round 2 is run again",
        "made good",
    ]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_losses_in_a_row_are_bounded(retries: int, tmp_path: Path) -> None:
    executor = LosingExecutor({"run_phase": set(range(3, 99))})
    run, _ = loop(tmp_path, executor, execution={"retries": retries})
    words = f"a host died; round 3 is given up after {retries + 1} losses in a row"
    with pytest.raises(RunError, match=words):
        run.run()
    assert executor.calls.count("recover") == retries
    assert rounds_saved(tmp_path) == ["round_00002"]


def test_what_cannot_be_made_good_ends_the_run_at_once(tmp_path: Path) -> None:
    class Hopeless(LosingExecutor):
        def recover(self, notify: Callable[[str], None]) -> None:
            raise RunError("no host is left")

    run, _ = loop(tmp_path, Hopeless({"run_phase": {2}}))
    with pytest.raises(RunError, match="no host is left"):
        run.run()
    assert run.saved_rounds == 1


def test_a_client_that_raises_is_not_tried_again(tmp_path: Path) -> None:
    executor = FakeExecutor(RunError("client 2 failed"), 3)
    with pytest.raises(RunError, match="client 2 failed"):
        loop(tmp_path, executor)[0].run()
    assert "recover" not in executor.calls


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(arrays: Any, path: Path) -> None:
        if "round_00002" in str(path):
            raise OSError(28, "No space left on device")
        states.save_arrays(arrays, path)

    monkeypatch.setattr(checkpoint, "save_arrays", full)
    run, _ = loop(tmp_path, FakeExecutor(), output={"checkpoint_every": 1, "keep_checkpoints": 9})
    with pytest.raises(OSError, match="No space left"):
        run.run()
    assert rounds_saved(tmp_path) == ["round_00001"]
    assert run.saved_rounds == 1
    monkeypatch.undo()
    again = loop(tmp_path, FakeExecutor())[0]
    again.resume(latest_checkpoint(tmp_path / "checkpoints"))
    assert again.run()["rounds"] == 5

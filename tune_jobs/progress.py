"""What a person sees of a study: a line when a trial ends, and now and then how things stand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from rich.console import Console

from tune_jobs.outcome import short
from tune_jobs.trainable import VALUES

_EVERY_S = 30.0


class Follower(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Tells of trials as they end, and remembers them.

    Tune pickles its callbacks with the experiment. A pickled follower becomes whoever follows in
    the process that reads it.

    Attributes:
        trials: Tune's trials.
        live: ids of those that had not ended at Tune's last step.
    """

    def __init__(self, console: Console, rounds: int) -> None:
        """Follow trials of so many rounds."""
        self.trials: list[Any] = []
        self.live: set[str] = set()
        self._console = console
        self._rounds = rounds
        self._told_at = time.monotonic()

    def __reduce__(self) -> Any:
        """Travel as the question who follows."""
        return _who_follows, ()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Say how things stand, if nothing was said for a while."""
        self.live = {t.trial_id for t in trials if t.status not in ("TERMINATED", "ERROR")}
        if time.monotonic() - self._told_at > _EVERY_S:
            self._say(self._state(trials))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say how a trial ended."""
        found = trial.last_result or {}
        done = int(found.get("round", 0))
        how = "done" if done >= self._rounds else f"stopped at round {done}"
        split = "val" if "val_avg" in found else "test"
        figures = "".join(
            f" {name.upper()} {found[f'{split}_{name}']:.2f}"
            for name in ("avg", "std")
            if f"{split}_{name}" in found
        )
        self._say(f"{self._name(trial)}: {how}, {split}{figures}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say why a trial failed."""
        # Storage, which `reason` reads, gets the file of the trial's own place a little later.
        lines = Path(trial.error_file).read_text(encoding="utf-8").strip().splitlines()
        self._say(f"{self._name(trial)}: failed: {lines[-1] if lines else 'without a word'}")

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Remember the trials."""
        self.trials = trials

    def _state(self, trials: list[Any]) -> str:
        count = Counter(trial.status for trial in trials)
        parts = [
            f"{count[status]} {word}"
            for status, word in _WORDS.items()
            if count[status] or status == "RUNNING"
        ]
        rounds = [
            f"{trial.trial_id} at round {(trial.last_result or {}).get('round', 0)}"
            for trial in trials
            if trial.status == "RUNNING"
        ]
        return f"{', '.join(parts)}: {', '.join(rounds)}" if rounds else ", ".join(parts)

    def _name(self, trial: Any) -> str:
        return f"{trial.trial_id}  {short(trial.config[VALUES])}"

    def _say(self, text: str) -> None:
        self._told_at = time.monotonic()
        self._console.out(text, highlight=False)


_WORDS = {"TERMINATED": "over", "ERROR": "failed", "RUNNING": "running", "PENDING": "waiting"}
_following: list[Follower] = []


@contextmanager
def following(console: Console, rounds: int) -> Iterator[Follower]:
    """Follow what this process's Tune does in the block."""
    _following.append(Follower(console, rounds))
    try:
        yield _following[-1]
    finally:
        _following.pop()


def _who_follows() -> Follower:
    return _following[-1] if _following else Follower(Console(quiet=True), 0)

"""One trial: a federated run that reports to Ray Tune every few rounds.

A trial is an ordinary run directory, `runs/TRIAL` in its study's folder. What it has done stands
there, in the run's own checkpoints and metrics; Tune's checkpoint is a number of rounds. So a trial
goes on from its last saved round whatever Tune remembers, and reports again, with the same bits,
what Tune forgot.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
import torch
import yaml
from ray import tune
from rich.console import Console

from raysim.checkpoint import Checkpoint, latest_checkpoint
from raysim.config import RunConfig, load_config
from raysim.errors import ClusterError, ResumeError
from raysim.resuming import write_end
from raysim.run import method_table, opened
from raysim.signals import Signals
from raysim.skeleton import method_of

VALUES = "values"
"""Key of Tune's config that holds a trial's values by dotted key."""


def trial_config(base: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return a config with some keys replaced, as `key=value` on the command line does.

    Args:
        base: the study's config.
        values: plain values by dotted key.

    Raises:
        ConfigError: a key or value is wrong.
    """
    # A method from the user's file is known to the process that read it, not to a worker.
    methods = {**method_table(), base.method.name: type(method_of(base))}
    words = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return load_config(methods, text=yaml.safe_dump(base.resolved()), overrides=words)


def score(avg: float, std: float, std_weight: float) -> float:
    """Return what a search maximises: AVG - k * STD."""
    return avg - std_weight * std


class FederatedRun(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """A run as Tune sees it: one step is `evaluation.every` rounds."""

    def setup(
        self, config: dict[str, Any], base: RunConfig, runs: Path, std_weight: float = 0.0
    ) -> None:
        """Put the run together, from its last checkpoint if there is one.

        Args:
            config: the trial's values, under `VALUES`.
            base: the study's config.
            runs: folder of the study's run directories; every node must see it.
            std_weight: k of the score AVG - k * STD.
        """
        self._stack = ExitStack()
        self._std_weight = std_weight
        self._reported = 0
        self._over = True
        self._failed: Exception | None = None
        try:
            if not runs.is_dir():
                raise ClusterError(
                    f"{runs} is not there on {socket.gethostname()}: every node must see the "
                    "study's folder; give an output.dir on a file system that all share"
                )
            self._config = trial_config(base, config[VALUES])
            self._open(runs / self.trial_id)
        except Exception as error:  # Tune would report a dead actor; the first step raises it
            self._failed = error
            self._stack.close()

    def step(self) -> dict[str, Any]:
        """Advance to the next evaluation.

        Returns:
            `round`; AVG and STD of the main model by split, `val_avg` and so on, and their `score`,
            where the split is evaluated; `done`.

        Raises:
            Exception: whatever ended the run; the last complete round is saved.
        """
        if self._failed is not None:
            raise self._failed
        rounds = self._config.rounds
        self._reported = min(self._reported + self._config.evaluation.every, rounds)
        try:
            self._federation.advance(self._reported)
            done = self._reported == rounds
            if done:
                self._federation.finish()
                self._over = True
        except BaseException as error:
            self._over = True
            write_end(self._federation, error)
            raise
        found: dict[str, Any] = {"round": self._reported, "done": done}
        for split in ("val", "test"):
            figures = self._federation.figures(self._reported, split) or {}
            found |= {f"{split}_{name}": value for name, value in figures.items()}
        if "val_avg" in found:
            found["score"] = score(found["val_avg"], found["val_std"], self._std_weight)
        return found

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Save the run in its own directory; Tune keeps the number of rounds."""
        self._federation.save()
        return {"round": self._reported}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Go on reporting from where Tune last heard of the trial."""
        self._reported = int(checkpoint["round"]) if checkpoint else 0

    def cleanup(self) -> None:
        """Save what a trial that is stopped early has found; end all that the run started."""
        try:
            if not self._over and self._reported:
                self._federation.finish()
        finally:
            self._stack.close()

    def _open(self, folder: Path) -> None:
        checkpoint = _newest(folder)
        gpus = ray.is_initialized() and ray.get_gpu_ids()  # asking would start a Ray
        device = "cuda" if gpus and torch.cuda.is_available() else "cpu"
        self._federation = self._stack.enter_context(
            opened(
                self._config,
                Console(quiet=True),
                Signals(),
                folder=folder,
                checkpoint=checkpoint,
                device=device,
            )
        )
        if checkpoint is not None:
            self._federation.resume(checkpoint)
        self._over = False


def _newest(folder: Path) -> Checkpoint | None:
    """Return a run's newest checkpoint; without any there is nothing to keep of it."""
    try:
        return latest_checkpoint(folder / "checkpoints")
    except ResumeError:
        shutil.rmtree(folder, ignore_errors=True)
        return None

"""Where the scalars of each round go beside the run directory: TensorBoard, MLflow, W&B."""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from raysim.config import RunConfig
from raysim.errors import ConfigError
from raysim.federation import RoundSummary
from raysim.messages import JsonDict

_PROJECT = "raysim"
_MLFLOW_VALUE = 500  # characters of a parameter


class Tracker(Protocol):
    """Takes scalars."""

    def log(self, round_: int, scalars: dict[str, float]) -> None:
        """Take a round's scalars."""

    def close(self, summary: JsonDict) -> None:
        """End; `summary` is that of the run, perhaps of its failure."""


class Tracking:
    """An observer that hands each round's scalars to some trackers.

    A tracker that fails after it was opened (a server that is away) fails no run: it is told.
    """

    def __init__(self, trackers: Mapping[str, Tracker], notify: Callable[[str], None]) -> None:
        """Serve trackers by name; what goes wrong is told to `notify`."""
        self._trackers = trackers
        self._notify = notify

    def on_round(self, summary: RoundSummary) -> None:
        """Hand out a round's scalars."""
        found = scalars(summary)
        self._each(f"round {summary.round}", lambda tracker: tracker.log(summary.round, found))

    def on_notice(self, text: str) -> None:
        """Do nothing."""

    def close(self, summary: JsonDict) -> None:
        """Close all."""
        self._each("the end", lambda tracker: tracker.close(summary))

    def _each(self, what: str, act: Callable[[Tracker], None]) -> None:
        for name, tracker in self._trackers.items():
            try:
                act(tracker)
            except Exception as error:
                self._notify(f"{name} did not take {what}: {type(error).__name__}: {error}")


@contextmanager
def tracking(
    config: RunConfig, folder: Path, done: int, notify: Callable[[str], None]
) -> Iterator[Tracking]:
    """Open what `output.tensorboard` and `output.trackers` ask for, and close it after the block.

    Args:
        config: the run.
        folder: its directory.
        done: complete rounds.
        notify: told when a tracker fails.

    Raises:
        ConfigError: a tracker is not installed, or cannot be opened.
    """
    trackers: dict[str, Tracker] = {}
    observer = Tracking(trackers, notify)
    try:
        if config.output.tensorboard:
            from raysim.tensorboard import TensorBoard

            trackers["TensorBoard"] = TensorBoard(folder / "tensorboard", done)
        for name in config.output.trackers:
            trackers[name] = _opened(name, config, folder)
        yield observer
    finally:
        observer.close(_summary(folder))


def scalars(summary: RoundSummary) -> dict[str, float]:
    """Return a round's figures by names with a group: `round/loss`, `accuracy/AVG`, ...

    Left out are those without a value: the loss of a round whose every update was refused.
    """
    figures = {name: float(value) for name, value in summary.figures.items()}
    found = {f"round/{name}": value for name, value in figures.items() if math.isfinite(value)}
    evaluation = summary.evaluation or {}
    if not evaluation:
        return found
    found |= {f"accuracy/{name}": value for name, value in evaluation["domains"].items()}
    found |= {f"accuracy/{key.upper()}": evaluation[key] for key in ("avg", "std")}
    found |= {f"personal/{name}": value for name, value in (evaluation["personal"] or {}).items()}
    for domain, own in evaluation["unseen"].items():
        found |= {f"unseen/{domain}_{model}": value for model, value in own.items()}
    return found


class MLflow:
    """A run of the experiment `raysim` at `MLFLOW_TRACKING_URI`, else in `output.dir/mlflow.db`.

    A resumed run goes on in its MLflow run.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Open the run."""
        from mlflow import MlflowClient

        default = f"sqlite:///{folder.parent / 'mlflow.db'}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or default)
        experiment = self._experiment()
        same = f"tags.`raysim.folder` = '{folder.name}'"
        runs = self._client.search_runs([experiment], filter_string=same, max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"raysim.folder": folder.name}
        self._run = self._client.create_run(experiment, tags=tags, run_name=folder.name).info.run_id
        for key, value in _flat(config.resolved()).items():
            self._client.log_param(self._run, _plain(key), str(value)[:_MLFLOW_VALUE])

    def log(self, round_: int, scalars: dict[str, float]) -> None:
        """Log a round's scalars."""
        self._log(scalars, round_)

    def close(self, summary: JsonDict) -> None:
        """Log the summary's figures and end the run."""
        self._log({f"summary/{key}": value for key, value in _figures(summary).items()}, 0)
        ended = {"done": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED"}
        status = ended.get(summary["status"], "FAILED")
        self._client.set_terminated(self._run, status)

    def _experiment(self) -> str:
        """Return the experiment's id; of several runs that begin at once, one makes it."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(_PROJECT)
        if found is None:
            try:
                return str(self._client.create_experiment(_PROJECT))
            except MlflowException:
                found = self._client.get_experiment_by_name(_PROJECT)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_plain(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)


class WandB:
    """A run of the W&B project `raysim` (or `WANDB_PROJECT`); `WANDB_MODE=offline` needs no server.

    A resumed run goes on in its W&B run.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Open the run."""
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=_plain(folder.name).replace("/", "_")[:64],
            name=folder.name,
            resume="allow",
            dir=str(folder),
            config=config.resolved(),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="round")

    def log(self, round_: int, scalars: dict[str, float]) -> None:
        """Log a round's scalars."""
        self._run.log(scalars | {"round": round_})

    def close(self, summary: JsonDict) -> None:
        """Log the summary's figures and end the run."""
        self._run.summary.update(_figures(summary))
        self._run.finish(exit_code=0 if summary["status"] in ("done", "stopped") else 1)


_KINDS: dict[str, Callable[[RunConfig, Path], Tracker]] = {"mlflow": MLflow, "wandb": WandB}


def _opened(name: str, config: RunConfig, folder: Path) -> Tracker:
    try:
        return _KINDS[name](config, folder)
    except ImportError as error:
        raise ConfigError(
            f"output.trackers: {name} is not installed ({error}): pip install 'raysim[{name}]'"
        ) from None
    except Exception as error:
        raise ConfigError(
            f"output.trackers: {name} cannot be opened: {type(error).__name__}: {error}\n"
            "check MLFLOW_TRACKING_URI or WANDB_MODE, or leave it out"
        ) from error


def _summary(folder: Path) -> JsonDict:
    """Return the run's summary; "failed" before there is one."""
    try:
        found: JsonDict = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"status": "failed"}
    return found


def _figures(summary: JsonDict) -> dict[str, float]:
    flat = _flat({key: value for key, value in summary.items() if key != "error"})
    numbers = {k: v for k, v in flat.items() if isinstance(v, int | float)}
    return {key: float(value) for key, value in numbers.items()}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree's leaves by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def _plain(name: str) -> str:
    """Return a name in the characters that trackers take."""
    return re.sub(r"[^\w./-]", "_", name)

"""A study: many trials under Ray Tune, in a folder of its own that can be gone on with.

study.yaml   what was asked for        runs/   an ordinary run directory for each trial
tune/        what Ray Tune remembers   the rest is made from `runs/` when the study ends
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from raysim.config import RunConfig
from raysim.errors import ConfigError, Interrupted, ResumeError, RunError
from raysim.folder import check_output, new_folder
from raysim.results import write_json, write_text
from raysim.yaml_text import parse_yaml
from tune_jobs.outcome import Outcome, outcome_of, short
from tune_jobs.resources import bundles, check_room, has_hosts, rooms

if TYPE_CHECKING:
    import typer

    from tune_jobs.progress import Follower

FILE, RUNS, TUNE, FAILURES = "study.yaml", "runs", "tune", "failures.json"
_ENVIRONMENT = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # `_Stop` has both signals
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the runs write what there is to know
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What Tune is to do.

    Attributes:
        base: the config that trials start from, as the user has it.
        values: Tune's search space of a trial's values, or a grid of them; None if all is known.
        known: what became of trials that need not be run.
        num_samples: draws from it.
        searcher: Tune's search algorithm; None is its own.
        scheduler: Tune's scheduler; None lets every trial end.
        std_weight: k of the score AVG - k * STD.
    """

    base: RunConfig
    values: Any
    known: Sequence[Outcome] = ()
    num_samples: int = 1
    searcher: Any = None
    scheduler: Any = None
    std_weight: float = 0.0


def new_study(base: RunConfig, label: str, asked: Mapping[str, Any]) -> Path:
    """Make the folder of a study below `output.dir`, with `study.yaml`.

    Args:
        base: its config.
        label: what is studied, in the folder's name.
        asked: plain values that `read_study` gives back.

    Returns:
        Its absolute path.

    Raises:
        ConfigError: it cannot be written.
    """
    check_output(base.output.dir)
    try:
        folder = new_folder(base.output.dir, label)
        (folder / RUNS).mkdir()
        text = yaml.safe_dump(dict(asked), sort_keys=False, allow_unicode=True)
        write_text(text, folder / FILE)
    except OSError as error:
        raise ConfigError(f"output.dir={base.output.dir}: {error.strerror or error}") from None
    return folder


def check_alone(context: typer.Context) -> None:
    """Refuse other words beside `--resume`, which would be ignored.

    Raises:
        ResumeError: there are some.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    others = sorted({"overrides": "key=value"}.get(name, name) for name in given)
    if "resume" in others and len(others) > 1:
        others.remove("resume")
        raise ResumeError(
            f"--resume goes on with a study as it was asked for: leave out {', '.join(others)}"
        )


def read_study(folder: Path, kind: str) -> dict[str, Any]:
    """Return what a study was asked for.

    Args:
        folder: of the study.
        kind: "search" or "table".

    Raises:
        ResumeError: it is not the folder of such a study.
    """
    try:
        asked = parse_yaml((folder / FILE).read_text(encoding="utf-8"), str(folder / FILE))
    except OSError:
        raise ResumeError(f"--resume {folder}: not a study's folder: no {FILE} in it") from None
    except UnicodeDecodeError as error:
        raise ResumeError(f"--resume {folder}: {FILE} is damaged: {error}") from None
    if not isinstance(asked, dict) or asked.get("kind") != kind:
        raise ResumeError(f"--resume {folder}: not a {kind}; see `kind` in its {FILE}")
    return asked


@contextmanager
def conducted(
    plan: Plan, folder: Path, console: Console, module: str, *, study: Path | None = None
) -> Iterator[Sequence[Outcome]]:
    """Run the trials that are left to run; the block draws the conclusions.

    The block is run for a study that a signal stopped, too, with what there is until then.

    Args:
        plan: what to do; the same again when a study is gone on with.
        folder: made by `new_study`.
        console: where progress goes.
        module: whose `--resume` goes on with the study.
        study: folder of the study that this one is a part of, if it is.

    Yields:
        What became of every trial, the known ones first.

    Raises:
        ClusterError: the cluster cannot be reached, or can never hold a trial.
        Interrupted: a signal stopped the study; the console was told how to go on with it.
        RunError: no trial came to an end.
    """
    whole = study or folder
    signum, outcomes = 0, list(plan.known)
    try:
        if plan.values is not None:
            signum, ended = _run(plan, folder, console, whole)
            outcomes += ended
    except BaseException:
        if not any(whole.glob(f"**/{RUNS}/*")):  # nothing has run: it would only be in the way
            shutil.rmtree(whole, ignore_errors=True)
        raise
    _list_failures(outcomes, folder, console)
    yield outcomes
    if signum:
        over = sum(outcome.is_over for outcome in outcomes)
        console.print(
            f"stopped after {over} {'trial' if over == 1 else 'trials'}; go on with\n"
            f"  python -m {module} --resume {shlex.quote(str(whole))}",
            soft_wrap=True,
        )
        raise Interrupted(signum)
    if not any(outcome.is_over for outcome in outcomes):
        raise RunError(f"every trial failed: see {folder / FAILURES}")


def _run(plan: Plan, folder: Path, console: Console, whole: Path) -> tuple[int, list[Outcome]]:
    """Run Tune; returns the signal that stopped it, or 0, and what became of every trial."""
    from cluster.session import session  # before Ray, which reads its environment when imported

    import ray  # isort: skip

    stop = _Stop()
    console.file = sys.stdout  # of now: Tune's own words go elsewhere
    with _environment(), session(plan.base.execution) as cluster:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = bundles(plan.base, ray.cluster_resources().get("GPU", 0.0))
        check_room(wanted, nodes)
        console.print(f"study: {whole}", soft_wrap=True)
        _say_where(console, plan.base, rooms(wanted, nodes, most=1000), cluster)
        with _silence(), stop.listening():
            follower = _fit(plan, folder, wanted, console)
    trials = sorted(follower.trials, key=lambda trial: str(trial.trial_id))
    _drop_strays({str(trial.trial_id) for trial in trials}, folder / RUNS)
    return stop.signum, [
        outcome_of(trial, folder / RUNS, live=trial.trial_id in follower.live) for trial in trials
    ]


def _drop_strays(known: Set[str], runs: Path) -> None:
    """Remove runs of trials that were begun after Tune's last word before it was killed."""
    for run in runs.iterdir():
        if run.name not in known:
            shutil.rmtree(run, ignore_errors=True)


def _list_failures(outcomes: Sequence[Outcome], folder: Path, console: Console) -> None:
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    path = folder / FAILURES
    if not failed:
        path.unlink(missing_ok=True)  # those of before are made good
        return
    found = {o.trial: {"values": o.values, "run": str(o.folder), "error": o.error} for o in failed}
    write_json(found, path)
    console.print(f"{len(failed)} of {len(outcomes)} trials failed ({path}):", soft_wrap=True)
    for outcome in failed:
        values = short(outcome.values)
        console.print(f"  {outcome.trial}  {values}: {outcome.headline}", soft_wrap=True)


def trial_base(base: RunConfig, folder: Path) -> RunConfig:
    """Return the config that trials start from, with the places and pace of a study.

    Where the work is done and what is written never changes a bit of a result.
    """
    every = base.evaluation.every
    blocks = -(-base.output.checkpoint_every // every)  # a checkpoint is an evaluated round
    output = {"dir": folder / RUNS, "checkpoint_every": blocks * every}
    cache = base.data.cache
    return base.model_copy(
        update={
            "output": base.output.model_copy(update=output),
            "data": base.data.model_copy(update={"cache": cache and cache.expanduser().absolute()}),
            "execution": base.execution.model_copy(
                update={"backend": "ray" if has_hosts(base) else "inprocess"}
            ),
        }
    )


def _fit(plan: Plan, folder: Path, wanted: list[Any], console: Console) -> Follower:
    """Start or go on with Tune's experiment; returns who followed it."""
    from ray import tune

    from tune_jobs.progress import following
    from tune_jobs.trainable import VALUES, FederatedRun

    base = trial_base(plan.base, folder)
    trainable = tune.with_resources(
        tune.with_parameters(
            FederatedRun, base=base, runs=folder / RUNS, std_weight=plan.std_weight
        ),
        tune.PlacementGroupFactory(wanted),
    )
    place = folder / TUNE
    with following(console, base.rounds) as follower:
        if any(place.glob("experiment_state*.json")):
            tuner = tune.Tuner.restore(str(place), trainable, resume_errored=True)
        else:
            shutil.rmtree(place, ignore_errors=True)  # ended before Tune had a trial
            tuner = tune.Tuner(
                trainable,
                param_space={VALUES: plan.values},
                tune_config=tune.TuneConfig(
                    num_samples=plan.num_samples,
                    metric="score" if plan.scheduler or plan.searcher else None,
                    mode="max" if plan.scheduler or plan.searcher else None,
                    search_alg=plan.searcher,
                    scheduler=plan.scheduler,
                    trial_dirname_creator=lambda trial: str(trial.trial_id),
                ),
                run_config=tune.RunConfig(
                    name=TUNE,
                    storage_path=str(folder),
                    verbose=0,
                    callbacks=[follower],
                    checkpoint_config=tune.CheckpointConfig(
                        checkpoint_frequency=base.output.checkpoint_every // base.evaluation.every,
                        checkpoint_at_end=False,
                    ),
                ),
            )
        tuner.fit()
    return follower


def _say_where(console: Console, base: RunConfig, at_once: int, cluster: str) -> None:
    hosts = base.execution.hosts
    each = "a process each"
    if has_hosts(base):
        each = "a host each" if hosts == 1 else f"{hosts} hosts each"
    console.print(f"{at_once} at once, {each}, on {cluster}", soft_wrap=True)


@contextmanager
def _environment() -> Iterator[None]:
    before = {key: os.environ.get(key) for key in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextmanager
def _silence() -> Iterator[None]:
    """Keep Tune's tables and warnings off the terminal; the follower says what happens."""
    before = {name: logging.getLogger(name).level for name in ("ray.tune", "optuna")}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


class _Stop:
    """Passes the first SIGINT or SIGTERM on to Tune, which saves its state; a second one ends all.

    Attributes:
        signum: the signal that came, 0 if none has.
    """

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.signum = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take over both signals for the block; only the main thread may."""
        handlers = {
            signal.SIGINT: self._arrive,
            signal.SIGTERM: self._arrive,
            signal.SIGUSR1: self._end,  # Tune takes this one over once it can save something
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _arrive(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGUSR1)

    def _end(self, signum: int, frame: FrameType | None) -> None:
        raise Interrupted(self.signum)

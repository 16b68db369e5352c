"""The composition root: puts config, data, method, executor and round loop together.

`python -m raysim.run [--config FILE | --preset NAME] [--resume RUN_DIR] [key=value ...]`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysim.calling import RunModule
from raysim.exits import complain, guarded
from raysim.options import HelpConfig, LogJson, Outlet, Quiet

if TYPE_CHECKING:
    from rich.console import Console

    from raysim.checkpoint import Checkpoint
    from raysim.config import MethodTable, RunConfig
    from raysim.data.datasets import Dataset
    from raysim.data.shards import Partition
    from raysim.doctor import Finding
    from raysim.executor import Executor
    from raysim.federation import Federation, Observer
    from raysim.progress import Display
    from raysim.record import Record
    from raysim.signals import Signals

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="e.g. method.rho=0.5 data.clients=100"),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML file to start from.")
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Shipped settings; `raysim presets` lists them."),
]
Resume = Annotated[
    Path | None, typer.Option(metavar="RUN_DIR", help="Go on with an interrupted run.")
]


def run(
    overrides: Overrides = None,
    config: ConfigFile = None,
    preset: Preset = None,
    resume: Resume = None,
    quiet: Quiet = False,
    log_json: LogJson = False,
    help_config: HelpConfig = False,
) -> None:
    """Train. Without arguments: FedFIP on four domains of real digits, on Ray, in minutes."""
    words = overrides or []
    if help_config:
        raise typer.Exit(guarded(lambda: _help_config(words, config, preset)))
    outlet = Outlet(quiet, log_json)
    with _ray_beside(words, resume / "config.yaml" if resume else config, preset):
        status = guarded(lambda: _run(words, config, preset, resume, outlet))
    raise typer.Exit(status)


@contextmanager
def _ray_beside(
    words: Sequence[str], config_file: Path | None, preset: str | None
) -> Iterator[None]:
    """Let Ray start while methods, and torch with them, are imported, if the run will be on Ray."""
    from raysim.config import read_execution
    from raysim.errors import ConfigError
    from raysim.presets import starting_text

    settings = None
    with suppress(ConfigError):
        settings = read_execution(starting_text(config_file, preset)[0], words)
    if settings is None or settings.backend != "ray":
        yield
        return
    from cluster.session import beginning

    with beginning(settings):
        yield


def method_table() -> MethodTable:
    """Return the methods of the package by name."""
    from methods import METHODS

    return METHODS


def read_config(
    overrides: Sequence[str] = (), config_file: Path | None = None, preset: str | None = None
) -> RunConfig:
    """Return the config of a command line.

    Args:
        overrides: `key=value` words.
        config_file: YAML to start from.
        preset: shipped settings to start from, instead of a file.

    Raises:
        ConfigError: the file is missing or the settings are wrong.
    """
    from raysim.config import load_config
    from raysim.presets import starting_text

    text, source = starting_text(config_file, preset)
    return load_config(method_table(), text=text, source=source, overrides=overrides)


def execute(
    config: RunConfig,
    console: Console,
    resume_from: tuple[Path, Checkpoint] | None = None,
    observers: Sequence[Observer] = (),
    show: Callable[[Console, int, int], Display] | None = None,
) -> Record:
    """Run a config to its end.

    Args:
        config: the run.
        console: where progress and the closing table go.
        resume_from: run directory and checkpoint to go on from; None starts a new directory.
        observers: called after each round, beside progress and trackers.
        show: makes what shows progress, of console, rounds and complete rounds; None takes what
            suits the console.

    Returns:
        The run, read back.

    Raises:
        UserError: data, cluster or output directory are not as the config needs them.
        RunError: a step failed.
        Interrupted: stopped by a signal; the last complete round is saved.
    """
    from raysim.progress import display
    from raysim.record import Record
    from raysim.resuming import how_to_resume, write_end
    from raysim.signals import Signals

    signals = Signals()
    folder, checkpoint = resume_from or (None, None)
    progress = (show or display)(console, config.rounds, checkpoint.round if checkpoint else 0)
    with (
        opened(
            config,
            console,
            signals,
            folder=folder,
            checkpoint=checkpoint,
            observers=(progress, *observers),
        ) as federation,
        signals.installed(),
        progress,
    ):
        progress.on_start(federation.folder)
        try:
            if checkpoint:
                federation.resume(checkpoint)
            summary = federation.run()
        except BaseException as error:
            write_end(federation, error)
            progress.on_failure(error, federation.folder, federation.saved_rounds)
            complain(how_to_resume(federation.folder, federation.saved_rounds, config.rounds), 0)
            raise
    record = Record(federation.folder, method_table())
    if config.output.report:
        _report(record, console)
    progress.on_end(summary, record.folder)
    return record


def _report(record: Record, console: Console) -> None:
    """Write `report.html`. What goes wrong in it fails no run: its results are written."""
    from raysim.errors import UserError
    from raysim.report import write_report

    try:
        write_report([record], record.folder / "report.html")
    except Exception as error:
        told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        text = f"no report: {told}; `raysim report {record.folder}` tries again"
        console.print(text, soft_wrap=True)


@contextmanager
def opened(
    config: RunConfig,
    console: Console,
    signals: Signals,
    *,
    folder: Path | None = None,
    checkpoint: Checkpoint | None = None,
    observers: Sequence[Observer] = (),
    device: str = "cpu",
) -> Iterator[Federation]:
    """Put a run together; what it started is closed at the end of the block.

    Args:
        config: the run.
        console: told when the run is ready.
        signals: may interrupt waiting; not installed here.
        folder: the run directory; None makes a new one below `output.dir`.
        checkpoint: that the caller will resume from; None for a new run.
        observers: called after each round, beside TensorBoard.
        device: torch device of an in-process run.

    Yields:
        The round loop.

    Raises:
        UserError: data, cluster or output directory are not as the config needs them.
    """
    from raysim import folder as folders
    from raysim.progress import tell_ready
    from raysim.resuming import run_folder
    from raysim.trackers import tracking

    started = time.perf_counter()
    if folder is None:
        folders.check_output(config.output.dir)
    on_hosts, dataset, partition = open_data(config, console)
    folder = run_folder(config, dataset, partition, folder, checkpoint)
    with ExitStack() as stack:
        stack.enter_context(folders.sole_use(folder))
        if checkpoint:
            folders.write_config(config, folder)
        with folders.kept_if_started(folder, new=checkpoint is None):
            executor = make_executor(
                on_hosts, partition, dataset, signals, folder / "states", _say(console), device
            )
            stack.enter_context(closing(executor))
            done = checkpoint.round if checkpoint else 0
            trackers = stack.enter_context(tracking(config, folder, done, _say(console)))
        folders.write_environment(
            folder,
            dataset.sha256,
            partition.digest(),
            config.method_sha256,
            executor.description,
            executor.processors,
        )
        seconds = time.perf_counter() - started
        tell_ready(console, config, dataset.name, executor.description, seconds)
        yield _federation(
            config, executor, folder, dataset, partition, (*observers, trackers), signals
        )


def _federation(
    config: RunConfig,
    executor: Executor,
    folder: Path,
    dataset: Dataset,
    partition: Partition,
    observers: Sequence[Observer],
    signals: Signals,
) -> Federation:
    """Return the round loop of a run."""
    from raysim.data.shards import HELD_OUT
    from raysim.federation import Federation

    return Federation(
        config,
        executor,
        folder,
        domains=dataset.domains,
        held_out={s: [len(dataset.labels(d, s)) for d in dataset.domains] for s in HELD_OUT},
        unseen=partition.unseen(dataset.domains),
        observers=observers,
        signals=signals,
        partition_sha256=partition.digest(),
        data_sha256=dataset.sha256,
    )


def open_data(config: RunConfig, console: Console) -> tuple[RunConfig, Dataset, Partition]:
    """Open the data, prepared in the cache first if need be, and deal it.

    Returns:
        The config for the hosts, whose root is that of prepared data, the data set, and who holds
        what.

    Raises:
        UserError: the data is not there, has faults, or cannot be dealt as asked.
    """
    from raysim.data.datasets import open_dataset
    from raysim.data.intake import ready
    from raysim.data.partition import make_partition
    from raysim.progress import images_bar

    say = _say(console)
    with images_bar(console) as progress:
        data = ready(config.data, say, progress)
    dataset = open_dataset(data, config.seed)
    partition = make_partition(dataset, data.partition, data.clients, config.seed, data.unseen)
    stored = dataset.files[0].size
    if stored != data.image_size:
        say(f"images of {stored} px are brought to {data.image_size} px as they are read")
    return config.model_copy(update={"data": data}), dataset, partition


def _say(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, soft_wrap=True, markup=False)


def make_executor(
    config: RunConfig,
    partition: Partition,
    dataset: Dataset,
    signals: Signals,
    spill: Path,
    say: Callable[[str], None],
    device: str,
) -> Executor:
    """Return the executor of `execution.backend`; Ray is imported only for its own."""
    if config.execution.backend == "inprocess":
        from raysim.executor import InProcessExecutor

        return InProcessExecutor(config, partition, dataset, spill, device=device)
    from cluster.executor import RayExecutor

    return RayExecutor(config, partition, dataset, signals, spill, say)


def ray_checks(config: RunConfig, then: Callable[[], Finding]) -> Iterator[Finding]:
    """Look at Ray as a run of this config would start or join it; see `cluster.checkup`."""
    from cluster.checkup import ray_checks

    return ray_checks(config, then)


def submit_job(
    words: Sequence[str], working_dir: Path, files: Mapping[str, Path], **how: Any
) -> None:
    """Run a command line as a job of a Ray cluster; see `cluster.submit`."""
    from cluster.submit import submit

    submit(words, working_dir, files, **how)


def _run(
    overrides: Sequence[str],
    config_file: Path | None,
    preset: str | None,
    resume: Path | None,
    outlet: Outlet,
) -> None:
    from raysim.errors import ConfigError
    from raysim.progress import JsonLines, plain_console
    from raysim.resuming import resumable, resumed_config

    console = plain_console(quiet=outlet.quiet or outlet.log_json)
    if resume is None:
        config, resume_from = read_config(overrides, config_file, preset), None
    elif config_file is not None or preset is not None:
        raise ConfigError("--resume takes the run's own config: leave out --config and --preset")
    else:
        checkpoint = resumable(resume, overrides, _say(console))
        config = resumed_config(resume, checkpoint, overrides, method_table())
        resume_from = resume, checkpoint
    show = (lambda _, rounds, done: JsonLines(rounds, done)) if outlet.log_json else None
    record = execute(config, console, resume_from, show=show)
    if outlet.quiet and not outlet.log_json:
        plain_console().print(record.folder, soft_wrap=True)


def _help_config(overrides: Sequence[str], config_file: Path | None, preset: str | None) -> None:
    from raysim.config import chosen_method
    from raysim.config_help import config_help
    from raysim.presets import starting_text

    text, source = starting_text(config_file, preset)
    chosen = chosen_method(method_table(), text=text, source=source, overrides=overrides)
    sys.stdout.write(config_help(*chosen))


def main() -> None:
    """Entry point of `python -m raysim.run`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    app(prog_name="python -m raysim.run")


sys.modules[__name__].__class__ = RunModule

if __name__ == "__main__":
    main()

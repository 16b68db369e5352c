"""The composition root: puts config, data, method, executor and round loop together.

`python -m raysim.run [--config FILE | --preset NAME] [--resume RUN_DIR] [key=value ...]`
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from raysim.checkpoint import Checkpoint
    from raysim.config import MethodTable, RunConfig
    from raysim.data.datasets import Dataset
    from raysim.data.shards import Partition
    from raysim.executor import Executor
    from raysim.messages import JsonDict
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
) -> None:
    """Train. Without arguments: FedFIP on four domains of real digits, on Ray, in minutes."""
    raise typer.Exit(guarded(lambda: _run(overrides or [], config, preset, resume)))


def guarded(command: Callable[[], object]) -> int:
    """Run a command, word its errors, and return its exit status.

    0 done; 1 failed; 2 the user can put it right; 128 + n stopped by signal n.
    """
    from raysim.errors import Interrupted, RunError, UserError

    try:
        command()
    except UserError as error:
        return _complain(f"error: {error}", 2)
    except (RunError, OSError) as error:
        return _complain(f"the run failed: {error}", 1)
    except Interrupted as stop:
        return 128 + stop.signum
    except KeyboardInterrupt:
        return 130
    return 0


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
    from raysim.config import load_config, preset_text
    from raysim.errors import ConfigError

    if config_file is not None and preset is not None:
        raise ConfigError("--config and --preset exclude each other")
    text, source = "", "the config"
    if preset is not None:
        text, source = preset_text(preset), f"preset {preset}"
    elif config_file is not None:
        source = str(config_file)
        try:
            text = config_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {config_file}: {error}") from None
    return load_config(method_table(), text=text, source=source, overrides=overrides)


def execute(
    config: RunConfig, console: Console, resume_from: tuple[Path, Checkpoint] | None = None
) -> JsonDict:
    """Run a config to its end.

    Args:
        config: the run.
        console: where progress and the closing table go.
        resume_from: run directory and checkpoint to go on from; None starts a new directory.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: data, cluster or output directory are not as the config needs them.
        RunError: a step failed.
        Interrupted: stopped by a signal; the last complete round is saved.
    """
    import shutil

    from raysim.folder import check_output, prepare_folder, write_environment
    from raysim.signals import Signals

    started = time.perf_counter()
    check_output(config.output.dir)
    on_hosts, dataset, partition = open_data(config, console)
    if resume_from is not None:
        _check_same_experiment(config, dataset.sha256, partition.digest(), *resume_from)
    signals = Signals()
    if resume_from is None:
        folder = prepare_folder(config, dataset, partition)
    else:
        folder = resume_from[0].resolve()
    try:
        executor = make_executor(on_hosts, partition, dataset, signals, folder / "states")
    except BaseException:
        if resume_from is None:  # nothing has run: a directory would only be in the way
            shutil.rmtree(folder, ignore_errors=True)
        raise
    with closing(executor):
        write_environment(folder, dataset.sha256, partition.digest(), executor.description)
        console.print(
            f"{config.method.label} on {dataset.name}: {config.data.clients} clients, "
            f"{executor.description}, ready in {time.perf_counter() - started:.1f} s",
            soft_wrap=True,
        )
        checkpoint = resume_from[1] if resume_from else None
        summary = _train(config, executor, folder, dataset, partition, checkpoint, console, signals)
    return summary


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

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    with images_bar(console) as progress:
        data = ready(config.data, say, progress)
    dataset = open_dataset(data, config.seed)
    partition = make_partition(dataset, data.partition, data.clients, config.seed, data.unseen)
    stored = dataset.files[0].size
    if stored != data.image_size:
        say(f"images of {stored} px are brought to {data.image_size} px as they are read")
    return config.model_copy(update={"data": data}), dataset, partition


def make_executor(
    config: RunConfig, partition: Partition, dataset: Dataset, signals: Signals, spill: Path
) -> Executor:
    """Return the executor of `execution.backend`; Ray is imported only for its own."""
    if config.execution.backend == "inprocess":
        from raysim.executor import InProcessExecutor

        return InProcessExecutor(config, partition, dataset, spill)
    from cluster.executor import RayExecutor

    return RayExecutor(config, partition, dataset, signals, spill)


def _train(
    config: RunConfig,
    executor: Executor,
    folder: Path,
    dataset: Dataset,
    partition: Partition,
    checkpoint: Checkpoint | None,
    console: Console,
    signals: Signals,
) -> JsonDict:
    from raysim.data.shards import HELD_OUT
    from raysim.errors import Interrupted
    from raysim.federation import Federation
    from raysim.progress import closing_table, display
    from raysim.results import write_json
    from raysim.tensorboard import TensorBoard

    done = checkpoint.round if checkpoint else 0
    signals.install()
    with (
        display(console, config.rounds, done) as progress,
        closing(TensorBoard(folder / "tensorboard", config.output.tensorboard, done)) as board,
    ):
        federation = Federation(
            config,
            executor,
            folder,
            domains=dataset.domains,
            held_out={
                split: [len(dataset.labels(domain, split)) for domain in dataset.domains]
                for split in HELD_OUT
            },
            unseen=partition.unseen(dataset.domains),
            observers=(progress, board),
            signals=signals,
            partition_sha256=partition.digest(),
            data_sha256=dataset.sha256,
        )
        try:
            if checkpoint:
                federation.resume(checkpoint)
            summary = federation.run()
        except BaseException as error:
            stopped = isinstance(error, Interrupted | KeyboardInterrupt)
            status = "interrupted" if stopped else "failed"
            with suppress(OSError):
                write_json(
                    {"status": status, "rounds": federation.saved_rounds, "error": str(error)},
                    folder / "summary.json",
                )
            _say_how_to_resume(folder, federation.saved_rounds, config.rounds)
            raise
    console.print(closing_table(summary))
    console.print(f"run directory: {folder}", soft_wrap=True)
    return summary


def _run(
    overrides: Sequence[str], config_file: Path | None, preset: str | None, resume: Path | None
) -> None:
    from raysim.errors import ConfigError
    from raysim.progress import plain_console

    console = plain_console()
    if resume is None:
        execute(read_config(overrides, config_file, preset), console)
        return
    if config_file is not None or preset is not None:
        raise ConfigError("--resume takes the run's own config: leave out --config and --preset")
    _resume(resume, overrides, console)


def _resume(folder: Path, overrides: Sequence[str], console: Console) -> None:
    from raysim.checkpoint import latest_checkpoint
    from raysim.errors import ResumeError

    if any(word.startswith("output.dir") for word in overrides):
        raise ResumeError("a resumed run goes on in its own directory: leave out output.dir")
    if not (folder / "config.yaml").is_file():
        raise ResumeError(f"{folder} is not a run directory: it has no config.yaml")
    config = read_config(overrides, folder / "config.yaml")
    checkpoint = latest_checkpoint(folder / "checkpoints")
    for name in checkpoint.passed_over:
        console.print(f"{name} is damaged; going on from {checkpoint.path.name}", soft_wrap=True)
    execute(config, console, (folder, checkpoint))


def _check_same_experiment(
    config: RunConfig,
    data_sha256: str,
    partition_sha256: str,
    folder: Path,
    checkpoint: Checkpoint,
) -> None:
    from raysim.config import changed_keys
    from raysim.errors import ResumeError

    experiment = config.experiment(data_sha256, partition_sha256)
    changed = changed_keys(checkpoint.experiment, experiment)
    if config.rounds < checkpoint.round:
        raise ResumeError(
            f"rounds={config.rounds}: {folder} has {checkpoint.round} complete rounds already"
        )
    changed = [key for key in changed if key != "rounds"]  # the rounds so far are the same
    if changed:
        raise ResumeError(
            f"not as in {folder}: {', '.join(changed)}. Resuming would mix two experiments: start "
            "a new run for other values; rounds, execution.* and most of output.* may change"
        )


def _say_how_to_resume(folder: Path, saved: int, rounds: int) -> None:
    if saved == 0:
        _complain(f"no round of {folder} was complete; nothing to resume", 0)
    else:
        _complain(
            f"{saved} of {rounds} rounds are saved; go on with\n"
            f"  python -m raysim.run --resume {_quoted(folder)}",
            0,
        )


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


def _complain(text: str, status: int) -> int:
    import sys

    sys.stderr.write(f"raysim: {text}\n")
    return status


def main() -> None:
    """Entry point of `python -m raysim.run`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    app(prog_name="python -m raysim.run")


if __name__ == "__main__":
    main()

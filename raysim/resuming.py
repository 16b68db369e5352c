"""Ending a run before its time and going on with it: what has to be as it was, and what to say."""

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from raysim.checkpoint import Checkpoint, latest_checkpoint
from raysim.config import FILE_KEY, MethodTable, RunConfig, changed_keys, load_config
from raysim.data.datasets import Dataset
from raysim.data.shards import Partition
from raysim.errors import Interrupted, ResumeError
from raysim.federation import Federation
from raysim.folder import METHOD_FILE, prepare_folder
from raysim.plugins import or_kept
from raysim.presets import starting_text
from raysim.results import write_json


def resumable(folder: Path, overrides: Sequence[str], notify: Callable[[str], None]) -> Checkpoint:
    """Return the checkpoint that a run directory goes on from.

    Args:
        folder: the run directory.
        overrides: `key=value` words of the command line.
        notify: told if a damaged checkpoint is passed over.

    Raises:
        ResumeError: it is no run directory, has no complete checkpoint, or is to be another one.
    """
    if any(word.startswith("output.dir") for word in overrides):
        raise ResumeError("a resumed run goes on in its own directory: leave out output.dir")
    if not (folder / "config.yaml").is_file():
        raise ResumeError(f"{folder} is not a run directory: it has no config.yaml")
    checkpoint = latest_checkpoint(folder / "checkpoints")
    for name in checkpoint.passed_over:
        notify(f"{name} is damaged; going on from {checkpoint.path.name}")
    return checkpoint


def resumed_config(
    folder: Path, checkpoint: Checkpoint, overrides: Sequence[str], methods: MethodTable
) -> RunConfig:
    """Return the config that a run goes on with.

    Args:
        folder: the run directory. It has what the user's own method was, if its file is gone.
        checkpoint: where the run goes on from.
        overrides: `key=value` words of the command line.
        methods: method classes by name.

    Raises:
        ConfigError: the settings are wrong.
    """
    name = checkpoint.experiment["method"]["name"]
    text, source = starting_text(folder / "config.yaml", None)
    known = or_kept(methods, name, folder / METHOD_FILE)
    return load_config(known, text=text, source=source, overrides=overrides)


def check_same_experiment(
    config: RunConfig,
    data_sha256: str,
    partition_sha256: str,
    folder: Path,
    checkpoint: Checkpoint,
) -> None:
    """Refuse to go on with other settings, data or partition than the checkpoint's.

    Args:
        config: the run as it would go on.
        data_sha256: hash of its data.
        partition_sha256: hash of who holds which examples.
        folder: the run directory, for the message.
        checkpoint: where it would go on from.

    Raises:
        ResumeError: names the keys that differ.
    """
    experiment = config.experiment(data_sha256, partition_sha256)
    changed = changed_keys(checkpoint.experiment, experiment)
    changed = [key for key in changed if key != "rounds"]  # the rounds so far are the same
    if changed:
        file = f"method.{FILE_KEY}"
        kept = f" (as it was: {folder / METHOD_FILE})" if file in changed else ""
        raise ResumeError(
            f"not as in {folder}: {', '.join(changed)}{kept}. Resuming would mix two experiments: "
            "start a new run for other values; rounds, execution.* and most of output.* may change"
        )
    if config.rounds < checkpoint.round:
        raise ResumeError(
            f"rounds={config.rounds}: {folder} has {checkpoint.round} complete rounds already"
        )


def run_folder(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    folder: Path | None,
    checkpoint: Checkpoint | None,
) -> Path:
    """Return the run directory: a new one, or that of the run that goes on, if it is the same.

    Args:
        config: the run.
        dataset: its data.
        partition: who holds which examples.
        folder: the run directory; None for a new one below `output.dir`.
        checkpoint: where the run goes on from; None for a new run.

    Raises:
        ConfigError: the output folder cannot be written.
        ResumeError: see `check_same_experiment`.
    """
    if checkpoint is None:
        return prepare_folder(config, dataset, partition, folder)
    assert folder is not None, "a checkpoint lies in a run directory"
    check_same_experiment(config, dataset.sha256, partition.digest(), folder, checkpoint)
    return folder.resolve()


def how_to_resume(folder: Path, saved: int, rounds: int) -> str:
    """Return what to tell the user of a run that ended early.

    Args:
        folder: the run directory.
        saved: complete rounds in the newest checkpoint.
        rounds: of the config.
    """
    if saved == 0:
        return f"no round of {folder} was complete; nothing to resume"
    return (
        f"{saved} of {rounds} rounds are saved; go on with\n"
        f"  python -m raysim.run --resume {shlex.quote(str(folder))}"
    )


def write_end(federation: Federation, error: BaseException) -> None:
    """Write `summary.json` of a run that something ended before its time.

    One that stands there already, of as many rounds, has more to say and stays.
    """
    stopped = isinstance(error, Interrupted | KeyboardInterrupt)
    status = "interrupted" if stopped else "failed"
    with suppress(OSError, ValueError):
        known = json.loads((federation.folder / "summary.json").read_text())
        if "avg" in known and known["rounds"] == federation.saved_rounds:
            return
    with suppress(OSError):
        write_json(
            {"status": status, "rounds": federation.saved_rounds, "error": str(error)},
            federation.folder / "summary.json",
        )

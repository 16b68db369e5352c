"""What a notebook imports: `from raysim import run, load_run`."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from raysim.progress import plain_console
from raysim.record import Record
from raysim.run import execute, method_table, read_config
from raysim.settings import Named

_WHOLE = ("method", "data.partition")  # sections whose other keys mean nothing under a new name


def run(
    preset: str | os.PathLike[str] | None = None, /, *, quiet: bool = False, **settings: Any
) -> Record:
    """Train, and return what came out.

    Args:
        preset: name of shipped settings, or a YAML file to start from.
        quiet: show no progress.
        **settings: values by key: `method="fedfip"`, `rounds=5`, `data={"clients": 8}`, or with
            dots, `**{"method.rho": 0.3}`.

    Returns:
        The run: `.summary`, `.metrics`, `.plot.domains()`, `.global_model()`, `.folder`.

    Raises:
        UserError: settings, data or cluster are not as they have to be.
        RunError: a step failed.
    """
    is_file = preset is not None and os.fspath(preset).endswith((".yaml", ".yml"))
    file = Path(preset) if preset is not None and is_file else None
    name = None if preset is None or file is not None else os.fspath(preset)
    config = read_config(list(_words(settings)), file, name)
    return execute(config, plain_console(quiet=quiet))


def load_run(folder: str | os.PathLike[str]) -> Record:
    """Read a run directory back.

    Args:
        folder: `runs/<time>-<method>-<data>-s<seed>`, of a run that goes on, too.

    Raises:
        RecordError: it is none, or nothing of it was saved.
    """
    return Record(Path(folder), method_table())


def _words(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Return settings as `key=value` words; a section is laid over what the preset says of it."""
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Named):
            value = value.model_dump(mode="json")
        if isinstance(value, Mapping) and key not in _WHOLE:
            shorthand = {name: value["name"]} if "name" in value else {}
            yield from _words(shorthand, prefix)
            yield from _words({k: v for k, v in value.items() if k != "name"}, f"{key}.")
        else:
            plain = os.fspath(value) if isinstance(value, os.PathLike) else value
            plain = plain.item() if isinstance(plain, np.generic) else plain
            plain = list(plain) if isinstance(plain, tuple) else plain
            text = yaml.safe_dump(plain, default_flow_style=True, width=10**9).strip()
            yield f"{key}={text.removesuffix('...').strip()}"

"""`raysim submit`: a run as a job of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysim.cli_data import word
from raysim.exits import guarded
from raysim.options import LogJson, Quiet
from raysim.run import ConfigFile, Overrides, Preset, Resume, read_config, submit_job

Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Dashboard; else RAY_API_SERVER_ADDRESS or http://127.0.0.1:8265."
    ),
]
WorkingDir = Annotated[
    Path,
    typer.Option(
        metavar="DIR", help="Copied to the cluster; a checkout, unless raysim is installed there."
    ),
]
Pip = Annotated[
    bool,
    typer.Option("--pip/--preinstalled", help="Install raysim's requirements on the nodes first."),
]
Follow = Annotated[
    bool, typer.Option("--follow/--detach", help="Show the log until the end, or leave at once.")
]
_SHIPPED = ".submitted"
"""Folder of the job's working directory for files that the command line names."""


def submit(
    overrides: Overrides = None,
    config: ConfigFile = None,
    preset: Preset = None,
    resume: Resume = None,
    quiet: Quiet = False,
    log_json: LogJson = False,
    address: Address = None,
    working_dir: WorkingDir = Path(),
    pip: Pip = False,
    follow: Follow = True,
) -> None:
    """Train on a Ray cluster, as a job: `raysim run` with the same words, sent to its dashboard."""
    words = overrides or []
    flags = ["--quiet"] * quiet + ["--log-json"] * log_json

    def send() -> None:
        _check(working_dir)
        if resume is None:
            named, files = _shipped(words, config, preset)
        else:
            named, files = _resumed(words, resume, config or preset), {}
        submit_job([*flags, *named], working_dir, files, address=address, pip=pip, follow=follow)

    raise typer.Exit(guarded(send))


def _check(working_dir: Path) -> None:
    from raysim.errors import ConfigError

    if not working_dir.is_dir():
        raise ConfigError(f"--working-dir {working_dir}: no such folder")


def _shipped(
    words: list[str], config_file: Path | None, preset: str | None
) -> tuple[list[str], dict[str, Path]]:
    """Return a new run's command line as the job has to see it, and the files that go with it."""
    from raysim.errors import ConfigError

    config = read_config(words, config_file, preset)
    if not config.output.dir.is_absolute():
        raise ConfigError(
            f"output.dir={config.output.dir}: a job's working directory is a copy that Ray "
            "removes; give an absolute path that all nodes share, e.g. output.dir=/shared/runs"
        )
    options, files = ["--preset", preset] if preset else [], {}
    if config_file is not None:
        files[name := f"{_SHIPPED}/{config_file.name}"] = config_file
        options = ["--config", name]
    source = getattr(config.method, "source", None)
    if source is not None:
        _, origin, class_name = source
        files[name := f"{_SHIPPED}/{Path(origin).name}"] = Path(origin)
        words = [*words, word("method.name", f"{name}:{class_name}")]
    return [*options, *words], files


def _resumed(words: list[str], run_dir: Path, other: Path | str | None) -> list[str]:
    """Return the command line that goes on with a run, whose directory only the cluster may see."""
    from raysim.errors import ConfigError

    if other is not None:
        raise ConfigError("--resume takes the run's own config: leave out --config and --preset")
    if not run_dir.is_absolute():
        raise ConfigError(f"--resume {run_dir}: give the run's absolute path on the cluster")
    return ["--resume", str(run_dir), *words]

"""Options that commands share, and how a command tells what it does."""

from typing import Annotated, NamedTuple

import typer

Quiet = Annotated[bool, typer.Option("--quiet", help="Print the run directory alone.")]
LogJson = Annotated[
    bool,
    typer.Option("--log-json", help="Print JSON lines: one a round, and for start, notices, end."),
]
HelpConfig = Annotated[
    bool, typer.Option("--help-config", help="Print every key, its default and what it does.")
]


class Outlet(NamedTuple):
    """How a command tells what it does."""

    quiet: bool
    log_json: bool

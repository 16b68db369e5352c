"""`raysim report` and `raysim compare`: what came out of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysim.exits import guarded
from raysim.run import method_table

if TYPE_CHECKING:
    from raysim.compare import Comparison
    from raysim.record import Record

Runs = Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Run directories.")]


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to; else report.html in the one run, or for several here."
        ),
    ] = None,
) -> None:
    """Draw one run, or several side by side, as one HTML page that opens offline."""
    raise typer.Exit(guarded(lambda: _report(runs, out)))


def compare(
    runs: Runs,
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="As a LaTeX tabular.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="As CSV, numbers unrounded.")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare different data or partitions too.")
    ] = False,
) -> None:
    """Compare runs: what differs in their settings, their figures, and significance over seeds."""
    formats = [name for name, on in (("md", markdown), ("tex", latex), ("csv", csv)) if on]
    raise typer.Exit(guarded(lambda: _compare(runs, formats, anyway=anyway)))


def _report(folders: list[Path], out: Path | None) -> None:
    from raysim.progress import plain_console
    from raysim.report import write_report

    runs = _read(folders)
    out = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    write_report(runs, out)
    plain_console().print(f"report: {out.resolve()}", soft_wrap=True)


def _compare(folders: list[Path], formats: list[str], *, anyway: bool) -> None:
    import sys

    from raysim.compare import compare as compared
    from raysim.errors import ConfigError
    from raysim.table_text import as_csv, joined, latex, markdown

    if len(formats) > 1:
        raise ConfigError("--markdown, --latex and --csv exclude each other")
    found = compared(_read(folders), anyway=anyway)
    if not formats:
        _show(found)
        return
    sys.stderr.writelines(f"raysim: {line}\n" for line in found.warnings)
    if formats == ["csv"]:
        sys.stdout.write(as_csv(found.figures))
    else:
        written = markdown if formats == ["md"] else latex
        sys.stdout.write(written(joined(found.figures)))


def _show(found: Comparison) -> None:
    from raysim.progress import plain_console
    from raysim.table_text import joined, rich_table, transposed

    console = plain_console()
    for line in found.warnings:
        console.print(f"Warning: {line}", soft_wrap=True)
    if found.differences is not None:
        console.print(rich_table(found.differences, "settings that differ"))
    else:
        console.print("The settings differ in nothing but the seed.")
    console.print(rich_table(transposed(joined(found.figures)), "figures"))
    for line in found.notes:
        console.print(line, soft_wrap=True)


def _read(folders: list[Path]) -> list[Record]:
    from raysim.record import Record

    return [Record(folder, method_table()) for folder in folders]

"""`raysim report` and `raysim compare`: what came out of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysim.exits import guarded
from raysim.run import method_table

if TYPE_CHECKING:
    from rich.console import Console

    from raysim.chart import Table
    from raysim.compare import Comparison
    from raysim.record import Record

_ENDLESS = 100_000  # columns: a file or pipe is given whole lines

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
    from raysim.table_text import as_csv

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
        sys.stdout.write(_as_markdown(found) if formats == ["md"] else _as_latex(found))


def _as_markdown(found: Comparison) -> str:
    from raysim.table_text import joined, markdown

    parts = [markdown(joined(found.figures))]
    if found.differences is not None:
        parts.append(f"Settings that differ:\n\n{markdown(found.differences)}")
    parts.append("".join(f"- {line}\n" for line in found.notes))
    return "\n".join(parts)


def _as_latex(found: Comparison) -> str:
    from raysim.table_text import joined, latex

    told = list(found.notes)
    if found.differences is not None:
        rows = (found.differences.columns, *found.differences.shown())
        told += ["settings that differ:", *(" | ".join(row) for row in rows)]
    comments = (f"% {line}\n" for text in told for line in text.splitlines())
    return latex(joined(found.figures)) + "".join(comments)


def _show(found: Comparison) -> None:
    from raysim.progress import plain_console
    from raysim.table_text import joined, letters, renamed, rich_table, transposed

    console = plain_console()
    tables = {"figures": transposed(joined(found.figures))}
    if found.differences is not None:
        tables = {"settings that differ": found.differences} | tables
    for line in found.warnings:
        console.print(f"Warning: {line}", soft_wrap=True)
    if not all(_fits(console, table) for table in tables.values()):
        short = letters([group.name for group in found.groups])
        tables = {title: renamed(table, short) for title, table in tables.items()}
        for name, letter in short.items():
            console.print(f"{letter}: {name}", soft_wrap=True)
    if not console.is_terminal:
        console.width = _ENDLESS
    if found.differences is None:
        console.print("The settings differ in nothing but the seed.")
    for title, table in tables.items():
        console.print(rich_table(table, title))
    for line in found.notes:
        console.print(line, soft_wrap=True)


def _fits(console: Console, table: Table) -> bool:
    """Return whether a table needs no more columns than the terminal has, or 80 without one."""
    from raysim.table_text import rich_table

    return (
        console.measure(
            rich_table(table), options=console.options.update(max_width=_ENDLESS)
        ).maximum
        <= console.width
    )


def _read(folders: list[Path]) -> list[Record]:
    from raysim.record import Record

    return [Record(folder, method_table()) for folder in folders]

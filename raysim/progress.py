"""What a person sees while a run goes on, and the table at its end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from raysim.federation import RoundSummary
    from raysim.messages import JsonDict


def plain_console() -> Console:
    """Return a console that shows names from files as they are, brackets and colons too."""
    return Console(highlight=False, markup=False, emoji=False)


class Display(Protocol):
    """Shows rounds as they end; a context manager around the run."""

    def __enter__(self) -> Display:
        """Start showing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing."""

    def on_round(self, summary: RoundSummary) -> None:
        """Show a complete round."""

    def on_notice(self, text: str) -> None:
        """Show a notice."""


class Bar:
    """One progress bar, for terminals."""

    def __init__(self, console: Console, rounds: int, done: int) -> None:
        """Prepare the bar at `done` of `rounds`."""
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=rounds, completed=done, state="starting")

    def __enter__(self) -> Bar:
        """Draw the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()

    def on_round(self, summary: RoundSummary) -> None:
        """Advance the bar."""
        self._progress.update(self._task, completed=summary.round, state=describe(summary))

    def on_notice(self, text: str) -> None:
        """Write a line above the bar."""
        self._progress.console.print(text, soft_wrap=True, markup=False, highlight=False)


class Lines:
    """One plain line a round, for logs and pipes."""

    def __init__(self, console: Console, rounds: int) -> None:
        """Prepare for `rounds` rounds."""
        self._console = console
        self._rounds = rounds

    def __enter__(self) -> Lines:
        """Do nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""

    def on_round(self, summary: RoundSummary) -> None:
        """Write a line."""
        head = f"round {summary.round:{len(str(self._rounds))}d}/{self._rounds}"
        self._console.out(f"{head}  {describe(summary)}", highlight=False)

    def on_notice(self, text: str) -> None:
        """Write a line."""
        self._console.out(text, highlight=False)


def describe(summary: RoundSummary) -> str:
    """Return a round's loss, accuracies and seconds in one line."""
    parts = [f"loss {summary.loss:.3f}"]
    if summary.evaluation:
        parts.append(f"AVG {summary.evaluation['avg']:5.2f}")
        parts.append(f"STD {summary.evaluation['std']:5.2f}")
    return "  ".join([*parts, f"{summary.seconds:.1f} s"])


def display(console: Console, rounds: int, done: int) -> Display:
    """Return a bar on a terminal, plain lines elsewhere."""
    return Bar(console, rounds, done) if console.is_terminal else Lines(console, rounds)


@contextmanager
def images_bar(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar of images while the block runs, on terminals; yields what moves it."""
    columns = (
        TextColumn("images"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TimeRemainingColumn(compact=True),
    )
    with Progress(
        *columns, console=console, expand=True, disable=not console.is_terminal, transient=True
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def closing_table(summary: JsonDict) -> Table:
    """Return the table of a finished run: accuracy by domain, AVG and STD, personal accuracy."""
    unseen = summary["unseen"]
    title = f"{summary['method']} on {summary['dataset']}, seed {summary['seed']}"
    table = Table(title=f"{title}: accuracy in percent after round {summary['rounds']}")
    table.add_column("model")
    names = [*summary["domains"], "AVG", "STD"]
    for name in [*names, *(f"{domain} (unseen)" for domain in unseen)]:
        table.add_column(name, justify="right")
    values = [*summary["domains"].values(), summary["avg"], summary["std"]]
    values += [found["global"] for found in unseen.values()]
    table.add_row("global", *(f"{v:.2f}" for v in values))
    adapted = [f"{found['adapted']:.2f}" for found in unseen.values() if "adapted" in found]
    if adapted:
        table.add_row("global, adapted", *[""] * len(names), *adapted)
    blank = [""] * len(summary["domains"])
    last = summary["last"]
    table.add_row("global, mean of last", *blank, f"{last['avg']:.2f}", f"{last['std']:.2f}")
    if summary["personal"]:
        own = summary["personal"]
        table.add_row("personal (clients)", *blank, f"{own['avg']:.2f}", f"{own['std']:.2f}")
    return table

"""What a person sees while a run goes on, and the table at its end."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    from raysim.config import RunConfig
    from raysim.federation import RoundSummary
    from raysim.messages import JsonDict


def plain_console(*, quiet: bool = False) -> Console:
    """Return a console that shows names from files as they are, brackets and colons too."""
    return Console(highlight=False, markup=False, emoji=False, quiet=quiet)


def tell_ready(
    console: Console, config: RunConfig, dataset: str, where: str, seconds: float
) -> None:
    """Say what is about to run, and what a person should know of its settings.

    Args:
        console: where to.
        config: the run.
        dataset: name of its data.
        where: hosts and cluster in words.
        seconds: that getting ready has taken.
    """
    from raysim.skeleton import method_of

    clients = f"{config.data.clients} client{'s' if config.data.clients > 1 else ''}"
    what = f"{config.method.label} on {dataset}: {clients}, {where}"
    console.print(f"{what}, ready in {seconds:.1f} s", soft_wrap=True)
    for text in method_of(config).remarks(config.rounds):
        console.print(text, soft_wrap=True)


class Display(Protocol):
    """Shows rounds as they end; a context manager around the run."""

    def __enter__(self) -> Self:
        """Start showing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing."""

    def on_start(self, folder: Path) -> None:
        """Show where the run lies."""

    def on_round(self, summary: RoundSummary) -> None:
        """Show a complete round."""

    def on_notice(self, text: str) -> None:
        """Show a notice."""

    def on_failure(self, error: BaseException, folder: Path, saved: int) -> None:
        """Show that something ended the run, of which so many rounds are saved."""

    def on_end(self, summary: JsonDict, folder: Path) -> None:
        """Show how the run ended and where it lies."""


class Silent:
    """Shows nothing; the base of what shows something."""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""

    def on_start(self, folder: Path) -> None:
        """Do nothing."""

    def on_round(self, summary: RoundSummary) -> None:
        """Do nothing."""

    def on_notice(self, text: str) -> None:
        """Do nothing."""

    def on_failure(self, error: BaseException, folder: Path, saved: int) -> None:
        """Do nothing: the error itself is told by the caller."""

    def on_end(self, summary: JsonDict, folder: Path) -> None:
        """Do nothing."""


class Lines(Silent):
    """One plain line a round, for logs and pipes."""

    def __init__(self, console: Console, rounds: int, done: int) -> None:
        """Prepare for the rounds after `done` of `rounds`."""
        self._console = console
        self._eta = Eta(rounds, done)

    def on_start(self, folder: Path) -> None:
        """Write where the run lies."""
        self._console.print(f"writing to {folder}", soft_wrap=True)

    def on_round(self, summary: RoundSummary) -> None:
        """Write a line."""
        rounds = self._eta.rounds
        head = f"round {summary.round:{len(str(rounds))}d}/{rounds}"
        self._console.out("  ".join([head, *describe(summary, self._eta)]), highlight=False)

    def on_notice(self, text: str) -> None:
        """Write a line."""
        self._console.out(text, highlight=False)

    def on_end(self, summary: JsonDict, folder: Path) -> None:
        """Write a table."""
        self._console.print(closing_table(summary))
        self._console.print(f"run directory: {folder}", soft_wrap=True)


class Bar(Lines):
    """A progress bar and the last round's figures below it, for terminals."""

    def __init__(self, console: Console, rounds: int, done: int) -> None:
        """Prepare the bar at `done` of `rounds`."""
        super().__init__(console, rounds, done)
        columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=None))
        self._bar = Progress(*columns, TimeRemainingColumn(compact=True), expand=True)
        self._task = self._bar.add_task("", total=rounds, completed=done)
        self._live = Live(Group(self._bar, Text("starting")), console=console, transient=False)

    def __enter__(self) -> Self:
        """Draw the bar."""
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bar as it stands."""
        self._live.stop()

    def on_round(self, summary: RoundSummary) -> None:
        """Advance the bar."""
        self._bar.update(self._task, completed=summary.round)
        self._live.update(Group(self._bar, Text("  ".join(describe(summary, self._eta)))))

    def on_notice(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(text, soft_wrap=True)


class JsonLines(Silent):
    """One JSON object a line, for programs."""

    def __init__(self, rounds: int, done: int) -> None:
        """Prepare for the rounds after `done` of `rounds`."""
        self._eta = Eta(rounds, done)

    def on_start(self, folder: Path) -> None:
        """Write the run directory."""
        self._write("start", {"folder": str(folder)})

    def on_round(self, summary: RoundSummary) -> None:
        """Write the round."""
        eta = {"rounds": self._eta.rounds, "eta_s": round(self._eta.after(summary), 1)}
        self._write("round", asdict(summary) | eta)

    def on_notice(self, text: str) -> None:
        """Write the notice."""
        self._write("notice", {"text": text})

    def on_failure(self, error: BaseException, folder: Path, saved: int) -> None:
        """Write what ended the run."""
        told = {"error": str(error) or type(error).__name__, "rounds": saved}
        self._write("failed", {"folder": str(folder)} | told)

    def on_end(self, summary: JsonDict, folder: Path) -> None:
        """Write the summary and the run directory."""
        self._write("end", {"folder": str(folder), "summary": summary})

    def _write(self, event: str, content: JsonDict) -> None:
        text = json.dumps({"event": event} | content)
        # JSON has no NaN, the loss of a round in which nobody's training counts: null.
        plain = json.dumps(json.loads(text, parse_constant=lambda _: None))
        sys.stdout.write(plain + "\n")
        sys.stdout.flush()


class Eta:
    """Seconds to go, from the mean of the rounds so far."""

    def __init__(self, rounds: int, done: int) -> None:
        """Start before the first round after `done` of `rounds`."""
        self.rounds = rounds
        self._done = done
        self._seconds = 0.0

    def after(self, summary: RoundSummary) -> float:
        """Count a round in; returns seconds to go."""
        self._seconds += summary.seconds
        seen = max(summary.round - self._done, 1)
        return self._seconds / seen * (self.rounds - summary.round)


def describe(summary: RoundSummary, eta: Eta) -> list[str]:
    """Return a round's figures in words, and how long the rest will take."""
    parts = [f"{summary.cohort} clients", f"loss {summary.loss:.3f}"]
    if summary.evaluation:
        parts.append(f"AVG {summary.evaluation['avg']:5.2f}")
        parts.append(f"STD {summary.evaluation['std']:5.2f}")
    units = summary.figures.get("kept_units")
    if units is not None:
        private = summary.figures.get("reactivated")
        more = f"+{private:.1f}" if private is not None else ""  # shared and private
        parts.append(f"{units:.0f}{more} units")
    left = timedelta(seconds=round(eta.after(summary)))
    return [*parts, f"{summary.seconds:.1f} s", f"{left} left"]


def display(console: Console, rounds: int, done: int) -> Display:
    """Return a bar on a terminal, plain lines elsewhere, nothing on a quiet console."""
    if console.quiet:
        return Silent()
    return (Bar if console.is_terminal else Lines)(console, rounds, done)


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

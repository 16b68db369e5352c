"""The papers' tables: methods x data sets x seeds as one grid of federated runs.

`python -m tune_jobs.table --methods all --data digits_mini,pacs=~/pacs --seeds 3 [key=value ...]`
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysim.exits import guarded
from raysim.run import ConfigFile, Overrides, Preset

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from tune_jobs.outcome import Outcome
    from tune_jobs.table_settings import TableSettings


class Compared(str, enum.Enum):
    """Whose accuracy is compared."""

    avg = "avg"
    personal = "personal"


Methods = Annotated[str | None, typer.Option(metavar="all|A,B,...", help="Its rows. Default: all.")]
DataSets = Annotated[
    str | None,
    typer.Option(metavar="NAME[=ROOT],...", help="Data sets. Default: the config's."),
]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds, from the config's on.")]
Ablation = Annotated[
    str | None,
    typer.Option(metavar="METHOD", help="Rows: its modules switched off, as in its paper."),
]
Sensitivity = Annotated[
    str | None,
    typer.Option(metavar="METHOD", help="Rows: each of its hyperparameters moved by itself."),
]
Sparsity = Annotated[
    str | None,
    typer.Option(metavar="FROM:TO:STEP", help="Rows: FedFIP at these shares of kept channels."),
]
RowsFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Rows: those of a YAML file.")]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="Choose each row's value on validation images first, with the first seed.",
    ),
]
Compare = Annotated[Compared, typer.Option(help="Whose AVG is compared with the baseline's.")]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="ROW", help="What the others are compared with. Default: fedavg, or the first."
    ),
]
Reuse = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        help="Take finished runs of equal settings and data from here instead of running them.",
    ),
]
Resume = Annotated[
    Path | None, typer.Option(metavar="STUDY_DIR", help="Go on with an interrupted table.")
]


def table(
    context: typer.Context,
    overrides: Overrides = None,
    methods: Methods = None,
    data: DataSets = None,
    seeds: Seeds = 3,
    ablation: Ablation = None,
    sensitivity: Sensitivity = None,
    sparsity: Sparsity = None,
    rows: RowsFile = None,
    tune: Tune = None,
    compare: Compare = Compared.avg,
    baseline: Baseline = None,
    reuse: Reuse = None,
    config: ConfigFile = None,
    preset: Preset = None,
    resume: Resume = None,
) -> None:
    """Run methods on data sets with several seeds, and make the table that papers print.

    NAME:key=value sets a key for one method or data set: fedfip:method.rho=0.3.
    """

    def asked() -> TableSettings:
        from tune_jobs.table_settings import read_settings

        return read_settings(
            overrides or [],
            methods=methods,
            data=data,
            seeds=seeds,
            ablation=ablation,
            sensitivity=sensitivity,
            sparsity=sparsity,
            rows=rows,
            tune=tune or [],
            compare=compare.value,
            baseline=baseline,
            reuse=reuse or [],
            config=config,
            preset=preset,
        )

    def study() -> None:
        from tune_jobs.study import check_alone

        check_alone(context)
        _table(asked, resume)

    raise typer.Exit(guarded(study))


def _table(asked: Callable[[], TableSettings], resume: Path | None) -> None:
    from raysim.progress import plain_console
    from raysim.validation import validate
    from tune_jobs.reuse import take_over
    from tune_jobs.study import conducted, new_study, read_study
    from tune_jobs.table_settings import TableSettings
    from tune_jobs.tuning import TUNING, tuned

    console = plain_console()
    if resume is None:
        settings = _with_data(asked(), console)
        folder = new_study(
            settings.base(),
            f"table-{settings.title.replace(' ', '-')}-{'-'.join(settings.data)}",
            settings.model_dump(mode="json"),
        )
    else:
        folder = resume.resolve()
        settings = validate(TableSettings, read_study(folder, "table"), f"{folder}: ")
    console.print(settings.words(), soft_wrap=True)
    settings = tuned(settings, folder, console)
    cells, sources = settings.cells(), settings.sources()
    known = take_over(settings.base(), cells, [*sources, folder / TUNING], folder)
    if known or sources:
        console.print(f"{len(known)} of {len(cells)} runs are there already", soft_wrap=True)
    plan = settings.plan(cells, known)
    with conducted(plan, folder, console, "tune_jobs.table") as outcomes:
        _conclude(outcomes, settings, folder, console)


def _with_data(settings: TableSettings, console: Console) -> TableSettings:
    """Find out now, not after the first data set's hours, that a data set is not there.

    Returns:
        The settings, with a validation split if rows are tuned and the data has none.
    """
    from raysim.run import open_data
    from tune_jobs.search_settings import with_validation
    from tune_jobs.trainable import trial_config

    for values in settings.cells()[: len(settings.rows) * len(settings.data) : len(settings.rows)]:
        config = trial_config(settings.base(), values)
        _, dataset, _ = open_data(config, console)
        if settings.tune and (found := with_validation(config, dataset, console)) != config:
            base = settings.base().resolved()
            base["data"]["split"]["val"] = found.data.split.val
            settings = settings.model_copy(update={"config": base})
    return settings


def _conclude(
    outcomes: Sequence[Outcome], settings: TableSettings, folder: Path, console: Console
) -> None:
    """Write the table in its forms, and show it."""
    from raysim.results import write_text
    from tune_jobs.records import reports, write_frame
    from tune_jobs.table_report import render
    from tune_jobs.tables import cells, compare, latex, markdown

    every = reports(outcomes)
    runs = cells(settings, outcomes)
    found = compare(runs, settings)
    write_frame(every, folder / "trials.parquet")
    write_frame(runs, folder / "runs.parquet")
    write_frame(found, folder / "table.parquet")
    write_text(markdown(found, settings), folder / "table.md")
    write_text(latex(found, settings), folder / "table.tex")
    write_text(render(settings, outcomes, found, every, runs), folder / "report.html")
    for data in settings.data:
        console.print(_shown(found[found["data"] == data], data, settings))
    console.print(f"with costs: {folder / 'table.md'}", soft_wrap=True)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)


def _shown(lines: pd.DataFrame, data: str, settings: TableSettings) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tune_jobs.tables import ACCURACIES, headings, text_rows

    shown = Table(title=f"{settings.title} on {data}, {settings.seeds} seeds", box=SIMPLE_HEAD)
    first, *others = headings(settings, ACCURACIES)
    shown.add_column(first, no_wrap=True)
    for name in others:
        shown.add_column(name, justify="right", overflow="fold")
    for row in text_rows(lines, ACCURACIES):
        shown.add_row(*row)
    return shown


def main() -> None:
    """Entry point of `python -m tune_jobs.table`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(table)
    app(prog_name="python -m tune_jobs.table")


if __name__ == "__main__":
    main()

"""Hyperparameter search: Ray Tune over whole federated runs.

`python -m tune_jobs.search --space fedfip --data digits_mini --samples 32 [key=value ...]`
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
    from tune_jobs.search_settings import SearchSettings

_SHOWN = 5


class Scheduler(str, enum.Enum):
    """What ends trials before their last round."""

    asha = "asha"
    none = "none"


class Searcher(str, enum.Enum):
    """What chooses a trial's values."""

    random = "random"
    grid = "grid"
    optuna = "optuna"


def search(
    context: typer.Context,
    overrides: Overrides = None,
    space: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A method, searched over the space that ships for it, or the YAML of a space. "
            "Default: the config's method.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="NAME[=ROOT]", help="Data set. Default: the config's.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Trials; of a grid, at most so many.")] = 16,
    scheduler: Annotated[
        Scheduler, typer.Option(help="asha stops trials that fall behind; none lets all end.")
    ] = Scheduler.asha,
    searcher: Annotated[
        Searcher,
        typer.Option(help="What chooses values; optuna is an extra of raysim's, `search`."),
    ] = Searcher.random,
    max_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of a trial. Default: the config's.")
    ] = None,
    grace: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rounds before asha may stop any. Default: a third, past warm-up."
        ),
    ] = None,
    std_weight: Annotated[
        float, typer.Option(min=0, metavar="K", help="Maximise validation AVG - K * STD.")
    ] = 0.0,
    config: ConfigFile = None,
    preset: Preset = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="STUDY_DIR", help="Go on with an interrupted search.")
    ] = None,
) -> None:
    """Search hyperparameters: whole federated runs, judged by their validation accuracy.

    A trial is a run in one process, or with N hosts of its own by execution.hosts=N.
    """

    def asked() -> SearchSettings:
        from tune_jobs.search_settings import read_settings

        return read_settings(
            overrides or [],
            space=space,
            data=data,
            samples=samples,
            scheduler=scheduler.value,
            searcher=searcher.value,
            max_rounds=max_rounds,
            grace=grace,
            std_weight=std_weight,
            config=config,
            preset=preset,
        )

    def study() -> None:
        from tune_jobs.study import check_alone

        check_alone(context)
        _search(asked, resume)

    raise typer.Exit(guarded(study))


def _search(asked: Callable[[], SearchSettings], resume: Path | None) -> None:
    from raysim.progress import plain_console
    from raysim.validation import validate
    from tune_jobs.search_settings import SearchSettings
    from tune_jobs.study import conducted, new_study, read_study

    console = plain_console()
    if resume is None:
        settings = _validated(asked(), console)
        base = settings.base()
        label = f"search-{base.method.label}-{base.data.name}-s{base.seed}"
        folder = new_study(base, label, settings.model_dump(mode="json"))
    else:
        folder = resume.resolve()
        settings = validate(SearchSettings, read_study(folder, "search"), f"{folder}: ")
    console.print(settings.words(), soft_wrap=True)
    with conducted(settings.plan(), folder, console, "tune_jobs.search") as outcomes:
        _conclude(outcomes, settings, folder, console)


def _validated(settings: SearchSettings, console: Console) -> SearchSettings:
    """Open the data, and hold out a part to choose by if it has none."""
    from raysim.run import open_data
    from tune_jobs.search_settings import with_validation

    base = settings.base()
    _, dataset, _ = open_data(base, console)
    config = with_validation(base, dataset, console)
    return settings.model_copy(update={"config": config.resolved()})


def _conclude(
    outcomes: Sequence[Outcome], settings: SearchSettings, folder: Path, console: Console
) -> None:
    """Write what was found, and show the best."""
    from raysim.results import write_text
    from tune_jobs.records import ranked, reports, write_frame
    from tune_jobs.search_report import render

    table = reports(outcomes, settings.std_weight)
    write_frame(table, folder / "trials.parquet")
    write_text(render(settings, outcomes, table), folder / "report.html")
    best = ranked(table)
    if len(best):
        winner = next(o for o in outcomes if o.trial == best.iloc[0]["trial"])
        _write_best(winner, settings, best.iloc[0], folder / "best.yaml")
        console.print(_best_table(best.head(_SHOWN), list(settings.space)))
        console.print(
            f"the best again: python -m raysim.run --config {folder / 'best.yaml'}", soft_wrap=True
        )
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)


def _write_best(winner: Outcome, settings: SearchSettings, row: pd.Series, path: Path) -> None:
    """Write the config that repeats the best trial, to the round that it is judged at."""
    import yaml

    from raysim.results import write_text
    from tune_jobs.trainable import trial_config

    config = trial_config(settings.base(), winner.values)
    config = config.model_copy(update={"rounds": int(row["round"])})
    text = yaml.safe_dump(config.resolved(), sort_keys=False, allow_unicode=True)
    head = (
        f"# Trial {winner.trial}: validation AVG {row['val_avg']:.2f}, STD {row['val_std']:.2f} "
        f"after round {int(row['round'])}.\n"
    )
    write_text(head + text, path)


def _best_table(best: pd.DataFrame, keys: Sequence[str]) -> Table:
    from rich.table import Table

    from tune_jobs.outcome import brief

    table = Table(title="the best trials by validation accuracy of the main model, in percent")
    table.add_column("trial", no_wrap=True)
    for name in (*(key.rpartition(".")[2] for key in keys), "round", "AVG", "STD", "test AVG"):
        table.add_column(name, justify="right", overflow="fold")
    for _, row in best.iterrows():
        figures = [f"{row[name]:.2f}" for name in ("val_avg", "val_std", "test_avg")]
        table.add_row(row["trial"], *(brief(row[k]) for k in keys), str(row["round"]), *figures)
    return table


def main() -> None:
    """Entry point of `python -m tune_jobs.search`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(search)
    app(prog_name="python -m tune_jobs.search")


if __name__ == "__main__":
    main()

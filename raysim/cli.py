"""The `raysim` command. Heavy imports wait until a command needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysim.run import Overrides, guarded, run

app = typer.Typer(
    name="raysim",
    help="Federated learning under domain shift, simulated on Ray.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(no_args_is_help=True, help="Look at data sets.")
app.add_typer(data, name="data")
app.command("run")(run)

Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command()
def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")], overrides: Overrides = None
) -> None:
    """Go on with an interrupted run; rounds, execution.* and output.* may change."""
    run(overrides, resume=run_dir)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Tell all about this method.")] = None,
) -> None:
    """List the methods and what they send, or tell all about one."""
    raise typer.Exit(guarded(lambda: _methods(name)))


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="Print this preset's YAML.")] = None,
) -> None:
    """List the shipped configurations, or print one."""
    raise typer.Exit(guarded(lambda: _presets(name)))


@data.command("list")
def data_list() -> None:
    """List the data sets."""
    raise typer.Exit(guarded(_data_list))


@data.command("inspect")
def data_inspect(
    name: Name = "digits_mini",
    root: Annotated[Path | None, typer.Option(help="Folder of the data.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a contact sheet (PNG).")] = None,
    size: Annotated[int, typer.Option(min=8, max=512, help="Side of the images in pixels.")] = 32,
) -> None:
    """Count a data set's images by domain and class, and draw a contact sheet."""
    raise typer.Exit(guarded(lambda: _inspect(name, root, out, size)))


def _methods(name: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from methods import METHODS
    from raysim.catalog import measure_traffic

    console = Console(highlight=False)
    if name is not None:
        _method(name)
        return
    traffic = measure_traffic(METHODS)
    table = Table("method", "shared", "private", box=None, padding=(0, 1))
    for column in ("up", "down"):
        table.add_column(f"{column} MB", justify="right", no_wrap=True)
    for key, method in METHODS.items():
        sent = (traffic[key].up / 1e6, traffic[key].down / 1e6)
        title = f"[bold]{key}[/bold]\n{method.paper}"
        table.add_row(title, method.shared, method.private, *(f"{mb:.3f}" for mb in sent))
    console.print(table)
    console.print(
        "MB: what one client sends and receives in a round with all phases, default model.\n"
        "`raysim methods NAME` tells equations, hyperparameters and where defaults come from."
    )


def _method(name: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from methods import METHODS
    from raysim.catalog import description, hyperparameters, measure_traffic
    from raysim.errors import ConfigError
    from raysim.plugins import find_method
    from raysim.settings import did_you_mean

    method = METHODS.get(name) or find_method(name)
    if method is None:
        raise ConfigError(f"no method {name!r}{did_you_mean(name, METHODS)}")
    console = Console(highlight=False, markup=False)
    console.print(description(method), soft_wrap=True)
    sent = measure_traffic({name: method})[name]
    console.print(
        f"\nbytes a client and round, default model: {sent.up:,} up, {sent.down:,} down\n"
    )
    table = Table("hyperparameter", "default", "", box=None, padding=(0, 1))
    for item in hyperparameters(method):
        symbols = "".join(f"\n  {symbol}" for symbol in item.symbols)
        table.add_row(f"method.{item.name}{symbols}", str(item.default), item.description)
    console.print(table)


def _presets(name: str | None) -> None:
    from rich.console import Console

    from raysim.config import preset_names, preset_text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if name is not None:
        console.print(preset_text(name), end="")
        return
    for preset in preset_names():
        first = preset_text(preset).splitlines()[0].removeprefix("# ")
        console.print(f"{preset:12} {first}")


def _data_list() -> None:
    from rich.console import Console

    from raysim.data.datasets import DATASETS, open_dataset

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for name in DATASETS:
        dataset = open_dataset(name)
        console.print(
            f"{name}: {len(dataset.domains)} domains ({', '.join(dataset.domains)}), "
            f"{len(dataset.classes)} classes, {dataset.image_size} px"
        )


def _inspect(name: str, root: Path | None, out: Path | None, size: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from raysim.data.contact_sheet import draw
    from raysim.data.datasets import SPLITS, open_dataset

    dataset = open_dataset(name, root, size)
    console = Console(highlight=False)
    title = f"{name}: images of {len(dataset.classes)} classes, {dataset.image_size} px"
    table = Table("domain", title=title)
    for column in (column for split in SPLITS for column in (split, "a class")):
        table.add_column(column, justify="right")
    for domain in dataset.domains:
        cells = []
        for split in SPLITS:
            labels = dataset.labels(domain, split).tolist()
            counts = [labels.count(label) for label in range(len(dataset.classes))]
            low, high = min(counts), max(counts)
            cells += [str(len(labels)), str(low) if low == high else f"{low} ... {high}"]
        table.add_row(domain, *cells)
    console.print(table)
    if out is not None:
        draw(dataset, out)
        console.print(f"contact sheet: {out.resolve()}", soft_wrap=True)


def main() -> None:
    """Entry point of the console command."""
    app()


if __name__ == "__main__":
    main()

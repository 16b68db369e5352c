"""The `raysim` command. Heavy imports wait until a command needs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysim.run import Overrides, guarded, method_table, run

if TYPE_CHECKING:
    from rich.table import Table

    from raysim.method import Method

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
    """Go on with an interrupted run; rounds, execution.* and output.* but output.dir may change."""
    run(overrides, resume=run_dir)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Tell all about this method.")] = None,
) -> None:
    """List the methods: what each shares, keeps, sends, and its keys; or tell all about one."""
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

    from raysim.catalog import description, measure_traffic
    from raysim.config import find_in

    console = Console(highlight=False)
    table = method_table()
    chosen = table if name is None else {name: find_in(table, name)}
    traffic = measure_traffic(chosen)
    for key, method in chosen.items():
        if name is not None:
            console.print(description(method), markup=False, soft_wrap=True)
            console.print()
        sent = traffic[key]
        console.print(f"[bold]{key}[/bold]  {method.title}. {method.paper}", soft_wrap=True)
        console.print(f"  shared: {method.shared}; private: {method.private}", soft_wrap=True)
        console.print(
            f"  {sent.up:,} bytes up and {sent.down:,} down a client and round, default model"
        )
        console.print(_hyperparameters(method, described=name is not None))
        console.print()
    if name is None:
        console.print("`raysim methods NAME` adds equations, deviations and what each key does.")


def _hyperparameters(method: type[Method], *, described: bool) -> Table:
    from rich.table import Table

    from raysim.catalog import hyperparameters

    table = Table(box=None, padding=(0, 1), show_header=False)
    for item in hyperparameters(method):
        names = "\n  ".join([f"method.{item.name}", *item.symbols])
        told = f"{item.description}\nfrom: {item.source}" if described else item.source
        table.add_row("", names, str(item.default), told)
    return table


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

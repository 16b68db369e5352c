"""The `raysim` command. Heavy imports wait until a command needs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysim import cli_data, cli_doctor, cli_results, cli_submit
from raysim.exits import guarded
from raysim.options import LogJson, Quiet
from raysim.run import Overrides, method_table, run

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
app.add_typer(cli_data.app, name="data")
app.command("run")(run)
app.command("report")(cli_results.report)
app.command("compare")(cli_results.compare)
app.command("doctor")(cli_doctor.doctor)
app.command("submit")(cli_submit.submit)


@app.command()
def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    overrides: Overrides = None,
    quiet: Quiet = False,
    log_json: LogJson = False,
) -> None:
    """Go on with an interrupted run; rounds, execution.* and output.* but output.dir may change."""
    run(overrides, resume=run_dir, quiet=quiet, log_json=log_json)


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


def _methods(name: str | None) -> None:
    from rich.text import Text

    from raysim.catalog import description, measure_traffic
    from raysim.config import find_in
    from raysim.progress import plain_console

    console = plain_console()
    table = method_table()
    chosen = table if name is None else {name: find_in(table, name)}
    traffic = measure_traffic(chosen)
    for key, method in chosen.items():
        if name is not None:
            console.print(description(method), soft_wrap=True)
            console.print()
        head = Text.assemble((key, "bold"), f"  {method.title}. {method.paper}".rstrip())
        console.print(head, soft_wrap=True)
        if method.shared or method.private:
            console.print(f"  shared: {method.shared}; private: {method.private}", soft_wrap=True)
        if key in traffic:
            up, down = f"{traffic[key].up:,}", f"{traffic[key].down:,}"
            console.print(f"  {up} bytes up and {down} down a client and round, default model")
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
        origin = f"from: {item.source}" if item.source else ""
        told = "\n".join(filter(None, (item.description, origin))) if described else item.source
        default = "must be given" if item.required else str(item.default)
        table.add_row("", names, default, told)
    return table


def _presets(name: str | None) -> None:
    from rich.console import Console

    from raysim.presets import preset_names, preset_text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if name is not None:
        console.print(preset_text(name), end="")
        return
    names = preset_names()
    width = max(map(len, names))
    for preset in names:
        first = preset_text(preset).splitlines()[0].removeprefix("# ")
        console.print(f"{preset:{width}}  {first}")


def main() -> None:
    """Entry point of the console command."""
    app()


if __name__ == "__main__":
    main()

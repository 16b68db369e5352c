"""The commands `raysim data ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysim.run import Overrides, guarded, read_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.table import Table

    from raysim.config import RunConfig
    from raysim.data.datasets import Dataset

app = typer.Typer(no_args_is_help=True, help="Look at data sets; prepare your own.")

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="`raysim data list` names them.")]
Name = Annotated[str, typer.Argument(metavar="[NAME]")]
Root = Annotated[str | None, typer.Option(metavar="DIR", help="Folder of the data.")]
Size = Annotated[int, typer.Option(min=8, max=512, help="Side of the images in pixels.")]
Classes = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Classes to read, or the name of a subset.")
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="KIND=error|skip|keep", help="`raysim data kinds` has all."),
]


@app.command("list")
def list_() -> None:
    """List the data sets that ship with raysim, and the layouts that it reads."""
    raise typer.Exit(guarded(_list))


@app.command()
def kinds() -> None:
    """List what validation looks for in a data set's files, and what happens to it."""
    raise typer.Exit(guarded(_kinds))


@app.command()
def prepare(
    source: Source,
    root: Annotated[str, typer.Option(metavar="DIR", help="Folder of the data.")],
    out: Annotated[str, typer.Option(metavar="URI", help="Folder or URI to write to.")],
    size: Size = 32,
    name: Annotated[str | None, typer.Option(help="What to call it; default: SOURCE.")] = None,
    classes: Classes = None,
    policy: Policies = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Default: one a CPU.")] = None,
) -> None:
    """Check and decode a data set once, to files that runs map into memory."""
    raise typer.Exit(
        guarded(lambda: _prepare(source, root, out, size, name, classes, policy, processes))
    )


@app.command()
def inspect(
    name: Name = "digits_mini",
    overrides: Overrides = None,
    root: Root = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a report (.html) or a contact sheet (.png).")
    ] = None,
    size: Annotated[int | None, typer.Option(min=8, max=512, help="Default: as stored.")] = None,
    policy: Policies = None,
) -> None:
    """Check a data set; count its images by domain and class; draw it and its partition."""
    raise typer.Exit(guarded(lambda: _inspect(name, overrides or [], root, out, size, policy)))


def _list() -> None:
    from rich.console import Console

    from raysim.data.datasets import EMBEDDED, open_dataset
    from raysim.data.settings import DataSettings
    from raysim.data.sources import SOURCES

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print("Part of raysim:")
    for name in EMBEDDED:
        dataset = open_dataset(DataSettings(name=name))
        console.print(
            f"  {name}: {len(dataset.domains)} domains ({', '.join(dataset.domains)}), "
            f"{len(dataset.classes)} classes, {dataset.image_size} px"
        )
    console.print("\nRead from your files (data.root=DIR, or once: raysim data prepare):")
    for name, source in SOURCES.items():
        subsets = f"; subsets of classes: {', '.join(source.subsets)}" if source.subsets else ""
        console.print(f"  {name}: {source.title}; {source.domains}{subsets}")
        console.print(f"    files: {source.layout}")
        if source.url:
            console.print(f"    get them: {source.url}")


def _kinds() -> None:
    from rich.console import Console
    from rich.table import Table

    from raysim.data.findings import KINDS

    table = Table("kind", "default", "may be", "what it is", box=None, padding=(0, 1))
    for name, kind in KINDS.items():
        table.add_row(name, kind.policy, " ".join(kind.allowed), kind.meaning)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "error stops, skip leaves the images out, keep takes them: --policy KIND=...",
        soft_wrap=True,
    )


def _prepare(
    source: str,
    root: str,
    out: str,
    size: int,
    name: str | None,
    classes: str | None,
    policy: list[str] | None,
    processes: int | None,
) -> None:
    import time

    from rich.console import Console

    from raysim.data.intake import prepare_source
    from raysim.data.sources import SOURCES
    from raysim.progress import images_bar

    console = Console(highlight=False)
    started = time.perf_counter()
    subsets = SOURCES[source].subsets if source in SOURCES else {}
    wanted = classes if classes is None or classes in subsets else classes.split(",")
    with images_bar(console) as progress:
        manifest = prepare_source(
            source,
            root,
            out,
            size=size,
            name=name,
            classes=wanted,
            policy=_policies(policy),
            processes=processes,
            progress=progress,
        )
    _print_findings(manifest.findings, console)
    images = sum(domain.images for domain in manifest.domains)
    console.print(
        f"{images:,} images of {len(manifest.domains)} domains and {len(manifest.classes)} classes "
        f"in {time.perf_counter() - started:.1f} s: {out}\n"
        f"use them: raysim run data={manifest.name} data.root={out} data.image_size={size}",
        soft_wrap=True,
        markup=False,
    )


def _policies(words: list[str] | None) -> dict[str, str]:
    from raysim.errors import ConfigError

    chosen = {}
    for word in words or []:
        kind, separator, policy = word.partition("=")
        if not separator:
            raise ConfigError(f"--policy {word}: must be KIND=error, KIND=skip or KIND=keep")
        chosen[kind] = policy
    return chosen


def _inspect(
    name: str,
    overrides: list[str],
    root: str | None,
    out: Path | None,
    size: int | None,
    policy: list[str] | None,
) -> None:
    from rich.console import Console

    from raysim.data.datasets import open_dataset
    from raysim.data.intake import ready
    from raysim.data.prepared import read_manifest, verify
    from raysim.data.preparing.prepare import FaultyData
    from raysim.data.report import render_refused, write_report
    from raysim.errors import ConfigError
    from raysim.progress import images_bar

    console = Console(highlight=False)
    if out is not None and out.suffix not in (".html", ".png"):
        raise ConfigError(f"--out {out}: must end in .html (a report) or .png (a contact sheet)")
    manifest = read_manifest(root) if root is not None else None
    if size is None and manifest is not None:
        size = manifest.size
    words = [f"data.name={name}", *overrides]
    words += [] if root is None else [f"data.root={root}"]
    words += [] if size is None else [f"data.image_size={size}"]
    words += [f"data.policy.{kind}={way}" for kind, way in _policies(policy).items()]
    config = read_config(words)
    try:
        with images_bar(console) as progress:
            data = ready(config.data, progress)
    except FaultyData as error:
        if out is not None and out.suffix == ".html":
            page = render_refused(
                error.findings, title=f"{name}: refused", facts={"source": str(root)}
            )
            write_report(page, out)
            console.print(f"report: {out.resolve()}", soft_wrap=True, markup=False)
        raise
    manifest = read_manifest(data.root) if data.root is not None else None
    if manifest is not None:
        verify(str(data.root))
    dataset = open_dataset(data, config.seed)
    console.print(_counts_table(dataset))
    findings = {} if manifest is None else manifest.findings
    _print_findings(findings, console)
    if out is not None:
        _draw(dataset, config, findings, out, console)


def _counts_table(dataset: Dataset) -> Table:
    from rich.table import Table

    from raysim.data.shards import SPLITS

    splits = [s for s in SPLITS if any(len(dataset.labels(d, s)) for d in dataset.domains)]
    title = f"{dataset.name}: images of {len(dataset.classes)} classes, {dataset.image_size} px"
    table = Table("domain", title=title)
    for column in (column for split in splits for column in (split, "a class")):
        table.add_column(column, justify="right")
    for domain in dataset.domains:
        cells = []
        for split in splits:
            labels = dataset.labels(domain, split).tolist()
            counts = [labels.count(label) for label in range(len(dataset.classes))]
            low, high = min(counts), max(counts)
            cells += [str(len(labels)), str(low) if low == high else f"{low} ... {high}"]
        table.add_row(domain, *cells)
    return table


def _print_findings(findings: Mapping[str, Any], console: Console) -> None:
    done = {"skip": "left out", "keep": "taken", "error": "refused"}
    for kind, found in findings.items():
        names = ", ".join(found["names"][:3]) + (", ..." if found["count"] > 3 else "")
        console.print(
            f"{kind}: {found['count']:,} {found['meaning']}; {done[found['policy']]} ({names})",
            soft_wrap=True,
            markup=False,
        )


def _draw(
    dataset: Dataset, config: RunConfig, findings: Mapping[str, Any], out: Path, console: Console
) -> None:
    """Write the contact sheet or the report; data that cannot be dealt is shown without clients."""
    from raysim.data.contact_sheet import draw
    from raysim.data.partition import make_partition
    from raysim.data.report import render, write_report
    from raysim.errors import ConfigError

    if out.suffix == ".png":
        draw(dataset, out)
        console.print(f"contact sheet: {out.resolve()}", soft_wrap=True, markup=False)
        return
    data = config.data
    try:
        partition = make_partition(dataset, data.partition, data.clients, config.seed, data.unseen)
    except ConfigError as error:
        console.print(f"without clients: {error}", soft_wrap=True, markup=False)
        partition = None
    facts = {"source": data.root} if data.root is not None else {}
    page = render(dataset, partition, findings, title=dataset.name, facts=facts)
    write_report(page, out)
    console.print(f"report: {out.resolve()}", soft_wrap=True, markup=False)

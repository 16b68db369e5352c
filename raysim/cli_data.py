"""The commands `raysim data ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysim.exits import guarded
from raysim.run import Overrides, read_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.table import Table

    from raysim.config import RunConfig
    from raysim.data.datasets import Dataset
    from raysim.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Look at data sets; prepare your own.")

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="`raysim data list` names them.")]
Name = Annotated[
    str | None, typer.Argument(help="Default: what --root was prepared as; digits_mini.")
]
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
    name: Name = None,
    overrides: Overrides = None,
    root: Root = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a report (.html) or a contact sheet (.png).")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=8, max=512, help="Default: as prepared; 32 if it is not.")
    ] = None,
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
    from rich.table import Table

    from raysim.data.findings import KINDS
    from raysim.progress import plain_console

    table = Table("kind", "default", "may be", "what it is", box=None, padding=(0, 1))
    for name, kind in KINDS.items():
        table.add_row(name, kind.policy, " ".join(kind.allowed), kind.meaning)
    console = plain_console()
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
    import os
    import shlex
    import time

    from raysim.data.intake import prepare_source
    from raysim.data.places import is_uri
    from raysim.data.sources import SOURCES
    from raysim.progress import images_bar, plain_console

    console = plain_console()
    started = time.perf_counter()
    subsets = SOURCES[source].subsets if source in SOURCES else {}
    wanted = classes if classes is None or classes in subsets else classes.split(",")
    if out and not is_uri(out):
        out = os.path.abspath(os.path.expanduser(out))
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
    use = [word("data", manifest.name), word("data.root", out), f"data.image_size={size}"]
    console.print(
        f"{images:,} images of {len(manifest.domains)} domains and {len(manifest.classes)} classes "
        f"in {time.perf_counter() - started:.1f} s: {out}\n"
        f"use them: {shlex.join(['raysim', 'run', *use])}",
        soft_wrap=True,
    )


def word(key: str, text: str) -> str:
    """Return a `key=value` word whose value is read as this text, whatever YAML would make of it.

    A plain text stays as it is.
    """
    import json

    from raysim.errors import ConfigError
    from raysim.yaml_text import parse_yaml

    try:
        plain = parse_yaml(text, key) == text
    except ConfigError:
        plain = False
    return f"{key}={text if plain else json.dumps(text, ensure_ascii=False)}"


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
    name: str | None,
    overrides: list[str],
    root: str | None,
    out: Path | None,
    size: int | None,
    policy: list[str] | None,
) -> None:
    from raysim.data.datasets import open_dataset
    from raysim.data.intake import ready
    from raysim.data.prepared import read_manifest, verify
    from raysim.data.preparing.prepare import FaultyData
    from raysim.data.report import render_refused, write_report
    from raysim.progress import images_bar, plain_console

    console = plain_console()
    out = None if out is None else _checked(out)
    config = _inspected(name, overrides, root, size, policy)
    try:
        with images_bar(console) as progress:
            data = ready(config.data, lambda text: console.out(text, highlight=False), progress)
    except FaultyData as error:
        if out is not None and out.suffix == ".html":
            title, facts = f"{config.data.name}: refused", {"source": str(config.data.root)}
            write_report(render_refused(error.findings, title=title, facts=facts), out)
            console.print(f"report: {out.resolve()}", soft_wrap=True)
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


def _checked(out: Path) -> Path:
    """Make sure that a page can be written before the data is read for it."""
    import os

    from raysim.errors import ConfigError

    out = out.expanduser()
    if out.suffix not in (".html", ".png"):
        raise ConfigError(f"--out {out}: must end in .html (a report) or .png (a contact sheet)")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from None
    if out.is_dir() or not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {out}: no file can be written there: name another")
    return out


def _inspected(
    name: str | None,
    overrides: list[str],
    root: str | None,
    size: int | None,
    policy: list[str] | None,
) -> RunConfig:
    """Return the config of what is to be inspected; a manifest tells what the words leave out."""
    from raysim.data.places import check_text
    from raysim.data.prepared import read_manifest
    from raysim.errors import ConfigError

    if root is not None:
        check_text(root)
    words = [*overrides]
    if name is not None:
        words.insert(0, name if "=" in name else word("data.name", name))
    words += [] if root is None else [word("data.root", root)]
    words += [] if size is None else [f"data.image_size={size}"]
    words += [f"data.policy.{kind}={way}" for kind, way in _policies(policy).items()]
    config = read_config(words)
    data = config.data
    manifest = read_manifest(data.root) if data.root is not None else None
    if manifest is not None:
        prepared = {"name": manifest.name, "image_size": manifest.size}
        missing = {key: prepared[key] for key in prepared.keys() - data.model_fields_set}
        return config.model_copy(update={"data": data.model_copy(update=missing)})
    if data.root is not None and "name" not in data.model_fields_set:
        raise ConfigError(
            f"{data.root} is not prepared: say how it is laid out, "
            f"`raysim data inspect NAME --root {data.root}`; `raysim data list` has the names"
        )
    return config


def _counts_table(dataset: Dataset) -> Table:
    from rich.table import Table

    from raysim.data.shards import SPLITS

    counts = {split: found for split in SPLITS if (found := dataset.counts(split)).any()}
    title = f"{dataset.name}: images of {len(dataset.classes)} classes, {dataset.image_size} px"
    table = Table("domain", title=title)
    for column in (column for split in counts for column in (split, "a class")):
        table.add_column(column, justify="right")
    for position, domain in enumerate(dataset.domains):
        cells = []
        for of_split in counts.values():
            of_classes = of_split[:, position]
            low, high = of_classes.min(), of_classes.max()
            cells += [str(of_classes.sum()), str(low) if low == high else f"{low} ... {high}"]
        table.add_row(domain, *cells)
    return table


def _print_findings(findings: Mapping[str, Any], console: Console) -> None:
    from raysim.data.findings import HAPPENED, first_names

    for kind, found in findings.items():
        happened = HAPPENED[found["policy"]]
        names = first_names(found["names"], found["count"])
        console.print(
            f"{kind}: {found['count']:,} {found['meaning']}; {happened} ({names})",
            soft_wrap=True,
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
        write_report(draw(dataset), out)
        console.print(f"contact sheet: {out.resolve()}", soft_wrap=True)
        return
    data = config.data
    try:
        partition = make_partition(dataset, data.partition, data.clients, config.seed, data.unseen)
    except ConfigError as error:
        console.print(f"without clients: {error}", soft_wrap=True)
        partition = None
    page = render(dataset, partition, findings, title=dataset.name, facts=_facts(config))
    write_report(page, out)
    console.print(f"report: {out.resolve()}", soft_wrap=True)


def _facts(config: RunConfig) -> dict[str, str]:
    """Return the settings that a report depends on, in words."""
    data = config.data
    facts = {
        "source": data.root or "part of raysim",
        "split rule": _in_words(data.split),
        "partition": f"{_in_words(data.partition)}, {data.clients} clients",
    }
    if data.unseen:
        facts["unseen"] = ", ".join(data.unseen)
    return facts | {"seed": str(config.seed)}


def _in_words(settings: Settings) -> str:
    """Return a section with a kind in one line: the kind, then what else is set."""
    values = {key: value for key, value in settings.model_dump().items() if value is not None}
    kind = values.pop("kind")
    return ", ".join([kind, *(f"{key} {value}" for key, value in values.items())])

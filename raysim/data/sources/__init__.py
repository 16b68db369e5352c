"""Readers of the layouts that people have their images in: lists of records, nothing decoded."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from raysim.data.findings import Policy, resolve_policies
from raysim.data.listing import Listing
from raysim.data.sources import (
    digits,
    domainnet,
    hugging_face,
    image_folder,
    office_caltech10,
    pacs,
    parquet,
)
from raysim.data.sources.files import Scan
from raysim.data.sources.source import Source
from raysim.errors import ConfigError, DataError
from raysim.settings import did_you_mean

__all__ = ["SOURCES", "Source", "read_source"]

SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "digits": digits.SOURCE,
        "office_caltech10": office_caltech10.SOURCE,
        "pacs": pacs.SOURCE,
        "domainnet": domainnet.SOURCE,
        "image_folder": image_folder.SOURCE,
        "parquet": parquet.SOURCE,
        "hugging_face": hugging_face.SOURCE,
    }
)
"""Sources by name."""


def read_source(
    name: str,
    root: Path,
    classes: str | Sequence[str] | None = None,
    policies: Mapping[str, Policy] | None = None,
) -> Listing:
    """List the images below a root.

    Args:
        name: one of `SOURCES`.
        root: `data.root`: a folder, or one file where the source takes one.
        classes: names of classes in the order of the labels, or the name of one of the source's
            subsets; None for all.
        policies: every kind's policy; None for the defaults. Links and names whose policy is
            `error` or `skip` are left out.

    Returns:
        records by domain, of the classes wanted.

    Raises:
        ConfigError: no such source or subset, or a class twice.
        DataError: the root is not there or not of this layout, or has no such class.
    """
    if name not in SOURCES:
        raise ConfigError(f"data.source: no source {name!r}{did_you_mean(name, SOURCES)}")
    source = SOURCES[name]
    root = Path(os.path.abspath(root.expanduser()))
    wanted = _wanted(name, source, classes)
    scan = Scan(root, resolve_policies({}) if policies is None else policies, wanted)
    try:
        root.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise scan.missing(f"{name}, which is {source.layout}", [root], source.url) from None
    except OSError as error:
        raise DataError(f"data.root: cannot read {root}: {error.strerror or error}") from None
    try:
        listing = source.read(scan)
    except DataError as error:
        raise DataError(f"{error}{_parquet_hint(name, scan)}") from None
    return listing if wanted is None else _select(scan, listing, wanted)


def _parquet_hint(name: str, scan: Scan) -> str:
    """Say how to read Parquet files where they were taken for another layout; "" without any."""
    if name == "parquet" or not any(map(parquet.is_parquet, parquet.parquet_files(scan))):
        return ""
    words = ["raysim", "data", "prepare", "parquet", "--root", str(scan.root), "--out", "FOLDER"]
    return f". There are Parquet files: try `{shlex.join([*words, '--name', name])}`"


def _wanted(
    name: str, source: Source, classes: str | Sequence[str] | None
) -> tuple[str, ...] | None:
    if isinstance(classes, str):
        if classes not in source.subsets:
            hint = did_you_mean(classes, source.subsets) if source.subsets else ""
            raise ConfigError(
                f"data.classes: {name} has no subset {classes!r}{hint or ': list the classes'}"
            )
        return source.subsets[classes]
    if classes is None:
        return None
    if not classes:
        raise ConfigError("data.classes: no class: leave it out to take all")
    for class_name, count in Counter(classes).items():
        if count > 1:
            raise ConfigError(f"data.classes: {class_name!r} is there {count} times")
    return tuple(classes)


def _select(scan: Scan, listing: Listing, wanted: tuple[str, ...]) -> Listing:
    """Keep the records of some classes."""
    found = {record.class_name for records in listing.domains.values() for record in records}
    known = scan.known | found | set(listing.classes)
    for class_name in wanted:
        if class_name not in known:
            hint = did_you_mean(class_name, known)
            raise DataError(f"data.classes: {scan.root} has no class {class_name!r}{hint}")
    domains = {
        domain: [record for record in records if record.class_name in wanted]
        for domain, records in listing.domains.items()
    }
    return replace(listing, domains=domains, classes=wanted)

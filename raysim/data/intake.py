"""From data as people have it to data that a run can read: list, check, decode, prepare."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.cpus import usable_cpus
from raysim.data.datasets import EMBEDDED, is_gone, not_there
from raysim.data.findings import resolve_policies
from raysim.data.places import cache_folder, check_text, is_uri, local_path
from raysim.data.prepared import NAME, read_manifest
from raysim.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raysim.data.prepared import Manifest
    from raysim.data.preparing.prepare import Progress
    from raysim.data.settings import DataSettings


def prepare_source(
    source: str,
    root: str,
    out: str,
    *,
    size: int,
    name: str | None = None,
    classes: str | Sequence[str] | None = None,
    policy: Mapping[str, str] | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Manifest:
    """Read a raw layout and prepare it.

    Args:
        source: one of `SOURCES`.
        root: where it lies.
        out: path or URI of the folder for the prepared data.
        size: height and width of the images in pixels.
        name: what the prepared data is called; None for the source's name.
        classes: see `read_source`.
        policy: policies that differ from the defaults, by kind of finding.
        processes: how many decode; None for one a CPU.
        progress: called as images are done.
        on_wait: told whom it waits for where another process is preparing `out`; None refuses.

    Raises:
        ConfigError: a setting is wrong.
        DataError: the data is not there, has faults that the policies do not let pass, or another
            process is preparing `out`.
    """
    # Readers and decoders take a second to import, which prepared data need not pay.
    from raysim.data.preparing.prepare import prepare
    from raysim.data.sources import read_source

    if name is not None and not re.fullmatch(NAME, name):
        raise ConfigError(
            f"name: {name!r}: must be of letters a to z, digits, '_', '-' and '.', no '.' first"
        )
    _check_places(root, out)
    policies = resolve_policies(policy or {})
    listing = read_source(source, Path(root), classes, policies)
    return prepare(
        listing,
        name=name or source,
        out=out,
        size=size,
        policies=policies,
        source={"reader": source, "root": root},
        processes=processes or usable_cpus(),
        progress=progress,
        on_wait=on_wait,
    )


def _check_places(root: str, out: str) -> None:
    """Refuse a source and a result that cannot be told apart, or cannot be written down."""
    for what, place in (("root", root), ("out", out)):
        if not place:
            raise ConfigError(f"{what}: is empty: give a folder")
        check_text(place)
    folder = local_path(out)
    if folder is not None and folder.resolve().is_relative_to(Path(root).expanduser().resolve()):
        raise DataError(
            f"{out} lies inside {root}, where it would be read as data the next time: choose "
            "another folder"
        )


def ready(
    settings: DataSettings, notify: Callable[[str], None], progress: Progress | None = None
) -> DataSettings:
    """Return settings whose root a run can read on any host; raw data is prepared in the cache.

    Args:
        settings: of the run.
        notify: told what is waited for, where another process is preparing the same data.
        progress: called as images are done, where they have to be prepared.

    Raises:
        ConfigError: a setting is wrong, or a policy is set for data that is prepared already.
        DataError: the data is not there, or has faults that the policies do not let pass.
    """
    if settings.root is None and settings.name not in EMBEDDED:
        raise not_there(settings)
    if settings.root is None or read_manifest(settings.root) is not None:
        if settings.policy:
            raise ConfigError(
                f"data.policy: {settings.root or settings.name} needs no preparing, so that no "
                "policy applies: leave it out (data.policy={} where a file sets it), or prepare "
                "the source again with --policy"
            )
        return settings
    from raysim.data.preparing.prepare import Unwritable
    from raysim.data.sources import SOURCES

    if is_gone(settings.root) or is_uri(settings.root) or settings.name not in SOURCES:
        raise not_there(settings)
    out = str(_cache(settings) / _key(settings))
    try:
        prepare_source(
            settings.name,
            settings.root,
            out,
            size=settings.image_size,
            classes=settings.classes,
            policy=settings.policy,
            progress=progress,
            on_wait=notify,
        )
    except Unwritable as error:
        raise DataError(f"{error}. data.cache=FOLDER prepares it elsewhere") from None
    return settings.model_copy(update={"root": out})


def _cache(settings: DataSettings) -> Path:
    if settings.cache is not None:
        return Path(os.path.abspath(settings.cache.expanduser()))
    return cache_folder("data")


def _key(settings: DataSettings) -> str:
    """Name the folder of one source, size and choice of images."""
    what = [settings.root, settings.image_size, settings.classes, sorted(settings.policy.items())]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    return f"{settings.name}-{settings.image_size}px-{digest[:12]}"

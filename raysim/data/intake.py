"""From data as people have it to data that a run can read: list, check, decode, prepare."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from raysim.data.datasets import EMBEDDED
from raysim.data.findings import resolve_policies
from raysim.data.prepared import Manifest, is_uri, read_manifest
from raysim.data.settings import DataSettings
from raysim.errors import DataError
from raysim.settings import did_you_mean

Progress = Callable[[int, int], None]
"""Called with the images done and the images in all."""


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

    Raises:
        ConfigError: a setting is wrong.
        DataError: the data is not there, or has faults that the policies do not let pass.
    """
    # Readers and decoders take a second to import, which prepared data need not pay.
    from raysim.data.preparing.prepare import prepare
    from raysim.data.sources import read_source

    if not is_uri(out) and Path(out).resolve().is_relative_to(Path(root).expanduser().resolve()):
        raise DataError(
            f"{out} lies inside {root}, where it would be read as data the next time: choose "
            "another folder"
        )
    policies = resolve_policies(policy or {})
    listing = read_source(source, Path(root), classes, policies)
    return prepare(
        listing,
        name=name or source,
        out=out,
        size=size,
        policies=policies,
        source={"reader": source, "root": root},
        processes=processes or len(os.sched_getaffinity(0)),
        progress=progress,
    )


def ready(settings: DataSettings, progress: Progress | None = None) -> DataSettings:
    """Return settings whose root a run can read on any host; raw data is prepared in the cache.

    Args:
        settings: of the run.
        progress: called as images are done, where they have to be prepared.

    Raises:
        ConfigError: a setting is wrong.
        DataError: the data is not there, or has faults that the policies do not let pass.
    """
    if settings.root is None or settings.name in EMBEDDED:
        return settings
    if is_uri(settings.root):
        if read_manifest(settings.root) is None:
            raise DataError(f"data.root={settings.root}: no prepared data there")
        return settings
    root = os.path.abspath(Path(settings.root).expanduser())
    if read_manifest(root) is not None:
        return settings.model_copy(update={"root": root})
    from raysim.data.sources import SOURCES

    if settings.name not in SOURCES:
        known = [*EMBEDDED, *SOURCES]
        raise DataError(
            f"data.root={root} is not prepared, and data.name={settings.name} is no layout that "
            f"can be read{did_you_mean(settings.name, known)}"
        )
    out = str(_cache(settings) / _key(settings, root))
    prepare_source(
        settings.name,
        root,
        out,
        size=settings.image_size,
        classes=settings.classes,
        policy=settings.policy,
        progress=progress,
    )
    return settings.model_copy(update={"root": out})


def _cache(settings: DataSettings) -> Path:
    if settings.cache is not None:
        return Path(os.path.abspath(settings.cache.expanduser()))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raysim" / "data"


def _key(settings: DataSettings, root: str) -> str:
    """Name the folder of one source, size and choice of images."""
    what = [root, settings.image_size, settings.classes, sorted(settings.policy.items())]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    return f"{settings.name}-{settings.image_size}px-{digest[:12]}"

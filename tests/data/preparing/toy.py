"""Small sources to prepare, and what came of them."""

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.data.findings import resolve_policies
from raysim.data.images import resize
from raysim.data.listing import ImageFile, Listing, Record
from raysim.data.prepared import Manifest, PreparedFile
from raysim.data.preparing.prepare import prepare
from tests.data.preparing import hostile
from tests.data.preparing.hostile import encoded, picture

SIZE = 8


class Halt(Exception):
    """Ends a preparation in mid-course."""


@dataclass(frozen=True)
class Noise:
    """An image without a file, read in whatever process."""

    key: int
    pause_s: float = 0.0
    killer: bool = False

    @property
    def path(self) -> Path:
        return Path(f"noise-{self.key}")

    def read(self) -> NDArray[np.generic]:
        time.sleep(self.pause_s)
        if self.killer:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.asarray(picture(self.key))


@dataclass(frozen=True)
class Lost:
    """An image whose place cannot be read."""

    error: OSError
    path: Path = Path("lost")

    def read(self) -> bytes:
        raise self.error


def rows(keys: Sequence[int], classes: Sequence[str] = ("a", "b"), split: str = "") -> list[Record]:
    """Return records of noise, one a key, the classes in turn."""
    return [
        Record(f"{row}.png", classes[row % len(classes)], split, Noise(key))
        for row, key in enumerate(keys)
    ]


def slow_rows(pause_s: float = 0.02) -> list[Record]:
    """Return 48 records, the same ones whatever the seconds that each takes to read."""
    return [Record(f"{key}.png", "ab"[key % 2], "", Noise(key, pause_s)) for key in range(48)]


def image_files(folder: Path, number: int, first: int = 0) -> list[Record]:
    """Write images and list them."""
    files = {f"{row}.png": encoded(picture(first + row)) for row in range(number)}
    hostile.write(folder, files)
    return [
        Record(name, "ab"[row % 2], "", ImageFile(folder / name)) for row, name in enumerate(files)
    ]


def go(listing: Listing, out: Path | str, **changes: Any) -> Manifest:
    """Prepare with settings that tests share; `policy` is what a user would set."""
    policies = resolve_policies(changes.pop("policy", {}))
    settings: dict[str, Any] = {
        "name": "toy",
        "size": SIZE,
        "policies": policies,
        "source": {"reader": "test", "root": "here"},
        "processes": 1,
    }
    return prepare(listing, out=str(out), **settings | changes)


def first_call(listing: Listing, out: Path | str, **changes: Any) -> int:
    """Prepare, and return how many images were done before."""
    calls: list[int] = []
    go(listing, out, progress=lambda done, total: calls.append(done), **changes)
    return calls[0]


def stop_after(images: int) -> Callable[[int, int], None]:
    """Return a progress that halts when so many images are done."""

    def progress(done: int, total: int) -> None:
        if done >= images:
            raise Halt

    return progress


def opened(out: Path | str, manifest: Manifest, domain: str) -> PreparedFile:
    """Return a domain's file."""
    (entry,) = (entry for entry in manifest.domains if entry.name == domain)
    return PreparedFile(str(out), entry, manifest.size)


def stored(out: Path | str, manifest: Manifest, domain: str) -> SimpleNamespace:
    """Read a domain back."""
    file = opened(out, manifest, domain)
    pixels = np.empty((file.entry.images, 3, manifest.size, manifest.size), np.uint8)
    file.read_pixels(np.arange(file.entry.images), pixels)
    return SimpleNamespace(
        pixels=pixels,
        labels=file.labels.tolist(),
        names=list(file.names),
        splits=file.splits.tolist(),
    )


def shrunk(key: int, size: int = SIZE) -> NDArray[np.uint8]:
    """Return the noise of a key as it is stored."""
    return resize(np.asarray(picture(key)).transpose(2, 0, 1), size)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def names(folder: Path) -> list[str]:
    """Return the files below a folder, without the part of the name that tells their content."""
    return sorted(re.sub(r"-[0-9a-f]{16}(?=\.arrow$)", "", name) for name in contents(folder))


def domain_file(folder: Path, domain: str) -> Path:
    """Return the file of a domain whose name is no part of another's."""
    (path,) = folder.glob(f"{domain}-*.arrow")
    return path

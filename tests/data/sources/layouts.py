"""Small images and list files in the layouts that readers know."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from raysim.data.listing import Listing

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")


def write_image(path: Path, value: int = 0) -> None:
    """Write an image of one gray value in the format of its extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (value, value, value)).save(path)


def write_tree(root: Path, names: Iterable[str]) -> None:
    for value, name in enumerate(names):
        write_image(root / name, value)


def write_text(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def summary(listing: Listing) -> Mapping[str, list[tuple[str, str, str]]]:
    """Return name, class and split of every record by domain."""
    return {
        domain: [(record.name, record.class_name, record.split) for record in records]
        for domain, records in listing.domains.items()
    }


def pixels(listing: Listing, domain: str) -> list[NDArray[np.generic]]:
    found = [record.image.read() for record in listing.domains[domain]]
    assert all(isinstance(image, np.ndarray) for image in found)
    return [np.asarray(image) for image in found]

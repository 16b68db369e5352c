"""What a reader of a raw layout returns: records that say where each image is, nothing decoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.data.findings import Findings


class ImageRef(Protocol):
    """A place that an image can be read from; travels to other processes."""

    @property
    def path(self) -> Path:
        """Return the file whose size and time of change tell whether the image has changed."""

    def read(self) -> bytes | NDArray[np.generic]:
        """Return an encoded image file, or pixels [H, W] or [H, W, C], uint8 or uint16.

        Raises:
            OSError: the place cannot be read.
        """


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file on disk."""

    path: Path

    def read(self) -> bytes:
        """Return the file's bytes."""
        return self.path.read_bytes()


@dataclass(frozen=True, slots=True)
class Record:
    """One image, as its source names it.

    Attributes:
        name: unique within the domain and stable: the path relative to the root with forward
            slashes, or "file#row".
        class_name: as the source spells it; labels without names are written as numbers.
        split: "train", "val" or "test" where the source is official about it, else "".
        image: where the pixels are.
    """

    name: str
    class_name: str
    split: str
    image: ImageRef


@dataclass(frozen=True)
class Listing:
    """A whole source.

    Attributes:
        domains: records by domain name, in the order of the domain ids; an empty sequence is a
            domain that was looked for and holds no image.
        classes: the data set's own class names in the order of the labels; () takes the names
            found: in numeric order if all are whole numbers, else sorted.
        findings: what was noticed on the way.
    """

    domains: Mapping[str, Sequence[Record]]
    classes: tuple[str, ...] = ()
    findings: Findings = field(default_factory=Findings)

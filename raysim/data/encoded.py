"""A domain as one Parquet file of encoded images: small to ship, decoded row by row.

Columns: `image` (encoded PNG, JPEG or WebP), `label` (int64), `split` ("train", "val" or "test"),
and, if they are there, `label_name` and `source`.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from raysim.errors import DataError


@dataclass(frozen=True)
class EncodedFile:
    """The rows of one domain.

    Attributes:
        path: the Parquet file.
    """

    path: Path

    @cached_property
    def size(self) -> int:
        """Height and width of the stored images, those of the first one."""
        if not len(self.labels):
            raise DataError(f"{self.path}: no images")
        ((_, encoded),) = self._encoded(np.zeros(1, np.int64))
        return _open(encoded, f"{self.path}, row 0").height

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Labels of all rows, int64 [N]."""
        return np.asarray(self._column("label").to_numpy(), np.int64)

    @cached_property
    def splits(self) -> NDArray[np.str_]:
        """Official splits of all rows, str [N]."""
        return np.asarray(self._column("split").to_pylist(), np.str_)

    @cached_property
    def names(self) -> Sequence[str]:
        """Names of all rows: their source and the row, which makes them unique."""
        if "source" not in _schema(self.path).names:
            return [str(row) for row in range(len(self.labels))]
        sources = self._column("source").to_pylist()
        return [f"{source}#{row}" for row, source in enumerate(sources)]

    @property
    def groups(self) -> NDArray[np.int64]:
        """A number of its own for each row: shipped images are all different."""
        return np.arange(len(self.labels))

    def read_pixels(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Decode some rows; only the row groups that hold them are read.

        Args:
            rows: int64 [N].
            out: uint8 [N, 3, size, size], filled in the order of `rows`.

        Raises:
            DataError: the file or an image is unreadable.
        """
        for position, encoded in self._encoded(rows):
            origin = f"{self.path}, row {rows[position]}"
            pixels = np.asarray(_open(encoded, origin), np.uint8)
            if pixels.shape != (self.size, self.size, 3):
                raise DataError(f"{origin}: {pixels.shape}, the first image has {self.size} px")
            out[position] = pixels.transpose(2, 0, 1)

    def _column(self, name: str) -> pa.ChunkedArray:
        if name not in _schema(self.path).names:
            raise DataError(f"{self.path}: no column {name}")
        with pq.ParquetFile(self.path) as file:
            return file.read(columns=[name]).column(0)

    def _encoded(self, rows: NDArray[np.int64]) -> list[tuple[int, bytes]]:
        """Return (position in `rows`, encoded image), reading only the row groups needed."""
        if "image" not in _schema(self.path).names:
            raise DataError(f"{self.path}: no column image")
        found: list[tuple[int, bytes]] = []
        with pq.ParquetFile(self.path) as file:
            start = 0
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                positions = np.flatnonzero((rows >= start) & (rows < stop))
                if len(positions):
                    column = file.read_row_group(group, columns=["image"]).column("image")
                    images = column.take(pa.array(rows[positions] - start)).to_pylist()
                    found.extend(zip(positions.tolist(), images, strict=True))
                start = stop
        return found


def class_names(files: Sequence[EncodedFile]) -> tuple[str, ...]:
    """Read the class names of several domains.

    Raises:
        DataError: a label has two names, or the labels are not 0..K-1.
    """
    names: dict[int, str] = {}
    for file in files:
        labels = file.labels.tolist()
        has_names = "label_name" in _schema(file.path).names
        spelled = file._column("label_name").to_pylist() if has_names else map(str, labels)
        for label, name in sorted(set(zip(labels, spelled, strict=True))):
            if names.setdefault(label, name) != name:
                raise DataError(
                    f"{file.path}: label {label} is {name!r} here and {names[label]!r} elsewhere"
                )
    if sorted(names) != list(range(len(names))) or not names:
        raise DataError(
            f"{files[0].path.parent}: labels are not 0..K-1 without gaps: {sorted(names)}"
        )
    return tuple(names[label] for label in range(len(names)))


def _open(encoded: bytes, origin: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(encoded)).convert("RGB")
    except OSError as error:
        raise DataError(f"{origin}: not a readable image ({error})") from error


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error

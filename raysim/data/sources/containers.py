"""Files that hold many images: IDX, MATLAB, LIBSVM and Parquet, loaded once a process.

Reading labels loads no pixels, except for LIBSVM text. Every error is an `OSError` whose text
names the file.
"""

import bz2
import gzip
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
_BROKEN = (
    EOFError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
    pa.ArrowException,
    scipy.io.matlab.MatReadError,
    zlib.error,
)
"""What decoders raise on bytes that are not what they should be."""
_UINT8 = 8
"""Code of the element type in an IDX file's header."""


@dataclass(frozen=True, slots=True)
class IdxImage:
    """An image of an IDX file, the format of MNIST."""

    path: Path
    row: int

    def read(self) -> Bytes:
        """Return pixels [H, W]."""
        image: Bytes = load_idx(self.path)[self.row]
        return image


@dataclass(frozen=True, slots=True)
class MatImage:
    """An image of a MATLAB file whose variable `X` is [H, W, C, N], as in SVHN."""

    path: Path
    row: int

    def read(self) -> Bytes:
        """Return pixels [H, W, C]."""
        return np.ascontiguousarray(_mat_images(self.path)[..., self.row])


@dataclass(frozen=True, slots=True)
class LibsvmImage:
    """An image of a LIBSVM file, the format of USPS."""

    path: Path
    row: int

    def read(self) -> Bytes:
        """Return pixels [16, 16]."""
        image: Bytes = load_libsvm(self.path)[0][self.row]
        return image


@dataclass(frozen=True, slots=True)
class ParquetImage:
    """An encoded image in a column of a Parquet file: bytes, or Hugging Face's bytes and path."""

    path: Path
    row: int
    column: str

    def read(self) -> bytes:
        """Return the encoded image; a missing one is no bytes."""
        starts = _row_group_starts(self.path)
        group = bisect_right(starts, self.row) - 1
        cells = _row_group(self.path, group, self.column)
        return encoded(cells[self.row - starts[group]].as_py())


def encoded(cell: object) -> bytes:
    """Return the bytes of an image cell; a cell without is no bytes."""
    found = cell.get("bytes") if isinstance(cell, dict) else cell
    return found if isinstance(found, bytes) else b""


@lru_cache(maxsize=4)
def load_idx(path: Path) -> Bytes:
    """Return an IDX file's array of bytes, plain or gzipped.

    Raises:
        OSError: the file is no such file.
    """
    with _named(path):
        data = path.read_bytes()
        if path.suffix.lower() == ".gz":
            data = gzip.decompress(data)
        shape = _idx_shape(data[:16])
        return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def count_idx(path: Path) -> int:
    """Return how many items an IDX file says it holds.

    Raises:
        OSError: the file is no such file.
    """
    with _named(path), _opened(path) as file:
        return _idx_shape(file.read(16))[0]


def mat_labels(path: Path) -> Ints:
    """Return the labels `y` of a MATLAB file after checking that `X` has as many images.

    Returns:
        int64 [N].

    Raises:
        OSError: the file is no MATLAB file up to version 7, or not of this kind.
    """
    with _named(path):
        shapes = {name: shape for name, shape, _ in scipy.io.whosmat(path)}
        labels = np.asarray(scipy.io.loadmat(path, variable_names=["y"])["y"])
        if len(shapes["X"]) != 4 or shapes["X"][3] != labels.size:
            raise ValueError(f"{labels.size} labels y, but X is {list(shapes['X'])}")
        return labels.ravel().astype(np.int64)


@lru_cache(maxsize=2)
def load_libsvm(path: Path) -> tuple[Bytes, Ints]:
    """Return the images and labels of USPS in LIBSVM's text, bzip2 or plain.

    Values of -1 to 1 become bytes as torchvision makes them.

    Returns:
        uint8 [N, 16, 16]; int64 [N].

    Raises:
        OSError: the file is no such file.
    """
    with _named(path):
        data = path.read_bytes()
        if path.suffix.lower() == ".bz2":
            data = bz2.decompress(data)
        rows = [line.split() for line in data.decode("ascii").splitlines() if line.strip()]
        if not rows:
            raise ValueError("no images")
        values = np.zeros((len(rows), 256), np.float32)
        for row, cells in enumerate(rows):
            pairs = [cell.split(":") for cell in cells[1:]]
            columns = np.array([int(column) for column, _ in pairs], np.int64) - 1
            if len(columns) and columns.min() < 0:
                raise ValueError(f"line {row + 1}: columns start at 1")
            values[row, columns] = [float(value) for _, value in pairs]
        if not (np.abs(values) <= 1).all():
            raise ValueError("values outside -1 to 1")
        images = ((values + 1) / 2 * 255).astype(np.uint8)
        labels = np.array([float(cells[0]) for cells in rows]).astype(np.int64)
        return images.reshape(-1, 16, 16), labels


def parquet_columns(path: Path, columns: list[str]) -> pa.Table:
    """Return some columns of a Parquet file.

    Raises:
        OSError: the file is no Parquet file.
    """
    with _named(path), pq.ParquetFile(path) as file:
        return file.read(columns=columns)


def parquet_schema(path: Path) -> pa.Schema:
    """Return the columns of a Parquet file.

    Raises:
        OSError: the file is no Parquet file.
    """
    with _named(path), pq.ParquetFile(path) as file:
        return file.schema_arrow


@lru_cache(maxsize=2)
def _mat_images(path: Path) -> Bytes:
    with _named(path):
        images = np.asarray(scipy.io.loadmat(path, variable_names=["X"])["X"])
        if images.dtype != np.uint8:
            raise ValueError(f"X is {images.dtype}, not uint8")
        return images


@lru_cache(maxsize=16)
def _row_group_starts(path: Path) -> list[int]:
    with _named(path), pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]


@lru_cache(maxsize=1)
def _row_group(path: Path, group: int, column: str) -> pa.ChunkedArray:
    with _named(path), pq.ParquetFile(path) as file:
        return file.read_row_group(group, columns=[column]).column(column)


def _idx_shape(header: bytes) -> tuple[int, ...]:
    if len(header) < 8 or header[:2] != b"\0\0" or header[2] != _UINT8 or header[3] not in (1, 3):
        raise ValueError("not an IDX file of bytes")
    return tuple(np.frombuffer(header, ">u4", count=header[3], offset=4).tolist())


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn what decoders raise into an `OSError` that names the file."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path}: {error.strerror or error}") from error
    except _BROKEN as error:
        raise OSError(f"{path}: {type(error).__name__}: {error}") from error

"""The files of prepared data: made of decoded chunks, and put where they belong."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from numpy.typing import NDArray

from raysim.data.prepared import DomainCounts, DomainEntry, batch_rows, schema
from raysim.data.preparing.staging import Chunk, Rows, read_rows, read_table
from raysim.files import aside, write_aside

_BLOCK_BYTES = 2**22


class _HashedFile:
    """A file for writing that remembers hash and length of what went through it."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha = hashlib.sha256()
        self.num_bytes = 0

    def write(self, content: bytes) -> int:
        self._file.write(content)
        self.sha.update(content)
        self.num_bytes += len(content)
        return len(content)

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The one who opened the file closes it."""


def rows_of(chunks: Sequence[Chunk]) -> Rows:
    """Return the rows of a domain's chunks, one after the other."""
    parts = [read_rows(chunk) for chunk in chunks]
    return Rows(
        [name for part in parts for name in part.names],
        np.concatenate([np.empty(0, np.int64), *(part.labels for part in parts)]),
        [split for part in parts for split in part.splits],
        [pixels_id for part in parts for pixels_id in part.ids],
    )


def write_domain(
    folder: Path,
    counts: DomainCounts,
    chunks: Sequence[Chunk],
    keep: NDArray[np.bool_],
    size: int,
) -> DomainEntry:
    """Write a domain's file, a chunk in memory at a time, and name it after its content.

    Args:
        folder: where the file goes.
        counts: what the domain holds.
        chunks: of the domain, in order.
        keep: bool [N] over the rows of all chunks.
        size: height and width of the images.
    """
    path = folder / "domain.arrow"
    with aside(path) as file:
        hashed = _HashedFile(file)
        with pa.ipc.new_file(pa.PythonFile(hashed, "w"), schema(size)) as writer:
            for batch in _batches(_kept(chunks, keep), batch_rows(size)):
                writer.write_batch(batch)
    sha256 = hashed.sha.hexdigest()
    name = file_name(counts.name, sha256)
    path.replace(folder / name)
    return DomainEntry(**dict(counts), file=name, sha256=sha256, num_bytes=hashed.num_bytes)


def _kept(chunks: Iterable[Chunk], keep: NDArray[np.bool_]) -> Iterator[pa.Table]:
    start = 0
    for chunk in chunks:
        table = read_table(chunk)
        mask = keep[start : start + len(table)]
        start += len(table)
        yield table if mask.all() else table.filter(pa.array(mask))


def _batches(tables: Iterable[pa.Table], step: int) -> Iterator[pa.RecordBatch]:
    """Cut tables into batches of `step` rows; the last one may be shorter."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= step:
            together = pa.concat_tables(waiting)
            full = len(together) - len(together) % step
            for start in range(0, full, step):
                yield _one_batch(together.slice(start, step))
            waiting = [together.slice(full)]
    if sum(map(len, waiting)):
        yield _one_batch(pa.concat_tables(waiting))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def count_rows(
    domain: str, rows: Rows, keep: NDArray[np.bool_], classes: Sequence[str]
) -> DomainCounts:
    """Count a domain's images.

    Args:
        domain: its name.
        rows: all its rows.
        keep: bool [N], which of them stay.
        classes: class names by label.
    """
    counts = np.bincount(rows.labels[keep], minlength=len(classes)).tolist()
    splits = Counter(split for split, stays in zip(rows.splits, keep, strict=True) if stays)
    return DomainCounts(
        name=domain,
        images=int(keep.sum()),
        splits=dict(sorted(splits.items())),
        classes=dict(zip(classes, counts, strict=True)),
    )


def file_name(domain: str, sha256: str) -> str:
    """Return the name of a domain's file: ASCII in lower case, another one for other content."""
    stem = re.sub(r"[^a-z0-9_-]+", "_", domain.lower()).strip("_")[:100] or "domain"
    return f"{stem}-{sha256[:16]}.arrow"


class Target(Protocol):
    """The folder that prepared data goes to."""

    def put(self, path: Path, name: str) -> None:
        """Move a file from the staging folder there."""

    def write(self, name: str, text: str) -> None:
        """Write a text file there."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


class LocalTarget:
    """A folder on the file system of the staging folder: files get there by renaming."""

    def __init__(self, folder: Path, staging: Path) -> None:
        """Take two folders that are there.

        Args:
            folder: where files go.
            staging: where they are written before.
        """
        self._folder, self._staging = folder, staging

    def put(self, path: Path, name: str) -> None:
        """Rename a file into place."""
        os.replace(path, self._folder / name)

    def write(self, name: str, text: str) -> None:
        """Write a text file whole or not at all."""
        write_aside(self._staging / name, text.encode())
        self.put(self._staging / name, name)

    def remove(self, name: str) -> None:
        """Unlink a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)


class RemoteTarget:
    """A folder of any file system that Arrow knows."""

    def __init__(self, files: pafs.FileSystem, path: str) -> None:
        """Make the folder, where the file system has such.

        Args:
            files: the file system.
            path: the folder on it.
        """
        self._files, self._path = files, path
        files.create_dir(path, recursive=True)

    def put(self, path: Path, name: str) -> None:
        """Upload a file; what fails on its way is removed."""
        try:
            with path.open("rb") as source, self._opened(name) as stream:
                while block := source.read(_BLOCK_BYTES):
                    stream.write(block)
        except BaseException:  # closing the stream may have made a short file of it
            with suppress(OSError):
                self.remove(name)
            raise

    def write(self, name: str, text: str) -> None:
        """Upload a text file; where that fails, most file systems keep a former one."""
        with self._opened(name) as stream:
            stream.write(text.encode())

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        where = f"{self._path}/{name}"
        if self._files.get_file_info(where).type == pafs.FileType.File:
            self._files.delete_file(where)

    def _opened(self, name: str) -> pa.NativeFile:
        return self._files.open_output_stream(f"{self._path}/{name}")

"""Decoded chunks on disk: what is done of preparing a data set, so that it can be taken up again.

A staging folder belongs to one preparation, which holds its lock. Each chunk of records becomes one
Arrow file in the columns of `raysim.data.prepared`; what was found on the way is in its metadata.
Files are written aside and renamed, so that a chunk is whole or not there.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raysim.data.findings import Findings
from raysim.data.listing import ImageFile, ImageRef, Record
from raysim.data.prepared import COLUMNS, ID_BYTES, schema
from raysim.data.preparing.decoding import Decoded, Refused, decode
from raysim.data.preparing.foreign import FINGERPRINT, LOCK, check_staging
from raysim.errors import DataError
from raysim.files import aside, write_aside

_CHUNK_BYTES = 2**26
_CHUNK = b"raysim_chunk"
_FINDINGS = b"raysim_findings"


class Stopped(Exception):
    """The chunk was given up because the preparation ends."""


@dataclass(frozen=True)
class Chunk:
    """Some consecutive records of a domain.

    Attributes:
        path: its file in the staging folder.
        records: what to decode, in order.
        labels: their labels, int64 [N].
        size: height and width of the decoded images.
        skipped: kinds of findings whose images are left out.
    """

    path: Path
    records: Sequence[Record]
    labels: NDArray[np.int64]
    size: int
    skipped: frozenset[str]


@dataclass(frozen=True)
class Rows:
    """The rows of a chunk without their pixels.

    Attributes:
        names: the images' names.
        labels: int64 [N].
        splits: official splits, "" where there is none.
        ids: hashes of the pixels before resizing.
    """

    names: list[str]
    labels: NDArray[np.int64]
    splits: list[str]
    ids: list[bytes]


@contextmanager
def hold(
    folder: Path, fingerprint: str, out: str, on_wait: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Make a staging folder and keep others out of it for the block.

    What another preparation has left in it is removed.

    Args:
        folder: the staging folder.
        fingerprint: of the preparation that wants it.
        out: where the prepared data goes, for messages.
        on_wait: told whom it waits for where another process holds it; None does not wait.

    Raises:
        DataError: another process holds it, and nobody waits; or it holds files of others.
        OSError: it cannot be made.
    """
    check_staging(folder)
    lock = _lock(folder, out, on_wait)
    try:
        mark = folder / FINGERPRINT
        if not mark.is_file() or mark.read_text() != fingerprint:
            _clear(folder)
            write_aside(mark, fingerprint.encode())
        yield
    finally:
        os.close(lock)


def _lock(folder: Path, out: str, on_wait: Callable[[str], None] | None) -> int:
    """Return a descriptor that holds the folder's lock until it is closed."""
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the folder's last holder has just removed it
            continue
        try:
            _take(lock, out, on_wait)
            if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # its last holder has removed it


def _take(lock: int, out: str, on_wait: Callable[[str], None] | None) -> None:
    """Lock an open file, after waiting if need be."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
    if on_wait is None:
        raise DataError(
            f"{out}: another prepare (process {holder}) is writing there: wait for it, or stop it, "
            "and run this again"
        )
    on_wait(f"{out}: waiting for another prepare (process {holder}) that is writing there")
    fcntl.flock(lock, fcntl.LOCK_EX)


def _clear(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.name != LOCK:
            path.unlink()


def drop(folder: Path) -> None:
    """Remove a staging folder that is held; its lock is the last file to go."""
    _clear(folder)
    (folder / LOCK).unlink()
    with suppress(OSError):  # another preparation has just made its own lock there
        folder.rmdir()


def write_chunk(chunk: Chunk, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Decode a chunk into its file.

    Args:
        chunk: what to decode.
        is_stopped: asked before every image.

    Raises:
        Stopped: `is_stopped` said so.
        OSError: the file cannot be written.
    """
    width = 3 * chunk.size * chunk.size
    pixels = np.empty((len(chunk.records), width), np.uint8)
    ids = bytearray()
    kept: list[int] = []
    findings = Findings()
    for position, record in enumerate(chunk.records):
        if is_stopped():
            raise Stopped
        image = _decode(record, chunk.size)
        if isinstance(image, Refused):
            findings.add(image.kind, record.name, image.detail)
            continue
        for kind, detail in image.kinds.items():
            findings.add(kind, record.name, detail)
        if chunk.skipped.isdisjoint(image.kinds):
            pixels[len(kept)] = image.pixels.reshape(width)
            ids += image.pixels_id
            kept.append(position)
    columns = (
        _fixed_width(pixels.data, len(kept), width),
        pa.array(chunk.labels[kept], pa.int64()),
        pa.array([chunk.records[position].split for position in kept], pa.string()),
        pa.array([chunk.records[position].name for position in kept], pa.string()),
        _fixed_width(ids, len(kept), ID_BYTES),
    )
    found = {"counts": findings.counts, "names": findings.names}
    metadata = {_CHUNK: chunk.path.name, _FINDINGS: json.dumps(found)}
    columns_of = schema(chunk.size).with_metadata(metadata)
    with aside(chunk.path) as file, pa.ipc.new_file(file, columns_of) as writer:
        writer.write_batch(pa.record_batch(list(columns), schema=columns_of))


def _decode(record: Record, size: int) -> Decoded | Refused:
    try:
        content = record.image.read()
    except FileNotFoundError:
        return Refused("missing_file")
    except OSError as error:
        return Refused("unreadable", error.strerror or str(error))
    if isinstance(record.image, ImageFile):
        return decode(content, record.name, size)
    if isinstance(content, bytes) and not content:
        return Refused("empty_file", "its cell holds no image")
    # Only a file's name promises a format; a row's name says where its image once came from.
    return decode(content, "", size)


def _fixed_width(values: Any, rows: int, width: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(values)])


def is_done(chunk: Chunk) -> bool:
    """Tell whether a chunk's file is there and whole."""
    try:
        with _opened(chunk, COLUMNS) as reader:
            metadata = reader.schema.metadata or {}
            return bool(
                metadata.get(_CHUNK) == chunk.path.name.encode()
                and reader.schema.equals(schema(chunk.size))
            )
    except (OSError, pa.ArrowException):
        return False


def read_findings(chunk: Chunk) -> Findings:
    """Return what was found while a chunk was decoded."""
    with _opened(chunk, COLUMNS) as reader:
        return Findings(**json.loads(reader.schema.metadata[_FINDINGS]))


def read_rows(chunk: Chunk) -> Rows:
    """Return a chunk's rows without touching their pixels."""
    with _opened(chunk, [name for name in COLUMNS if name != "pixels"]) as reader:
        batch = reader.get_batch(0)
        return Rows(
            batch["name"].to_pylist(),
            np.array(batch["label"], np.int64),
            batch["split"].to_pylist(),
            batch["pixels_id"].to_pylist(),
        )


def read_table(chunk: Chunk) -> pa.Table:
    """Return a chunk, mapped."""
    with _opened(chunk, COLUMNS) as reader:
        return pa.Table.from_batches([reader.get_batch(0).replace_schema_metadata(None)])


@contextmanager
def _opened(chunk: Chunk, columns: Sequence[str]) -> Iterator[Any]:
    options = pa.ipc.IpcReadOptions(included_fields=[COLUMNS.index(name) for name in columns])
    with pa.memory_map(str(chunk.path)) as source:
        yield pa.ipc.open_file(source, options=options)


def stamp(image: ImageRef, known: dict[Path, tuple[int, int]]) -> tuple[int, int]:
    """Return size in bytes and time of change, in ms, of the file that an image is in.

    Args:
        image: a file that is not there stands at (-1, -1).
        known: stamps by path, filled on the way: a file may hold many images.
    """
    path = image.path
    if path not in known:
        try:
            stat = path.stat()
            known[path] = stat.st_size, stat.st_mtime_ns // 1_000_000
        except OSError:
            known[path] = -1, -1
    return known[path]


def domain_chunks(
    folder: Path,
    domains: Mapping[str, Sequence[Record]],
    labels: Mapping[str, NDArray[np.int64]],
    size: int,
    skipped: frozenset[str],
    records_a_chunk: int,
) -> dict[str, list[Chunk]]:
    """Cut domains into chunks.

    Their names tell their records, so that chunks of two sizes are not mistaken for each other.

    Args:
        folder: the staging folder.
        domains: records by domain.
        labels: int64 [N] by domain.
        size: height and width of the decoded images.
        skipped: kinds of findings whose images are left out.
        records_a_chunk: at most; fewer if their pixels would take more than 64 MiB.

    Returns:
        chunks by domain, in the order of its records.
    """
    step = max(1, min(records_a_chunk, _CHUNK_BYTES // (3 * size * size)))
    return {
        domain: [
            Chunk(
                folder / f"chunk-{number:03d}-{start:08d}-{step}.arrow",
                records[start : start + step],
                labels[domain][start : start + step],
                size,
                skipped,
            )
            for start in range(0, len(records), step)
        ]
        for number, (domain, records) in enumerate(domains.items())
    }

"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def aside(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside its place, which it takes if the block ends well, flushed to the disk.

    Args:
        path: the place; a file that is there is replaced.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_aside(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; see `aside`."""
    with aside(path) as file:
        file.write(content)

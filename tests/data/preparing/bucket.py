"""A remote file system that is none: s3://bucket as a folder, watched."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from raysim.data import prepared
from raysim.data.preparing import prepare as preparing


@dataclass
class Bucket:
    """Where its files lie, and what is done to them.

    Attributes:
        folder: holds the files.
        opened: files that were opened for reading, in order.
        bytes_read: of all files.
        broken: uploads of files whose names start so break off after 100 bytes.
    """

    folder: Path
    opened: list[str] = field(default_factory=list)
    bytes_read: int = 0
    broken: str | None = None


def make_bucket(folder: Path, patch: pytest.MonkeyPatch) -> Bucket:
    """Let URIs that start with s3://bucket/ lead to a folder while the patch holds."""
    bucket = Bucket(folder)
    files = pafs.PyFileSystem(_Handler(bucket))

    def filesystem(root: str) -> tuple[pafs.FileSystem, str]:
        assert root.startswith("s3://bucket/")
        return files, root.removeprefix("s3://bucket/")

    patch.setattr(prepared, "filesystem", filesystem)
    patch.setattr(preparing, "filesystem", filesystem)
    return bucket


class _Handler(pafs.FSSpecHandler):
    def __init__(self, bucket: Bucket) -> None:
        super().__init__(DirFileSystem(str(bucket.folder), LocalFileSystem()))
        self.bucket = bucket

    def open_input_file(self, path: str) -> pa.PythonFile:
        self.bucket.opened.append(path)
        return pa.PythonFile(_Reading(self.fs.open(path, "rb"), self.bucket), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        file = self.fs.open(path, "wb")
        broken = self.bucket.broken
        if broken is not None and Path(path).name.startswith(broken):
            file = _Breaking(file)
        return pa.PythonFile(file, mode="w")


class _Wrapped:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _Reading(_Wrapped):
    def __init__(self, file: BinaryIO, bucket: Bucket) -> None:
        super().__init__(file)
        self.bucket = bucket

    def read(self, size: int = -1) -> bytes:
        content = self.file.read(size)
        self.bucket.bytes_read += len(content)
        return content


class _Breaking(_Wrapped):
    def write(self, content: bytes) -> int:
        self.file.write(content[:100])
        raise ConnectionResetError(104, "Connection reset by peer")

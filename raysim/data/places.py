"""Folders of data by path or by URI."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

from raysim.errors import DataError

_RESERVED = ":/?[]@!$&'()*+,;=%"
"""Characters that keep their meaning in a URI; others, # too, are quoted."""


def is_uri(root: str) -> bool:
    """Tell a URI from a path."""
    return "://" in root


def filesystem(root: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URI (s3, gs, hdfs, file), and the path on it.

    Raises:
        DataError: the URI is malformed, its file system is not there, or the path is not UTF-8.
    """
    check_text(root)
    if not is_uri(root):
        return pafs.LocalFileSystem(), str(Path(root).absolute())
    # A question mark starts the options of a store, such as its region; files have none.
    reserved = _RESERVED.replace("?", "") if _is_file_uri(root) else _RESERVED
    try:
        found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(quote(root, safe=reserved))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{root}: cannot be reached ({error}); known are paths, file://, s3://, gs://, hdfs://"
        ) from None
    return found


def local_path(root: str) -> Path | None:
    """Return the folder on this machine that a path or URI names; None for other URIs.

    Raises:
        DataError: as `filesystem`.
    """
    if is_uri(root) and not _is_file_uri(root):
        return None
    return Path(filesystem(root)[1])


def check_text(root: str) -> None:
    """Refuse a path that no manifest and no config file could hold.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        root.encode()
    except UnicodeEncodeError:
        raise DataError(f"{root!r}: the name is not UTF-8: rename it, or link to it") from None


def cache_folder(*parts: str) -> Path:
    """Return a folder below the user's cache folder; it need not be there."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "raysim", *parts)


def read_json(files: pafs.FileSystem, path: str) -> Any:
    """Return the tree in a JSON file; None if there is no file.

    Raises:
        ValueError: it is not JSON.
        OSError: it cannot be read.
    """
    if files.get_file_info(path).type != pafs.FileType.File:
        return None
    with files.open_input_file(path) as stream:
        content = stream.read()
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _is_file_uri(root: str) -> bool:
    return root.lower().startswith("file:")

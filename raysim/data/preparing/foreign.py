"""Files of others where prepared data is to go: they are named and never touched."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow.fs as pafs

from raysim.data.places import read_json
from raysim.errors import DataError

LOCK = "lock"
FINGERPRINT = "fingerprint"
_STAGED = re.compile(
    rf"{LOCK}|{FINGERPRINT}|[\w-]+\.(arrow|json)|\..+\.\d+\.tmp", flags=re.ASCII | re.DOTALL
)
"""What a staging folder holds: its marks, chunks, finished files, and files on their way."""
_KEYS = {"format", "name", "size", "classes", "domains"}
"""Keys of every manifest and report, of any version."""


def check_staging(folder: Path) -> None:
    """Refuse a folder to work in that holds anything but the work of an earlier preparation.

    Raises:
        DataError: names what is not ours.
        OSError: the folder cannot be listed.
    """
    if folder.is_symlink():
        raise _refusal(folder)
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    if entries and all(entry.name != LOCK for entry in entries):
        raise _refusal(Path(entries[0]))
    for entry in entries:
        if not entry.is_file(follow_symlinks=False) or not _STAGED.fullmatch(entry.name):
            raise _refusal(Path(entry))


def check_result(files: pafs.FileSystem, path: str, names: Sequence[str]) -> None:
    """Refuse to write JSON files over files of the same names that a preparation did not write.

    Args:
        files: the file system of the result.
        path: the folder on it.
        names: of the files.

    Raises:
        DataError: names the first file that is not ours.
        OSError: a file cannot be read.
    """
    for name in names:
        where = f"{path}/{name}"
        try:
            tree = read_json(files, where)
        except ValueError:
            raise _refusal(where) from None
        if tree is not None and not (isinstance(tree, dict) and tree.keys() >= _KEYS):
            raise _refusal(where)


def _refusal(path: Path | str) -> DataError:
    return DataError(
        f"{path}: not written by raysim, and in the way: move it, or choose another folder"
    )

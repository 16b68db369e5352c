"""Data sets that Hugging Face's `datasets` saved to disk."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from raysim.data.listing import Listing
from raysim.data.sources.class_folders import SPLIT_OF
from raysim.data.sources.containers import encoded
from raysim.data.sources.files import Scan, printable
from raysim.data.sources.source import Source
from raysim.data.sources.table import COLUMNS, IMAGE, Rows, list_rows
from raysim.errors import DataError

_STATE = "state.json"


class _Splits(BaseModel):
    """What `dataset_dict.json` holds."""

    splits: list[str]


@dataclass(frozen=True, slots=True)
class SavedImage:
    """An encoded image of a saved data set.

    Attributes:
        path: the data set's `state.json`, which is written anew whenever the data set is.
        row: its row.
    """

    path: Path
    row: int

    def read(self) -> bytes:
        """Return the encoded image; one that was saved as a path only is no bytes.

        Raises:
            OSError: the data set cannot be read.
        """
        try:
            return encoded(_load(self.path.parent)[self.row][IMAGE])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise OSError(f"{self.path}: {error}") from error


def read(scan: Scan) -> Listing:
    """List what `save_to_disk` wrote: a data set, one with splits, or a folder of either.

    Columns are those of `parquet`. Without a column `domain`, the folders of the root are the
    domains. Splits are those of the data set, unless there is a column.

    Raises:
        DataError: `datasets` is not installed, nothing saved is there, a split is of no known
            name, or as `list_rows`.
    """
    _library()
    parts = [_rows(scan, saved, domain="", split=split) for saved, split in _saved(scan, scan.root)]
    if not parts:
        parts = [
            _rows(scan, saved, printable(folder.name), split)
            for folder in scan.folders(scan.root)
            for saved, split in _saved(scan, folder)
        ]
    if not parts:
        raise scan.missing("hugging_face: a saved data set (state.json)", [scan.root], SOURCE.url)
    return list_rows(scan, parts)


def _saved(scan: Scan, folder: Path) -> Iterable[tuple[Path, str]]:
    """Return the single data sets saved in a folder, and the names of their splits."""
    if scan.child(folder, _STATE):
        return [(folder, "")]
    splits = scan.child(folder, "dataset_dict.json")
    if splits is None:
        return []
    try:
        names = _Splits.model_validate_json(splits.read_bytes()).splits
    except (OSError, ValueError):
        raise DataError(
            f"data.root: {scan.relative(splits)}: no list of splits: save the data set again"
        ) from None
    return [(_split_folder(scan, folder, name), name) for name in names]


def _split_folder(scan: Scan, folder: Path, name: str) -> Path:
    for path in scan.children(folder, name):
        if path.name == name and scan.child(path, _STATE):
            return path
    raise scan.missing(f"hugging_face: the split {name} ({_STATE})", [folder / name], "")


def _rows(scan: Scan, path: Path, domain: str, split: str) -> Rows:
    file = scan.relative(path)
    try:
        data = _load(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"data.root: {file}: not a saved data set: {error}") from None
    if IMAGE not in data.column_names:
        names = ", ".join(data.column_names)
        raise DataError(f"data.root: {file}: no column {IMAGE!r}; its columns: {names}")
    if not domain and "domain" not in data.column_names:
        raise DataError(
            f"data.root: {file}: no column 'domain': add it, or save one data set a domain in "
            "folders named after the domains"
        )
    if split and split.lower() not in SPLIT_OF and "split" not in data.column_names:
        raise DataError(
            f"data.root: {file}: split {split!r} is none of {', '.join(SPLIT_OF)}: save the data "
            "set without it, or with a column 'split'"
        )
    columns = [name for name in COLUMNS if name in data.column_names]
    table = data.select_columns(columns).with_format("arrow")[:]
    features = data.features.items()
    value_names = {name: kind.names for name, kind in features if hasattr(kind, "names")}
    image: Callable[[int], SavedImage] = partial(SavedImage, path / _STATE)
    return Rows(file, table, image, value_names, domain, SPLIT_OF.get(split.lower(), ""))


@lru_cache(maxsize=4)
def _load(path: Path) -> Any:
    """Return a saved data set whose images stay encoded."""
    library = _library()
    data = library.load_from_disk(str(path))
    if isinstance(data.features.get(IMAGE), library.Image):
        data = data.cast_column(IMAGE, library.Image(decode=False))
    return data


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise DataError(
            "hugging_face needs the package datasets: pip install 'raysim[hf]'"
        ) from None


SOURCE = Source(
    read=read,
    title="Hugging Face data set saved to disk",
    domains="the values of the column domain, or the folders of the root",
    layout="what Dataset.save_to_disk or DatasetDict.save_to_disk wrote, or <domain>/ of these",
    url="https://huggingface.co/datasets",
)

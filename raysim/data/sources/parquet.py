"""Parquet: one file a domain, or files with a column `domain`; encoded images in a column."""

import json
import re
from functools import partial
from pathlib import Path

import pyarrow as pa

from raysim.data.listing import Listing
from raysim.data.sources import containers
from raysim.data.sources.class_folders import SPLITS
from raysim.data.sources.containers import ParquetImage
from raysim.data.sources.files import Scan, printable
from raysim.data.sources.source import Source
from raysim.data.sources.table import COLUMNS, IMAGE, Rows, list_rows
from raysim.errors import DataError

_SHARD = re.compile(r"^([a-z]+)-\d+-of-\d+$")
"""Names that Hugging Face gives the files of a split."""


def read(scan: Scan) -> Listing:
    """List the Parquet files of the root, or of its folder `data/`; the root may be one file.

    Columns: `image` (encoded, or a struct with `bytes`), `label` or `label_name` or both;
    optionally `split`, `domain` and a unique name. Without a column `domain`, a file is a domain
    and its name says which.

    Raises:
        DataError: no file is there, or a column is missing, of a wrong type or contradictory.
    """
    paths = _files(scan)
    if not paths:
        raise scan.missing("parquet: a file *.parquet", [scan.root, scan.root / "data"], SOURCE.url)
    try:
        return list_rows(scan, [_rows(scan, path) for path in paths])
    except OSError as error:
        raise DataError(f"data.root: {error}") from None


def _files(scan: Scan) -> list[Path]:
    if scan.root.is_file():
        return [scan.root]
    for folder in (scan.root, scan.child(scan.root, "data")):
        found = [path for path in scan.files(folder) if _is_parquet(path)] if folder else []
        if found:
            return found
    return []


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _rows(scan: Scan, path: Path) -> Rows:
    file = scan.relative(path)
    schema = containers.parquet_schema(path)
    if IMAGE not in schema.names:
        names = ", ".join(schema.names)
        raise DataError(f"data.root: {file}: no column {IMAGE!r}; its columns: {names}")
    if not _holds_bytes(schema.field(IMAGE).type):
        raise DataError(
            f"data.root: {file}: column {IMAGE!r} is {schema.field(IMAGE).type}: make it the "
            "bytes of an image file"
        )
    shard = _SHARD.match(path.stem)
    if shard and "domain" not in schema.names:
        raise DataError(
            f"data.root: {file}: no column 'domain', and the file's name is no domain's: add the "
            "column or rename the file"
        )
    return Rows(
        file,
        containers.parquet_columns(path, [name for name in COLUMNS if name in schema.names]),
        partial(_image, path),
        _value_names(schema),
        domain=printable(path.stem),
        split=SPLITS.get(shard[1], "") if shard else "",
    )


def _image(path: Path, row: int) -> ParquetImage:
    return ParquetImage(path, row, IMAGE)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _value_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of labels that Hugging Face keeps beside the columns, by column."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return {}
    features = json.loads(text).get("info", {}).get("features", {})
    kinds = {name: kind for name, kind in features.items() if isinstance(kind, dict)}
    return {name: kind["names"] for name, kind in kinds.items() if kind.get("names")}


SOURCE = Source(
    read=read,
    title="Parquet files",
    domains="the files' names, or the values of the column domain",
    layout=(
        "<domain>.parquet, or [data/]*.parquet with a column domain; columns image, label and/or "
        "label_name, optionally split and source_path"
    ),
    url="",
)

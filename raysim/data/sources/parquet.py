"""Parquet: one file a domain, or files with a column `domain`; encoded images in a column."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, Field, ValidationError

from raysim.data.listing import Listing
from raysim.data.sources import containers
from raysim.data.sources.class_folders import SPLIT_OF
from raysim.data.sources.containers import ParquetImage
from raysim.data.sources.files import Scan, printable
from raysim.data.sources.source import Source
from raysim.data.sources.table import COLUMNS, IMAGE, Rows, list_rows
from raysim.errors import DataError

_SHARD = re.compile(r"^([a-z]+)-\d+-of-\d+$")
"""Names that Hugging Face gives the files of a split."""


class _ClassLabel(BaseModel):
    """What Hugging Face says of a column of classes."""

    names: list[str] | None = None


class _Info(BaseModel):
    """What Hugging Face says of all columns."""

    features: dict[str, Any] = Field(default_factory=dict)


class _Metadata(BaseModel):
    """What Hugging Face writes beside the columns."""

    info: _Info = Field(default_factory=_Info)


def read(scan: Scan) -> Listing:
    """List the Parquet files of the root, or of its folder `data/`; the root may be one file.

    Columns: `image` (encoded, or a struct with `bytes`), `label` or `label_name` or both;
    optionally `split`, `domain` and a unique name. Without a column `domain`, a file is a domain
    and its name says which.

    Raises:
        DataError: no file is there, or a column is missing, of a wrong type or contradictory.
    """
    paths = parquet_files(scan)
    if not paths:
        raise scan.missing("parquet: a file *.parquet", [scan.root, scan.root / "data"], SOURCE.url)
    try:
        return list_rows(scan, [_rows(scan, path) for path in paths])
    except OSError as error:
        raise DataError(f"data.root: {error}") from None


def parquet_files(scan: Scan) -> list[Path]:
    """Return the Parquet files of a root, or of its folder `data/`; the root may be one."""
    if scan.root.is_file():
        return [scan.root]
    for folder in (scan.root, scan.child(scan.root, "data")):
        found = [path for path in scan.files(folder) if is_parquet(path)] if folder else []
        if found:
            return found
    return []


def is_parquet(path: Path) -> bool:
    """Return whether a file is a Parquet file by its extension."""
    return path.suffix.lower() in (".parquet", ".pq")


def _rows(scan: Scan, path: Path) -> Rows:
    file = scan.relative(path)
    schema = containers.parquet_schema(path)
    for name in (IMAGE, *COLUMNS):
        if schema.names.count(name) > 1:
            raise DataError(f"data.root: {file}: more than one column {name!r}: keep one")
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
        _value_names(file, schema),
        domain=printable(path.stem),
        split=SPLIT_OF.get(shard[1], "") if shard else "",
    )


def _image(path: Path, row: int) -> ParquetImage:
    return ParquetImage(path, row, IMAGE)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _value_names(file: str, schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of labels that Hugging Face keeps beside the columns, by column."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return {}
    try:
        features = _Metadata.model_validate_json(text).info.features
        kinds = {
            column: _ClassLabel.model_validate(feature)
            for column, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in ("huggingface", *problem["loc"]))
        raise DataError(
            f"data.root: {file}: its metadata {place}: {problem['msg']}: write it again "
            "without, with a column label_name"
        ) from None
    return {column: kind.names for column, kind in kinds.items() if kind.names}


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

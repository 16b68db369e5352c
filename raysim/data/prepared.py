"""Prepared data on disk: a manifest and one Arrow file a domain, pixels ready to map into memory.

A file is Arrow IPC without compression, in batches of `batch_rows(size)` rows, so that a row's
pixels lie where arithmetic says: a local file is mapped, a remote one is read batch by batch.

| column | type | content |
|---|---|---|
| pixels | fixed_size_binary[3 * S * S] | uint8 [3, S, S], RGB |
| label | int64 | 0..K-1 |
| split | string | "train", "val" or "test" where the source is official about it, else "" |
| name | string | the image's name in its source, unique in the domain |
| pixels_id | fixed_size_binary[16] | hash of the decoded pixels before resizing |
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, ValidationError
from typing_extensions import TypedDict

from raysim.data.findings import KINDS, Found
from raysim.data.places import filesystem, read_json
from raysim.errors import DataError
from raysim.settings import Settings

FORMAT = 1
MANIFEST = "manifest.json"
ID_BYTES = 16
_BLOCK_BYTES = 2**22
_AGAIN = "prepare it again"
COLUMNS = ("pixels", "label", "split", "name", "pixels_id")
NAME = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$"
"""What prepared data may be called: it is part of folder names."""


def _of_known_kinds(found: Any) -> Any:
    """Leave out kinds of findings that this version does not know."""
    if not isinstance(found, dict):
        return found
    return {kind: what for kind, what in found.items() if kind in KINDS}


class Origin(TypedDict, total=False):
    """Where prepared data came from.

    `reader` and `root` are the source's, `fingerprint` is the request's and the files', `policies`
    those that differ from the defaults, `num_records` the images listed.
    """

    reader: str
    root: str
    fingerprint: str
    policies: dict[str, str]
    num_records: int


class DomainCounts(Settings):
    """What a domain holds."""

    name: str = Field(pattern=r"^[^/]+$")
    """The domain."""
    images: int
    """Rows of its file."""
    splits: dict[str, int]
    """Images by official split; "" where the source has none."""
    classes: dict[str, int]
    """Images by class."""


class DomainEntry(DomainCounts):
    """One domain in the manifest."""

    file: str = Field(pattern=r"^[\w-][\w.-]*\.arrow$")
    """Its file, beside the manifest."""
    sha256: str
    """Hash of the file."""
    num_bytes: int
    """Size of the file."""


class Manifest(Settings):
    """What a folder of prepared data says about itself."""

    format: int = FORMAT
    """Version of the layout."""
    name: str = Field(pattern=NAME)
    """Data set."""
    size: int = Field(ge=1, le=2**14)
    """Height and width of the images in pixels."""
    classes: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    """Class names; the position is the label."""
    domains: tuple[DomainEntry, ...] = Field(min_length=1)
    """In the order of the domain ids."""
    sha256: str
    """Hash of all of the above: equal for equal pixels, labels, splits and image names in the same
    order, as one version of Arrow writes them."""
    source: Origin = Field(default_factory=Origin)
    """Where it came from."""
    findings: Annotated[dict[str, Found], BeforeValidator(_of_known_kinds)] = Field(
        default_factory=dict
    )
    """What was found in the source's files, by kind."""


def content_hash(
    name: str, size: int, classes: tuple[str, ...], domains: Iterable[DomainEntry]
) -> str:
    """Return the hash of prepared data: of its names and of its files' hashes."""
    what = [FORMAT, name, size, classes, [(d.name, d.sha256) for d in domains]]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def schema(size: int) -> pa.Schema:
    """Return the columns of a domain's file for images of a size."""
    types = (
        pa.binary(3 * size * size),
        pa.int64(),
        pa.string(),
        pa.string(),
        pa.binary(ID_BYTES),
    )
    return pa.schema([pa.field(n, t, nullable=False) for n, t in zip(COLUMNS, types, strict=True)])


def batch_rows(size: int) -> int:
    """Return the rows of a batch for images of a size: about 4 MiB of pixels."""
    return max(1, 2**22 // (3 * size * size))


def read_manifest(root: str) -> Manifest | None:
    """Read the manifest of a folder; None if there is none.

    Args:
        root: path or URI.

    Raises:
        DataError: it cannot be reached, or is not a manifest of this version as it was written.
    """
    files, path = filesystem(root)
    try:
        tree = read_json(files, f"{path}/{MANIFEST}")
    except ValueError as error:
        raise DataError(f"{root}: the manifest cannot be read ({error})") from None
    except OSError as error:
        raise DataError(f"{root}: cannot be read: {error.strerror or error}") from None
    if tree is None:
        return None
    found = tree.get("format") if isinstance(tree, dict) else None
    if found != FORMAT:
        raise DataError(
            f"{root}/{MANIFEST}: format {found!r}, this version reads {FORMAT}: prepare it again"
        )
    try:
        manifest = Manifest.model_validate(tree)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise DataError(f"{root}/{MANIFEST}: {place}: {problem['msg']}: {_AGAIN}") from None
    if not _is_coherent(manifest):
        raise DataError(f"{root}/{MANIFEST}: edited by hand (its parts do not agree): {_AGAIN}")
    return manifest


def _is_coherent(manifest: Manifest) -> bool:
    """Tell whether a manifest's parts agree as they did when it was written."""
    what = manifest.name, manifest.size, manifest.classes, manifest.domains
    domains = {entry.name for entry in manifest.domains}
    return (
        manifest.sha256 == content_hash(*what)
        and len(set(manifest.classes)) == len(manifest.classes)
        and len(domains) == len(manifest.domains)
        and all(tuple(entry.classes) == manifest.classes for entry in manifest.domains)
    )


@dataclass(frozen=True)
class PreparedFile:
    """One domain's file, opened when first read.

    Attributes:
        root: path or URI of the folder.
        entry: what the manifest says of the file.
        size: height and width of the images.
    """

    root: str
    entry: DomainEntry
    size: int
    _open: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without the open file."""
        return PreparedFile, (self.root, self.entry, self.size)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Labels of all rows, int64 [N], each the position of a class."""
        labels = np.asarray(self._column("label").to_numpy(zero_copy_only=False), np.int64)
        num_classes = len(self.entry.classes)
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        if len(wrong):
            raise self._damaged(f"label {wrong[0]}, there are {num_classes} classes")
        return labels

    @cached_property
    def splits(self) -> NDArray[np.str_]:
        """Official splits of all rows, str [N]."""
        return np.asarray(self._column("split").to_pylist(), np.str_)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all rows in their source."""
        return tuple(self._column("name").to_pylist())

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """Numbers that are equal for images of equal pixels, int64 [N]."""
        ids = self._column("pixels_id").combine_chunks().dictionary_encode()
        return np.asarray(ids.indices.to_numpy(zero_copy_only=False), np.int64)

    def read_pixels(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Read the pixels of some rows; only the batches that hold them are touched.

        Args:
            rows: int64 [N].
            out: uint8 [N, 3, S, S], filled in the order of `rows`.

        Raises:
            DataError: the file is missing or damaged.
        """
        flat = out.reshape(len(rows), 3 * self.size * self.size)
        step = batch_rows(self.size)
        batch_of = rows // step
        for number in np.unique(batch_of):
            here = np.flatnonzero(batch_of == number)
            flat[here] = self._batch_pixels(int(number))[rows[here] - number * step]
        self._open.pop("pixels", None)  # an open mapping holds every page that was touched

    def _batch_pixels(self, number: int) -> NDArray[np.uint8]:
        try:
            column = self._reader("pixels").get_batch(number).column(0)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(error) from error
        width = 3 * self.size * self.size
        values = np.frombuffer(column.buffers()[1], np.uint8)
        start = column.offset * width
        return values[start : start + len(column) * width].reshape(len(column), width)

    def _column(self, name: str) -> pa.ChunkedArray:
        try:
            return self._reader(name).read_all().column(0)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(error) from error

    def _reader(self, column: str) -> Any:
        """Return a reader of one column; a local file is mapped, not read."""
        if column not in self._open:
            files, path = filesystem(self.root)
            where = f"{path}/{self.entry.file}"
            try:
                local = isinstance(files, pafs.LocalFileSystem)
                stream = pa.memory_map(where) if local else files.open_input_file(where)
                options = pa.ipc.IpcReadOptions(included_fields=[COLUMNS.index(column)])
                reader = pa.ipc.open_file(stream, options=options)
            except (OSError, pa.ArrowException) as error:
                raise self._damaged(error) from error
            if not reader.schema.equals(pa.schema([schema(self.size).field(column)])):
                raise self._damaged("its columns are not those of the manifest")
            self._open[column] = reader
        return self._open[column]

    def _damaged(self, reason: object) -> DataError:
        return DataError(
            f"{self.root}/{self.entry.file}: cannot be read ({reason}). Prepare or copy it again; "
            "if it was prepared anew meanwhile, start again; hosts on other machines need a shared "
            "path or a URI"
        )


def check_files(root: str, manifest: Manifest) -> None:
    """Check that every file is there and as long as the manifest says.

    Raises:
        DataError: names the first file that is not.
    """
    files, path = filesystem(root)
    for entry in manifest.domains:
        info = files.get_file_info(f"{path}/{entry.file}")
        if info.type != pafs.FileType.File or info.size != entry.num_bytes:
            found = f"{info.size:,} bytes" if info.type == pafs.FileType.File else "missing"
            raise DataError(
                f"{root}/{entry.file}: {found}, the manifest says {entry.num_bytes:,} bytes: "
                "prepare it again"
            )


def verify(root: str) -> None:
    """Check the content of every file against the manifest; reads all of it.

    Args:
        root: path or URI of the folder.

    Raises:
        DataError: there is no manifest, or names the first file that is missing or damaged.
    """
    manifest = read_manifest(root)
    if manifest is None:
        raise DataError(f"{root}: not prepared (no {MANIFEST})")
    check_files(root, manifest)
    files, path = filesystem(root)
    for entry in manifest.domains:
        sha = hashlib.sha256()
        try:
            with files.open_input_file(f"{path}/{entry.file}") as stream:
                while block := stream.read(_BLOCK_BYTES):
                    sha.update(block)
        except OSError as error:
            raise DataError(f"{root}/{entry.file}: cannot be read ({error})") from None
        if sha.hexdigest() != entry.sha256:
            raise DataError(
                f"{root}/{entry.file}: damaged (its sha256 is not the manifest's): prepare or copy "
                "it again"
            )

"""Data sets of several domains: one Parquet file a domain, opened lazily and decoded on demand.

A file has the columns `image` (encoded PNG, JPEG or WebP), `label` (int64), `split` ("train" or
"test") and, if the classes have names, `label_name`. Reading columns instead of loading everything
keeps the driver small: it only ever needs labels.

Shape suffixes: N examples, H height, W width.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from raysim.errors import ConfigError, DataError
from raysim.settings import did_you_mean

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Examples:
    """Decoded examples.

    Attributes:
        images: uint8 [N, 3, H, W], C-contiguous, RGB.
        labels: int64 [N].
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """What the library knows about a data set before it opens a file.

    Attributes:
        domains: file stems in the order of the domain ids.
        stored_size: height and width of the stored images.
        mean: per channel, in units of 0..1.
        std: per channel, in units of 0..1.
        embedded: the files are part of the package.
    """

    domains: tuple[str, ...]
    stored_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    embedded: bool = False


_HALF = (0.5, 0.5, 0.5)
_RECIPES: Mapping[str, Recipe] = {
    "digits_mini": Recipe(("mnist", "optdigits", "mnist_m", "syn"), 32, _HALF, _HALF, True),
}
DATASETS: tuple[str, ...] = tuple(_RECIPES)


@dataclass(frozen=True)
class Dataset:
    """A data set of several domains that share their classes; holds paths, not pixels.

    Attributes:
        name: as the configuration spells it.
        folder: where the files `<domain>.parquet` lie.
        domains: names; the position is the domain id.
        classes: names; the position is the label.
        image_size: height and width that `examples` returns.
        mean: per channel, in units of 0..1, for normalisation.
        std: per channel, in units of 0..1, for normalisation.
    """

    name: str
    folder: Path
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def labels(self, domain: str, split: str) -> NDArray[np.int64]:
        """Read the labels of one split without touching its images.

        Args:
            domain: one of `domains`.
            split: "train" or "test".

        Returns:
            int64 [N] in 0..len(classes)-1, in the order that `examples` uses.

        Raises:
            DataError: the domain, the split or the file is missing, or the file is unreadable.
        """
        table = _read(self._file(domain, split), ["label", "split"])
        labels = _integers(table, "label")
        return labels[_rows(table, split)]

    def examples(
        self, domain: str, split: str, indices: NDArray[np.int64] | None = None
    ) -> Examples:
        """Decode examples of one split.

        Args:
            domain: one of `domains`.
            split: "train" or "test".
            indices: int64 [N] positions in the split; None for all of it. Only the row groups that
                hold them are read and only these images are decoded.

        Returns:
            The examples in the order of `indices`.

        Raises:
            DataError: something is missing, an index is out of range or an image is unreadable.
        """
        path = self._file(domain, split)
        table = _read(path, ["label", "split"])
        rows = _rows(table, split)
        if indices is not None:
            if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(rows):
                raise DataError(
                    f"{self.name}: {domain} {split} has {len(rows)} examples, "
                    f"asked for {int(indices.min())}..{int(indices.max())}"
                )
            rows = rows[indices]
        images = np.empty((len(rows), 3, self.image_size, self.image_size), np.uint8)
        for position, encoded in _encoded_images(path, rows):
            images[position] = decode(encoded, self.image_size, f"{path}, row {rows[position]}")
        return Examples(images, _integers(table, "label")[rows])

    def _file(self, domain: str, split: str) -> Path:
        if domain not in self.domains:
            hint = did_you_mean(domain, self.domains)
            raise DataError(f"{self.name} has no domain {domain!r}{hint}")
        if split not in SPLITS:
            raise DataError(f"no split {split!r}{did_you_mean(split, SPLITS)}")
        return self.folder / f"{domain}.parquet"


def open_dataset(name: str, root: str | Path | None = None, image_size: int = 32) -> Dataset:
    """Open a data set by name; images are decoded later, when asked for.

    Args:
        name: one of `DATASETS`.
        root: the folder that has a folder `name`; None for data that is part of the package.
        image_size: height and width of the images in pixels, >= 1; stored images of another size
            are resized bilinearly when they are read.

    Raises:
        ConfigError: the name is unknown or the size is not positive.
        DataError: files are missing or contradict each other.
    """
    if name not in _RECIPES:
        raise ConfigError(f"data.name: no data set {name!r}{did_you_mean(name, DATASETS)}")
    if image_size < 1:
        raise ConfigError(f"data.image_size={image_size} is not a number of pixels (1 or more)")
    recipe = _RECIPES[name]
    embedded = Path(__file__).parent / name
    folder = embedded if root is None else Path(root) / name
    if not folder.is_dir():
        remedy = "leave data.root out: this data is part of the package" if recipe.embedded else ""
        raise DataError(f"data.root={root}: no folder {folder}; {remedy}".rstrip("; "))
    files = [folder / f"{domain}.parquet" for domain in recipe.domains]
    return Dataset(
        name, folder, recipe.domains, _classes(files), image_size, recipe.mean, recipe.std
    )


def decode(encoded: bytes, size: int, origin: str) -> NDArray[np.uint8]:
    """Decode one image to RGB and bring it to a size.

    Args:
        encoded: the bytes of an image file.
        size: height and width of the result.
        origin: where the bytes come from, for the error message.

    Returns:
        uint8 [3, size, size].

    Raises:
        DataError: the bytes are no image.
    """
    try:
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
    except OSError as error:
        raise DataError(f"{origin}: not a readable image ({error})") from error
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8).transpose(2, 0, 1)


def _read(path: Path, columns: list[str]) -> pa.Table:
    missing = sorted(set(columns) - set(_schema(path).names))
    if missing:
        raise DataError(f"{path}: no column {', '.join(missing)}")
    with pq.ParquetFile(path) as file:
        return file.read(columns=columns)


def _integers(table: pa.Table, column: str) -> NDArray[np.int64]:
    return np.asarray(table.column(column).to_numpy(), np.int64)


def _rows(table: pa.Table, split: str) -> NDArray[np.int64]:
    return np.flatnonzero(table.column("split").to_numpy(zero_copy_only=False) == split)


def _encoded_images(path: Path, rows: NDArray[np.int64]) -> list[tuple[int, bytes]]:
    """Return (position in `rows`, encoded image), reading only the row groups that are needed."""
    found: list[tuple[int, bytes]] = []
    with pq.ParquetFile(path) as file:
        start = 0
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            positions = np.flatnonzero((rows >= start) & (rows < stop))
            if len(positions):
                column = file.read_row_group(group, columns=["image"]).column("image")
                images = column.take(pa.array(rows[positions] - start)).to_pylist()
                found.extend(zip(positions.tolist(), images, strict=True))
            start = stop
    return found


def _classes(files: list[Path]) -> tuple[str, ...]:
    """Read the class names and check that every domain gives a label the same name."""
    names: dict[int, str] = {}
    for path in files:
        has_names = "label_name" in _schema(path).names
        table = _read(path, ["label", "label_name"] if has_names else ["label"])
        labels = table.column("label").to_pylist()
        spelled = table.column("label_name").to_pylist() if has_names else map(str, labels)
        for label, name in sorted(set(zip(labels, spelled, strict=True))):
            if names.setdefault(label, name) != name:
                raise DataError(
                    f"{path}: label {label} is {name!r} here and {names[label]!r} elsewhere"
                )
    if sorted(names) != list(range(len(names))) or not names:
        raise DataError(f"{files[0].parent}: labels are not 0..K-1 without gaps: {sorted(names)}")
    return tuple(names[label] for label in range(len(names)))


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error

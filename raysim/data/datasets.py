"""Data sets of several domains, opened lazily: labels first, pixels of single rows when asked for.

A data set is part of the package (`raysim.data.encoded`) or prepared (`raysim.data.prepared`).
Reading columns instead of loading everything keeps the driver small: it only ever needs labels.

Shape suffixes: N examples, H height, W width.
"""

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.data.encoded import EncodedFile, class_names
from raysim.data.images import resize
from raysim.data.places import is_uri
from raysim.data.prepared import (
    MANIFEST,
    Manifest,
    PreparedFile,
    check_files,
    read_manifest,
)
from raysim.data.settings import DataSettings
from raysim.data.shards import SPLITS
from raysim.data.splits import cut
from raysim.errors import ConfigError, DataError
from raysim.settings import did_you_mean

_MOMENTS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
_BLOCK = 256  # images that are resized at a time
_NAMED = 10  # classes that an error lists

EMBEDDED: Mapping[str, tuple[str, ...]] = {
    "digits_mini": ("mnist", "optdigits", "mnist_m", "syn"),
}
"""Data sets that are part of the package, with their domains in the order of the ids."""


@dataclass(frozen=True)
class Examples:
    """Decoded examples.

    Attributes:
        images: uint8 [N, 3, H, W], C-contiguous, RGB.
        labels: int64 [N].
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class DomainFile(Protocol):
    """The rows of one domain."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Return the labels, int64 [N]."""

    @property
    def splits(self) -> NDArray[np.str_]:
        """Return the official splits, str [N], "" where there is none."""

    @property
    def names(self) -> Sequence[str]:
        """Return names, unique in the domain."""

    @property
    def groups(self) -> NDArray[np.int64]:
        """Return numbers that are equal for images of equal pixels, int64 [N]."""

    @property
    def size(self) -> int:
        """Return the height and width of the stored images."""

    def read_pixels(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Fill `out`, uint8 [N, 3, size, size], with some rows."""


@dataclass(frozen=True)
class Dataset:
    """A data set of several domains that share their classes; holds paths, not pixels.

    Attributes:
        name: as the configuration spells it.
        files: one a domain.
        domains: names; the position is the domain id.
        classes: names; the position is the label.
        sha256: hash of the content, wherever it lies.
        settings: sizes, splits and normalisation.
        seed: the run's seed, for random splits.
    """

    name: str
    files: tuple[DomainFile, ...]
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    sha256: str
    settings: DataSettings
    seed: int = 0
    _rows: dict[str, Mapping[str, NDArray[np.int64]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def image_size(self) -> int:
        """Height and width that `examples` returns."""
        return self.settings.image_size

    @property
    def mean(self) -> tuple[float, float, float]:
        """Mean by channel, in units of 0..1, for normalisation."""
        return _MOMENTS[self.settings.normalize][0]

    @property
    def std(self) -> tuple[float, float, float]:
        """Standard deviation by channel, in units of 0..1, for normalisation."""
        return _MOMENTS[self.settings.normalize][1]

    def labels(self, domain: str, split: str) -> NDArray[np.int64]:
        """Read the labels of one split without touching its images.

        Args:
            domain: one of `domains`.
            split: "train", "val" or "test".

        Returns:
            int64 [N] in 0..len(classes)-1, in the order that `examples` uses.

        Raises:
            DataError: the domain, the split or the file is missing, or the file is unreadable.
        """
        return self._file(domain).labels[self.rows(domain, split)]

    def counts(self, split: str) -> NDArray[np.int64]:
        """Count the images of one split by class and domain.

        Args:
            split: "train", "val" or "test".

        Returns:
            int64 [K classes, D domains].

        Raises:
            DataError: as `labels`.
        """
        labels = [self.labels(domain, split) for domain in self.domains]
        return np.stack([np.bincount(of, minlength=len(self.classes)) for of in labels], axis=1)

    def names(self, domain: str, split: str) -> Sequence[str]:
        """Read the images' names in their source, unique in the domain, in the order of `labels`.

        Raises:
            DataError: as `labels`.
        """
        names = self._file(domain).names
        return [names[row] for row in self.rows(domain, split)]

    def examples(
        self, domain: str, split: str, indices: NDArray[np.int64] | None = None
    ) -> Examples:
        """Read examples of one split.

        Args:
            domain: one of `domains`.
            split: "train", "val" or "test".
            indices: int64 [N] positions in the split; None for all of it. Only what holds them is
                read.

        Returns:
            The examples in the order of `indices`.

        Raises:
            DataError: something is missing, an index is out of range or an image is unreadable.
        """
        if indices is None:
            indices = np.arange(len(self.rows(domain, split)))
        images = np.empty((len(indices), 3, self.image_size, self.image_size), np.uint8)
        return Examples(images, self.read(domain, split, indices, images))

    def read(
        self, domain: str, split: str, indices: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> NDArray[np.int64]:
        """Read examples into memory that is there already; see `examples`.

        Args:
            domain: one of `domains`.
            split: "train", "val" or "test".
            indices: int64 [N] positions in the split.
            out: uint8 [N, 3, H, W], filled with the images.

        Returns:
            The labels, int64 [N].
        """
        file, rows = self._file(domain), self.rows(domain, split)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(rows):
            raise DataError(
                f"{self.name}: {domain} {split} has {len(rows)} examples, "
                f"asked for {int(indices.min())}..{int(indices.max())}"
            )
        rows = rows[indices]
        if file.size == self.image_size:
            file.read_pixels(rows, out)
        else:
            self._read_resized(file, rows, out)
        return file.labels[rows]

    def rows(self, domain: str, split: str) -> NDArray[np.int64]:
        """Return the rows of a split in its domain's file, int64 [N].

        Raises:
            DataError: as `labels`.
        """
        file = self._file(domain)
        if split not in SPLITS:
            raise DataError(f"no split {split!r}{did_you_mean(split, SPLITS)}")
        if domain not in self._rows:
            self._rows[domain] = cut(
                self.settings.split,
                labels=file.labels,
                official=file.splits,
                groups=file.groups,
                seed=self.seed,
                domain=self.domains.index(domain),
                where=f"{self.name}: {domain}",
            )
        return self._rows[domain][split]

    def _file(self, domain: str) -> DomainFile:
        if domain not in self.domains:
            hint = did_you_mean(domain, self.domains)
            raise DataError(f"{self.name} has no domain {domain!r}{hint}")
        return self.files[self.domains.index(domain)]

    def _read_resized(
        self, file: DomainFile, rows: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> None:
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            stored = np.empty((len(block), 3, file.size, file.size), np.uint8)
            file.read_pixels(block, stored)
            for position, pixels in enumerate(stored, start):
                out[position] = resize(pixels, self.image_size)


def open_dataset(settings: DataSettings, seed: int = 0) -> Dataset:
    """Open a data set; images are read later, when asked for.

    Args:
        settings: which one, where, and how it is split. Its root holds prepared data.
        seed: the run's seed.

    Raises:
        ConfigError: the name is unknown, or the data was prepared for other settings.
        DataError: files are missing or contradict each other, or the data is not prepared.
    """
    manifest = read_manifest(settings.root) if settings.root is not None else None
    if manifest is not None:
        return _open_prepared(settings, manifest, seed)
    if settings.root is None and settings.name in EMBEDDED:
        return _open_embedded(settings, seed)
    raise not_there(settings)


def not_there(settings: DataSettings) -> ConfigError | DataError:
    """Say why settings lead to no data that can be opened, and what to do about it."""
    from raysim.data.sources import SOURCES  # its readers take half a second to import

    name, root = settings.name, settings.root
    known = [*EMBEDDED, *SOURCES]
    if root is None and name in SOURCES:
        return DataError(
            f"data.root: where is {name}? Give the folder that holds it ({SOURCES[name].layout}), "
            f"or one that `raysim data prepare` has made; get the files from {SOURCES[name].url}"
        )
    if root is None:
        return ConfigError(f"data.name: no data set {name!r}{did_you_mean(name, known)}")
    if name in EMBEDDED:
        return DataError(f"data.root={root}: leave data.root out: {name} is part of the package")
    if is_gone(root):
        raw = f", or {name} as people have it ({SOURCES[name].layout})" if name in SOURCES else ""
        return DataError(
            f"data.root={root}: nothing is there; prepared data was expected{raw}. If it has "
            "moved, data.root=FOLDER says where it is now"
        )
    if name not in SOURCES:
        return DataError(
            f"data.root={root} is not prepared, and data.name={name} is no layout that can be "
            f"read{did_you_mean(name, known)}"
        )
    source, out = ("FOLDER", root) if is_uri(root) else (root, "FOLDER")
    return DataError(
        f"data.root={root}: no prepared data there (no {MANIFEST}); run "
        f"`{_prepare_command(name, source, out, settings)}`"
    )


def is_gone(root: str) -> bool:
    """Tell whether a root is a path where nothing is."""
    if is_uri(root):
        return False
    try:
        os.stat(root)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # something is there, and cannot be read
        return False
    return False


def _prepare_command(reader: str, root: str, out: str, settings: DataSettings) -> str:
    """Return the command that prepares data as the settings want it."""
    words = ["raysim", "data", "prepare", reader, "--root", root, "--out", out]
    words += ["--size", str(settings.image_size)]
    if reader != settings.name:
        words += ["--name", settings.name]
    if settings.classes is not None:
        names = settings.classes
        words += ["--classes", names if isinstance(names, str) else ",".join(names)]
    return shlex.join(words)


def _listed(classes: Sequence[str]) -> str:
    """Name classes, the first ones of many."""
    names = ", ".join([*classes[:_NAMED], *(["..."] if len(classes) > _NAMED else [])])
    return f"{len(classes)} classes ({names})"


def _open_prepared(settings: DataSettings, manifest: Manifest, seed: int) -> Dataset:
    root = str(settings.root)
    if manifest.name != settings.name:
        raise ConfigError(
            f"data.root={root} holds {manifest.name}, not {settings.name}: "
            f"set data.name={manifest.name}"
        )
    reader, source = manifest.source.get("reader", manifest.name), manifest.source.get("root")
    again = f"`{_prepare_command(reader, source or 'SOURCE', 'FOLDER', settings)}`"
    wanted = _wanted_classes(settings, reader)
    if wanted is not None and wanted != manifest.classes:
        raise ConfigError(
            f"data.classes: {root} was prepared with {_listed(manifest.classes)}, not with "
            f"{_listed(wanted)}: leave data.classes out, or prepare the source again: {again}"
        )
    if settings.image_size > manifest.size:
        raise ConfigError(
            f"data.image_size={settings.image_size}: {root} was prepared at {manifest.size} px: "
            f"set data.image_size={manifest.size}, or prepare the source again: {again}"
        )
    check_files(root, manifest)
    return Dataset(
        settings.name,
        tuple(PreparedFile(root, entry, manifest.size) for entry in manifest.domains),
        tuple(entry.name for entry in manifest.domains),
        manifest.classes,
        manifest.sha256,
        settings,
        seed,
    )


def _wanted_classes(settings: DataSettings, reader: str) -> tuple[str, ...] | None:
    """Return the classes that settings ask for, those of a subset by its name; None for all."""
    if settings.classes is None or isinstance(settings.classes, tuple):
        return settings.classes
    from raysim.data.sources import SOURCES  # its readers take half a second to import

    # PACS read from Parquet files has the subsets of both.
    sources = [SOURCES[name] for name in (reader, settings.name) if name in SOURCES]
    subsets = {name: classes for source in sources for name, classes in source.subsets.items()}
    if settings.classes not in subsets:
        hint = did_you_mean(settings.classes, subsets) if subsets else ""
        raise ConfigError(
            f"data.classes: {settings.name} has no subset {settings.classes!r}"
            f"{hint or ': list the classes'}"
        )
    return subsets[settings.classes]


def _open_embedded(settings: DataSettings, seed: int) -> Dataset:
    name = settings.name
    folder = Path(__file__).parent / name
    files = tuple(EncodedFile(folder / f"{domain}.parquet") for domain in EMBEDDED[name])
    classes = class_names(files)
    sha256 = hashlib.sha256(b"".join(file.path.read_bytes() for file in files)).hexdigest()
    return Dataset(name, files, EMBEDDED[name], classes, sha256, settings, seed)

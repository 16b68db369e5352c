"""Digits: MNIST, USPS, SVHN, MNIST-M and SYN, as their authors' files or as folders."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysim.data.listing import ImageFile, ImageRef, Listing, Record
from raysim.data.sources import containers
from raysim.data.sources.class_folders import records, respell, spellings, split_class_folders
from raysim.data.sources.containers import Ints
from raysim.data.sources.files import Scan
from raysim.data.sources.lists import read_lines
from raysim.data.sources.source import Source
from raysim.errors import DataError

CLASSES = tuple(map(str, range(10)))


def read(scan: Scan) -> Listing:
    """List the digit domains that are there.

    Each is looked for in a folder of its name, in `raw/` or `MNIST/raw/` in there, and in the
    root. Authors' files win over class folders, which are `<domain>/<split>/<digit>/*` or
    `<domain>/<digit>/*`. Anything else in the root is left alone.

    Raises:
        DataError: no domain is there, or only a part of one.
    """
    found = {}
    for domain in _DOMAINS:
        folders = [p for p in scan.children(scan.root, *domain.folders) if p.is_dir()]
        part = _read_domain(scan, domain, folders)
        if part is not None:
            found[domain.name] = part
    if not found:
        names = ", ".join(f"{d.name} ({d.files[0][0]} or a folder)" for d in _DOMAINS)
        raise scan.missing(f"digits: any of {names}", [scan.root], SOURCE.url)
    scan.note_hidden(scan.root)
    return Listing(found, CLASSES, scan.findings)


@dataclass(frozen=True)
class _Domain:
    """One domain.

    Attributes:
        name: as results show it.
        folders: names that its folder goes by.
        files: the authors' files, each by the names it goes by.
        read: lists the records of these files.
        url: where people get them.
    """

    name: str
    folders: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    read: Callable[[Scan, Sequence[Path]], list[Record]]
    url: str


def _read_domain(scan: Scan, domain: _Domain, folders: Sequence[Path]) -> list[Record] | None:
    """Return a domain's records, or None if there is nothing of it."""
    inner = [path for folder in folders for path in scan.children(folder, *domain.folders)]
    raw = [path for folder in [*folders, *inner] for path in scan.children(folder, "raw")]
    files = _locate(scan, domain, [*folders, *inner, *raw, scan.root])
    if files is not None:
        return domain.read(scan, files)
    names = spellings(CLASSES)
    for folder in folders:
        found = respell(scan, split_class_folders(scan, folder), names)
        if found:
            _check_splits(scan, domain, folder, {class_folder.split for class_folder in found})
            return records(scan, found)
    if folders:
        what = f"digits: {domain.name}: {domain.files[0][0]}, or class folders 0 to 9"
        raise scan.missing(what, folders, domain.url)
    return None


def _locate(scan: Scan, domain: _Domain, places: Sequence[Path]) -> list[Path] | None:
    """Return the authors' files from the first place that has them all."""
    partial: tuple[str, Path] | None = None
    for place in places:
        found = [scan.child(place, *names) for names in domain.files]
        present = [path for path in found if path is not None]
        if len(present) == len(found):
            return present
        if present and partial is None:
            partial = domain.files[found.index(None)][0], place
    if partial is not None:
        raise scan.missing(
            f"digits: {domain.name}: the file {partial[0]}", [partial[1]], domain.url
        )
    return None


def _check_splits(scan: Scan, domain: _Domain, folder: Path, splits: set[str]) -> None:
    """Refuse training images without others and the other way round."""
    if splits in ({""}, {"train", "test"}, {"train", "val"}, {"train", "val", "test"}):
        return
    lacking = "test" if "train" in splits else "train"
    raise scan.missing(f"digits: {domain.name}: the folder {lacking}", [folder], domain.url)


def _read_mnist(scan: Scan, files: Sequence[Path]) -> list[Record]:
    found = []
    for split, (images, labels) in (("train", files[:2]), ("test", files[2:])):
        with _readable():
            label_of = containers.load_idx(labels).astype(np.int64).ravel()
            if containers.count_idx(images) != len(label_of):
                raise OSError(f"{images}: not as many images as {labels.name} has labels")
        found += _rows(scan, images, split, label_of, containers.IdxImage)
    return found


def _read_usps(scan: Scan, files: Sequence[Path]) -> list[Record]:
    found = []
    for split, path in zip(("train", "test"), files, strict=True):
        with _readable():
            labels = containers.load_libsvm(path)[1]
        found += _rows(scan, path, split, labels - 1, containers.LibsvmImage)
    return found


def _read_mat(scan: Scan, files: Sequence[Path]) -> list[Record]:
    found = []
    for split, path in zip(("train", "test"), files, strict=True):
        with _readable():
            labels = containers.mat_labels(path)
        zero_as_10 = np.where(labels == 10, 0, labels)
        found += _rows(scan, path, split, zero_as_10, containers.MatImage)
    return found


def _read_mnist_m(scan: Scan, files: Sequence[Path]) -> list[Record]:
    found = []
    for split, (folder, listed) in (("train", files[:2]), ("test", files[2:])):
        digit_of = {}
        for line in read_lines(scan, listed):
            if line.label > 9:
                raise DataError(f"data.root: {line.where}: {line.label} is no digit")
            digit_of[line.path] = str(line.label), line.where
        for path in scan.images(folder):
            digit, _ = digit_of.pop(path.relative_to(folder).as_posix(), ("", ""))
            if digit:
                found.append(Record(scan.relative(path), digit, split, ImageFile(path)))
            else:
                scan.findings.add("other_file", scan.relative(path), "without a label")
        for name, (_, where) in digit_of.items():
            if not (folder / name).exists():
                lost = f"{scan.relative(folder)}/{name}"
                scan.findings.add("missing_file", lost, f"named by {where}")
    return found


def _rows(
    scan: Scan, path: Path, split: str, digits: Ints, image: Callable[[Path, int], ImageRef]
) -> list[Record]:
    """Return a container's records, row by row."""
    name = scan.relative(path)
    wrong = np.flatnonzero((digits < 0) | (digits > 9))
    if len(wrong):
        raise DataError(f"data.root: {name}: the label of row {wrong[0]} is no digit")
    return [
        Record(f"{name}#{row}", str(digit), split, image(path, row))
        for row, digit in enumerate(digits.tolist())
    ]


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"data.root: digits: {error}: get the file again") from None


def _idx(name: str, dimensions: int) -> tuple[str, ...]:
    names = (f"{name}-idx{dimensions}-ubyte", f"{name}.idx{dimensions}-ubyte")
    return (*names, *(f"{name}.gz" for name in names))


_GANIN = "http://yaroslav.ganin.net"
_DOMAINS = (
    _Domain(
        "mnist",
        ("mnist",),
        (
            _idx("train-images", 3),
            _idx("train-labels", 1),
            _idx("t10k-images", 3),
            _idx("t10k-labels", 1),
        ),
        _read_mnist,
        "http://yann.lecun.com/exdb/mnist",
    ),
    _Domain(
        "usps",
        ("usps",),
        (("usps.bz2",), ("usps.t.bz2",)),
        _read_usps,
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
    ),
    _Domain(
        "svhn",
        ("svhn",),
        (("train_32x32.mat",), ("test_32x32.mat",)),
        _read_mat,
        "http://ufldl.stanford.edu/housenumbers",
    ),
    _Domain(
        "mnist_m",
        ("mnist_m", "mnistm"),
        (
            ("mnist_m_train",),
            ("mnist_m_train_labels.txt",),
            ("mnist_m_test",),
            ("mnist_m_test_labels.txt",),
        ),
        _read_mnist_m,
        _GANIN,
    ),
    _Domain(
        "syn",
        ("syn", "synth", "synthdigits", "synth_digits", "synthetic_digits"),
        (("synth_train_32x32.mat",), ("synth_test_32x32.mat",)),
        _read_mat,
        _GANIN,
    ),
)
SOURCE = Source(
    read=read,
    title="Digits (MNIST, USPS, SVHN, MNIST-M, SYN)",
    domains="mnist, usps, svhn, mnist_m, syn: those that are there",
    layout=(
        "MNIST/raw/*-ubyte[.gz], usps.bz2 and usps.t.bz2, train_32x32.mat and test_32x32.mat, "
        "mnist_m_train/ and mnist_m_test/ with *_labels.txt, synth_*_32x32.mat, in the root or in "
        "folders of the domains; or folders <domain>/[train|val|test/]<digit>/*"
    ),
    url=", ".join(dict.fromkeys(domain.url for domain in _DOMAINS)),
)

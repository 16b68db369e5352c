"""Folders of classes: `<domain>/<class>/*` or `<domain>/<split>/<class>/*`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raysim.data.listing import ImageFile, Record
from raysim.data.sources.files import Scan, printable
from raysim.errors import DataError

SPLIT_OF: Mapping[str, str] = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
"""Split of a record by the names people give it."""


@dataclass(frozen=True, slots=True)
class ClassFolder:
    """A folder of images of one class.

    Attributes:
        path: where it is.
        class_name: its class.
        split: as in `Record`.
    """

    path: Path
    class_name: str
    split: str = ""


def class_folders(scan: Scan, folder: Path, split: str = "") -> list[ClassFolder]:
    """Return the class folders in a folder, sorted."""
    return [ClassFolder(path, printable(path.name), split) for path in scan.folders(folder)]


def split_class_folders(scan: Scan, folder: Path) -> list[ClassFolder]:
    """Return a domain's class folders; split folders count if all its folders are ones."""
    plain = class_folders(scan, folder)
    if not plain or any(inner.class_name.lower() not in SPLIT_OF for inner in plain):
        return plain
    by_split = ((inner.path, SPLIT_OF[inner.class_name.lower()]) for inner in plain)
    return [found for path, split in by_split for found in class_folders(scan, path, split)]


def spellings(names: Iterable[str], official: Iterable[str] = ()) -> dict[str, str]:
    """Return the name that each class goes by.

    Args:
        names: class names found; the first of those that differ by case or outer spaces counts.
        official: names that count before any found.

    Returns:
        names by `spelling_key`.
    """
    first = {spelling_key(name): name for name in sorted(set(names), reverse=True)}
    return first | {spelling_key(name): name for name in official}


def spelling_key(name: str) -> str:
    """Return what spellings of one class have in common."""
    return " ".join(name.split()).casefold()


def respell(
    scan: Scan, folders: Iterable[ClassFolder], names: Mapping[str, str]
) -> list[ClassFolder]:
    """Give class folders the names that their classes go by; a change is a finding.

    Args:
        scan: where findings go.
        folders: the folders of a domain.
        names: as from `spellings`. Folders of other classes are findings and left out.
    """
    kept = []
    for folder in folders:
        name = names.get(spelling_key(folder.class_name))
        if name is None:
            scan.findings.add("other_file", scan.relative(folder.path), "not one of the classes")
            continue
        if name != folder.class_name:
            scan.findings.add("class_spelling", scan.relative(folder.path), f"taken as {name!r}")
        kept.append(replace(folder, class_name=name))
    return kept


def records(scan: Scan, folders: Iterable[ClassFolder]) -> list[Record]:
    """Return the images of the classes that are wanted, folder by folder."""
    return [
        Record(scan.relative(path), folder.class_name, folder.split, ImageFile(path))
        for folder in folders
        if scan.wants(folder.class_name)
        for path in scan.images(folder.path)
    ]


def find_domains(
    scan: Scan, title: str, domains: Sequence[str], inside: Sequence[str], url: str
) -> dict[str, Path]:
    """Return the domain folders of a known data set that are there, in the order of `domains`.

    Args:
        scan: the root.
        title: the data set, for messages.
        domains: names of the folders.
        inside: folders of the root, one or two deep, that may hold them instead of the root.
        url: where people get the data set.

    Raises:
        DataError: none is there, or one is there twice.
    """
    outer = [scan.root, *scan.children(scan.root, *inside)]
    bases = [*outer, *(path for base in outer[1:] for path in scan.children(base, *inside))]
    for base in bases:
        found = {domain: _folder(scan, base, domain) for domain in domains}
        present = {domain: path for domain, path in found.items() if path is not None}
        if present:
            for folder in dict.fromkeys((scan.root, base)):
                scan.note_hidden(folder)
            return present
    raise scan.missing(f"{title}: any of the folders {', '.join(domains)}", bases, url)


def all_domains(
    scan: Scan, title: str, domains: Sequence[str], inside: Sequence[str], url: str
) -> dict[str, Path]:
    """Return the domain folders of a known data set, none of which may be missing.

    Args and errors are those of `find_domains`.
    """
    found = find_domains(scan, title, domains, inside, url)
    lost = [domain for domain in domains if domain not in found]
    if lost:
        base = next(iter(found.values())).parent
        raise scan.missing(f"{title}: the folder {', '.join(lost)}", [base], url)
    return found


def _folder(scan: Scan, base: Path, domain: str) -> Path | None:
    found = [path for path in scan.children(base, domain) if path.is_dir()]
    if len(found) > 1:
        names = " and ".join(repr(printable(path.name)) for path in found)
        raise DataError(
            f"data.root: {names} in {base} are both {domain}: move one of them elsewhere"
        )
    return found[0] if found else None

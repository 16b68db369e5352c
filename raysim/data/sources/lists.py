"""List files: lines "domain/class/file label" that say which images a split holds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from raysim.data.listing import Record
from raysim.data.sources.files import Scan, printable
from raysim.errors import DataError


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a list file.

    Attributes:
        where: file and line number, for messages.
        path: the image as the line has it, with forward slashes.
        label: the number after it.
    """

    where: str
    path: str
    label: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An image that a list names.

    Attributes:
        where: file and line number, for messages.
        class_name: the folder of the image.
        name: the image's path below its domain's folder.
        label: the number that the list gives it.
        split: the split that the list stands for.
    """

    where: str
    class_name: str
    name: str
    label: int
    split: str


def read_lines(scan: Scan, path: Path) -> list[Line]:
    """Read a list file; blank lines are skipped.

    Raises:
        DataError: the file is no UTF-8 text, a line is no path and label, or it leads out of the
            root ("../x 1", "/x 1").
    """
    name = scan.relative(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data.root: cannot read the list {name}: {error}") from None
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        image, _, label = line.strip().replace("\t", " ").rpartition(" ")
        if not image or not label.isdecimal():
            raise DataError(f"data.root: {where}: {line.strip()!r} is not '<path> <label>'")
        image = image.strip().replace("\\", "/")
        if PurePosixPath(image).is_absolute() or ".." in PurePosixPath(image).parts:
            raise DataError(
                f"data.root: {where}: {image!r} leads out of the root: take the line out, or write "
                "the path below the root"
            )
        lines.append(Line(where, image, int(label)))
    return lines


def read_entries(scan: Scan, path: Path, domain: Path, split: str) -> list[Entry]:
    """Read a list of one domain's images.

    Args:
        scan: the root.
        path: the list file.
        domain: the domain's folder; lines may have more folders before its name.
        split: what the list stands for.

    Raises:
        DataError: as `read_lines`, or a line without domain, class and file.
    """
    entries = []
    for line in read_lines(scan, path):
        parts = PurePosixPath(line.path).parts
        folded = [part.casefold() for part in parts]
        domain_name = domain.name.casefold()
        below = parts[folded.index(domain_name) + 1 :] if domain_name in folded else ()
        if len(below) < 2:
            raise DataError(
                f"data.root: {line.where}: {line.path!r} is not {domain.name}/<class>/<file>"
            )
        entries.append(Entry(line.where, below[0], "/".join(below), line.label, split))
    return entries


def list_places(scan: Scan, domains: Mapping[str, Path], *names: str) -> list[Path]:
    """Return where lists may be: the root, the folder that holds the domains, and folders there.

    Args:
        scan: the root.
        domains: folders of the domains.
        names: of the further folders.
    """
    outer = list(dict.fromkeys([scan.root, next(iter(domains.values())).parent]))
    return [*outer, *(path for place in outer for path in scan.children(place, *names))]


def find_lists(
    scan: Scan, title: str, splits: Mapping[str, str], folders: Sequence[Path], url: str
) -> dict[Path, str]:
    """Return the list files of a domain and their splits: all of them from one folder, or none.

    Args:
        scan: the root.
        title: the data set, for messages.
        splits: split by file name.
        folders: where the files may be.
        url: where people get them.

    Raises:
        DataError: only some are there.
    """
    partial: tuple[str, Path] | None = None
    for folder in folders:
        found = {name: scan.child(folder, name) for name in splits}
        present = {path: splits[name] for name, path in found.items() if path is not None}
        if len(present) == len(splits):
            return present
        if present:
            partial = next(name for name, path in found.items() if path is None), folder
    if partial is not None:
        raise scan.missing(f"{title}: the list {partial[0]}", [partial[1]], url)
    return {}


def with_splits(
    scan: Scan, records: Iterable[Record], entries: Iterable[Entry], domain: Path
) -> list[Record]:
    """Give a domain's records the splits of its lists; images in no list have none.

    Images that a list names and that are not on disk are findings.

    Args:
        scan: the root.
        records: the images on disk.
        entries: the images of classes that are wanted, from all lists of the domain.
        domain: its folder.

    Raises:
        DataError: an image is in two splits.
    """
    first: dict[str, Entry] = {}
    for entry in entries:
        before = first.setdefault(entry.name, entry)
        if before.split != entry.split:
            raise DataError(
                f"data.root: {before.where} and {entry.where} put {entry.name!r} in two splits: "
                "take one of the lines out"
            )
    prefix = scan.relative(domain) + "/"
    listed = [(record, first.pop(record.name.removeprefix(prefix), None)) for record in records]
    for entry in first.values():
        if not (domain / entry.name).exists():
            name = printable(prefix + entry.name)
            scan.findings.add("missing_file", name, f"named by {entry.where}")
    return [replace(record, split=entry.split if entry else "") for record, entry in listed]

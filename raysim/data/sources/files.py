"""Folders walked safely: sorted, without system files, and never out of the root or in a circle."""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raysim.data.findings import Findings, Policy, policy_option
from raysim.errors import DataError

_JPEG = (".jfif", ".jpe", ".jpeg", ".jpg")
_PORTABLE = (".pbm", ".pgm", ".pnm", ".ppm")
SUFFIXES = frozenset((".bmp", ".gif", ".png", ".tif", ".tiff", ".webp", *_JPEG, *_PORTABLE))
"""Extensions of images, in lower case."""
_SYSTEM = frozenset(("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "icon\r"))


@dataclass(frozen=True)
class Scan:
    """One reading of a root: what is let in, and what was noticed.

    Attributes:
        root: the folder (or file) that `data.root` names, absolute.
        policies: every kind's policy; what is not `keep` is left out at once.
        classes: the classes wanted; None for all.
        findings: what was noticed so far.
        known: names of classes met so far, wanted or not.
    """

    root: Path
    policies: Mapping[str, Policy]
    classes: tuple[str, ...] | None = None
    findings: Findings = field(default_factory=Findings)
    known: set[str] = field(default_factory=set)
    _links: dict[Path, bool] = field(default_factory=dict)

    def admit(self, kind: str, name: str, detail: str = "") -> bool:
        """Count one finding and return whether its policy is `keep`."""
        self.findings.add(kind, name, detail)
        return self.policies[kind] == "keep"

    def wants(self, class_name: str) -> bool:
        """Remember a class of the source and return whether its images are wanted."""
        self.known.add(class_name)
        return self.classes is None or class_name in self.classes

    def relative(self, path: Path) -> str:
        """Return a path below the root as text: forward slashes, bytes that are no UTF-8 escaped.

        The root itself is its own name.
        """
        below = path.relative_to(self.root).as_posix()
        return printable(path.name if below == "." else below)

    def folders(self, folder: Path) -> list[Path]:
        """Return the folders in a folder, sorted; files beside them are findings.

        Raises:
            DataError: the folder cannot be listed.
        """
        found = []
        for entry in self._entries(folder):
            path = folder / entry.name
            if entry.is_dir():
                found.append(path)
            else:
                detail = "an image outside the class folders" if is_image(path) else ""
                self.findings.add("other_file", self.relative(path), detail)
        return found

    def files(self, folder: Path) -> list[Path]:
        """Return the files in a folder, sorted, but for hidden ones; folders are passed over.

        Raises:
            DataError: the folder cannot be listed.
        """
        entries = self._entries(folder)
        return [folder / entry.name for entry in entries if not entry.is_dir()]

    def images(self, folder: Path) -> list[Path]:
        """Return the image files in a folder and then those in the folders in it, each sorted.

        Raises:
            DataError: a folder cannot be listed.
        """
        files, inner = [], []
        for entry in self._entries(folder):
            path = folder / entry.name
            if entry.is_dir():
                inner.append(path)
            elif is_image(path) and entry.is_file():
                files.append(path)
            else:
                self.findings.add("other_file", self.relative(path))
        return files + [path for below in inner for path in self.images(below)]

    def missing(self, what: str, places: Sequence[Path], url: str) -> DataError:
        """Return the error for something that is not there.

        Args:
            what: the source and its file or folder.
            places: where it was looked for.
            url: where people get it, "" for data of their own.
        """
        looked = ", ".join(printable(str(place)) for place in places)
        message = f"data.root: not found: {what}. Looked in {looked}"
        if url:
            message += f". Nothing is downloaded: get it from {url}"
        for kind in ("outside_root", "symlink"):
            if kind in self.findings.counts and self.policies[kind] != "keep":
                names = ", ".join(self.findings.names[kind])
                message += f". Left out: {names}; {policy_option(kind, 'keep')} lets these in"
        return DataError(message)

    def note_hidden(self, folder: Path) -> None:
        """Count the hidden and system files in a folder that is not walked.

        Raises:
            DataError: the folder cannot be listed.
        """
        for entry in _listed(folder):
            if _is_hidden(entry.name):
                self.findings.add("hidden", self.relative(folder / entry.name))

    def children(self, folder: Path, *names: str) -> list[Path]:
        """Return what is in a folder by these names: in their order, then sorted.

        Names are compared without regard to case, and with `-` and spaces as `_`.

        Raises:
            DataError: the folder cannot be listed.
        """
        listed = _listed(folder)
        entries = [folder / entry.name for entry in listed if not entry.name.startswith(".")]
        matching = [p for name in names for p in entries if plain(p.name) == plain(name)]
        return [path for path in matching if not path.is_symlink() or self._follows(path)]

    def child(self, folder: Path, *names: str) -> Path | None:
        """Return the first of `children`, or None."""
        return next(iter(self.children(folder, *names)), None)

    def _entries(self, folder: Path) -> Iterable["os.DirEntry[str]"]:
        for entry in _listed(folder):
            path = folder / entry.name
            if _is_hidden(entry.name):
                self.findings.add("hidden", self.relative(path))
            elif not entry.is_symlink() or self._follows(path):
                unusual = _is_unusual(entry.name) and (entry.is_dir() or is_image(path))
                if not unusual or self.admit("non_ascii", self.relative(path)):
                    yield entry

    def _follows(self, link: Path) -> bool:
        """Return whether a symbolic link is let in; each is counted once."""
        if link not in self._links:
            self._links[link] = self._judge(link)
        return self._links[link]

    def _judge(self, link: Path) -> bool:
        name = self.relative(link)
        try:
            link.stat()
        except OSError as error:
            loop = error.errno == errno.ELOOP  # links that name each other
            detail = "" if loop else f"a link to nothing: {error.strerror}"
            return self._left_out("link_loop" if loop else "missing_file", name, detail)
        real = link.resolve()
        above = [folder.resolve() for folder in link.parents if folder.is_relative_to(self.root)]
        if any(folder.is_relative_to(real) for folder in above):
            return self._left_out("link_loop", name, f"leads to {printable(str(real))}")
        if not real.is_relative_to(self.root.resolve()):
            return self.admit("outside_root", name, f"leads to {printable(str(real))}")
        return self.admit("symlink", name)

    def _left_out(self, kind: str, name: str, detail: str = "") -> bool:
        self.findings.add(kind, name, detail)
        return False


def is_image(path: Path) -> bool:
    """Return whether a file is an image by its extension."""
    return path.suffix.lower() in SUFFIXES


def plain(name: str) -> str:
    """Return a name in the form that names are compared in: folded case, `-` and space as `_`."""
    return name.casefold().replace("-", "_").replace(" ", "_")


def printable(text: str) -> str:
    """Return a file name that any UTF-8 file can hold: bytes that are no UTF-8 are escaped."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def _listed(folder: Path) -> list["os.DirEntry[str]"]:
    """Return what is in a folder by name; entries know what they are without a look at each."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except NotADirectoryError:
        return []
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"data.root: cannot list {printable(str(folder))}: {reason}") from None


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM


def _is_unusual(name: str) -> bool:
    return not name.isascii() or " " in name

"""Rows of tables as records: what Parquet files and saved Hugging Face data sets share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from raysim.data.listing import ImageRef, Listing, Record
from raysim.data.sources.class_folders import SPLIT_OF, spelling_key, spellings
from raysim.data.sources.files import Scan
from raysim.errors import DataError

IMAGE = "image"
NAME_COLUMNS = ("source_path", "source", "path")
COLUMNS = ("label", "label_name", "split", "domain", *NAME_COLUMNS)
"""Columns beside the image that mean something here."""


@dataclass(frozen=True)
class Rows:
    """The rows of one file.

    Attributes:
        file: its path relative to the root, for names and messages.
        table: those of `COLUMNS` that it has.
        image: gives the place of a row's image.
        value_names: names of the whole numbers in a column, by column.
        domain: the domain if there is no column.
        split: the split if there is no column.
    """

    file: str
    table: pa.Table
    image: Callable[[int], ImageRef]
    value_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    domain: str = ""
    split: str = ""

    def numbers(self, column: str) -> list[int] | None:
        """Return a column of whole numbers, or None if there is none.

        Raises:
            DataError: a value is missing or negative.
        """
        if column not in self.table.column_names:
            return None
        if not pa.types.is_integer(self.table.schema.field(column).type):
            return None
        values: list[int | None] = self.table.column(column).to_pylist()
        for row, value in enumerate(values):
            if value is None or value < 0:
                raise DataError(f"data.root: {self.file} row {row}: {column} is {value}")
        return [value for value in values if value is not None]

    def words(self, column: str) -> list[str] | None:
        """Return a column of text, or of whole numbers that have names, or None if it is neither.

        A missing value is "".

        Raises:
            DataError: a number has no name.
        """
        numbers, names = self.numbers(column), self.value_names.get(column)
        if numbers is not None and names:
            if max(numbers, default=0) >= len(names):
                raise DataError(
                    f"data.root: {self.file}: {column} {max(numbers)} is beyond its "
                    f"{len(names)} names"
                )
            return [names[value] for value in numbers]
        if column not in self.table.column_names or numbers is not None:
            return None
        kind = self.table.schema.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(
                f"data.root: {self.file}: column {column!r} is {kind}: make it text"
                + (" or whole numbers" if column in ("label", "domain") else "")
            )
        return [value or "" for value in self.table.column(column).to_pylist()]


def list_rows(scan: Scan, parts: Sequence[Rows]) -> Listing:
    """Return the listing of some files, their domains sorted.

    Classes are `label_name`, or the names that belong to `label`, or the label itself; they are
    in the order of the labels where there are both. Images go by the first of `NAME_COLUMNS` that
    is unique within the domain, else by "file#row".

    Raises:
        DataError: a column is missing or contradicts another.
    """
    labels = [part.numbers("label") for part in parts]
    classes = _classes(scan, parts, labels)
    _note_first_label(scan, parts, labels)
    domains: dict[str, list[Record]] = {}
    given: dict[str, list[str]] = {}
    for part, class_of in zip(parts, classes, strict=True):
        names = _given_names(part)
        splits = _splits(part)
        if part.domain and "domain" not in part.table.column_names:
            domains.setdefault(part.domain, [])
            given.setdefault(part.domain, [])
        for row, domain in enumerate(_domains(part)):
            record = Record(f"{part.file}#{row}", class_of[row], splits[row], part.image(row))
            domains.setdefault(domain, []).append(record)
            given.setdefault(domain, []).append(names[row])
    in_order = {domain: _named(domains[domain], given[domain]) for domain in sorted(domains)}
    return Listing(in_order, _order(parts, labels, classes), scan.findings)


def _classes(
    scan: Scan, parts: Sequence[Rows], labels: Sequence[list[int] | None]
) -> list[list[str]]:
    """Return the class of every row of every part."""
    found = [_class_names(part) for part in parts]
    names = spellings(name for column in found for name in set(column or ()))
    classes = []
    for part, column, numbers in zip(parts, found, labels, strict=True):
        if column is None and numbers is None:
            raise DataError(f"data.root: {part.file}: no column 'label' or 'label_name'")
        if column is None:
            classes.append([str(number) for number in numbers or ()])
            continue
        if "" in column:
            raise DataError(f"data.root: {part.file} row {column.index('')}: no class")
        for name in sorted(set(column)):
            taken = names[spelling_key(name)]
            if name != taken:
                scan.findings.add("class_spelling", f"{part.file}: {name}", f"taken as {taken!r}")
        classes.append([names[spelling_key(name)] for name in column])
    return classes


def _class_names(part: Rows) -> list[str] | None:
    """Return the class names in a file, None if labels have none.

    Raises:
        DataError: the column for names holds numbers.
    """
    found = part.words("label_name")
    if found is None and "label_name" in part.table.column_names:
        raise DataError(
            f"data.root: {part.file}: column 'label_name' is "
            f"{part.table.schema.field('label_name').type}: make it text, or call it 'label'"
        )
    return part.words("label") if found is None else found


def _note_first_label(
    scan: Scan, parts: Sequence[Rows], labels: Sequence[list[int] | None]
) -> None:
    """Note labels that start above 0 over all files."""
    with_labels = [
        (part, set(column)) for part, column in zip(parts, labels, strict=True) if column
    ]
    first = min((min(numbers) for _, numbers in with_labels), default=0)
    for part, numbers in with_labels if first else ():
        detail = f"labels {min(numbers)} to {max(numbers)}"
        scan.findings.add("label_range", part.file, detail)


def _order(
    parts: Sequence[Rows], labels: Sequence[list[int] | None], classes: Sequence[list[str]]
) -> tuple[str, ...]:
    """Return the classes by label; () if a file has no labels."""
    name_of: dict[int, tuple[str, str]] = {}
    label_of: dict[str, tuple[int, str]] = {}
    for part, numbers, column in zip(parts, labels, classes, strict=True):
        if numbers is None:
            return ()
        for label, name in sorted(set(zip(numbers, column, strict=True))):
            other_name, file = name_of.setdefault(label, (name, part.file))
            other_label, other_file = label_of.setdefault(name, (label, part.file))
            if other_name != name or other_label != label:
                before = f"{other_name!r} in {file}"
                if other_name == name:
                    before = f"{other_label} in {other_file}"
                raise DataError(
                    f"data.root: {part.file}: label {label} is {name!r}, but {before}: "
                    "make labels and names agree in all files"
                )
    return tuple(name_of[label][0] for label in sorted(name_of))


def _domains(part: Rows) -> list[str]:
    found = part.words("domain")
    if found is None:
        numbers = part.numbers("domain")
        found = None if numbers is None else [str(number) for number in numbers]
    if found is None:
        found = [part.domain] * len(part.table)
    for row, domain in enumerate(found):
        if not domain:
            raise DataError(f"data.root: {part.file} row {row}: no domain")
        if "/" in domain:
            raise DataError(
                f"data.root: {part.file} row {row}: domain {domain!r}: must not hold a '/', which "
                "parts domains from names in partition.csv: rename it"
            )
    return found


def _splits(part: Rows) -> list[str]:
    words = part.words("split")
    if words is None:
        return [part.split] * len(part.table)
    for row, word in enumerate(words):
        if word and word.lower() not in SPLIT_OF:
            raise DataError(
                f"data.root: {part.file} row {row}: split {word!r} is none of {', '.join(SPLIT_OF)}"
            )
    return [SPLIT_OF.get(word.lower(), "") for word in words]


def _given_names(part: Rows) -> list[str]:
    """Return the names that a file gives its images, "" where it gives none."""
    for column in NAME_COLUMNS:
        names = part.words(column)
        if names is not None and "" not in names and len(set(names)) == len(names):
            return names
    return [""] * len(part.table)


def _named(records: Sequence[Record], given: Sequence[str]) -> Sequence[Record]:
    """Name a domain's records as the files do, if that is unique."""
    if "" in given or len(set(given)) < len(given):
        return records
    return [replace(record, name=name) for record, name in zip(records, given, strict=True)]

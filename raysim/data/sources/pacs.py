"""PACS: art paintings, cartoons, photos and sketches of seven classes, in folders."""

from collections.abc import Sequence
from pathlib import Path

from raysim.data.listing import Listing
from raysim.data.sources.class_folders import (
    all_domains,
    class_folders,
    records,
    respell,
    spelling_key,
    spellings,
)
from raysim.data.sources.files import Scan
from raysim.data.sources.lists import Entry, find_lists, list_places, read_entries, with_splits
from raysim.data.sources.source import Source
from raysim.errors import DataError

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_INSIDE = ("kfold", "pacs", "raw images")
_LISTS = (
    "pacs_label",
    "splits",
    "Train val splits and h5py files pre-read",
    "correct_txt_lists",
)
_NAMES = spellings((), CLASSES)


def read(scan: Scan) -> Listing:
    """List PACS.

    The official lists give the splits: `train_kfold` is "train" and `crossval_kfold` is "test"
    (the official protocol calls it validation; its own test list is the whole domain). Images in
    no list have no split.

    Raises:
        DataError: a domain or a list is missing, or a list's labels contradict its folders.
    """
    folders = all_domains(scan, "pacs", DOMAINS, _INSIDE, SOURCE.url)
    places = list_places(scan, folders, *_LISTS)
    found = {}
    for domain, folder in folders.items():
        kept = records(scan, respell(scan, class_folders(scan, folder), _NAMES))
        splits = {f"{domain}_train_kfold.txt": "train", f"{domain}_crossval_kfold.txt": "test"}
        lists = find_lists(scan, "pacs", splits, places, SOURCE.url)
        entries = [e for path, split in lists.items() for e in _checked(scan, path, folder, split)]
        found[domain] = with_splits(scan, kept, entries, folder)
    return Listing(found, CLASSES, scan.findings)


def _checked(scan: Scan, path: Path, folder: Path, split: str) -> Sequence[Entry]:
    """Read a list and check its labels 1 to 7 (or 0 to 6) against the class folders."""
    entries = read_entries(scan, path, folder, split)
    first = 0 if any(entry.label == 0 for entry in entries) else 1
    kept = []
    for entry in entries:
        name = _NAMES.get(spelling_key(entry.class_name), "")
        if name not in CLASSES or CLASSES.index(name) != entry.label - first:
            expected = f"{first + CLASSES.index(name)}" if name in CLASSES else "none"
            raise DataError(
                f"data.root: {entry.where}: label {entry.label} for {entry.name!r}: the label of "
                f"class {entry.class_name} is {expected}. Put the list right"
            )
        if scan.wants(name):
            kept.append(entry)
    if first and entries:
        scan.findings.add("label_range", scan.relative(path), "labels 1 to 7")
    return kept


SOURCE = Source(
    read=read,
    title="PACS",
    domains=", ".join(DOMAINS),
    layout=(
        "[kfold/|PACS/|raw images/]<domain>/<class>/*; optional lists <domain>_train_kfold.txt and "
        "<domain>_crossval_kfold.txt in the root, splits/ or pacs_label/"
    ),
    url="https://domaingeneralization.github.io",
)

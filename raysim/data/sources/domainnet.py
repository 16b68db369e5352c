"""DomainNet: six domains of 345 classes, in folders, with lists of train and test images."""

from collections.abc import Iterable
from pathlib import Path

from raysim.data.listing import Listing, Record
from raysim.data.sources.class_folders import (
    class_folders,
    find_domains,
    records,
    respell,
    spelling_key,
    spellings,
)
from raysim.data.sources.files import Scan
from raysim.data.sources.lists import Entry, find_lists, list_places, read_entries, with_splits
from raysim.data.sources.source import Source
from raysim.errors import DataError

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
FDSE10 = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
"""The ten classes of the experiments of FedBN and FDSE."""


def read(scan: Scan) -> Listing:
    """List DomainNet: any of its domains, as people download some.

    The lists give the splits and the order of the classes. Without lists there are no splits,
    and classes are in the lists' order all the same: by name without regard to case, `_` and `-`.

    Raises:
        DataError: no domain is there, one list of a pair is missing, or labels are contradictory.
    """
    folders = find_domains(scan, "domainnet", DOMAINS, ("domainnet",), SOURCE.url)
    in_domains = {domain: class_folders(scan, path) for domain, path in folders.items()}
    found_names = [folder.class_name for found in in_domains.values() for folder in found]
    names = spellings(found_names)
    places = list_places(scan, folders, "splits")
    label_of: dict[str, tuple[int, str]] = {}
    domains: dict[str, list[Record]] = {}
    for domain, folder in folders.items():
        kept = records(scan, respell(scan, in_domains[domain], names))
        splits = {f"{domain}_train.txt": "train", f"{domain}_test.txt": "test"}
        lists = find_lists(scan, "domainnet", splits, [*places, folder], SOURCE.url)
        entries = _read_lists(scan, lists, folder, names, label_of)
        domains[domain] = with_splits(scan, kept, entries, folder)
    classes = {record.class_name for found in domains.values() for record in found}
    return Listing(domains, _in_order(classes, label_of), scan.findings)


def _read_lists(
    scan: Scan,
    lists: dict[Path, str],
    folder: Path,
    names: dict[str, str],
    label_of: dict[str, tuple[int, str]],
) -> Iterable[Entry]:
    """Return the entries of wanted classes, and note each class's label in `label_of`."""
    kept = []
    for path, split in lists.items():
        for entry in read_entries(scan, path, folder, split):
            name = names.get(spelling_key(entry.class_name), entry.class_name)
            label, where = label_of.setdefault(name, (entry.label, entry.where))
            if label != entry.label:
                raise DataError(
                    f"data.root: {entry.where} gives {name} label {entry.label}, {where} gives it "
                    f"{label}: take both lists from one source"
                )
            if scan.wants(name):
                kept.append(entry)
    return kept


def _in_order(classes: Iterable[str], label_of: dict[str, tuple[int, str]]) -> tuple[str, ...]:
    """Return classes by label, those in no list at the end."""
    by_label: dict[int, str] = {}
    for name, (label, where) in label_of.items():
        if by_label.setdefault(label, name) != name:
            raise DataError(
                f"data.root: {where} gives {name} label {label}, which is that of "
                f"{by_label[label]}: take the lists from one source"
            )
    last = max(by_label, default=-1) + 1
    return tuple(sorted(classes, key=lambda name: (label_of.get(name, (last,))[0], _plain(name))))


def _plain(name: str) -> tuple[str, str]:
    return name.casefold().replace("_", "").replace("-", ""), name


SOURCE = Source(
    read=read,
    title="DomainNet",
    domains=", ".join(DOMAINS) + ": those that are there",
    layout=(
        "[domainnet/]<domain>/<class>/*; optional lists <domain>_train.txt and <domain>_test.txt "
        "in the root, splits/ or the domain's folder"
    ),
    url="https://ai.bu.edu/M3SDA",
    subsets={"fdse10": FDSE10},
)

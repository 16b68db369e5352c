"""Any data set in folders: `<domain>/<class>/*`, or `<domain>/<split>/<class>/*`."""

from collections.abc import Container, Iterable

from raysim.data.listing import Listing
from raysim.data.sources.class_folders import (
    ClassFolder,
    records,
    respell,
    spellings,
    split_class_folders,
)
from raysim.data.sources.files import Scan, printable
from raysim.data.sources.source import Source
from raysim.errors import DataError


def read(scan: Scan) -> Listing:
    """List a root of domain folders; each folder below a domain is a class.

    A domain whose folders are all named train, val, valid, validation or test has official
    splits. Class names that differ by case or outer spaces only are one class, under the name
    that is sorted first. A folder without an image is no class.

    Raises:
        DataError: there is no class folder at all.
    """
    in_domains = {path: split_class_folders(scan, path) for path in scan.folders(scan.root)}
    found_names = [folder.class_name for found in in_domains.values() for folder in found]
    if not found_names:
        raise DataError(
            f"data.root: no class folders in {scan.root}: images go in <domain>/<class>/"
        )
    names = spellings(found_names)
    folders = {path: respell(scan, found, names) for path, found in in_domains.items()}
    domains = {printable(path.name): records(scan, found) for path, found in folders.items()}
    if scan.classes is None:  # else the user says which classes there are
        with_images = {record.class_name for found in domains.values() for record in found}
        _note_empty(scan, [folder for found in folders.values() for folder in found], with_images)
    return Listing(domains, findings=scan.findings)


def _note_empty(scan: Scan, folders: Iterable[ClassFolder], with_images: Container[str]) -> None:
    """Note the folders of classes that no domain has an image of."""
    for folder in folders:
        if folder.class_name not in with_images:
            scan.findings.add("empty_class", scan.relative(folder.path))


SOURCE = Source(
    read=read,
    title="Images in folders",
    domains="the folders of the root",
    layout="<domain>/<class>/* or <domain>/{train,val,test}/<class>/*",
    url="",
)

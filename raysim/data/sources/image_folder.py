"""Any data set in folders: `<domain>/<class>/*`, or `<domain>/<split>/<class>/*`."""

from raysim.data.listing import Listing
from raysim.data.sources.class_folders import records, respell, spellings, split_class_folders
from raysim.data.sources.files import Scan, printable
from raysim.data.sources.source import Source
from raysim.errors import DataError


def read(scan: Scan) -> Listing:
    """List a root of domain folders; each folder below a domain is a class.

    A domain whose folders are all named train, val, valid, validation or test has official
    splits. Class names that differ by case or outer spaces only are one class, under the name
    that is sorted first.

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
    domains = {
        printable(path.name): records(scan, respell(scan, found, names))
        for path, found in in_domains.items()
    }
    return Listing(domains, findings=scan.findings)


SOURCE = Source(
    read=read,
    title="Images in folders",
    domains="the folders of the root",
    layout="<domain>/<class>/* or <domain>/{train,val,test}/<class>/*",
    url="",
)

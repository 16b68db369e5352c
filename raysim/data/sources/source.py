"""What each raw layout says of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raysim.data.listing import Listing
from raysim.data.sources.files import Scan


@dataclass(frozen=True)
class Source:
    """A raw layout and its reader.

    Attributes:
        read: lists the records below `Scan.root`.
        title: the data set, as people call it.
        domains: its domains in words.
        layout: the files and folders expected below `data.root`.
        url: pages where people get the files.
        subsets: named lists of classes.
    """

    read: Callable[[Scan], Listing]
    title: str
    domains: str
    layout: str
    url: str
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

"""Office-Caltech10: the ten classes that Office-31 and Caltech-256 share, in folders."""

import re
from dataclasses import replace

from raysim.data.listing import Listing
from raysim.data.sources.class_folders import all_domains, class_folders, records
from raysim.data.sources.files import Scan, plain
from raysim.data.sources.source import Source

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
CLASSES = (
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
_ALIASES = {name: name for name in CLASSES} | {
    "backpack": "back_pack",
    "touring_bike": "bike",
    "computer_keyboard": "keyboard",
    "laptop": "laptop_computer",
    "laptop_101": "laptop_computer",
    "computer_monitor": "monitor",
    "computer_mouse": "mouse",
    "coffee_mug": "mug",
    "video_projector": "projector",
}
_INSIDE = ("office_caltech_10", "officecaltech10", "office_caltech10", "office_caltech")
_NUMBER = re.compile(r"^\d+\.")


def read(scan: Scan) -> Listing:
    """List Office-Caltech10; there are no official splits.

    Folders may be those of Office-31 (`amazon/images/<class>`). Names that copies give the
    classes are taken as the official ones (`backpack` is `back_pack`), Caltech-256's included
    (`224.touring-bike` is `bike`). Other classes are left out.

    Raises:
        DataError: a domain is missing.
    """
    folders = all_domains(scan, "office_caltech10", DOMAINS, _INSIDE, SOURCE.url)
    found = {}
    for domain, folder in folders.items():
        holder = scan.child(folder, "images") or folder
        kept = []
        for class_folder in class_folders(scan, holder):
            name = _ALIASES.get(plain(_NUMBER.sub("", class_folder.class_name)))
            if name is not None:
                kept.append(replace(class_folder, class_name=name))
        found[domain] = records(scan, kept)
    return Listing(found, CLASSES, scan.findings)


SOURCE = Source(
    read=read,
    title="Office-Caltech10",
    domains=", ".join(DOMAINS),
    layout="[office_caltech_10/]<domain>/[images/]<class>/*",
    url=(
        "http://www-scf.usc.edu/~boqinggo/domainadaptation.html, or a copy from "
        "https://github.com/jindongwang/transferlearning/tree/master/data"
    ),
)

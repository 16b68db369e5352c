"""Images of equal pixels: which there are, and which of them a policy leaves out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raysim.data.findings import Findings, Policy
from raysim.data.preparing.staging import Rows

_TRAINING = ("train", "val")
_Place = tuple[str, Rows, int]


@dataclass
class _Met:
    """Rows met so far.

    Attributes:
        first: the first row of each image.
        tests: the first test row of each image, of all domains.
        in_domain: the first row of each image among a domain's test rows, and among its others.
    """

    first: dict[bytes, _Place] = field(default_factory=dict)
    tests: dict[bytes, _Place] = field(default_factory=dict)
    in_domain: dict[tuple[str, bool, bytes], _Place] = field(default_factory=dict)


def keep_rows(
    domains: Mapping[str, Rows], policies: Mapping[str, Policy], findings: Findings
) -> dict[str, NDArray[np.bool_]]:
    """Note images with the pixels of another one, and say which rows stay.

    - `duplicate`: as an earlier row of the domain that is on its side (test or not).
    - `duplicate_across_splits`: a train or val row, as a test row of any domain.
    - `label_conflict`: as the first row of any domain that has these pixels, and of another class.

    `skip` leaves out the rows that are counted, whatever else is left out.

    Args:
        domains: rows by domain, in the order of the domain ids.
        policies: every kind's policy.
        findings: where findings go.

    Returns:
        bool [N] by domain.
    """
    met = _Met()
    for domain, rows in domains.items():
        for row, (pixels_id, split) in enumerate(zip(rows.ids, rows.splits, strict=True)):
            if split == "test":
                met.tests.setdefault(pixels_id, (domain, rows, row))
    keep = {}
    for domain, rows in domains.items():
        keep[domain] = np.ones(len(rows.ids), np.bool_)
        for row in range(len(rows.ids)):
            for kind, (where, other, twin) in _copied(met, (domain, rows, row)).items():
                beside = "" if where == domain else f" of {where}"
                findings.add(kind, rows.names[row], f"as {other.names[twin]}{beside}")
                if policies[kind] == "skip":
                    keep[domain][row] = False
    return keep


def _copied(met: _Met, place: _Place) -> dict[str, _Place]:
    """Return the rows that a row is a copy of, by kind of finding."""
    domain, rows, row = place
    pixels_id, split = rows.ids[row], rows.splits[row]
    found = {"duplicate": met.in_domain.setdefault((domain, split == "test", pixels_id), place)}
    if split in _TRAINING:
        found["duplicate_across_splits"] = met.tests.get(pixels_id, place)
    first = met.first.setdefault(pixels_id, place)
    if first[1].labels[first[2]] != rows.labels[row]:
        found["label_conflict"] = first
    return {kind: twin for kind, twin in found.items() if twin is not place}

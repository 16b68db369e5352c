"""A partition as a heat map: a row a client, a column a class within a domain.

Shape suffixes: M clients, D domains, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

LEVELS = 8
"""Shades beside the one for none."""
_MAX_COLUMNS, _MAX_CELLS = 120, 40_000  # of a map by class: 40,000 cells are 3 MB of HTML

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """One cell of the heat map.

    Attributes:
        count: images.
        level: shade, 0 for none, then 1..LEVELS.
        place: what the column stands for, in words.
    """

    count: int
    level: int
    place: str


@dataclass(frozen=True)
class HeatRow:
    """One client's row."""

    client: int
    total: int
    cells: list[Cell]


@dataclass(frozen=True)
class Step:
    """One shade of the legend: counts from `low` to `high`."""

    level: int
    low: int
    high: int


@dataclass(frozen=True)
class HeatMap:
    """The partition as a picture.

    Attributes:
        by_class: columns are classes within domains; else domains, as classes would be too many.
        num_cells: cells that a map by class has.
        columns: their names.
        upright: names are written upright, to save width.
        rows: one a client.
        legend: the shades in use.
        smallest: images of the client with the fewest.
        largest: images of the client with the most.
        unseen: domains of which no client has an image.
    """

    by_class: bool
    num_cells: int
    columns: tuple[str, ...]
    upright: bool
    rows: list[HeatRow]
    legend: list[Step]
    smallest: int
    largest: int
    unseen: list[str]


def heat_map(counts_MDK: Counts, domains: Sequence[str], classes: Sequence[str]) -> HeatMap:
    """Arrange counts for drawing.

    Args:
        counts_MDK: images by client, domain and class, int64 [M, D, K], M >= 1.
        domains: names, D.
        classes: names, K.
    """
    num_columns = len(domains) * len(classes)
    by_class = num_columns <= _MAX_COLUMNS and counts_MDK.size <= _MAX_CELLS
    totals_M = counts_MDK.sum(axis=(1, 2))
    if by_class:
        columns = tuple(classes) * len(domains)
        places = [f"{domain}, {name}" for domain in domains for name in classes]
        cells = counts_MDK.reshape(len(counts_MDK), num_columns)
    else:
        columns, places, cells = tuple(domains), list(domains), counts_MDK.sum(axis=2)
    limits = _limits(int(cells.max()))
    levels = np.searchsorted(limits, cells)
    unseen_D = counts_MDK.sum(axis=(0, 2)) == 0
    rows = [
        HeatRow(client, total, [Cell(*cell) for cell in zip(*row, places, strict=True)])
        for client, (total, *row) in enumerate(
            zip(totals_M.tolist(), cells.tolist(), levels.tolist(), strict=True)
        )
    ]
    return HeatMap(
        by_class,
        counts_MDK.size,
        columns,
        by_class and max(map(len, classes)) > 3,
        rows,
        [
            Step(level, low + 1, high)
            for level, (low, high) in enumerate(pairwise(limits), 1)
            if high > low
        ],
        int(totals_M.min()),
        int(totals_M.max()),
        [name for name, unseen in zip(domains, unseen_D, strict=True) if unseen],
    )


def _limits(largest: int) -> list[int]:
    """Return the largest count of each shade from 0 on: even steps of the square root."""
    return [largest * level**2 // LEVELS**2 for level in range(LEVELS + 1)]

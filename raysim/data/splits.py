"""Cutting a domain's images into train, val and test.

Images of equal pixels count as one in every cut but the official one: they end on one side.

Shape suffixes: N rows.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from raysim.data.settings import SplitSettings
from raysim.data.shards import SPLITS
from raysim.errors import ConfigError, DataError
from raysim.seeds import Stream, generator

Rows = NDArray[np.int64]


def has_official(splits: Collection[str]) -> bool:
    """Tell whether a domain with these splits needs no cut: it has a part to train and one to test.

    A part held out as "val" tests where there is no "test".
    """
    return "train" in splits and not {"val", "test"}.isdisjoint(splits)


def cut(
    settings: SplitSettings,
    *,
    labels: Rows,
    official: NDArray[np.str_],
    groups: Rows,
    seed: int,
    domain: int,
    where: str,
) -> dict[str, Rows]:
    """Cut one domain.

    Args:
        settings: the rule; its seed comes before the run's.
        labels: int64 [N].
        official: str [N], the source's own split or "".
        groups: int64 [N], equal for images of equal pixels.
        seed: the run's seed.
        domain: id, so that domains are cut independently.
        where: names the domain in errors.

    Returns:
        Ascending rows by split; all of `SPLITS` are there, "val" may be empty. Together they are
        all rows unless `use` or the source leaves some out.

    Raises:
        DataError: the official split is wanted and not there, or nothing is left to train or test.
        ConfigError: test and val ask for more than there is.
    """
    known = {split: np.flatnonzero(official == split) for split in SPLITS}
    is_official = has_official([split for split, rows in known.items() if len(rows)])
    if not len(known["test"]):  # folders train/ and val/: what is held out tests
        known["test"], known["val"] = known["val"], known["test"]
    kind = settings.kind
    if kind == "auto":
        kind = "official" if is_official else "stratified"
    if kind == "official" and not is_official:
        raise DataError(
            f"{where}: no official train and test split; "
            "choose data.split.kind=stratified, holdout or mod10"
        )
    if kind in ("stratified", "holdout") and settings.test + settings.val >= 1:
        raise ConfigError("data.split: test + val must be below 1")
    rng = generator(seed if settings.seed is None else settings.seed, Stream.SPLIT, domain)
    if kind == "official":
        found = (
            known if len(known["val"]) else _hold_out_val(known, settings.val, labels, groups, rng)
        )
    elif kind == "mod10":
        rows = np.arange(len(labels))
        sides = _together(np.where(rows % 10 <= 7, "train", "test"), groups)
        found = {split: np.flatnonzero(sides == split) for split in SPLITS}
        found = _hold_out_val(found, settings.val, labels, groups, rng)
    else:
        classes = np.zeros_like(labels) if kind == "holdout" else labels
        found = _cut_shares(settings, classes, groups, rng, whole=kind == "holdout")
    if settings.use < 1:
        train = found["train"]
        found = found | {"train": train[_take(labels[train], groups[train], settings.use, rng)]}
    for split in ("train", "test"):
        if not len(found[split]):
            raise DataError(f"{where}: {_few(groups)} leave none to {split}: see data.split")
    return found


def _few(groups: Rows) -> str:
    """Say of how many images a cut is made."""
    different = len(np.unique(groups))
    if different == len(groups):
        return f"{len(groups)} images"
    return f"{len(groups)} images, {different} of them different (equal ones stay together),"


def _hold_out_val(
    found: dict[str, Rows], share: float, labels: Rows, groups: Rows, rng: np.random.Generator
) -> dict[str, Rows]:
    """Take a stratified share of the training images for validation."""
    train = found["train"]
    taken = train[_take(labels[train], groups[train], share, rng)]
    return found | {"train": np.setdiff1d(train, taken), "val": taken}


def _cut_shares(
    settings: SplitSettings,
    classes: Rows,
    groups: Rows,
    rng: np.random.Generator,
    *,
    whole: bool,
) -> dict[str, Rows]:
    """Cut test and val out of all rows, the same shares of every class.

    A `whole` domain is cut as FDSE's code does: both parts together, then in two.
    """
    held = settings.test + settings.val
    rows = np.arange(len(classes))
    out = _take(classes, groups, held, rng, floor=whole)
    test = out[
        _take(classes[out], groups[out], settings.test / held if held else 0, rng, floor=whole)
    ]
    return {
        "train": np.setdiff1d(rows, out),
        "val": np.setdiff1d(out, test),
        "test": test,
    }


def _take(
    classes: Rows, groups: Rows, share: float, rng: np.random.Generator, *, floor: bool = False
) -> Rows:
    """Draw a share of the rows of every class, whole groups at a time; returns positions, sorted.

    A group belongs to the class of its first row. One that would overfill its class is passed over.
    """
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    sizes = np.bincount(group_of)
    class_of = classes[first]
    chosen = np.zeros(len(first), np.bool_)
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(class_of == label))
        wanted = share * sizes[members].sum()
        left = int(wanted + 1e-9) if floor else int(wanted + 0.5)
        for member in members:
            if sizes[member] <= left:
                chosen[member] = True
                left -= sizes[member]
    return np.flatnonzero(chosen[group_of])


def _together(sides: NDArray[np.str_], groups: Rows) -> NDArray[np.str_]:
    """Put every row on the side of the first row of its group."""
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    return sides[first][group_of]

"""Cuts into train, val and test."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from raysim.data.settings import SplitSettings
from raysim.data.splits import SPLITS, cut
from raysim.errors import ConfigError, DataError

Rows = NDArray[np.int64]
RULES = ("stratified", "holdout", "mod10")


def cut_rows(
    labels: Any, settings: SplitSettings, official: Any = None, groups: Any = None, seed: int = 0
) -> dict[str, Rows]:
    labels = np.asarray(labels, np.int64)
    return cut(
        settings,
        labels=labels,
        official=np.asarray([""] * len(labels) if official is None else official),
        groups=np.arange(len(labels)) if groups is None else np.asarray(groups),
        seed=seed,
        domain=0,
        where="toy: a",
    )


def sizes(found: dict[str, Rows]) -> tuple[int, ...]:
    return tuple(len(found[split]) for split in SPLITS)


@given(
    st.lists(st.integers(0, 3), min_size=20, max_size=120),
    st.sampled_from(RULES),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.integers(0, 5),
)
def test_every_row_is_in_one_split(labels: list[int], kind: Any, val: float, seed: int) -> None:
    found = cut_rows(labels, SplitSettings(kind=kind, val=val, seed=None), seed=seed)
    joined = np.concatenate([found[split] for split in SPLITS])
    assert sorted(joined.tolist()) == list(range(len(labels)))
    assert all(np.all(np.diff(rows) > 0) for rows in found.values())


@given(st.lists(st.integers(0, 8), min_size=25, max_size=80), st.sampled_from(RULES))
def test_images_of_equal_pixels_stay_on_one_side(groups: list[int], kind: Any) -> None:
    """Few groups and many copies: the hardest case. A cut that leaves a side empty is refused."""
    labels = [group % 3 for group in groups]
    try:
        found = cut_rows(labels, SplitSettings(kind=kind, test=0.4, val=0.2), groups=groups)
    except DataError:
        return
    sides = {row: split for split in SPLITS for row in found[split].tolist()}
    of_group: dict[int, set[str]] = {}
    for row, group in enumerate(groups):
        of_group.setdefault(group, set()).add(sides[row])
    assert all(len(found_in) == 1 for found_in in of_group.values())


def test_stratified_cuts_every_class_alike() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    found = cut_rows(labels, SplitSettings(kind="stratified", test=0.2, val=0.1))
    counts = {split: np.bincount(labels[found[split]]).tolist() for split in SPLITS}
    assert counts == {"train": [70, 35, 7], "val": [10, 5, 1], "test": [20, 10, 2]}


# Caltech, amazon, dslr and webcam of Office-Caltech-10, and two domains of PACS.
@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (1123, (899, 112, 112)),
        (958, (767, 96, 95)),
        (157, (126, 16, 15)),
        (295, (236, 30, 29)),
        (2048, (1639, 205, 204)),
        (3929, (3144, 393, 392)),
    ],
)
def test_holdout_has_the_sizes_of_fdse(images: int, expected: tuple[int, ...]) -> None:
    found = cut_rows(np.zeros(images), SplitSettings(kind="holdout", test=0.1, val=0.1))
    assert sizes(found) == expected


def test_mod10_tests_on_the_last_two_of_every_ten() -> None:
    found = cut_rows(np.zeros(25), SplitSettings(kind="mod10"))
    assert found["test"].tolist() == [8, 9, 18, 19]
    copies = np.arange(25)
    copies[8] = 3  # row 8 shows what row 3 shows, so it trains too
    moved = cut_rows(np.zeros(25), SplitSettings(kind="mod10"), groups=copies)
    assert moved["test"].tolist() == [9, 18, 19]


def test_auto_is_official_where_there_is_one_and_stratified_elsewhere() -> None:
    official = ["train"] * 7 + ["test"] * 3
    found = cut_rows([0] * 10, SplitSettings(), official)
    assert (found["train"].tolist(), found["test"].tolist()) == ([*range(7)], [7, 8, 9])
    half = cut_rows([0] * 10, SplitSettings(), ["train"] * 10)
    whole = cut_rows([0] * 10, SplitSettings(kind="stratified"))
    assert half["test"].tolist() == whole["test"].tolist()
    assert sizes(half) == (8, 0, 2)


def test_validation_comes_out_of_the_official_training_images() -> None:
    """FDSE's DomainNet: the official test list tests, a fifth of the training list validates."""
    official = ["train"] * 80 + ["test"] * 20
    found = cut_rows([0] * 100, SplitSettings(kind="official", val=0.2), official)
    assert sizes(found) == (64, 16, 20)
    assert found["test"].tolist() == [*range(80, 100)]
    own = ["train"] * 5 + ["val"] * 3 + ["test"] * 2
    assert sizes(cut_rows([0] * 10, SplitSettings(val=0.2), own)) == (5, 3, 2)


def test_a_source_of_train_and_val_tests_on_val() -> None:
    official = ["train"] * 7 + ["val"] * 3
    found = cut_rows([0] * 10, SplitSettings(), official)
    assert (sizes(found), found["test"].tolist()) == ((7, 0, 3), [7, 8, 9])


def test_images_that_are_not_used_are_in_no_split() -> None:
    labels = np.repeat([0, 1], [80, 20])
    found = cut_rows(labels, SplitSettings(kind="mod10", use=0.25))
    assert np.bincount(labels[found["train"]]).tolist() == [16, 4]
    assert len(found["test"]) == 20
    whole = cut_rows(labels, SplitSettings(kind="mod10"))
    assert set(found["train"]) < set(whole["train"])


def test_the_seed_of_the_split_comes_before_the_runs() -> None:
    labels = np.zeros(60)
    cuts = [
        cut_rows(labels, SplitSettings(kind="stratified", seed=own), seed=run)["test"].tolist()
        for own, run in ((0, 1), (0, 2), (None, 1), (None, 2), (1, 9))
    ]
    assert cuts[0] == cuts[1]
    assert cuts[2] != cuts[3]
    assert cuts[2] == cuts[4]


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(DataError, match="toy: a: no official train and test split"):
        cut_rows([0] * 10, SplitSettings(kind="official"), ["train"] * 10)
    with pytest.raises(DataError, match="toy: a: 1 images leave none to test"):
        cut_rows([0], SplitSettings(kind="mod10"))
    with pytest.raises(DataError, match=r"10 images, 1 of them different .* leave none to test"):
        cut_rows([0] * 10, SplitSettings(), groups=[3] * 10)
    with pytest.raises(ConfigError, match="below 1"):
        cut_rows([0] * 10, SplitSettings(kind="holdout", test=0.6, val=0.4))


def test_shares_hold_on_average_over_many_small_classes() -> None:
    labels = np.repeat(np.arange(40), 5)
    found = cut_rows(labels, SplitSettings(kind="stratified", test=0.2))
    assert Counter(labels[found["test"]].tolist()) == dict.fromkeys(range(40), 1)

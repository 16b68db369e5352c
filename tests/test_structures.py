"""Structures: loading, reading, covering and averaging the units of a mask."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from raysim.channels import ChannelGroup, Slot, kept_parameters, num_units
from raysim.models import ChannelModel, build_model
from raysim.structures import (
    Structure,
    covered_means,
    filter_magnitudes,
    filter_norms,
    freeze,
    silenced,
)
from raysim.tensors import Arrays, digest, named_state, prefixed, state_arrays

# Three units produce the rows of w, and two others read its columns; b belongs to nobody.
GROUPS = (
    ChannelGroup("rows", 3, "w", None, "g1", (Slot("w", 0),)),
    ChannelGroup("columns", 2, "v", None, "g2", (Slot("w", 1),)),
)
MASK_C = np.array([1, 0, 1, 1, 0], bool)
COVERED = [[1, 0], [0, 0], [1, 0]]


def dense_arrays(value: float) -> Arrays:
    return {"w": np.full((3, 2), value, np.float32), "b": np.full(2, value, np.float32)}


def toy_structure(mask_C: Any = MASK_C) -> Structure:
    return Structure(GROUPS, np.array(mask_C, bool), sliced=True)


def cnn() -> ChannelModel:
    torch.manual_seed(0)
    return build_model("cnn", 3, 16, 4)


def structure_of(model: ChannelModel, *, sliced: bool, keep: float = 0.5) -> Structure:
    groups = model.channel_groups("inner")
    mask_C = np.random.default_rng(1).random(num_units(groups)) < keep
    mask_C[np.cumsum([0, *(group.size for group in groups)])[:-1]] = True  # no layer is empty
    return Structure(groups, mask_C, sliced=sliced)


def test_sizes() -> None:
    structure = toy_structure()
    assert structure.num_units == 3
    assert structure.sizes() == {"rows": 2, "columns": 1}
    assert structure.num_scalars(dense_arrays(0)) == 2 + 2
    model = cnn()
    half = structure_of(model, sliced=True)
    dense = state_arrays(model)
    shapes = {entry: array.shape for entry, array in dense.items()}
    assert half.num_scalars(dense) == kept_parameters(shapes, half.groups, half.mask_C)
    assert half.num_scalars(dense) == sum(a.size for a in half.take(dense).values())


def test_more_units_leave_the_smaller_structure_as_it_is() -> None:
    small = toy_structure()
    large = small.with_units(np.array([0, 1, 1, 0, 0], bool))
    assert large.mask_C.tolist() == [True, True, True, True, False]
    assert small.mask_C.tolist() == MASK_C.tolist()
    assert (large.groups, large.sliced) == (small.groups, small.sliced)


def test_inside_counts_the_units_that_the_loaded_model_has() -> None:
    other_C = np.array([1, 1, 0, 0, 1], bool)
    sliced = toy_structure()
    gated = Structure(GROUPS, MASK_C, sliced=False)
    assert sliced.inside(other_C).tolist() == [True, False, False]
    assert gated.inside(other_C).tolist() == other_C.tolist()


def test_a_part_is_taken_and_put_back() -> None:
    structure = toy_structure()
    part = structure.take(dense_arrays(7))
    assert part["w"].shape == (2, 1)
    joined = structure.put(dense_arrays(0), part)
    assert_array_equal(joined["w"], 7 * np.array(COVERED))
    assert_array_equal(joined["b"], [7, 7])


@pytest.mark.parametrize("sliced", [True, False])
def test_reading_returns_the_structure_s_units_and_no_others(sliced: bool) -> None:
    model = cnn()
    structure = structure_of(model, sliced=sliced)
    dense = state_arrays(model)
    structure.load(model, dense)
    assert digest(structure.read(model, dense)) == digest(dense)
    for tensor in named_state(model).values():
        tensor.add_(1)
    trained, covered = structure.read(model, dense), structure.coverage(dense)
    for entry, array in dense.items():
        assert_array_equal(trained[entry], np.where(covered[entry] > 0, array + 1, array))


@pytest.mark.parametrize("sliced", [True, False])
def test_both_forms_compute_the_same(sliced: bool) -> None:
    model = cnn().eval()
    images = torch.rand(4, 3, 16, 16)
    dense = state_arrays(model)
    whole = model(images)
    structure_of(model, sliced=not sliced).load(model, dense)
    other = model(images)
    model = cnn().eval()
    structure_of(model, sliced=sliced).load(model, dense)
    torch.testing.assert_close(model(images), other)
    assert not torch.allclose(whole, other)


# Averages of what each client has trained --------------------------------------------------------


def test_covered_arrays_are_zero_where_the_structure_is_not() -> None:
    sent = toy_structure().covered(dense_arrays(5))
    assert_array_equal(sent["covered/w"], COVERED)
    assert_array_equal(sent["trained/w"], 5 * np.array(COVERED))
    assert_array_equal(sent["covered/b"], [1, 1])
    assert sent.keys() == {"trained/w", "trained/b", "covered/w", "covered/b"}


def test_each_scalar_is_averaged_over_those_who_cover_it() -> None:
    first, second = toy_structure(), toy_structure([0, 0, 1, 1, 1])
    totals: Arrays = {}
    for structure, value, weight in ((first, 1.0, 10), (second, 4.0, 20)):
        for name, array in structure.covered(dense_arrays(value)).items():
            totals[name] = totals.get(name, 0.0) + weight * array.astype(np.float64)
    old = dense_arrays(9)
    means = covered_means(old, totals)
    assert_array_equal(means["w"], [[1, 9], [9, 9], [3, 4]])  # nobody covers 9
    assert_array_equal(means["b"], [3, 3])
    assert means["w"].dtype == np.float32
    assert_array_equal(old["w"], dense_arrays(9)["w"])


@given(st.lists(st.tuples(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(1, 9))))
def test_equal_values_stay_whoever_covers_them(clients: list[tuple[list[bool], int]]) -> None:
    zeros = {name: np.zeros_like(a, np.float64) for name, a in dense_arrays(0).items()}
    totals = prefixed("trained", zeros) | prefixed("covered", zeros)
    for mask, weight in clients:
        for name, array in toy_structure(mask).covered(dense_arrays(0.75)).items():
            totals[name] = totals[name] + weight * array
    for array in covered_means(dense_arrays(0.75), totals).values():
        assert_array_equal(array, np.full_like(array, 0.75))


# Frozen and silent units -------------------------------------------------------------------------


@pytest.mark.parametrize("sliced", [True, False])
def test_frozen_units_do_not_move(sliced: bool) -> None:
    model = cnn()
    frozen = structure_of(model, sliced=sliced)
    whole = frozen.with_units(structure_of(model, sliced=sliced, keep=0.9).mask_C)
    dense = state_arrays(model)
    whole.load(model, dense)
    restore = freeze(model, dense, frozen, whole)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            named_state(model)[name].add_(1)
    restore()
    after = whole.read(model, dense)
    assert digest(frozen.take(after)) == digest(frozen.take(dense))
    assert whole.num_units > frozen.num_units
    assert digest(after) != digest(dense)


@pytest.mark.parametrize("name", ["cnn", "resnet10"])
def test_silenced_units_change_nothing(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(name, 3, 16, 4).eval()
    groups = model.channel_groups("inner")
    dense = state_arrays(model)
    mask_C = np.ones(num_units(groups), bool)
    mask_C[[1, 2, 5]] = False
    images = torch.rand(2, 3, 16, 16)
    Structure(groups, mask_C, sliced=False).load(model, dense)
    without = model(images)
    everything = Structure(groups, np.ones_like(mask_C), sliced=False)
    everything.load(model, silenced(dense, groups, np.flatnonzero(~mask_C)))
    torch.testing.assert_close(model(images), without)
    everything.load(model, dense)
    assert not torch.allclose(model(images), without)


# Magnitudes --------------------------------------------------------------------------------------


def test_norms_and_magnitudes_of_filters() -> None:
    dense = {"w.weight": np.array([[1, -2], [0, 4]]), "v.weight": np.array([[[[-3.0]], [[6]]]])}
    groups = [ChannelGroup(n, len(dense[f"{n}.weight"]), n, None, "g", ()) for n in ("w", "v")]
    assert_array_equal(filter_norms(dense, groups), [3, 4, 9])
    assert_array_equal(filter_magnitudes(dense, groups), [1.5, 2, 4.5])


def test_magnitudes_are_summed_in_float64() -> None:
    weight = np.full((1, 3000), 0.1, np.float32)
    group = ChannelGroup("w", 1, "w", None, "g", ())
    exact = float(np.float32(0.1))
    assert_allclose(filter_norms({"w.weight": weight}, [group]), 3000 * exact, rtol=1e-14)
    assert_allclose(filter_magnitudes({"w.weight": weight}, [group]), exact, rtol=1e-14)

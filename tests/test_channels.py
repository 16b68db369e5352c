import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.channels import (
    ChannelGroup,
    Slot,
    kept_parameters,
    layer_mean_scores,
    num_units,
    per_group,
    put,
    put_units,
    same_profile,
    select_units,
    take,
    take_units,
)
from raysim.errors import ConfigError


def group(name: str, size: int, *slots: Slot) -> ChannelGroup:
    return ChannelGroup(name, size, name, None, f"{name}.gate", slots)


TWO_LAYERS = (group("A", 3), group("B", 3))
SCORES = np.array([2, 1.25, 1.25, 1.5, 0.5, 1.5])
WEAK_B = SCORES * [1, 1, 1, 0.01, 0.01, 0.01]


def units(mask_C):
    return set(np.flatnonzero(mask_C).tolist())


def matrix_groups():
    """Units B run along the rows of `w`, units A along its columns and along `v`."""
    return (
        group("A", 3, Slot("v", 0), Slot("w", 1)),
        group("B", 3, Slot("w", 0)),
    )


@pytest.mark.parametrize(
    ("keep_ratio", "expected"), [(3 / 6, {0, 3, 5}), (2 / 6, {0, 3}), (4 / 6, {0, 1, 3, 5})]
)
def test_exact_count_where_a_threshold_would_keep_ties(keep_ratio, expected):
    assert units(select_units(SCORES, TWO_LAYERS, keep_ratio, 0.0)) == expected


@pytest.mark.parametrize(
    ("score_C", "min_keep", "expected"),
    [
        (WEAK_B, 0.0, {0, 1, 2}),
        (WEAK_B, 0.05, {0, 1, 3}),
        (WEAK_B, 1e-12, {0, 1, 3}),
        (layer_mean_scores(WEAK_B, TWO_LAYERS), 0.05, {0, 3, 5}),
    ],
    ids=["raw empties B", "guard", "tiny guard", "layer mean"],
)
def test_weak_layer(score_C, min_keep, expected):
    assert units(select_units(score_C, TWO_LAYERS, 0.5, min_keep)) == expected


def test_layer_mean_scores_of_the_worked_example():
    expected = [1.3333, 0.8333, 0.8333, 1.2857, 0.4286, 1.2857]
    np.testing.assert_allclose(layer_mean_scores(WEAK_B, TWO_LAYERS), expected, atol=5e-5)


def test_layer_mean_scores_of_an_all_zero_layer_are_zero():
    scores = layer_mean_scores(np.array([1.0, 3, 0, 0, 0, 0]), TWO_LAYERS)
    np.testing.assert_allclose(scores, [0.75, 2.25, 0, 0, 0, 0])


def test_reserve_is_not_inflated_by_rounding():
    assert 0.07 * 100 > 7
    groups = (group("A", 100), group("B", 100))
    scores = np.concatenate([np.zeros(100), np.ones(100)])
    mask_C = select_units(scores, groups, 0.5, 0.07)
    assert [int(m.sum()) for m in per_group(groups, mask_C)] == [7, 93]


def test_reserves_beyond_the_count_are_refused():
    with pytest.raises(ConfigError, match="reserves 4 of 6"):
        select_units(SCORES, TWO_LAYERS, 0.5, 0.6)


@pytest.mark.parametrize(("ratio", "fraction"), [(0, 0), (1.1, 0), (0.5, -0.1), (0.5, 1.1)])
def test_ratios_out_of_range_are_refused(ratio, fraction):
    with pytest.raises(ConfigError, match="must lie in"):
        select_units(SCORES, TWO_LAYERS, ratio, fraction)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_scores_name_their_layer(value):
    score_C = SCORES.copy()
    score_C[4] = value
    with pytest.raises(FloatingPointError, match="1 of 3 scores of B"):
        select_units(score_C, TWO_LAYERS, 0.5, 0.0)


@given(data=st.data())
def test_selection_is_exact_reserved_and_best_first(data):
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    groups = [group(str(i), size) for i, size in enumerate(sizes)]
    total = sum(sizes)
    score_C = np.array(
        data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=total, max_size=total))
    )
    keep_ratio = data.draw(st.floats(0.3, 1.0))
    n_keep = max(1, int(np.floor(keep_ratio * total + 0.5)))
    guard = 0.05 if n_keep >= len(sizes) else 0.0
    mask_C = select_units(score_C, groups, keep_ratio, guard)
    assert mask_C.sum() == n_keep
    if guard:
        assert all(mask_L.any() for mask_L in per_group(groups, mask_C))
    spare = np.ones(total, dtype=bool)  # all but each group's reserve of one
    if guard:
        for spare_L, score_L in zip(
            per_group(groups, spare), per_group(groups, score_C), strict=True
        ):
            spare_L[np.argmax(score_L)] = False
    rank = {unit: r for r, unit in enumerate(sorted(range(total), key=lambda j: (-score_C[j], j)))}
    kept = [rank[j] for j in np.flatnonzero(mask_C & spare)]
    dropped = [rank[j] for j in np.flatnonzero(~mask_C)]
    assert not kept or not dropped or max(kept) < min(dropped)


def test_the_same_profile_keeps_other_units() -> None:
    mask_C = select_units(SCORES, TWO_LAYERS, 0.5, 0.0)
    other_C = same_profile(-SCORES, TWO_LAYERS, mask_C)
    sizes = [[int(part.sum()) for part in per_group(TWO_LAYERS, m)] for m in (mask_C, other_C)]
    assert sizes[0] == sizes[1]
    assert units(other_C) != units(mask_C)
    assert units(same_profile(SCORES, TWO_LAYERS, mask_C)) == units(mask_C)


def test_per_group_returns_views():
    vector = np.zeros(6)
    per_group(TWO_LAYERS, vector)[1][:] = 1
    assert vector.tolist() == [0, 0, 0, 1, 1, 1]
    assert [v.shape for v in per_group(TWO_LAYERS, np.zeros((4, 6)))] == [(4, 3), (4, 3)]
    with pytest.raises(ValueError, match="5 values for 6"):
        per_group(TWO_LAYERS, np.zeros(5))


def test_a_scalar_is_shared_only_if_both_its_axes_are():
    """Worked example: Mout=[1,0,1], Min=[1,0,0]; equal-weight clients hold 1 and 3 everywhere."""
    old = {"w": np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]]), "v": np.zeros(3)}
    mask_C = np.array([1, 0, 0, 1, 0, 1], dtype=bool)
    clients = [{"w": np.full((3, 3), value), "v": np.full(3, value)} for value in (1.0, 3.0)]
    slices = [take(client, matrix_groups(), mask_C) for client in clients]
    assert slices[0]["w"].shape == (2, 1)
    mean = {name: (slices[0][name] + slices[1][name]) / 2 for name in slices[0]}
    new = put(old, mean, matrix_groups(), mask_C)
    assert new["w"].tolist() == [[2, 0.2, 0.3], [0.4, 0.5, 0.6], [2, 0.8, 0.9]]
    assert new["v"].tolist() == [2, 0, 0]


def test_repeat_owns_consecutive_positions():
    groups = (group("A", 2, Slot("fc", 1, repeat=3)),)
    sliced = take({"fc": np.arange(6).reshape(1, 6)}, groups, np.array([False, True]))
    assert sliced["fc"].tolist() == [[3, 4, 5]]


def test_put_keeps_missing_entries_and_refuses_unknown_or_misfit_ones():
    dense = {"w": np.zeros((3, 3)), "v": np.zeros(3), "head": np.zeros(2)}
    mask_C = np.array([1, 0, 0, 1, 1, 1], dtype=bool)
    new = put(dense, {"head": np.ones(2)}, matrix_groups(), mask_C)
    assert new["w"] is dense["w"]
    assert new["head"].tolist() == [1, 1]
    with pytest.raises(KeyError, match="extra"):
        put(dense, {"extra": np.ones(2)}, matrix_groups(), mask_C)
    with pytest.raises(ValueError, match=r"w has shape .* \(3, 1\)"):
        put(dense, {"w": np.ones((3, 3))}, matrix_groups(), mask_C)
    with pytest.raises(ValueError, match="head"):
        put(dense, {"head": np.ones(3)}, matrix_groups(), mask_C)


@st.composite
def sliced_models(draw):
    """A chain of layers with maps of `repeat` positions, plus an entry that no unit owns."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    repeat = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = {"free": rng.normal(size=(2, 2)).astype(np.float32)}
    groups = []
    inputs = 3
    for i, size in enumerate(sizes):
        arrays[f"w{i}"] = rng.normal(size=(size, inputs, 2, 2)).astype(np.float32)
        arrays[f"b{i}"] = rng.normal(size=size).astype(np.float32)
        reader = Slot(f"w{i + 1}", 1, repeat)
        groups.append(group(f"g{i}", size, Slot(f"w{i}", 0), Slot(f"b{i}", 0), reader))
        inputs = size * repeat
    arrays[f"w{len(sizes)}"] = rng.normal(size=(2, inputs)).astype(np.float32)
    mask_C = rng.random(num_units(groups)) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    return arrays, tuple(groups), mask_C


@given(case=sliced_models())
def test_take_and_put_are_inverse(case):
    arrays, groups, mask_C = case
    before = {name: array.copy() for name, array in arrays.items()}
    sliced = take(arrays, groups, mask_C)
    assert sliced["free"] is arrays["free"]
    same = put(arrays, sliced, groups, mask_C)
    other = put({name: a * 0 - 7 for name, a in arrays.items()}, sliced, groups, mask_C)
    again = take(other, groups, mask_C)
    for name, array in arrays.items():
        assert array.tobytes() == before[name].tobytes()
        assert same[name].tobytes() == array.tobytes()
        assert again[name].tobytes() == sliced[name].tobytes()
        assert ((other[name] == array) | (other[name] == -7)).all()
        assert (other[name] == array).sum() == sliced[name].size


@given(case=sliced_models())
def test_kept_parameters_counts_what_take_leaves(case):
    arrays, groups, mask_C = case
    left = sum(array.size for array in take(arrays, groups, mask_C).values())
    shapes = {name: array.shape for name, array in arrays.items()}
    assert kept_parameters(shapes, groups, mask_C) == left


@given(case=sliced_models())
def test_private_units_come_back_and_touch_nothing_else(case):
    arrays, groups, mask_C = case
    private = np.flatnonzero(mask_C)
    stored = take_units(arrays, groups, private[::-1])
    blank = {name: np.full_like(array, -7) for name, array in arrays.items()}
    restored = put_units(blank, stored, groups, private)
    rest = take(restored, groups, ~mask_C)  # scalars that no private unit touches
    assert all((a == -7).all() for a in rest.values())
    assert put_units(arrays, stored, groups, private)["w0"].tobytes() == arrays["w0"].tobytes()
    for name, array in arrays.items():
        assert (blank[name] == -7).all()
        assert (restored[name] == array).sum() == array.size - rest[name].size


def test_units_are_stored_slot_by_slot():
    arrays = {"w": np.arange(9.0).reshape(3, 3), "v": np.arange(3.0)}
    stored = take_units(arrays, matrix_groups(), [1, 5])
    assert {key: value.tolist() for key, value in stored.items()} == {
        "v@0": [1],
        "w@1": [[1], [4], [7]],
        "w@0": [[6, 7, 8]],
    }
    assert take_units(arrays, matrix_groups(), []) == {}


def test_unit_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"\[0, 6\)"):
        take_units({}, matrix_groups(), [6])
    with pytest.raises(ValueError, match=r"\[0, 6\)"):
        take_units({}, matrix_groups(), [-1])


def test_restoring_without_a_stored_slot_is_an_error():
    arrays = {"w": np.zeros((3, 3)), "v": np.zeros(3)}
    with pytest.raises(KeyError, match="w@0"):
        put_units(arrays, {}, matrix_groups(), [4])


def test_channels_do_not_import_torch():
    import subprocess
    import sys

    code = "import sys, raysim.channels; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

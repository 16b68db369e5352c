from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from raysim.aggregation import MAX_TOTAL_WEIGHT, ExactSum, NonFiniteError, Partial, Weighted

FLOATS = st.floats(-1e6, 1e6, width=32)
CONTRIBUTIONS = st.lists(
    st.tuples(hnp.arrays(np.float32, 5, elements=FLOATS), st.integers(0, 5000)),
    min_size=1,
    max_size=8,
)


def summed(parts: list[tuple[Any, int]]) -> ExactSum:
    total = ExactSum((5,))
    for value, weight in parts:
        total.add(value, weight)
    return total


@given(CONTRIBUTIONS, st.randoms(use_true_random=False), st.integers(0, 8))
def test_no_order_and_no_grouping_changes_a_bit(parts: Any, rng: Any, cut: int) -> None:
    wanted = summed(parts)
    mixed = list(parts)
    rng.shuffle(mixed)
    found = summed(mixed[cut:])
    found.merge(summed(mixed[:cut]))
    assert found.weight == wanted.weight
    assert found.total().tobytes() == wanted.total().tobytes()


@given(CONTRIBUTIONS)
def test_the_error_is_a_tiny_part_of_the_largest_magnitude(parts: Any) -> None:
    wanted = sum(value.astype(np.float64) * weight for value, weight in parts)
    bound = sum(float(np.abs(value).max()) * weight for value, weight in parts) * 2.0**-30
    assert np.abs(summed(parts).total() - wanted).max() <= bound


@given(
    hnp.arrays(np.float32, 5, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
)
def test_float32_is_summed_with_the_bits_of_float64(value: Any) -> None:
    wide = summed([(value.astype(np.float64), 3)])
    narrow = summed([(value, 3)])
    assert narrow.bins.keys() == wide.bins.keys()
    for exponent, integers in wide.bins.items():
        assert_array_equal(narrow.bins[exponent], integers)


def test_a_contribution_longer_than_a_block_is_added_whole() -> None:
    value = np.random.default_rng(0).normal(size=(3, 40_000))
    total = ExactSum(value.shape)
    total.add(value, 5)
    total.add(value[::-1], 5)
    assert_allclose(total.total(), 5.0 * (value + value[::-1]), rtol=0, atol=1e-6)


@given(hnp.arrays(np.float32, 5, elements=FLOATS), st.integers(1, 10_000))
def test_the_mean_of_one_is_itself(value: Any, weight: int) -> None:
    peak = float(np.abs(value).max())
    assert_allclose(summed([(value, weight)]).mean(), value, rtol=0, atol=peak * 2.0**-30)


@settings(max_examples=30)
@given(st.integers(-120, 120), st.integers(-120, 120))
def test_magnitudes_far_apart_add_up(a: int, b: int) -> None:
    parts = [(np.full(5, 2.0**a), 3), (np.full(5, 2.0**b), 5)]
    assert_allclose(summed(parts).total(), 3 * 2.0**a + 5 * 2.0**b, rtol=1e-9)


def test_equal_contributions_have_their_own_value_as_mean() -> None:
    value = np.random.default_rng(0).normal(size=5).astype(np.float32)
    once = summed([(value, 7)]).mean().astype(np.float32)
    assert_array_equal(
        summed([(value, 3), (value, 11), (value, 1)]).mean().astype(np.float32), once
    )


def test_worked_mean() -> None:
    total = summed([(np.full(5, 1.0), 40), (np.full(5, 4.0), 20)])
    assert_allclose(total.mean(), 2.0, atol=1e-9)
    assert_allclose(total.total(), 120.0, atol=1e-7)


def test_weight_zero_and_zeros_count_for_nothing() -> None:
    total = summed([(np.full(5, 9.0), 0), (np.zeros(5), 4)])
    assert total.weight == 4
    assert not total.total().any()
    with pytest.raises(ZeroDivisionError):
        summed([(np.ones(5), 0)]).mean()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused_and_leave_no_trace(bad: float) -> None:
    partial = Partial()
    partial.add(0, {"w": Weighted(np.ones(2), 1)}, {})
    good = np.ones(2)
    with pytest.raises(NonFiniteError, match="'v'"):
        partial.add(1, {"w": Weighted(good, 1), "v": Weighted(np.array([1, bad]), 1)}, {})
    with pytest.raises(NonFiniteError, match="'g'"):
        partial.add(1, {"w": Weighted(good, 1)}, {"g": np.array([bad])})
    assert partial.sums.keys() == {"w"}
    assert partial.sums["w"].weight == 1
    assert not partial.gathered


def test_weights_stay_within_what_is_exact() -> None:
    total = ExactSum((1,))
    total.add(np.ones(1), MAX_TOTAL_WEIGHT - 1)
    for weight in (1, -1):
        with pytest.raises(OverflowError):
            total.add(np.ones(1), weight)
    other = ExactSum((1,), weight=1)
    with pytest.raises(OverflowError):
        total.merge(other)


@pytest.mark.parametrize("peak", [1.0, 0.9999999, 1e-30, 3.4e38])
def test_a_full_sum_does_not_overflow(peak: float) -> None:
    total = ExactSum((1,))
    for _ in range(4):
        total.add(np.array([peak]), MAX_TOTAL_WEIGHT // 4 - 1)
    assert_allclose(total.mean(), peak, rtol=1e-9)


def test_shapes_must_agree() -> None:
    total = ExactSum((2, 2))
    with pytest.raises(ValueError, match="shape"):
        total.add(np.ones(4), 1)
    with pytest.raises(ValueError, match="shape"):
        total.merge(ExactSum((4,)))


def test_inputs_are_left_alone() -> None:
    value = np.arange(5, dtype=np.float64)
    value.setflags(write=False)
    a, b = summed([(value, 2)]), summed([(value, 3)])
    before = b.total()
    a.merge(b)
    a.merge(b)
    assert_array_equal(b.total(), before)
    assert_array_equal(value, np.arange(5))


def test_partials_join_names_and_keep_client_order() -> None:
    a, b = Partial(), Partial()
    a.add(7, {"w": Weighted(np.ones(1), 1)}, {"x": np.full(1, 7.0)})
    b.add(2, {"w": Weighted(np.full(1, 3.0), 3), "v": Weighted(np.ones(1), 1)}, {"x": np.ones(1)})
    b.add(11, {}, {"x": np.zeros(1)})
    a.merge(b)
    assert [client for client, _ in a.in_client_order()] == [2, 7, 11]
    assert_allclose(a.means()["w"], 2.5)
    assert a.means(["v"]).keys() == {"v"}
    assert a.sums["v"].weight == 1

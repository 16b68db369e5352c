"""FedHEAL: masks and weights by worked numbers, FedAvg at neutral settings, state, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods.fedheal import (
    SHARE_UNITS,
    FedHEAL,
    consistent,
    equalised,
    expected_weight,
    integer_shares,
    update_distance,
)
from raysim.aggregation import masked_mean
from raysim.errors import ConfigError, RunError
from raysim.executor import InProcessExecutor
from raysim.tensors import Arrays
from tests.toy import dealt, run_toy, toy_config

IID = {"partition": {"kind": "iid"}}
NEUTRAL = {"name": "fedheal", "tau": -1, "beta": 0}


def _executor(**overrides: Any) -> InProcessExecutor:
    config = toy_config(**overrides)
    dataset, partition = dealt(config)
    return InProcessExecutor(config, partition, dataset)


def _round(executor: InProcessExecutor, round_: int, cohort: list[int]) -> None:
    for phase in FedHEAL.phases:
        executor.run_phase(round_, phase, cohort)
    executor.commit()


# Formulas -------------------------------------------------------------------------------------


def test_direction_of_a_quarter_is_dropped_and_of_a_third_is_kept() -> None:
    rises = np.array([False])  # s = 0: c = 1 - h
    assert not consistent(rises, np.array([3]), 4, 0.3)[0]  # h = 3/4, c = 1/4
    assert consistent(rises, np.array([2]), 3, 0.3)[0]  # h = 2/3, c = 1/3


def test_first_round_keeps_everything_and_the_threshold_is_strict() -> None:
    fell = np.array([True, False])
    assert consistent(fell, None, 0, 0.3).all()
    assert not consistent(fell, np.array([3, 7]), 10, 0.3).any()  # c = 3/10 both ways
    assert consistent(fell, np.array([4, 6]), 10, 0.3).all()


def test_weights_follow_the_worked_rounds() -> None:
    step, weight = equalised(np.zeros(2), np.full(2, 0.5), np.array([3.0, 1.0]), 0.4)
    np.testing.assert_allclose(step, [0.3, 0.1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(weight, [0.8, 0.6], rtol=0, atol=1e-12)
    np.testing.assert_allclose(weight / weight.sum(), [0.5714, 0.4286], atol=5e-5)
    step, weight = equalised(step, weight, np.array([1.0, 1.0]), 0.4)
    np.testing.assert_allclose(step, [0.38, 0.26], rtol=0, atol=1e-12)
    np.testing.assert_allclose(weight, [1.18, 0.86], rtol=0, atol=1e-12)
    np.testing.assert_allclose(weight / weight.sum(), [0.5784, 0.4216], atol=5e-5)


def test_clients_that_do_not_move_share_evenly() -> None:
    step, weight = equalised(np.zeros(4), np.full(4, 0.25), np.zeros(4), 0.4)
    np.testing.assert_allclose(step, 0.1)
    np.testing.assert_allclose(weight, 0.35)


@given(beta=st.floats(0, 1), rounds=st.integers(0, 60), num=st.integers(1, 9))
def test_equal_distances_give_the_expected_weight(beta: float, rounds: int, num: int) -> None:
    step, weight = np.zeros(num), np.full(num, 1 / num)
    for _ in range(rounds):
        step, weight = equalised(step, weight, np.ones(num), beta)
    expected = expected_weight(np.full(num, rounds), beta)
    np.testing.assert_allclose(weight * num, expected, rtol=1e-6, atol=1e-6)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=50))
def test_integer_shares_are_the_weights_to_a_millionth(weights: list[float]) -> None:
    exact = np.array(weights) / np.sum(weights)
    shares = integer_shares(np.array(weights))
    assert shares.min() >= 1
    assert shares.sum() <= SHARE_UNITS + len(weights)
    np.testing.assert_allclose(shares / shares.sum(), exact, atol=len(weights) / SHARE_UNITS)


@given(num=st.integers(1, 100), weight=st.floats(1e-3, 1e3))
def test_uniform_weights_are_shares_of_one(num: int, weight: float) -> None:
    assert integer_shares(np.full(num, weight)).tolist() == [1] * num


def test_distance_sums_norms_over_tensors() -> None:
    update = {"a": np.array([[3.0, 4.0]]), "b": np.array([12.0]), "c": np.zeros(3)}
    assert update_distance(update) == 17.0


def test_mean_of_masked_models_is_the_code_s_masked_update() -> None:
    # p = (.8, .6), w = 1, w_i = (2, 4): both masks, the second only, none.
    old, local = np.ones(3), np.array([[2.0, 2, 2], [4, 4, 4]])
    mask, p = np.array([[1, 0, 0], [1, 1, 0]]), np.array([[0.8], [0.6]])
    q = p * mask / np.maximum((p * mask).sum(0), 1e-300)
    code = old - (q * (old - local) * mask).sum(0)
    got = masked_mean((p * mask * local).sum(0), (p * mask).sum(0), old)
    np.testing.assert_allclose(got, code, rtol=1e-12)
    np.testing.assert_allclose(got, [4 / 1.4, 4, 1], rtol=1e-12)


# Runs -----------------------------------------------------------------------------------------


def test_neutral_setting_on_equal_shards_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    fedavg = run_toy(toy_config(method="fedavg", data=IID), tmp_path / "a").summary
    neutral = run_toy(toy_config(method=NEUTRAL, data=IID), tmp_path / "b").summary
    assert neutral["weights_sha256"] == fedavg["weights_sha256"]
    assert neutral["domains"] == fedavg["domains"]


@pytest.mark.parametrize("part", [{"tau": -1}, {"beta": 0}], ids=["weights", "masks"])
def test_each_half_changes_the_model(part: dict[str, Any], tmp_path: Path) -> None:
    # The same clients in both rounds, so that masks have a history.
    few = {"data": {"clients": 4, "partition": {"kind": "iid"}}, "participation": {"fraction": 1.0}}
    local = {"batch_size": 256}
    method = {"name": "fedheal", **part}
    runs = [
        run_toy(toy_config(method=m, local=local, **few), tmp_path / str(i)).summary
        for i, m in enumerate([NEUTRAL, method])
    ]
    assert runs[0]["weights_sha256"] != runs[1]["weights_sha256"]


def test_staged_update_is_gone_after_the_round_and_history_stays() -> None:
    executor = _executor(method="fedheal")
    weights = executor.snapshot().model
    for round_ in range(2):
        _round(executor, round_, [0, 7])
    snapshot = executor.snapshot()
    assert snapshot.clients.keys() == {0, 7}
    for state in snapshot.clients.values():
        assert state["history/rounds"].tolist() == [2]
        assert state.keys() == {"history/rounds", *(f"fell/{entry}" for entry in weights)}
        counts = state["fell/head.weight"]
        assert counts.dtype == np.int32
        assert set(np.unique(counts)) == {0, 1, 2}


def test_history_and_weights_count_a_client_s_own_rounds() -> None:
    executor = _executor(method="fedheal")
    for round_, cohort in enumerate([[1, 2], [1, 3], [1, 2]]):
        _round(executor, round_, cohort)
    snapshot = executor.snapshot()
    taken = {c: int(s["history/rounds"][0]) for c, s in snapshot.clients.items()}
    assert taken == {1: 3, 2: 2, 3: 1}
    memory = snapshot.memory
    assert memory["rounds"][:5].tolist() == [0, 3, 2, 1, 0]
    assert np.flatnonzero(memory["shares"]).tolist() == [1, 2]
    assert (memory["weight"][[1, 2, 3]] > 0.5).all()
    # A veteran of three rounds weighs about as much as one of two: 1 / N each, not 3 : 2.
    shares = memory["shares"][[1, 2]] / memory["shares"].sum()
    np.testing.assert_allclose(shares, 0.5, atol=0.1)


def test_masks_hold_back_what_wavers() -> None:
    executor = _executor(method={"name": "fedheal", "tau": 1}, data=IID)  # c > 1 never holds
    _round(executor, 0, [0])
    first = executor.snapshot().model
    report = executor.run_phase(1, "fit", [0])
    assert report.clients[0].metrics["kept_fraction"] == 0.0
    executor.run_phase(1, "share", [0])
    executor.commit()
    for entry, array in executor.snapshot().model.items():
        np.testing.assert_array_equal(array, first[entry])


def test_only_the_distance_goes_up_before_the_weights_come_down() -> None:
    executor = _executor(method="fedheal")
    weights = executor.snapshot().model
    fit = executor.run_phase(0, "fit", [0, 1])
    assert [c.bytes_up for c in fit.clients] == [8, 8]
    share = executor.run_phase(0, "share", [0, 1])
    scalars = sum(array.size for array in weights.values())
    assert [c.bytes_up for c in share.clients] == [5 * scalars] * 2  # float32 and a byte of mask
    assert share.bytes_down == 8 * toy_config().data.clients


def test_local_running_statistics_stay_with_the_client(tmp_path: Path) -> None:
    run = run_toy(toy_config(method={"name": "fedheal", "buffers": "local"}), tmp_path)
    assert run.summary["personal"] is not None
    initial = _executor(method="fedheal").snapshot().model
    for state in run.snapshot.clients.values():
        own = {name for name in state if "/" not in name}
        assert own == {e for e in initial if "running_" in e}
        assert not any("running_" in name for name in state.keys() - own)
    for entry in initial:
        if "running_" in entry:
            np.testing.assert_array_equal(run.snapshot.model[entry], initial[entry])


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_model_that_is_not_finite_gets_no_weight(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = _executor(method="fedheal", participation={"nonfinite": policy})
    poison = _poisoned(executor.snapshot().model)
    monkeypatch.setattr("raysim.method.state_arrays", poison)
    if policy == "stop":
        with pytest.raises(RunError, match="client 5"):
            executor.run_phase(0, "fit", [3, 5])
        return
    _round(executor, 0, [3, 5])
    snapshot = executor.snapshot()
    assert snapshot.clients.keys() == {3}
    assert np.flatnonzero(snapshot.memory["shares"]).tolist() == [3]
    assert all(np.isfinite(array).all() for array in snapshot.model.values())


def _poisoned(like: Arrays) -> Any:
    """Return what reads a model, but finds an infinite running variance the second time."""
    calls = iter([False, True])

    def state_arrays(model: Any) -> Arrays:
        from raysim.tensors import state_arrays as read

        arrays = read(model)
        if next(calls):
            entry = next(e for e in like if e.endswith("running_var"))
            arrays[entry] = np.full_like(arrays[entry], np.inf)
        return arrays

    return state_arrays


def test_symbols_of_the_paper_are_accepted() -> None:
    method = toy_config(method={"name": "fedheal", "tau": 0.2, "beta": 0.1}).method
    assert method == FedHEAL(threshold=0.2, equalisation=0.1)
    with pytest.raises(ConfigError, match="beta"):
        toy_config(method={"name": "fedheal", "beta": 2})

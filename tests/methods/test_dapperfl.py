"""DapperFL: fusion, pruning and recovery by formula, FedAvg at neutral settings, slices in runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from methods.dapperfl import (
    DapperFL,
    fuse,
    fusion_share,
    largest_channels,
    squared_norm,
    without_weights,
)
from raysim.channels import ChannelGroup, Slot, num_units, per_group
from raysim.errors import ConfigError
from raysim.executor import InProcessExecutor
from raysim.method import Batch
from raysim.models import build_model
from raysim.tensors import Array, Arrays, state_arrays
from tests.toy import dealt, run_toy, toy_config

TWO_EPOCHS = {"epochs": 2, "batch_size": 32}
NEUTRAL = {"name": "dapperfl", "rho": [0.0], "gamma": 0}


def _executor(method: dict[str, Any], **overrides: Any) -> InProcessExecutor:
    config = toy_config(method={"name": "dapperfl"} | method, **overrides)
    dataset, partition = dealt(config)
    return InProcessExecutor(config, partition, dataset)


def _floats(values: Any) -> Array:
    return np.array(values, np.float32)


def _one_round(
    method: dict[str, Any], cohort: list[int], **overrides: Any
) -> tuple[Arrays, Arrays, dict[int, Arrays], list[Any]]:
    """Run round 0; returns the model before and after, the clients' states and reports."""
    executor = _executor(method, **overrides)
    before = executor.snapshot().model
    report = executor.run_phase(0, "fit", cohort)
    executor.commit()
    after = executor.snapshot()
    return before, after.model, dict(after.clients), list(report.clients)


# Formulas -------------------------------------------------------------------------------------


def test_fusion_share_decays_to_its_floor() -> None:
    shares = [fusion_share(round_, 0.9, 0.1, 0.2) for round_ in range(12)]
    paper = [0.9, 0.72, 0.576, 0.4608, 0.36864, 0.29491, 0.23593, 0.18874, 0.15099, 0.1208, 0.1]
    np.testing.assert_allclose(shares, [*paper, 0.1], rtol=0, atol=1e-5)


def test_fusion_mixes_received_and_tuned() -> None:
    fused = fuse({"w": _floats([1, 2])}, {"w": _floats([3, -2])}, 0.75)
    np.testing.assert_array_equal(fused["w"], _floats([1.5, 1]))
    assert fused["w"].dtype == np.float32


def _group(size: int) -> ChannelGroup:
    return ChannelGroup("g", size, "g", None, "gate", (Slot("g.weight", 0),))


def test_channels_of_smallest_l1_norm_go_first() -> None:
    # l1 norms 3, 2, 2, 4; by l2 norm channel 1 would beat channel 0.
    weight = _floats([[1, 1, 1], [2, 0, 0], [0, -2, 0], [-4, 0, 0]])
    kept = {r: largest_channels({"g.weight": weight}, [_group(4)], r) for r in (0.25, 0.5, 0.75)}
    assert kept[0.25].tolist() == [True, True, False, True]  # a tie: the lower channel stays
    assert kept[0.5].tolist() == [True, False, False, True]
    assert kept[0.75].tolist() == [False, False, False, True]


@given(size=st.integers(1, 64), ratio=st.floats(0, 0.999), seed=st.integers(0, 99))
def test_every_layer_loses_its_share_and_never_all(size: int, ratio: float, seed: int) -> None:
    weight = np.random.default_rng(seed).normal(size=(size, 3, 2, 2))
    kept = largest_channels({"g.weight": weight}, [_group(size)], ratio)
    assert kept.sum() >= 1
    assert abs(kept.sum() - (1 - ratio) * size) <= max(0.5 + 1e-9, 1 - (1 - ratio) * size)
    norms = np.abs(weight).sum((1, 2, 3))
    if not kept.all():
        assert norms[kept].min() >= norms[~kept].max()


def test_levels_of_devices_take_turns() -> None:
    method = DapperFL()
    assert [method.removal_ratio(i) for i in range(7)] == [0.0, 0.2, 0.4, 0.6, 0.8, 0.0, 0.2]


def test_penalty_is_the_mean_squared_norm() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 1.0]], requires_grad=True)
    value = squared_norm(features)
    assert value.item() == 13.0  # (25 + 1) / 2; the released code's unsquared norm gives 3
    value.backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    np.testing.assert_array_equal(features.grad.numpy(), features.detach().numpy())


def test_zero_filled_average_empties_weight_tensors_only() -> None:
    dense = state_arrays(build_model("cnn", 10, 16, 4))
    emptied = without_weights(dense)
    for entry, array in dense.items():
        expected = np.zeros_like(array) if entry.endswith(".weight") else array
        np.testing.assert_array_equal(emptied[entry], expected)


# Runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 2])
def test_nothing_removed_and_no_penalty_is_fedavg_to_the_bit(epochs: int, tmp_path: Path) -> None:
    local = TWO_EPOCHS | {"epochs": epochs}
    fedavg = run_toy(toy_config(method="fedavg", local=local), tmp_path / "a")
    neutral = run_toy(toy_config(method=NEUTRAL, local=local), tmp_path / "b")
    assert neutral.summary["weights_sha256"] == fedavg.summary["weights_sha256"]
    assert neutral.summary["domains"] == fedavg.summary["domains"]
    assert neutral.summary["personal"] is None
    assert neutral.snapshot.clients == {}


def test_each_part_changes_the_model() -> None:
    variants: list[dict[str, Any]] = [
        NEUTRAL,
        NEUTRAL | {"gamma": 0.01},
        {"rho": [0.5], "gamma": 0},
        {"rho": [0.5], "gamma": 0, "alpha_0": 0, "alpha_min": 0},
        {"rho": [0.5], "gamma": 0, "average": "zero_filled"},
        {"rho": [0.5], "gamma": 0.01},
    ]
    heads = {
        _one_round(v, [0], local=TWO_EPOCHS)[1]["body.conv2.producer.weight"].tobytes()
        for v in variants
    }
    assert len(heads) == len(variants)


def test_penalty_acts_after_the_fine_tuning_examples() -> None:
    model = build_model("cnn", 10, 16, 4).eval()
    batch = Batch(torch.rand(4, 3, 16, 16), torch.arange(4), torch.zeros(4, dtype=torch.int64))
    client: Any = SimpleNamespace(model=model)
    loss = DapperFL(feature_penalty=0.5)._regularised(client, 8)
    task = functional.cross_entropy(model(batch.images), batch.labels)
    penalty = squared_norm(model.features(batch.images))
    values = torch.stack([loss(batch) for _ in range(4)])
    assert penalty > 0
    torch.testing.assert_close(values - task, 0.5 * penalty * torch.tensor([0.0, 0, 1, 1]))


@pytest.mark.parametrize("average", ["recovered", "zero_filled"])
@pytest.mark.parametrize("model", ["cnn", "resnet10"])
def test_removed_channels_are_what_was_received_or_zero(model: str, average: str) -> None:
    method = {"rho": [0.5], "average": average}
    before, after, states, _ = _one_round(
        method, [0], local=TWO_EPOCHS, model={"name": model, "width": 4}
    )
    skeleton = build_model(model, 10, 16, 4)
    groups = skeleton.channel_groups("inner")
    mask = states[0]["kept/units"]
    assert mask.sum() == num_units(groups) // 2
    for group, kept in zip(groups, per_group(groups, mask), strict=True):
        for slot in group.slots:
            removed = np.flatnonzero(~np.repeat(kept, slot.repeat))
            found = np.take(after[slot.entry], removed, axis=slot.axis)
            expected = np.take(before[slot.entry], removed, axis=slot.axis)
            if average == "zero_filled" and slot.entry.endswith(".weight"):
                expected = np.zeros_like(expected)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)  # one rounding, 2^-31
        weight = f"{group.producer}.weight"
        whole = np.abs(after[weight] - before[weight]).reshape(len(kept), -1).max(1)
        assert (whole[kept] > 0).all()


def test_average_weighs_by_examples() -> None:
    # A mean over two clients is the example-weighted mean of what each of them gives alone.
    method = {"rho": [0.0, 0.6]}
    alone = [_one_round(method, [c], local=TWO_EPOCHS) for c in (0, 1)]
    n = [reports[0].num_examples for *_, reports in alone]
    _, both, _, _ = _one_round(method, [0, 1], local=TWO_EPOCHS)
    for entry, array in both.items():
        mean = (n[0] * alone[0][1][entry] + n[1] * alone[1][1][entry].astype(float)) / sum(n)
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-6)


def test_slices_are_really_smaller() -> None:
    before, _, _, reports = _one_round({}, [0, 1, 2, 3, 4], local=TWO_EPOCHS)
    kept = [report.metrics["kept_parameters"] for report in reports]
    assert kept == sorted(kept, reverse=True)
    buffers = sum(a.size for e, a in before.items() if "running_" in e)
    assert kept[0] == sum(a.size for a in before.values()) - buffers
    assert kept[4] < 0.15 * kept[0]  # two sliced axes: about (1 - rho)^2


@pytest.mark.parametrize(("fine_tune", "epochs"), [(0, 2), (1, 1)])
def test_received_model_itself_is_pruned_if_no_epoch_is_left(fine_tune: int, epochs: int) -> None:
    method = {"rho": [0.5], "fine_tune_epochs": fine_tune}
    before, _, states, _ = _one_round(method, [0, 1], local=TWO_EPOCHS | {"epochs": epochs})
    groups = build_model("cnn", 10, 16, 4).channel_groups("inner")
    expected = largest_channels(before, groups, 0.5)
    for client in (0, 1):
        np.testing.assert_array_equal(states[client]["kept/units"], expected)


def test_personal_model_is_the_new_global_one_under_the_client_s_mask(tmp_path: Path) -> None:
    run = run_toy(toy_config(method={"name": "dapperfl", "rho": [0.4]}), tmp_path)
    assert run.summary["personal"] is not None
    for state in run.snapshot.clients.values():
        assert state.keys() == {"kept/units"}
        assert state["kept/units"].dtype == np.bool_


def test_local_running_statistics_stay_with_the_client() -> None:
    method = {"buffers": "local", "rho": [0.5]}
    executor = _executor(method, local=TWO_EPOCHS)
    before = executor.snapshot().model
    for round_ in range(2):
        executor.run_phase(round_, "fit", [0])
        executor.commit()
    snapshot = executor.snapshot()
    for entry in before:
        if "running_" in entry:
            np.testing.assert_array_equal(snapshot.model[entry], before[entry])
            assert snapshot.clients[0][entry].shape == before[entry].shape
    assert executor.evaluate(1, [], personal=True)


def test_symbols_of_the_paper_are_accepted_and_ratios_checked() -> None:
    tree = {"name": "dapperfl", "alpha_0": 0.8, "alpha_min": 0.2, "epsilon": 0.3, "gamma": 0.1}
    assert toy_config(method=tree).method == DapperFL(
        fusion_start=0.8, fusion_floor=0.2, fusion_decay=0.3, feature_penalty=0.1
    )
    for wrong in ([], [1.0], [-0.1]):
        with pytest.raises(ConfigError, match=r"method\.(rho|removal_ratios)"):
            toy_config(method={"name": "dapperfl", "rho": wrong})

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import raysim.consensus
from methods.fdse import FDSE, adapt, measure
from raysim.aggregation import NonFiniteError, Partial
from raysim.config import LocalSettings
from raysim.consensus import attention, consensus_step, min_norm_weights, mix
from raysim.consistency import Consistency, channel_statistics, depth_weights, layer_consistency
from raysim.executor import InProcessExecutor
from raysim.method import ServerState, ServerView
from raysim.models import ChannelModel, build_model
from raysim.models.base import GatedLayer
from raysim.models.decomposed import (
    Decomposed,
    decompose,
    decomposed_layers,
    normalise_by_batch,
    roles,
)
from raysim.seeds import Stream, generator
from raysim.tensors import Arrays, load_arrays, named_state, state_arrays
from raysim.training import Batch, ShardData
from tests.toy import dealt, run_toy, toy_config

SMALL = {"cnn": 16, "resnet10": 16, "resnet18": 16, "alexnet": 64}


def small(name: str = "cnn", groups: int = 2, expansion: Any = "depthwise") -> ChannelModel:
    torch.manual_seed(0)
    return decompose(build_model(name, 5, SMALL[name], 4), groups, expansion)


def arrays(*rows: list[float]) -> list[Any]:
    return [np.array(row) for row in rows]


# Worked numbers -------------------------------------------------------------------------------


def test_attention_of_three_clients():
    v = np.array([[2, 0], [0.8, 0.6], [-0.3, 0.4]])
    expected = [[0.584425, 0.391752, 0.023822], [0.371234, 0.553816, 0.074951]]
    expected.append([0.034659, 0.115071, 0.850270])
    np.testing.assert_allclose(attention(v, 0.5), expected, atol=1e-6)
    mixed = [[1.475106, 0.244580], [1.163035, 0.362270], [-0.093706, 0.409151]]
    np.testing.assert_allclose(mix(v, 0.5)[0], mixed, atol=1e-6)
    mixed = [[1.856956, 0.071522], [0.942994, 0.528473], [-0.299950, 0.400009]]
    np.testing.assert_allclose(mix(v, 0.1)[0], mixed, atol=1e-6)


@pytest.mark.parametrize(
    ("updates", "step"),
    [
        (arrays([2, 0], [0.6, 0.8], [-0.6, 0.8]), [0.8 / 3, 1.6 / 3]),
        (arrays([3, 0], [0, 1]), [1, 1]),
        (arrays([2, 0], [1.2, 1.6], [0, 1]), [5 / 6, 5 / 6]),
        (arrays([1, 2], [1, 2], [1, 2]), [1, 2]),  # singular Gram matrix
        (arrays([1, 2], [-1, -2]), [0, 0]),
        (arrays([3, 3], [0, 0], [3, 3]), [2, 2]),  # a zero update counts in the mean norm only
        (arrays([0, 0], [0, 0]), [0, 0]),
        (arrays([0.3, -7]), [0.3, -7]),
    ],
)
def test_consensus_step(updates, step):
    old = np.array([0.5, -1.0])
    np.testing.assert_allclose(consensus_step(old, [old + d for d in updates])[0], step, atol=1e-6)


def test_min_norm_weights_of_three_directions():
    u = np.array([[1, 0], [0.6, 0.8], [-0.6, 0.8]])
    np.testing.assert_allclose(min_norm_weights(u @ u.T), [0.5, 0, 0.5], atol=1e-6)


class Watched(nn.Module):
    """Two norms whose inputs are given, so that L_con is known."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            GatedLayer(nn.Linear(1, size), nn.BatchNorm1d(size)) for size in (2, 1)
        )
        for layer in self.layers:
            layer.add_module("producer", Decomposed(nn.Linear(1, 2), 1, "depthwise"))

    def forward(self, inputs: list[Tensor]) -> None:
        for layer, x in zip(self.layers, inputs, strict=True):
            layer.norm(x)


def with_statistics(mean: list[float], var: list[float]) -> Tensor:
    """Return a batch of two with this mean and this biased variance."""
    half = torch.tensor(var).sqrt()
    return torch.stack([torch.tensor(mean) + half, torch.tensor(mean) - half])


def test_consistency_of_two_layers():
    model = Watched()
    model.layers[0].norm.running_mean.copy_(torch.tensor([0.0, 1.0]))
    model.layers[1].norm.running_mean.fill_(0.5)
    model.layers[1].norm.running_var.fill_(2.0)
    regulariser = Consistency(model, depth_weight=0.05)
    with regulariser.recording():
        model([with_statistics([1, 1], [2, 4]), with_statistics([0], [1])])
        first = float(regulariser.take())
        model([with_statistics([1, 1], [2, 4]), with_statistics([0], [1])])
        second = float(regulariser.take())
    assert first == pytest.approx(0.028344, abs=1e-6)
    # The estimates have moved on: .19 and .38 of the way.
    one = 0.19**2 / 2 + (0.19 * 4 / 2) ** 2
    two = 0.095**2 + 0.19**2
    assert second == pytest.approx(0.487503 * one + 0.512497 * two, abs=1e-6)
    assert regulariser.mean() == pytest.approx((first + second) / 2)
    assert not any(layer.norm._forward_pre_hooks for layer in model.layers)


def test_depth_weights_and_one_layer():
    np.testing.assert_allclose(depth_weights(2, 0.05), [0.487503, 0.512497], atol=1e-6)
    t = torch.tensor
    value = layer_consistency(t([0.1, 1]), t([1.1, 1.3]), t([0.0, 1]), t([1.0, 1]))
    assert float(value) == pytest.approx(0.045, abs=1e-6)


def test_gradient_flows_through_the_current_batch_only():
    model = Watched()
    regulariser = Consistency(model, depth_weight=0.0)
    first = with_statistics([1, 1], [2, 4]).requires_grad_(True)
    second = with_statistics([3, 1], [2, 4]).requires_grad_(True)
    with regulariser.recording():
        model([first, with_statistics([0], [1])])
        regulariser.take()
        model([second, with_statistics([0], [1])])
        regulariser.take().backward()
    assert first.grad is None
    assert second.grad is not None


def test_no_penalty_if_the_batch_has_the_global_statistics():
    model = Watched()
    regulariser = Consistency(model, depth_weight=0.05)
    with regulariser.recording():
        model([with_statistics([0, 0], [1, 1]), with_statistics([0], [1])])
        assert float(regulariser.take()) == pytest.approx(0, abs=1e-12)


def test_channel_statistics_are_biased_and_over_the_map():
    x = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    mean, var = channel_statistics(x)
    flat = x.movedim(1, 0).flatten(1).numpy()
    np.testing.assert_allclose(mean, flat.mean(1), atol=1e-6)
    np.testing.assert_allclose(var, flat.var(1), atol=1e-6)


# Properties -----------------------------------------------------------------------------------

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=60)
@given(seed=SEEDS, num_clients=st.integers(1, 6), size=st.integers(1, 9))
def test_consensus_hurts_no_client_and_is_no_longer_than_the_mean_norm(seed, num_clients, size):
    rng = np.random.default_rng(seed)
    old = rng.normal(size=size)
    updates = rng.normal(size=(num_clients, size)) * rng.uniform(0.01, 9, (num_clients, 1))
    step = consensus_step(old, [old + d for d in updates])[0]
    assert (updates @ step >= -1e-6).all()
    norms = np.linalg.norm(updates, axis=1)
    assert np.linalg.norm(step) <= norms.mean() * (1 + 1e-9)
    unit = updates / norms[:, None]
    for other in rng.dirichlet(np.ones(num_clients), 20):  # nothing on the simplex is shorter
        assert np.linalg.norm(other @ unit) * norms.mean() >= np.linalg.norm(step) - 1e-6


@settings(max_examples=60)
@given(seed=SEEDS, num_clients=st.integers(1, 6))
def test_attention_rows_sum_to_one_and_ignore_scale(seed, num_clients):
    rng = np.random.default_rng(seed)
    v = rng.normal(size=(num_clients, 4))
    weights = attention(v, 0.3)
    np.testing.assert_allclose(weights.sum(1), 1)
    np.testing.assert_allclose(attention(v * rng.uniform(0.1, 9, (num_clients, 1)), 0.3), weights)
    np.testing.assert_allclose(mix(v, 1e9)[0], np.tile(v.mean(0), (num_clients, 1)), atol=1e-7)
    np.testing.assert_allclose(mix(v, 1e-9)[0], v, atol=1e-7)


def test_a_zero_tensor_gets_the_mean_and_spoils_no_other():
    v = np.array([[0.0, 0], [2, 0], [0, 4]])
    mixed = mix(v, 0.5)[0]
    assert np.isfinite(mixed).all()
    np.testing.assert_allclose(mixed[0], v.mean(0))
    np.testing.assert_allclose(mix(np.zeros((3, 2)), 0.5)[0], 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_tensors_are_refused(bad):
    with pytest.raises(NonFiniteError):
        consensus_step(np.zeros(2), [np.array([bad, 0]), np.ones(2)])
    with pytest.raises(NonFiniteError):
        mix(np.array([[bad, 0], [1, 1]]), 0.5)


# The network ----------------------------------------------------------------------------------


def test_alexnet_has_the_published_size():
    with torch.device("meta"):
        model = FDSE().build_model("alexnet", 10, 256, 64)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    role = roles(model)
    assert sum(sizes.values()) == 6_509_034
    # The notes count b to the DFE: 6,488,352 with it, 10,432 on the DSE's side, 10,250 in the head.
    b = sum(n for name, n in sizes.items() if name.endswith("producer.bias"))
    assert b == 64 + 192 + 384 + 256 + 256 + 2 * 1024
    assert sum(n for name, n in sizes.items() if role[name] == "dse") - b == 10_432


def test_alexnet_maps_at_256_pixels():
    with torch.device("meta"):
        model = FDSE().build_model("alexnet", 10, 256, 64).eval()
        sides: list[int] = []
        for layer in model.modules():
            if isinstance(layer, GatedLayer | nn.MaxPool2d):
                layer.register_forward_hook(
                    lambda _m, _x, y: sides.append(y.shape[-1]) if y.dim() == 4 else None
                )
        model(torch.zeros(1, 3, 256, 256))
    assert sides == [63, 31, 31, 15, 15, 15, 15, 7]


@pytest.mark.parametrize(("expansion", "expected"), [("depthwise", 64), ("pointwise", 64)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_cnn_sizes(groups, expansion, expected):
    with torch.device("meta"):
        model = decompose(build_model("cnn", 10, 32, 32), groups, expansion)
    params = sum(p.numel() for p in model.parameters())
    known = {
        (1, "depthwise"): 361_546,
        (2, "depthwise"): 181_770 + expected,  # scaled copies of the linear layer, no identity
        (4, "depthwise"): 92_954 + expected // 2,
        (2, "pointwise"): 180_874 + expected,
    }
    assert params == known.get((groups, expansion), params)


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("outputs", [1, 4, 7])
@pytest.mark.parametrize("expansion", ["depthwise", "pointwise"])
@pytest.mark.parametrize("linear", [False, True])
def test_any_number_of_groups_and_outputs(groups, outputs, expansion, linear):
    plain = nn.Linear(6, outputs) if linear else nn.Conv2d(6, outputs, 5, stride=2, padding=2)
    x = torch.randn(3, 6) if linear else torch.randn(3, 6, 9, 9)
    layer = Decomposed(plain, groups, expansion)
    assert layer(x).shape == plain(x).shape
    assert layer.norm.num_features == -(-outputs // groups)
    assert layer.bias is not None
    plain.register_parameter("bias", None)
    assert Decomposed(plain, groups, expansion).bias is None


def test_convolutions_keep_the_maps_and_add_copies():
    layer = Decomposed(nn.Conv2d(3, 4, 3, padding=1), 2, "depthwise").eval()
    x = torch.randn(2, 3, 8, 8)
    a = torch.relu(layer.norm(layer.dfe(x)))
    torch.testing.assert_close(layer(x), torch.cat((a, layer.dse(a)), 1))
    whole = Decomposed(nn.Conv2d(3, 4, 3, padding=1), 1, "depthwise").eval()
    a = torch.relu(whole.norm(whole.dfe(x)))
    torch.testing.assert_close(whole(x), a + whole.dse(a))


@pytest.mark.parametrize("name", ["cnn", "resnet10", "alexnet"])
def test_roles_follow_modules(name):
    model = small(name)
    role = roles(model)
    assert role.keys() == named_state(model).keys()
    buffers = {entry for entry, _ in model.named_buffers()}
    for entry, kind in role.items():
        assert (kind in ("statistics", "dse_statistics")) == (entry in buffers)
        eraser = ".producer." in entry and ".dfe." not in entry
        assert (kind in ("dse", "dse_statistics")) == eraser
    assert role["head.weight"] == "shared"
    assert len(decomposed_layers(model)) == {"cnn": 4, "resnet10": 12, "alexnet": 7}[name]


@pytest.mark.parametrize("name", ["cnn", "resnet10", "alexnet"])
def test_every_entry_is_trained(name):
    model = small(name)
    x = torch.randn(6, 3, SMALL[name], SMALL[name])
    regulariser = Consistency(model, 0.001)
    with regulariser.recording():
        value = model(x).square().mean()
        (value + regulariser.take()).backward()
    assert all(p.grad is not None for p in model.parameters())


# Whole rounds ---------------------------------------------------------------------------------


def state(config: Any, cohorts: list[list[int]]) -> Any:
    """Run rounds with given cohorts; yields the executor after each."""
    dataset, partition = dealt(config)
    executor = InProcessExecutor(config, partition, dataset)
    for round_, cohort in enumerate(cohorts):
        report = executor.run_phase(round_, "fit", cohort)
        executor.commit()
        yield executor, report


def test_all_parts_off_is_fedavg():
    off = {"name": "fdse", "dse": "off", "consensus": "mean"}
    configs = [
        toy_config(method="fedavg"),
        toy_config(method=off | {"lambda": 0}),
        toy_config(method=off | {"lambda": 3}),  # nothing to be consistent without a DSE
    ]
    plain, *others = [[e.digest() for e, _ in state(c, ROUNDS)] for c in configs]
    assert others == [plain, plain]


@pytest.mark.parametrize("method", [{}, {"consensus": "mean"}, {"dse": "pointwise", "G": 3}])
def test_runs_are_finite_and_evaluated_as_personal(tmp_path, method):
    run = run_toy(toy_config(method={"name": "fdse"} | method), tmp_path)
    assert all(np.isfinite(a).all() for a in run.snapshot.model.values())
    assert any("personal" in key for key in run.summary), sorted(run.summary)


def test_only_the_cohort_changes_and_statistics_stay_at_home():
    config = toy_config(method="fdse")
    snapshots = [executor.snapshot() for executor, _ in state(config, [[0, 1], [1, 2, 3], [3]])]
    model = FDSE().build_model("cnn", 10, 16, 4)
    role = roles(model)
    private = {e for e, r in role.items() if r == "dse_statistics"}
    for before, after, cohort in zip(snapshots, snapshots[1:], [{1, 2, 3}, {3}], strict=False):
        for rows_before, rows in zip(before.memory.values(), after.memory.values(), strict=True):
            changed = (rows_before != rows).reshape(len(rows), -1).any(1)
            assert set(np.flatnonzero(changed)) == cohort
        for entry in private:  # the server never learns them
            np.testing.assert_array_equal(before.model[entry], after.model[entry])
    assert {
        c: set(arrays) for c, arrays in snapshots[1].clients.items() if arrays
    } == dict.fromkeys(range(4), private)
    assert {f"dse/{e}" for e, r in role.items() if r == "dse"} == snapshots[0].memory.keys()


def test_global_dse_is_the_mean_of_the_clients_own():
    config = toy_config(method="fdse")
    [(executor, _)] = state(config, [[0, 1, 2]])
    snapshot = executor.snapshot()
    for name, rows in snapshot.memory.items():
        own = snapshot.model[name.removeprefix("dse/")]
        np.testing.assert_allclose(own, rows.mean(0, dtype=np.float64), atol=1e-6)


def test_the_regulariser_rests_in_the_first_round():
    reports = {
        weight: [r for _, r in state(toy_config(method={"name": "fdse", "lambda": weight}), ROUNDS)]
        for weight in (0.0, 5.0)
    }
    off, on = reports[0.0], reports[5.0]
    assert [c.metrics for c in off[0].clients] == [c.metrics for c in on[0].clients]
    assert "consistency" not in on[0].clients[0].metrics
    assert on[1].clients[0].metrics["consistency"] > 0
    assert off[1].clients[0].metrics["loss"] != on[1].clients[0].metrics["loss"]


ROUNDS = [[0, 1], [0, 1]]


def test_bytes_count_each_way_all_but_private_statistics():
    [(_, report)] = state(toy_config(method="fdse"), [[0, 1]])
    model = FDSE().build_model("cnn", 10, 16, 4)
    role = roles(model)
    sent = sum(t.numel() for e, t in named_state(model).items() if role[e] != "dse_statistics")
    assert report.bytes_down == 4 * sent
    assert [c.bytes_up for c in report.clients] == [4 * sent] * 2


def server_view(method: FDSE, num_clients: int) -> ServerView:
    model = small()
    view = {"seed": 0, "round": 1, "phase": "fit", "model": model, "num_domains": 1}
    view |= {"weights": state_arrays(model), "num_clients": num_clients, "memory": {}}
    first = ServerView(**view)
    return ServerView(**view | {"memory": method.init_server(first)})


def updates_of(view: ServerView, method: FDSE, num_clients: int) -> list[Partial]:
    """Return what clients with noise on the weights would send, one partial result each."""
    role, partials = roles(view.model), []
    for client in range(num_clients):
        rng = np.random.default_rng(client)
        trained = {e: (a + rng.normal(size=a.shape)).astype("f4") for e, a in view.weights.items()}
        load_arrays(view.model, trained)
        fake = type("View", (), {"model": view.model, "num_examples": 3 + client})
        update = method._update(fake, {})  # type: ignore[arg-type]
        assert not {e for e in [*update.sums, *update.gathered] if role[e] == "dse_statistics"}
        partial = Partial()
        partial.add(client, update.sums, update.gathered)
        partials.append(partial)
    return partials


def joined(partials: list[Partial], groups: list[list[int]]) -> Partial:
    total = Partial()
    for group in groups:
        part = Partial()
        for index in group:
            part.merge(partials[index])
        total.merge(part)
    return total


def same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[e], b[e]) for e in a)


@pytest.mark.parametrize("consensus", ["min_norm", "mean"])
def test_order_and_grouping_of_clients_are_irrelevant(consensus):
    method = FDSE(consensus=consensus)
    view = server_view(method, 4)
    before = {e: a.copy() for e, a in (view.weights | view.memory).items()}
    partials = updates_of(view, method, 4)
    results: list[ServerState] = [
        method.aggregate(view, joined(partials, groups))
        for groups in ([[0, 1, 2, 3]], [[3], [1, 0], [2]], [[2, 3], [0], [1]])
    ]
    assert all(same(results[0].model, r.model) for r in results)
    assert all(same(results[0].memory, r.memory) for r in results)
    assert same(before, view.weights | view.memory)


def test_dfe_statistics_are_the_plain_mean_of_the_clients():
    method = FDSE()
    view = server_view(method, 3)
    partials = updates_of(view, method, 3)
    model = method.aggregate(view, joined(partials, [[0, 1, 2]])).model
    entry = "body.conv1.norm.running_var"
    expected = np.mean([p.sums[entry].total() for p in partials], 0)
    np.testing.assert_allclose(model[entry], expected, rtol=1e-6)


def test_an_empty_cohort_changes_nothing():
    method = FDSE()
    view = server_view(method, 3)
    result = method.aggregate(view, Partial())
    assert same(result.model, view.weights)
    assert same(result.memory, view.memory)


def test_global_model_normalises_by_the_slice_and_the_personal_one_does_not():
    method, model = FDSE(), small()
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    method.load_global(model, state_arrays(model), {})
    model.eval()
    with torch.no_grad():
        whole, single = model(x), model(x[:1])
        assert not torch.equal(whole[:1], single)
        assert torch.isfinite(single).all()
        normalise_by_batch(model, False)
        torch.testing.assert_close(model(x)[:1], model(x[:1]))


# Unseen clients -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cnn", "resnet10"])
def test_adaptation_lowers_the_inconsistency_and_touches_the_dse_alone(name):
    config = toy_config(method="fdse", model__name=name)
    [(executor, _)] = state(config, [[0, 1, 2]])
    model = FDSE().build_model(name, 10, 16, 4)
    received = executor.snapshot().model
    load_arrays(model, received)
    shard = executor._host._train[5]
    blind = ShardData(
        images=shard.images,
        labels=torch.zeros_like(shard.labels),
        domains=shard.domains,
        mean=shard.mean,
        std=shard.std,
    )
    local = LocalSettings(batch_size=16)
    before, after = adapt(model, blind, local, key=(0, 0, 5), lr=1.0, epochs=5)
    assert after < 0.9 * before
    assert measure(model, blind, 16, 0.001) == after
    role = roles(model)
    for entry, array in state_arrays(model).items():
        touched = not np.array_equal(array, received[entry])
        assert touched == (role[entry] in ("dse", "dse_statistics")), entry
    again = FDSE().build_model(name, 10, 16, 4)
    load_arrays(again, received)
    adapt(again, shard, local, key=(0, 0, 5), lr=1.0, epochs=5)
    assert same(state_arrays(again), state_arrays(model))  # labels are not read


def test_adaptation_has_batches_of_its_own():
    draws = [generator(0, s, 0, 5, 0).permutation(50).tolist() for s in Stream]
    assert draws.count(draws[list(Stream).index(Stream.ADAPT)]) == 1


def test_a_batch_of_one_trains():
    model = small()
    batch = Batch(torch.randn(1, 3, 16, 16), torch.zeros(1).long(), torch.zeros(1).long())
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    regulariser = Consistency(model, 0.001)
    fake = type("View", (), {"model": model, "labels": batch.labels})
    with regulariser.recording():
        loss = FDSE()._regularised(fake, regulariser)(batch)  # type: ignore[arg-type]
    loss.backward()
    assert torch.isfinite(loss)


def test_consensus_in_parts_is_the_consensus_of_the_whole(monkeypatch):
    draw = generator(0, Stream.METHOD, 1)
    old = draw.normal(size=(7, 5)).astype(np.float32)
    trained = [old + draw.normal(size=old.shape).astype(np.float32) for _ in range(4)]
    whole = consensus_step(old, trained)[0]
    monkeypatch.setattr(raysim.consensus, "CONSENSUS_VALUES", 12)  # three columns at a time
    np.testing.assert_allclose(consensus_step(old, trained)[0], whole, rtol=1e-12)

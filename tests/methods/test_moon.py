import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.moon import MOON, Projected, contrastive_loss, frozen
from raysim.host import Host
from raysim.models import build_model
from raysim.server import Server
from raysim.tensors import digest, prefixed, state_arrays
from tests.toy import dealt, run_toy, toy_config


def vector(cosine: float) -> torch.Tensor:
    """A row with this cosine to (1, 0)."""
    return torch.tensor([[cosine, math.sqrt(1 - cosine**2)]])


def test_worked_number() -> None:
    z = torch.tensor([[3.0, 0.0]])
    loss = contrastive_loss(z, vector(0.9) * 7, vector(0.5), 0.5)
    assert float(loss) == pytest.approx(0.371101, abs=1e-6)


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.1, 5))
def test_equal_cosines_give_log_2_and_the_order_decides(a: float, b: float, tau: float) -> None:
    z = torch.tensor([[1.0, 0.0]])
    assert float(contrastive_loss(z, vector(a), vector(a), tau)) == pytest.approx(math.log(2))
    both = [float(contrastive_loss(z, vector(x), vector(y), tau)) for x, y in ((a, b), (b, a))]
    if abs(a - b) > 1e-3:
        assert (both[0] < both[1]) == (a > b)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_mu_0_is_fedavg_bit_for_bit(tmp_path: Path, buffers: str) -> None:
    method = {"name": "moon", "mu": 0, "buffers": buffers}
    neutral = run_toy(toy_config(method=method), tmp_path / "moon")
    fedavg = run_toy(toy_config(method={"name": "fedavg", "buffers": buffers}), tmp_path / "avg")
    assert neutral.bits == fedavg.bits


def test_the_term_starts_with_a_clients_second_round(tmp_path: Path) -> None:
    shas = [
        [
            run_toy(
                toy_config(method=m, rounds=r, participation__fraction=1.0, data__clients=4),
                tmp_path / f"{m}{r}",
            ).summary["weights_sha256"]
            for m in ("moon", "fedavg")
        ]
        for r in (1, 2)
    ]
    assert shas[0][0] == shas[0][1]
    assert shas[1][0] != shas[1][1]


def test_the_previous_model_is_the_trained_one_and_stays_private() -> None:
    config = toy_config(method="moon")
    dataset, partition = dealt(config)
    weights = Server(config, len(dataset.classes), len(dataset.domains)).weights()
    host = Host(config, {3: partition.shards[3]})
    for round_ in range(2):
        partial, _ = host.run_phase(round_, "fit", [3], weights, {})
        host.commit()
        trained = {n: s.mean().astype(np.float32) for n, s in partial.sums.items()}
        assert set(trained) == set(weights)
        for name, array in host.snapshot()[3].items():
            near = trained[name.removeprefix("previous/")]
            np.testing.assert_allclose(array, near, rtol=1e-6, atol=1e-7)
        assert set(host.snapshot()[3]) == set(prefixed("previous", weights))


def test_frozen_copies_have_no_side_effects() -> None:
    torch.manual_seed(0)
    model = build_model("cnn", 10, 16, 4)
    arrays = state_arrays(model)
    twin = frozen(model, {name: array + 1 for name, array in arrays.items()})
    before = digest(state_arrays(twin))
    z = twin.features(torch.randn(3, 3, 16, 16))
    assert not z.requires_grad
    assert digest(state_arrays(twin)) == before
    assert digest(state_arrays(model)) == digest(arrays)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", ["cnn", "resnet10"])
def test_projection_head(name: str) -> None:
    model = MOON(projection=256).build_model(name, 10, 16, 4)
    plain = build_model(name, 10, 16, 4)
    assert isinstance(model, Projected)
    images = torch.randn(2, 3, 16, 16)
    model.eval()
    z = model.features(images)
    assert z.shape == (2, 256)
    assert model.head.weight.shape == (10, 256)
    torch.testing.assert_close(model(images), model.head(z))
    width = plain.head.in_features
    added = width * width + width + width * 256 + 256 + (256 - width) * 10
    assert sum(p.numel() for p in model.parameters()) == added + sum(
        p.numel() for p in plain.parameters()
    )
    entries, modules = state_arrays(model), dict(model.named_modules())
    for scope in ("inner", "all"):
        for group in model.channel_groups(scope):
            assert {group.producer, group.norm, group.gate} <= set(modules)
            for slot in group.slots:
                assert entries[slot.entry].shape[slot.axis] == group.size * slot.repeat


def test_projection_head_runs(tmp_path: Path) -> None:
    run = run_toy(toy_config(method={"name": "moon", "projection": 16}), tmp_path)
    assert "projection.0.weight" in run.snapshot.model
    assert run.snapshot.clients


def test_defaults_and_aliases() -> None:
    method = MOON.model_validate({"mu": 5, "tau": 0.1})
    assert (method.contrastive_weight, method.temperature) == (5, 0.1)
    assert (MOON().contrastive_weight, MOON().temperature, MOON().projection) == (1.0, 0.5, 0)

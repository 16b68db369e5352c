from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn
from torch.nn import functional

from raysim.config import LocalSettings
from raysim.data.datasets import open_dataset
from raysim.data.settings import DataSettings
from raysim.seeds import Stream, generator
from raysim.tensors import digest, state_arrays
from raysim.training import Batch, ShardData, batch_order, fit, freeze_batchnorm
from tests.toy import dealt, toy_config

KEY = (0, 0, 0)


def shard(size: int, seed: int = 0) -> ShardData:
    rng = torch.Generator().manual_seed(seed)
    return ShardData(
        images=torch.randint(0, 256, (size, 3, 4, 4), dtype=torch.uint8, generator=rng),
        labels=torch.randint(0, 3, (size,), generator=rng),
        domains=torch.arange(size) % 2,
        mean=torch.full((1, 3, 1, 1), 127.5),
        std=torch.full((1, 3, 1, 1), 127.5),
    )


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def train(model: nn.Module, data: ShardData, key: Any = KEY, **settings: Any) -> Any:
    extra = {k: settings.pop(k) for k in ("stream", "lr_now", "epochs_now") if k in settings}
    more = {"lr": extra.get("lr_now"), "epochs": extra.get("epochs_now")}
    if "stream" in extra:
        more["stream"] = extra["stream"]
    return fit(
        model,
        data,
        LocalSettings(**settings),
        lambda batch: functional.cross_entropy(model(batch.images), batch.labels),
        key=key,
        **more,
    )


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5))
def test_batches_deal_every_example_once(size: int, batch_size: int, seed: int) -> None:
    batches = batch_order(size, batch_size, np.random.default_rng(seed))
    assert_array_equal(np.sort(np.concatenate(batches)), np.arange(size))
    if size > 1 and batch_size > 1:
        assert all(len(b) >= 2 for b in batches), "BatchNorm needs two"
    assert all(len(b) <= batch_size + 1 for b in batches)


def test_a_batch_is_normalised() -> None:
    data = shard(4)
    batch = data.batch(slice(1, 3))
    assert batch.images.dtype == torch.float32
    assert_allclose(batch.images.numpy(), data.images[1:3].numpy() / 127.5 - 1, atol=1e-6)
    assert len(batch) == 2
    assert sum(len(b) for b in data.batches(3)) == 4


def test_examples_are_decoded_domain_by_domain() -> None:
    dataset = open_dataset(DataSettings(image_size=16))
    rows = {2: np.array([5, 7]), 0: np.array([1])}
    data = ShardData.load(dataset, rows, "train", torch.device("cpu"))
    assert data.domains.tolist() == [0, 2, 2]
    assert data.labels[1:].tolist() == dataset.labels(dataset.domains[2], "train")[[5, 7]].tolist()
    assert data.counts(4).tolist() == [1, 0, 2, 0]
    assert data.images.dtype == torch.uint8
    empty = ShardData.load(dataset, {}, "train", torch.device("cpu"))
    assert len(empty) == 0
    assert empty.images.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize("read_bytes", [1, 3 * 16 * 16 * 20, 2**24])
def test_shards_read_together_are_those_read_alone(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysim.training._READ_BYTES", read_bytes)
    dataset, partition = dealt(toy_config(data__clients=7))
    rows_of = {5 + c: shard.train for c, shard in enumerate(partition.shards)} | {40: {}}
    together = ShardData.load_all(dataset, rows_of, "train", torch.device("cpu"))
    assert list(together) == list(rows_of)
    for number, rows in rows_of.items():
        alone = ShardData.load(dataset, rows, "train", torch.device("cpu"))
        for name in ("images", "labels", "domains"):
            assert torch.equal(getattr(together[number], name), getattr(alone, name))


def test_one_step_is_sgd_with_momentum_and_decay() -> None:
    data, model = shard(8), nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    weight = model[1].weight.detach().clone().requires_grad_(True)
    bias = model[1].bias.detach().clone()
    batch = data.batch(slice(0, 8))
    logits = functional.linear(batch.images.flatten(1), weight, bias)
    functional.cross_entropy(logits, batch.labels).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    wanted = weight.detach() - 0.1 * (weight.grad + 0.01 * weight.detach())
    result = train(model, data, lr=0.1, weight_decay=0.01, batch_size=8)
    assert result.num_steps == 1
    assert_allclose(model[1].weight.detach().numpy(), wanted.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_steps_are_those_of_torch_sgd_bit_by_bit(momentum: float, weight_decay: float) -> None:
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    data, model, twin = shard(13), net(), net()
    unused = nn.Parameter(torch.ones(2))  # no gradient reaches it
    model.register_parameter("unused", unused)
    result = train(model, data, batch_size=4, epochs=2, **settings)
    optimizer = torch.optim.SGD(twin.parameters(), **settings)
    for epoch in range(2):
        rng = generator(0, Stream.BATCHES, 0, 0, epoch)
        for index in batch_order(13, 4, rng):
            batch = data.batch(torch.from_numpy(index))
            optimizer.zero_grad()
            functional.cross_entropy(twin(batch.images), batch.labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert result.num_steps == 6
    assert torch.equal(unused, torch.ones(2))
    for name, weight in twin.named_parameters():
        assert torch.equal(model.get_parameter(name), weight), name


def test_equal_keys_give_equal_bits_and_other_keys_others() -> None:
    def trained(key: Any = KEY, **more: Any) -> str:
        model = net()
        train(model, shard(20), key, batch_size=4, **more)
        return digest(state_arrays(model))

    assert trained() == trained()
    others = [trained((1, 0, 0)), trained((0, 1, 0)), trained((0, 0, 1))]
    others.append(trained(stream=Stream.PRIVATE_STEP))
    assert len({trained(), *others}) == 5


def test_the_process_wide_generator_does_not_matter() -> None:
    found = []
    for seed in (1, 2):
        model = net()
        torch.manual_seed(seed)
        train(model, shard(20), batch_size=4)
        found.append(digest(state_arrays(model)))
    assert found[0] == found[1]


def test_epochs_steps_and_loss() -> None:
    model, data = net(), shard(21)
    result = train(model, data, epochs=3, batch_size=4)
    assert result.num_steps == 15  # the last batch of one joins the one before it
    first = train(net(), data, batch_size=100)
    with torch.no_grad():
        fresh = net().train()
        batch = data.batch(slice(0, 21))
        wanted = float(functional.cross_entropy(fresh(batch.images), batch.labels))
    assert first.loss == pytest.approx(wanted, abs=1e-5)
    assert train(net(), data, epochs_now=2, batch_size=100).num_steps == 2


def test_learning_rate_decays_by_round() -> None:
    def moved(round_: int, **more: Any) -> float:
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        nn.init.zeros_(model[1].weight)
        settings = {"lr_decay": 0.5, "weight_decay": 0.0, "batch_size": 100}
        train(model, shard(8), (0, round_, 0), **settings, **more)
        return float(model[1].weight.detach().norm())

    assert moved(2) == pytest.approx(moved(0) / 4, rel=0.2)
    assert moved(0, lr_now=0.01) < moved(0)


def test_gradients_are_clipped() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    train(model, shard(8), lr=1.0, momentum=0.0, weight_decay=0.0, max_grad_norm=1e-3)
    moved = sum(float((p.detach() - before[n]).pow(2).sum()) for n, p in model.named_parameters())
    assert moved**0.5 == pytest.approx(1e-3, rel=1e-3)


def test_frozen_parameters_stay_and_after_step_runs_each_step() -> None:
    model, calls = net(), []
    model[1].weight.requires_grad_(False)
    before = model[1].weight.clone()
    local = LocalSettings(batch_size=4)

    def loss(batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch.images), batch.labels)

    fit(model, shard(12), local, loss, key=KEY, after_step=lambda: calls.append(1))
    assert torch.equal(model[1].weight, before)
    assert len(calls) == 3


def test_a_single_example_trains_on_running_statistics() -> None:
    model = net().train()
    before = model[2].running_mean.clone()
    assert train(model, shard(1)).num_steps == 1
    assert torch.equal(model[2].running_mean, before)


def test_frozen_batchnorm_keeps_its_statistics() -> None:
    model = net().train()
    freeze_batchnorm(model)
    before = model[2].running_var.clone()
    train(model, shard(8))
    assert torch.equal(model[2].running_var, before)
    assert model[1].training


def test_bf16_trains_in_float32_weights() -> None:
    model = net()
    result = train(model, shard(8), precision="bf16")
    assert model[1].weight.dtype == torch.float32
    assert np.isfinite(result.loss)

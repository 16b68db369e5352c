"""The device of a host is the one that Ray assigned, and what it must hold is known before."""

from typing import Any

import pytest
import torch

import cluster.devices as devices
from cluster.devices import (
    DeviceShare,
    Footprint,
    assigned_device,
    device_share,
    footprint,
    kept_bytes,
    own_device,
)
from methods import METHODS
from raysim.errors import ClusterError
from raysim.skeleton import build_skeleton
from tests.toy import dealt, toy_config

MIB = 2**20


@pytest.mark.parametrize(
    ("gpu_ids", "visible", "wanted"),
    [
        ([], None, "cpu"),
        ([], "0,1", "cpu"),
        ([0], "0", "cuda:0"),
        ([3], "3", "cuda:0"),  # Ray shows the process its own GPU alone
        ([3], None, "cuda:3"),  # Ray leaves the variable alone, and all GPUs can be seen
        ([3], "2, 3", "cuda:1"),
        (["GPU-7f"], "GPU-7f", "cuda:0"),
        (["MIG-1"], "GPU-7f", "cuda:0"),
        ([1, 2], "1,2", "cuda:0"),
    ],
)
def test_assigned_device(gpu_ids: list[Any], visible: str | None, wanted: str) -> None:
    assert assigned_device(gpu_ids, visible) == wanted


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.ray, "get_gpu_ids", lambda: [0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert own_device(demanded=False) == "cpu"
    with pytest.raises(ClusterError, match=r"torch sees none.*gpus_per_host=0"):
        own_device(demanded=True)


def test_without_a_gpu_nobody_asks_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.ray, "get_gpu_ids", lambda: [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked"))
    assert own_device(demanded=True) == "cpu"


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("model", ["cnn", "resnet10"])
def test_activations_are_those_of_a_real_pass(method: str, model: str) -> None:
    config = toy_config(method=method, model={"name": model, "width": 4})
    real = build_skeleton(config, 10, torch.device("cpu"))
    kept = kept_bytes(real, torch.zeros(16, 3, 16, 16))
    assert kept > 16 * 3 * 16 * 16 * 4, "at least the images"
    assert footprint(config, 10, 100).batch == kept


def test_what_a_host_needs() -> None:
    config = toy_config(model={"name": "resnet10", "width": 8})
    found = footprint(config, 10, 1000)
    weights = sum(p.numel() for p in build_skeleton(config, 10, torch.device("cpu")).parameters())
    assert found.model == 2 * 4 * weights, "parameters and momentum"
    assert found.examples == 1000 * 3 * 16 * 16
    plain = toy_config(model={"name": "resnet10", "width": 8}, local={"momentum": 0.0})
    assert footprint(plain, 10, 1000).model == 4 * weights
    half = toy_config(model={"name": "resnet10", "width": 8}, local={"precision": "bf16"})
    assert footprint(half, 10, 1000).batch == found.batch // 2
    twice = toy_config(model={"name": "resnet10", "width": 8}, local={"batch_size": 32})
    assert footprint(twice, 10, 1000).batch == pytest.approx(2 * found.batch, rel=0.01)
    assert footprint(config, 10, 4).batch < found.batch / 3, "no batch is that large"


def test_hosts_that_share_a_gpu() -> None:
    config = toy_config(data={"clients": 10})
    dataset, partition = dealt(config)
    classes = len(dataset.classes)
    assert device_share(config, partition.shards, classes, 4, 0.0) is None
    shares = {
        gpus: device_share(config, partition.shards, classes, 4, gpus)
        for gpus in (1.0, 0.5, 0.3333, 0.1)
    }
    assert {g: s.sharing for g, s in shares.items() if s} == {1.0: 1, 0.5: 2, 0.3333: 3, 0.1: 4}
    whole = sum(shard.num_train for shard in partition.shards)
    assert shares[1.0] is not None
    assert shares[1.0].needed.examples >= whole / 4 * 3 * 16 * 16


def test_what_fits_is_let_through() -> None:
    needed = Footprint(model=100 * MIB, batch=50 * MIB, examples=50 * MIB)
    assert needed.total == 500 * MIB
    DeviceShare(needed, 1).check(500 * MIB)
    DeviceShare(needed, 4).check(2000 * MIB)


@pytest.mark.parametrize(
    ("needed", "sharing", "words"),
    [
        (
            Footprint(model=100 * MIB, batch=2000 * MIB, examples=50 * MIB),
            1,
            (
                "at least 2450 MiB",
                "2000 MiB activations",
                "the GPU has 1000 MiB",
                "lower local.batch_size",
            ),
        ),
        (
            Footprint(model=100 * MIB, batch=50 * MIB, examples=20_000 * MIB),
            1,
            ("19.5 GiB images", "To fit, lower data.image_size, or give the run more GPUs"),
        ),
        (
            Footprint(model=100 * MIB, batch=50 * MIB, examples=50 * MIB),
            3,
            ("3 hosts that share a GPU need 1500 MiB", "To fit, raise execution.gpus_per_host"),
        ),
    ],
)
def test_what_cannot_fit_is_refused(
    needed: Footprint, sharing: int, words: tuple[str, ...]
) -> None:
    with pytest.raises(ClusterError) as caught:
        DeviceShare(needed, sharing).check(1000 * MIB)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.gpu
def test_a_host_takes_no_less_than_was_estimated() -> None:
    from raysim.host import Host

    config = toy_config(model={"name": "resnet10", "width": 64}, local={"batch_size": 256})
    dataset, partition = dealt(config)
    shards = dict(enumerate(partition.shards))
    needed = footprint(config, len(dataset.classes), sum(s.num_train for s in partition.shards))
    host = Host(config, shards, device="cuda")
    from raysim.server import Server

    server = Server(config, len(dataset.classes), len(dataset.domains))
    message, _ = server.broadcast(0, "fit")
    torch.cuda.reset_peak_memory_stats()
    host.run_phase(0, "fit", list(shards), server.weights(), message)
    peak = torch.cuda.max_memory_allocated()
    known = needed.model + needed.batch + needed.examples
    assert known <= 1.05 * peak, "what fits must not be refused"

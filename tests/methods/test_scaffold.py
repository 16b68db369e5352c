from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from methods.scaffold import Scaffold, effective_steps, renewed
from raysim.checkpoint import latest_checkpoint
from raysim.host import Host
from raysim.server import Server
from raysim.skeleton import build_skeleton
from raysim.tensors import digest, load_arrays, under
from raysim.training import ShardData, batch_order, num_batches
from tests.toy import dealt, run_toy, toy_config


@pytest.mark.parametrize(
    ("steps", "momentum", "expected"), [(7, 0.0, 7), (1, 0.9, 1), (2, 0.9, 2.9), (3, 0.5, 4.25)]
)
def test_effective_steps(steps: int, momentum: float, expected: float) -> None:
    assert effective_steps(steps, momentum) == pytest.approx(expected)


@given(st.integers(1, 60), st.floats(0, 0.95))
def test_effective_steps_are_what_sgd_moves(steps: int, momentum: float) -> None:
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert -float(weight.detach()) == pytest.approx(0.1 * effective_steps(steps, momentum))


@given(st.integers(1, 100), st.integers(1, 40))
def test_num_batches_counts_what_is_dealt(num_examples: int, batch_size: int) -> None:
    order = batch_order(num_examples, batch_size, np.random.default_rng(0))
    assert num_batches(num_examples, batch_size) == len(order)


def test_renewed_variate() -> None:
    arrays = [np.float32([x]) for x in (0.5, 0.2, 1.0, 0.4)]
    new = renewed(*arrays, 0.3)  # .5 - .2 + (1 - .4) / .3
    assert new.dtype == np.float32
    np.testing.assert_allclose(new, [2.3], rtol=1e-6)


def test_without_control_it_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    neutral = toy_config(method={"name": "scaffold", "control": False})
    assert run_toy(neutral, tmp_path / "a").bits == run_toy(toy_config(), tmp_path / "b").bits


def test_the_first_round_is_fedavgs_and_the_second_is_not(tmp_path: Path) -> None:
    for rounds, equal in ((1, True), (2, False)):
        shas = {
            run_toy(toy_config(method=m, rounds=rounds), tmp_path / f"{m}{rounds}").summary[
                "weights_sha256"
            ]
            for m in ("scaffold", "fedavg")
        }
        assert (len(shas) == 1) == equal


def test_a_variate_of_one_full_batch_is_the_gradient() -> None:
    local = {"batch_size": 500, "momentum": 0.0, "weight_decay": 0.0}
    config = toy_config(method="scaffold", local=local)
    dataset, partition = dealt(config)
    server = Server(config, len(dataset.classes), len(dataset.domains))
    host = Host(config, {0: partition.shards[0]})
    host.run_phase(0, "fit", [0], server.weights(), server.broadcast(0, "fit")[0])
    host.commit()
    model = build_skeleton(config, len(dataset.classes), torch.device("cpu"))
    load_arrays(model, server.weights())
    shard = ShardData.load(dataset, partition.shards[0].train, "train", torch.device("cpu"))
    batch = shard.batch(slice(None))
    functional.cross_entropy(model(batch.images), batch.labels).backward()
    own = under("own_variate", host.snapshot()[0])
    assert set(own) == {n for n, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(own[name], parameter.grad, rtol=1e-3, atol=2e-5)


def test_the_servers_variate_is_the_mean_of_all_clients_and_both_are_saved(tmp_path: Path) -> None:
    config = toy_config(method="scaffold", rounds=3)
    snapshot = run_toy(config, tmp_path).snapshot
    assert len(snapshot.clients) < config.data.clients  # absent ones count as zeros
    shared = under("variate", snapshot.memory)
    assert any(a.any() for a in shared.values())
    for name, array in shared.items():
        total = sum(state[f"own_variate/{name}"] for state in snapshot.clients.values())
        np.testing.assert_allclose(array, total / config.data.clients, rtol=1e-4, atol=1e-6)
    saved = latest_checkpoint(tmp_path / "checkpoints").load()
    assert digest(saved.memory) == digest(snapshot.memory)
    assert {c: digest(s) for c, s in saved.clients.items()} == {
        c: digest(s) for c, s in snapshot.clients.items()
    }


def test_server_lr_scales_the_step_of_parameters_only(tmp_path: Path) -> None:
    full, half = (
        run_toy(
            toy_config(method={"name": "scaffold", "eta": eta}, rounds=1), tmp_path / str(eta)
        ).snapshot.model
        for eta in (1.0, 0.5)
    )
    config = toy_config(method="scaffold")
    initial = Server(config, 10, 4).weights()
    for name, array in half.items():
        expected = full[name] if "running" in name else (full[name] + initial[name]) / 2
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)


def test_own_variates_stay_private_and_the_wire_is_counted(tmp_path: Path) -> None:
    scaffold, fedavg = (
        run_toy(toy_config(method=m, rounds=1), tmp_path / m) for m in ("scaffold", "fedavg")
    )
    params = scaffold.summary["params"]
    for way in ("bytes_up", "bytes_down"):
        assert scaffold.summary[way] - fedavg.summary[way] == 4 * 4 * params  # 4 clients, float32
    config = toy_config(method="scaffold")
    dataset, partition = dealt(config)
    server = Server(config, len(dataset.classes), len(dataset.domains))
    host = Host(config, {0: partition.shards[0]})
    message = server.broadcast(0, "fit")[0]
    partial, _ = host.run_phase(0, "fit", [0], server.weights(), message)
    host.commit()
    assert not set(partial.sums) & set(host.snapshot()[0])


def test_defaults_and_aliases() -> None:
    assert (Scaffold().server_lr, Scaffold().control) == (1.0, True)
    assert Scaffold.model_validate({"eta": 0.5}).server_lr == 0.5

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods.ditto import Ditto
from raysim.host import Host
from raysim.server import Server
from raysim.skeleton import build_skeleton
from raysim.tensors import digest, state_arrays, under
from raysim.training import Batch, ShardData, fit
from tests.toy import ToyRun, dealt, run_toy, toy_config

ALL = {"data__clients": 4, "participation__fraction": 1.0}


def ditto(folder: Path, weight: float, **overrides: object) -> ToyRun:
    return run_toy(toy_config(method={"name": "ditto", "lambda": weight}, **overrides), folder)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_the_global_track_is_fedavg_bit_for_bit(tmp_path: Path, buffers: str) -> None:
    method = {"name": "ditto", "lambda": 0.5, "buffers": buffers}
    run = run_toy(toy_config(method=method), tmp_path / "ditto")
    fedavg = run_toy(toy_config(method={"name": "fedavg", "buffers": buffers}), tmp_path / "avg")
    assert run.summary["weights_sha256"] == fedavg.summary["weights_sha256"]
    assert run.summary["domains"] == fedavg.summary["domains"]
    assert run.summary["bytes_up"] == fedavg.summary["bytes_up"]


def test_lambda_0_is_local_training_bit_for_bit(tmp_path: Path) -> None:
    alone = ditto(tmp_path / "ditto", 0.0, **ALL)
    local = run_toy(toy_config(method="local", **ALL), tmp_path / "local")
    for client, state in local.snapshot.clients.items():
        assert digest(under("personal", alone.snapshot.clients[client])) == digest(state)
    assert alone.summary["personal"] == local.summary["personal"]


def test_a_larger_lambda_keeps_personal_models_nearer_to_the_received_one() -> None:
    def distance(weight: float) -> float:
        config = toy_config(method={"name": "ditto", "lambda": weight}, local__epochs=4)
        dataset, partition = dealt(config)
        received = Server(config, len(dataset.classes), len(dataset.domains)).weights()
        host = Host(config, {0: partition.shards[0]})
        host.run_phase(0, "fit", [0], received, {})
        host.commit()
        personal = under("personal", host.snapshot()[0])
        parameters = [n for n in received if "running" not in n]
        return sum(float(np.square(personal[n] - received[n]).sum()) for n in parameters)

    assert distance(5.0) < distance(1.0) < distance(0.0)


def test_personal_models_stay_private_and_have_statistics_of_their_own() -> None:
    config = toy_config(method="ditto")
    dataset, partition = dealt(config)
    weights = Server(config, len(dataset.classes), len(dataset.domains)).weights()
    host = Host(config, {c: partition.shards[c] for c in (0, 1)})
    partial, report = host.run_phase(0, "fit", [0, 1], weights, {})
    host.commit()
    assert set(partial.sums) == set(weights)
    assert all("personal_loss" in r.metrics for r in report.clients)
    states = host.snapshot()
    means = [states[c]["personal/body.conv1.norm.running_mean"] for c in (0, 1)]
    assert set(states[0]) == {f"personal/{name}" for name in weights}
    assert not np.array_equal(*means)


def test_absent_clients_keep_their_personal_model(tmp_path: Path) -> None:
    short, long = (ditto(tmp_path / str(r), 1.0, rounds=r).snapshot.clients for r in (1, 2))
    assert set(short) < set(long)
    assert any(digest(short[c]) == digest(long[c]) for c in short)


def test_defaults_and_aliases() -> None:
    assert Ditto().personal_weight == 0.1
    assert Ditto.model_validate({"lambda": 2}).personal_weight == 2


def test_the_personal_step_is_sgd_on_the_printed_objective() -> None:
    config = toy_config(method={"name": "ditto", "lambda": 0.7})
    dataset, partition = dealt(config)
    weights = Server(config, len(dataset.classes), len(dataset.domains)).weights()
    host = Host(config, {1: partition.shards[1]})
    for round_, received in enumerate((weights, {n: a + 0.01 for n, a in weights.items()})):
        host.run_phase(round_, "fit", [1], received, {})
        host.commit()
    model = build_skeleton(config, len(dataset.classes), torch.device("cpu"))
    shard = ShardData.load(dataset, partition.shards[1].train, "train", torch.device("cpu"))
    for round_, received in enumerate((weights, {n: a + 0.01 for n, a in weights.items()})):
        anchor = {n: torch.tensor(received[n]) for n, _ in model.named_parameters()}

        def objective(batch: Batch, anchor: dict[str, torch.Tensor] = anchor) -> torch.Tensor:
            task = functional.cross_entropy(model(batch.images), batch.labels)
            pairs = [(p, anchor[n]) for n, p in model.named_parameters()]
            return task + 0.7 / 2 * sum((p - a).square().sum() for p, a in pairs)

        fit(model, shard, config.local, objective, key=(config.seed, round_, 1))
    personal = under("personal", host.snapshot()[1])
    for name, array in state_arrays(model).items():
        np.testing.assert_allclose(personal[name], array, rtol=1e-4, atol=1e-5)

from pathlib import Path

import numpy as np
import pytest

from methods.ditto import Ditto
from raysim.host import Host
from raysim.server import Server
from raysim.tensors import digest, under
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
    partial, reports = host.run_phase(0, "fit", [0, 1], weights, {})
    host.commit()
    assert set(partial.sums) == set(weights)
    assert all("personal_loss" in r.metrics for r in reports)
    states = host.snapshot()
    means = [states[c]["personal/body.conv1.norm.running_mean"] for c in (0, 1)]
    assert set(states[0]) == {f"personal/{name}" for name in weights}
    assert not np.array_equal(*means)


def test_absent_clients_keep_their_personal_model(tmp_path: Path) -> None:
    short, long = (ditto(tmp_path / str(r), 1.0, rounds=r).snapshot.clients for r in (1, 2))
    assert set(short) < set(long)
    assert any(digest(short[c]) == digest(long[c]) for c in short)


def test_defaults_and_aliases() -> None:
    assert Ditto().personal_weight == 1.0
    assert Ditto.model_validate({"lambda": 0.1}).personal_weight == 0.1

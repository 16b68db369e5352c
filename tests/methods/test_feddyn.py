from pathlib import Path

import numpy as np
import pytest

from methods.feddyn import FedDyn, moved_dual
from raysim.checkpoint import latest_checkpoint
from raysim.host import Host
from raysim.server import Server
from raysim.tensors import digest, under
from tests.toy import dealt, run_toy, toy_config

ALL = {"data__clients": 4, "participation__fraction": 1.0}


def test_moved_dual() -> None:
    dual, trained, received = (np.float32([x]) for x in (0.5, 3.0, 1.0))
    np.testing.assert_allclose(moved_dual(dual, trained, received, 0.1), [0.3], rtol=1e-6)


def test_alpha_0_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    neutral = toy_config(method={"name": "feddyn", "alpha": 0})
    assert run_toy(neutral, tmp_path / "a").bits == run_toy(toy_config(), tmp_path / "b").bits


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_first_round_leads_the_mean_by_the_share_of_clients(
    tmp_path: Path, fraction: float
) -> None:
    method = {"name": "feddyn", "alpha": 0.1}
    config = toy_config(method=method, rounds=1, data__clients=4, participation__fraction=fraction)
    snapshot = run_toy(config, tmp_path).snapshot
    initial = Server(config, 10, 4).weights()
    for name, dual in under("dual", snapshot.memory).items():
        lead = -dual / 0.1  # = |S| / N (mean - w_0)
        mean = initial[name] + lead / fraction
        np.testing.assert_allclose(snapshot.model[name], mean + lead, rtol=1e-4, atol=1e-5)
        assert lead.any()


def test_the_servers_dual_is_the_weighted_mean_of_the_clients_and_both_are_saved(
    tmp_path: Path,
) -> None:
    config = toy_config(method="feddyn", **ALL)
    snapshot = run_toy(config, tmp_path).snapshot
    sizes = [s.num_train for s in dealt(config)[1].shards]
    for name, dual in under("dual", snapshot.memory).items():
        own = [snapshot.clients[c][f"dual/{name}"] for c in range(4)]
        mean = np.average(own, axis=0, weights=sizes)
        np.testing.assert_allclose(dual, mean, rtol=1e-3, atol=1e-7)
    saved = latest_checkpoint(tmp_path / "checkpoints").load()
    assert digest(saved.memory) == digest(snapshot.memory)
    assert all(digest(s) == digest(snapshot.clients[c]) for c, s in saved.clients.items())


def test_own_duals_bend_the_second_round_and_stay_private() -> None:
    config = toy_config(method={"name": "feddyn", "alpha": 0.1})
    dataset, partition = dealt(config)
    weights = Server(config, len(dataset.classes), len(dataset.domains)).weights()
    host = Host(config, {0: partition.shards[0]})
    digests = []
    for keep in (True, False):  # the same round with and without the dual of the first
        host.restore({})
        partial, _ = host.run_phase(0, "fit", [0], weights, {})
        host.commit()
        if not keep:
            host.restore({})
        partial, _ = host.run_phase(1, "fit", [0], weights, {})
        digests.append(digest({n: s.total() for n, s in partial.sums.items()}))
    assert digests[0] != digests[1]
    assert not any(name.startswith("dual/") for name in partial.sums)


def test_defaults() -> None:
    assert FedDyn().alpha == 0.01

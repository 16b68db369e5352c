from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from raysim.host import Host
from raysim.server import Server
from raysim.skeleton import build_skeleton
from raysim.tensors import digest, state_arrays
from raysim.training import ShardData, fit
from tests.toy import dealt, run_toy, toy_config

LOCAL = {"method": "local", "data__clients": 4, "participation__fraction": 1.0}


def test_a_client_just_trains_on(tmp_path: Path) -> None:
    config = toy_config(**LOCAL)
    run = run_toy(config, tmp_path)
    dataset, partition = dealt(config)
    model = build_skeleton(config, len(dataset.classes), torch.device("cpu"))
    shard = ShardData.load(dataset, partition.shards[2].train, "train", torch.device("cpu"))
    for round_ in range(2):
        fit(
            model,
            shard,
            config.local,
            lambda batch: functional.cross_entropy(model(batch.images), batch.labels),
            key=(config.seed, round_, 2),
        )
    assert digest(run.snapshot.clients[2]) == digest(state_arrays(model))
    assert sorted(run.snapshot.clients) == [0, 1, 2, 3]


def test_nothing_crosses_the_wire_and_the_global_model_stays_initial(tmp_path: Path) -> None:
    config = toy_config(**LOCAL)
    run = run_toy(config, tmp_path)
    dataset, partition = dealt(config)
    initial = state_arrays(build_skeleton(config, len(dataset.classes), torch.device("cpu")))
    assert digest(run.snapshot.model) == digest(initial)
    assert run.summary["bytes_up"] == run.summary["bytes_down"] == 0
    server = Server(config, len(dataset.classes), len(dataset.domains))
    partial, _ = Host(config, {0: partition.shards[0]}).run_phase(0, "fit", [0], initial, {})
    assert not partial.sums
    assert not partial.gathered
    server.aggregate(0, "fit", [partial])
    server.commit()
    assert all(np.array_equal(a, initial[n]) for n, a in server.weights().items())
    assert run.summary["personal"]["avg"] > run.summary["avg"]

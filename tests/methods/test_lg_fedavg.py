from pathlib import Path

import numpy as np
import torch

from raysim.host import Host
from raysim.skeleton import build_skeleton
from raysim.tensors import num_bytes, state_arrays
from tests.toy import dealt, run_toy, toy_config

HEAD = {"head.weight", "head.bias"}


def test_only_the_head_goes_up_and_only_the_rest_is_kept(tmp_path: Path) -> None:
    config = toy_config(method="lg_fedavg")
    dataset, partition = dealt(config)
    initial = state_arrays(build_skeleton(config, len(dataset.classes), torch.device("cpu")))
    host = Host(config, {c: partition.shards[c] for c in (0, 1)})
    partial, report = host.run_phase(0, "fit", [0, 1], initial, {})
    host.commit()
    assert set(partial.sums) == HEAD
    assert all(set(state) == set(initial) - HEAD for state in host.snapshot().values())
    head_bytes = num_bytes({n: initial[n] for n in HEAD})
    assert [r.bytes_up for r in report.clients] == [head_bytes] * 2

    run = run_toy(config, tmp_path)
    assert run.summary["bytes_down"] == run.summary["bytes_up"] == 2 * 4 * head_bytes
    changed = {n for n, a in run.snapshot.model.items() if not np.array_equal(a, initial[n])}
    assert changed == HEAD


def test_clients_outside_the_cohort_keep_their_representation(tmp_path: Path) -> None:
    short, long = (
        run_toy(toy_config(method="lg_fedavg", rounds=r), tmp_path / str(r)).snapshot.clients
        for r in (1, 2)
    )
    kept = [c for c in short if all(np.array_equal(short[c][n], long[c][n]) for n in short[c])]
    assert set(short) <= set(long)
    assert 0 < len(kept) < len(short)  # seed 0 draws some clients twice and others once

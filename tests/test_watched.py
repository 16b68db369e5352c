from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.aggregation import Partial, Weighted
from raysim.checkpoint import latest_checkpoint
from raysim.messages import Update
from raysim.watched import WatchedFiles, watched_weights
from tests.toy import FEDFIP, dealt, run_toy, toy_config


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "watched").iterdir())}


def test_files_hold_what_was_written_and_later_ones_can_be_dropped(tmp_path: Path) -> None:
    files = WatchedFiles(tmp_path / "watched")
    assert files.rounds() == []
    files.write(2, {"mask/000/conv": np.array([True, False]), "known": np.zeros(2, bool)})
    files.write(3, {})
    files.write(10, {"mask/000/conv": np.array([True, True]), "masked": np.zeros(1)})
    assert files.rounds() == [2, 10]
    masks = files.read("mask")
    assert {r: list(arrays) for r, arrays in masks.items()} == {2: ["000/conv"], 10: ["000/conv"]}
    assert masks[2]["000/conv"].tolist() == [True, False]
    assert files.read("known")[2][""].tolist() == [False, False]
    files.discard_after(2)
    assert files.rounds() == [2]


def test_watched_sums_are_averaged_and_not_counted_as_sent() -> None:
    update = Update(watched={"importance/0": Weighted(np.ones(4, np.float32), 3)})
    assert update.bytes_up() == 0
    a, b = Partial(), Partial()
    a.add(0, {}, {}, update.watched)
    b.add(1, {}, {}, {"importance/0": Weighted(np.full(4, 5, np.float32), 1)})
    a.merge(b)
    assert a.watched["importance/0"].mean().tolist() == [2.0] * 4


def test_a_method_with_masks_shows_them_and_importances_by_domain(tmp_path: Path) -> None:
    run_toy(toy_config(method=FEDFIP, rounds=3), tmp_path)
    files = WatchedFiles(tmp_path / "watched")
    assert files.rounds() == [1, 3]  # warmup_rounds=0, mask_every=2
    (masks,) = {tuple(arrays) for arrays in files.read("mask").values()}
    assert len(masks) >= 2
    total = sum(len(mask) for mask in files.read("mask")[3].values())
    importance = files.read("importance")[3]
    assert set(importance) <= {"0", "1", "2", "3"}
    assert all(a.shape == (total,) and a.dtype == np.float32 for a in importance.values())
    assert files.read("prototypes")[3][""].shape == (4, total)


def test_attention_and_consensus_are_shown_for_the_cohort(tmp_path: Path) -> None:
    run_toy(toy_config(method="fdse", rounds=2), tmp_path)
    files = WatchedFiles(tmp_path / "watched")
    cohort = files.read("cohort")[2][""]
    attention = files.read("attention")[2][""]
    assert attention.shape == (len(cohort), len(cohort))
    np.testing.assert_allclose(attention.sum(1), 1, rtol=1e-5)
    for weight_K in files.read("consensus")[2].values():
        assert weight_K.shape == cohort.shape
        assert float(weight_K.sum()) == pytest.approx(1, abs=1e-5) or not weight_K.any()
    assert watched_weights({"cohort": cohort}) == {}


def test_a_resumed_run_shows_what_an_unbroken_one_does(tmp_path: Path) -> None:
    whole = run_toy(toy_config(method=FEDFIP, rounds=5), tmp_path / "whole").folder
    config = toy_config(method=FEDFIP, rounds=5, output={"checkpoint_every": 1})
    broken = run_toy(config.model_copy(update={"rounds": 3}), tmp_path / "broken").folder
    WatchedFiles(broken / "watched").write(4, {"left": np.zeros(1)})  # of a round that was lost
    checkpoint = latest_checkpoint(broken / "checkpoints")
    run_toy(config, broken, resume=replace(checkpoint, experiment={}))
    assert contents(broken) == contents(whole)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fdse", FEDFIP], ids=["fdse", "fedfip"])
def test_hosts_on_ray_show_the_same(method: Any, local_ray: str, tmp_path: Path) -> None:
    from cluster.executor import RayExecutor

    here = run_toy(toy_config(method=method, rounds=2), tmp_path / "here").folder
    config = toy_config(method=method, rounds=2, execution={"backend": "ray", "hosts": 2})
    executor = RayExecutor(config, *reversed(dealt(config)))
    there = run_toy(config, tmp_path / "there", executor=executor).folder
    assert contents(there) == contents(here)

"""Domains that no client trains on, and validation images, in whole runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from methods import METHODS
from raysim.config import RunConfig
from raysim.data.datasets import open_dataset
from raysim.errors import ConfigError
from raysim.executor import InProcessExecutor
from tests.toy import ToyRun, dealt, run_toy, toy_config


def unseen_config(method: str, *unseen: str, **more: Any) -> RunConfig:
    return toy_config(method=method, **{"data.unseen": list(unseen), "rounds": 2} | more)


def metrics_of(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "metrics.parquet")


def summary_of(run: ToyRun) -> dict[str, Any]:
    return dict(run.summary)


def test_no_client_holds_an_unseen_domain_and_it_is_tested_all_the_same(tmp_path: Path) -> None:
    config = unseen_config("fedavg", "syn")
    _, partition = dealt(config)
    assert all(3 not in shard.train | shard.test for shard in partition.shards)
    summary = summary_of(run_toy(config, tmp_path))
    assert list(summary["domains"]) == ["mnist", "optdigits", "mnist_m"]
    assert summary["avg"] == pytest.approx(np.mean(list(summary["domains"].values())))
    assert list(summary["unseen"]) == ["syn"]
    assert list(summary["unseen"]["syn"]) == ["global"]  # FedAvg does not adapt
    rows = metrics_of(tmp_path)
    tested = rows[(rows.domain == "syn") & (rows.metric == "accuracy")]
    assert set(tested.model) == {"global"}
    assert len(tested) == 1


def test_fdse_adapts_to_each_unseen_domain_as_to_a_new_client(tmp_path: Path) -> None:
    config = unseen_config("fdse", "mnist", "syn")
    summary = summary_of(run_toy(config, tmp_path))
    assert [list(models) for models in summary["unseen"].values()] == [["global", "adapted"]] * 2
    rows = metrics_of(tmp_path)
    adapted = rows[rows.model == "adapted"]
    clients = config.data.clients
    assert set(zip(adapted.client, adapted.domain, strict=True)) == {
        (clients, "mnist"),
        (clients + 1, "syn"),
    }
    assert set(rows[rows.model == "personal"].client) <= {-1, *range(clients)}


def test_adaptation_reads_no_labels(tmp_path: Path) -> None:
    config = unseen_config("fdse", "syn")
    dataset, partition = dealt(config)
    executor = InProcessExecutor(config, partition, dataset)
    guest = config.data.clients
    shard = executor._host._train[guest]
    assert len(shard) == 1000
    before = run_toy(config, tmp_path / "a", executor=executor)
    blind = InProcessExecutor(config, partition, dataset)
    blind._host._train[guest].labels.zero_()
    after = run_toy(config, tmp_path / "b", executor=blind)
    assert before.summary["unseen"] == after.summary["unseen"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_without_one_domain(name: str, tmp_path: Path) -> None:
    summary = summary_of(run_toy(unseen_config(name, "optdigits", rounds=1), tmp_path))
    assert ("adapted" in summary["unseen"]["optdigits"]) == METHODS[name].adapts


@pytest.mark.parametrize(
    ("unseen", "message"),
    [
        (["sin"], r"data\.unseen: .*did you mean 'syn'"),
        (["mnist", "optdigits", "mnist_m", "syn"], r"data\.unseen"),
    ],
)
def test_what_cannot_be_left_out_is_refused(unseen: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dealt(unseen_config("fedavg", *unseen))


def test_validation_images_are_nobodys_training_or_test_images(tmp_path: Path) -> None:
    config = toy_config(method="fedbn", **{"data.split": {"val": 0.1}, "rounds": 2})
    dataset = open_dataset(config.data, config.seed)
    rows = {s: set(dataset.rows("syn", s).tolist()) for s in ("train", "val", "test")}
    assert [len(found) for found in rows.values()] == [900, 100, 400]
    assert len(rows["train"] | rows["val"] | rows["test"]) == 1400
    run = run_toy(config, tmp_path)
    validation = summary_of(run)["val"]
    assert set(validation) == {"avg", "std", "personal", "chosen"}
    table = metrics_of(tmp_path)
    personal = table[(table.split == "val") & (table.model == "personal")]
    averages = personal[personal.metric == "accuracy_avg"].set_index("round").value
    assert validation["chosen"]["round"] == averages.idxmax()
    assert validation["personal"]["avg"] == averages.iloc[-1]
    without = toy_config(method="fedbn", rounds=1)
    assert summary_of(run_toy(without, tmp_path / "b"))["val"] is None

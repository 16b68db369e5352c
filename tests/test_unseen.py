"""Domains that no client trains on, and validation images, in whole runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import methods.fdse
from methods import METHODS
from raysim.config import RunConfig
from raysim.data.datasets import open_dataset
from raysim.errors import ConfigError
from raysim.models import ChannelModel
from raysim.training import ShardData
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


def test_a_guest_brings_no_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ShardData] = []
    real = methods.fdse.adapt

    def watched(model: ChannelModel, shard: ShardData, *rest: Any, **more: Any) -> Any:
        given.append(shard)
        return real(model, shard, *rest, **more)

    monkeypatch.setattr(methods.fdse, "adapt", watched)
    run_toy(unseen_config("fdse", "syn"), tmp_path)
    assert [len(shard) for shard in given] == [1000]
    assert set(given[0].labels.tolist()) == {-1}


@pytest.mark.parametrize("method", ["fedavg", "fdse"])
def test_domains_without_clients_are_unseen_unasked(method: str, tmp_path: Path) -> None:
    """Who holds what decides which domains AVG and STD speak of, not `data.unseen` alone."""
    kind = {"kind": "single_domain", "counts": {"mnist": 4, "syn": 6}}
    config = toy_config(method=method, **{"data.partition": kind})
    _, partition = dealt(config)
    assert [list(guest.train) for guest in partition.guests] == [[1], [2]]
    assert [len(guest.train[d]) for d, guest in enumerate(partition.guests, 1)] == [1000] * 2
    summary = summary_of(run_toy(config, tmp_path))
    assert list(summary["domains"]) == ["mnist", "syn"]
    values = list(summary["domains"].values())
    assert summary["avg"] == pytest.approx(np.mean(values))
    assert summary["std"] == pytest.approx(np.std(values, ddof=1))
    assert list(summary["unseen"]) == ["optdigits", "mnist_m"]
    models = ["global", "adapted"] if METHODS[method].adapts else ["global"]
    assert [list(found) for found in summary["unseen"].values()] == [models] * 2


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
    assert set(validation) == {"avg", "std", "last", "personal", "chosen"}
    table = metrics_of(tmp_path)
    personal = table[(table.split == "val") & (table.model == "personal")]
    averages = personal[personal.metric == "accuracy_avg"].set_index("round").value
    assert validation["chosen"]["round"] == averages.idxmax()
    assert validation["personal"]["avg"] == averages.iloc[-1]
    assert validation["personal"]["last"]["avg"] == pytest.approx(averages.mean())
    without = toy_config(method="fedbn", rounds=1)
    assert summary_of(run_toy(without, tmp_path / "b"))["val"] is None

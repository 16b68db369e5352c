import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from raysim import trackers
from raysim.config import RunConfig
from raysim.errors import ConfigError
from raysim.federation import RoundSummary
from raysim.results import write_json
from raysim.trackers import Tracking, scalars, tracking
from tests.toy import toy_config


def after(round_: int) -> RoundSummary:
    evaluation: dict[str, Any] = {
        "domains": {"mnist": 90.0, "a:b": 80.0},
        "avg": 85.0,
        "std": 7.0,
        "personal": {"avg": 60.0, "std": 5.0},
        "unseen": {"syn": {"global": 40.0, "adapted": 50.0}},
    }
    figures = {"loss": 1.0 / round_}
    return RoundSummary(
        round=round_, cohort=4, loss=0.5, evaluation=evaluation, figures=figures, seconds=1.0
    )


def track(folder: Path, *names: str, rounds: tuple[int, ...] = (1, 2), done: int = 0) -> list[str]:
    """Follow some rounds; returns what was complained about."""
    said: list[str] = []
    output = {"trackers": names, "tensorboard": not names}
    folder.mkdir(parents=True, exist_ok=True)
    with tracking(toy_config(output=output), folder, done, said.append) as observer:
        for round_ in rounds:
            observer.on_round(after(round_))
        write_json({"status": "done", "avg": 85.0, "last": {"avg": 84.0}}, folder / "summary.json")
    return said


def test_figures_have_grouped_names() -> None:
    assert scalars(after(2)) == {
        "round/loss": 0.5,
        "accuracy/mnist": 90.0,
        "accuracy/a:b": 80.0,
        "accuracy/AVG": 85.0,
        "accuracy/STD": 7.0,
        "personal/avg": 60.0,
        "personal/std": 5.0,
        "unseen/syn_global": 40.0,
        "unseen/syn_adapted": 50.0,
    }


def test_a_loss_that_is_none_is_left_out() -> None:
    refused = replace(after(2), figures={"loss": float("nan"), "skipped_updates": 4})
    assert "round/loss" not in scalars(refused)
    assert scalars(refused)["round/skipped_updates"] == 4


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    assert track(tmp_path) == []
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("accuracy/AVG")] == [1, 2]


def test_mlflow_takes_a_run_and_goes_on_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "runs" / "a_run"
    assert track(folder, "mlflow") == []
    assert track(folder, "mlflow", rounds=(3,), done=2) == []
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("raysim").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("a_run", "FINISHED")
    assert run.data.params["method.name"] == "fedavg"
    assert run.data.metrics["summary/last.avg"] == 84.0
    history = client.get_metric_history(run.info.run_id, "round/loss")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert "accuracy/a_b" in run.data.metrics


def test_mlflow_takes_a_file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert track(tmp_path / "run", "mlflow") == []
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("raysim").experiment_id])
    assert run.data.metrics["accuracy/AVG"] == 85.0


def test_wandb_takes_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert track(tmp_path / "run", "wandb") == []
    (found,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (log,) = found.glob("*.wandb")
    assert b"accuracy/AVG" in log.read_bytes()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_is_not_there_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"{name} is not installed .*raysim\[{name}\]"):
        track(tmp_path, name)


def test_a_server_that_is_away_at_the_start_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ConfigError, match=r"mlflow cannot be opened.*\ncheck MLFLOW_TRACKING_URI"):
        track(tmp_path, "mlflow")


def test_what_is_open_is_closed_when_the_next_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Opened:
        def __init__(self, config: RunConfig, folder: Path) -> None:
            pass

        def close(self, summary: dict[str, Any]) -> None:
            closed.append(summary["status"])

    monkeypatch.setitem(trackers._KINDS, "mlflow", Opened)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb is not installed"):
        track(tmp_path, "mlflow", "wandb")
    assert len(closed) == 1


class Away:
    def log(self, round_: int, scalars: dict[str, float]) -> None:
        raise ConnectionError("gone")

    def close(self, summary: dict[str, Any]) -> None:
        raise ConnectionError("gone")


def test_a_tracker_that_fails_later_is_told_and_fails_no_run() -> None:
    said: list[str] = []
    observer = Tracking({"away": Away()}, said.append)
    observer.on_round(after(1))
    observer.close({"status": "done"})
    assert said == [
        "away did not take round 1: ConnectionError: gone",
        "away did not take the end: ConnectionError: gone",
    ]

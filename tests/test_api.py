import inspect
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from methods import METHODS
from raysim import load_run, run
from raysim.api import _words
from raysim.config import load_config
from raysim.errors import ConfigError, RecordError
from raysim.record import Record

TINY: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 8, "image_size": 16},
    "model": {"name": "cnn", "width": 4},
    "participation": {"fraction": 0.5},
    "evaluation": {"every": 2},
    "execution": {"backend": "inprocess"},
}
MASKED = {"name": "fedfip", "warmup_rounds": 0, "fisher_samples": 8}


def tiny(folder: Path, **more: Any) -> Record:
    output = {"dir": folder, "tensorboard": False, "report": False}
    return run(quiet=True, output=output, **TINY, **more)


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return tiny(tmp_path_factory.mktemp("runs"), method=MASKED)


def test_a_run_gives_its_tables_and_charts(sliced: Record) -> None:
    assert sliced.is_done
    found = sliced.metrics.query("metric == 'accuracy_avg' and split == 'test' and client == -1")
    assert found.query("model == 'global'")["value"].tolist() == [sliced.summary["avg"]]
    figure = sliced.plot.domains()
    assert [trace.name for trace in figure.data] == list(sliced.summary["domains"])
    assert set(sliced.plot.panels()) >= {"mask", "kept", "importance"}
    assert load_run(sliced.folder).summary == sliced.summary


@pytest.mark.parametrize("scope", ["inner", "all"])
def test_the_global_model_gives_the_reported_accuracy_from_its_state_dict_too(
    scope: str, tmp_path: Path
) -> None:
    record = tiny(tmp_path, method=MASKED | {"scope": scope})
    model = record.global_model()
    assert record.accuracy(model) == record.summary["domains"]
    if scope == "inner":
        assert sum(p.numel() for p in model.parameters()) == record.summary["params_sliced"]
    torch.save(model.state_dict(), tmp_path / "model.pt")
    again = record.global_model()
    for parameter in again.parameters():
        torch.nn.init.zeros_(parameter)
    again.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert record.accuracy(again) == record.summary["domains"]


@pytest.mark.parametrize("name", ["fdse", "fedbn"])
def test_other_global_models_give_the_reported_accuracy(name: str, tmp_path: Path) -> None:
    record = tiny(tmp_path, method=name)
    assert record.accuracy(record.global_model()) == record.summary["domains"]


def test_a_run_leaves_signals_as_they_were(tmp_path: Path) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ConfigError):
        tiny(tmp_path, local={"lr": -1})
    with ThreadPoolExecutor(1) as other:  # where no signal can be taken
        assert other.submit(lambda: tiny(tmp_path, method="local").is_done).result()
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_settings_are_laid_over_the_preset() -> None:
    settings = {"data": {"clients": 8, "partition": {"kind": "iid"}}, "model": {"width": 4}}
    words = list(_words(settings | {"method": {"name": "fdse", "tau": 0.3}, "method.G": 4}))
    config = load_config(METHODS, text="{data: {image_size: 16, clients: 9}}", overrides=words)
    assert (config.data.clients, config.data.image_size, config.model.width) == (8, 16, 4)
    assert config.data.partition.kind == "iid"
    assert config.method.model_dump()["temperature"] == 0.3
    assert config.method.model_dump()["groups"] == 4
    assert list(_words({"data": {"name": "pacs", "root": Path("/a b")}})) == [
        *("data=pacs", "data.root=/a b")
    ]
    assert list(_words({"a": None, "b": 1e-5, "c": ("x",), "d": "yes: no"})) == [
        *("a=null", "b=1.0e-05", "c=[x]", "d='yes: no'")
    ]
    assert list(_words({"seed": np.int64(3), "local": {"lr": np.float64(0.5)}})) == [
        *("seed=3", "local.lr=0.5")
    ]


def test_errors_are_those_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'stable'"):
        run("stabel")
    with pytest.raises(ConfigError, match="rounds: must lie"):
        run(rounds=0)
    with pytest.raises(RecordError, match="not a run directory"):
        load_run(tmp_path)


def test_run_can_be_called_whatever_was_imported_before() -> None:
    import raysim.run as module

    assert callable(raysim.run)
    assert callable(module)
    assert list(inspect.signature(run).parameters) == ["preset", "quiet", "settings"]
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        raysim.rum  # type: ignore[attr-defined]  # noqa: B018


def test_importing_raysim_imports_little() -> None:
    code = "import sys, raysim; print({'torch', 'ray', 'pandas', 'pydantic'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

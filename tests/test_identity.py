"""The contract's promise: the same bits in this process and on any number of hosts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.toy import FEDFIP, ToyRun, dealt, run_toy, toy_config

pytestmark = pytest.mark.ray

FEDAVG_RUN: dict[str, Any] = {"rounds": 3}
FEDFIP_RUN: dict[str, Any] = {"rounds": 3, "participation.fraction": 0.75}


def _run(late: bool, folder: Path, hosts: int, settings: dict[str, Any]) -> ToyRun:
    """Run on Ray, or in this process for 0 hosts."""
    if late:
        name = settings["method"]["name"]
        settings = settings | {"method": settings["method"] | {"name": f"late_{name}"}}
    config = toy_config(**settings)
    if hosts == 0:
        return run_toy(config, folder)
    from cluster.executor import RayExecutor

    config = toy_config(**settings, **{"execution": {"backend": "ray", "hosts": hosts}})
    dataset, partition = dealt(config)
    return run_toy(config, folder, executor=RayExecutor(config, partition, dataset))


@pytest.fixture(scope="module", params=["fedavg", "fedfip"])
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], ToyRun]:
    """Settings of a run, and the run without Ray and without delays."""
    run, method = {
        "fedavg": (FEDAVG_RUN, {"name": "fedavg"}),
        "fedfip": (FEDFIP_RUN, FEDFIP | {"keep_ratio": 0.4, "reactivation_cap": 0.3}),
    }[request.param]
    settings = run | {"method": method}
    return settings, _run(False, tmp_path_factory.mktemp("reference"), 0, settings)


@pytest.mark.parametrize("reference", ["fedfip"], indirect=True)
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_ray_hosts_give_the_bits_of_one_process(
    local_ray: str, reference: tuple[dict[str, Any], ToyRun], hosts: int, tmp_path: Path
) -> None:
    check_identity(reference, hosts, tmp_path)


@pytest.mark.parametrize("reference", ["fedavg"], indirect=True)
@pytest.mark.parametrize(
    "hosts", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_so_does_fedavg(
    local_ray: str, reference: tuple[dict[str, Any], ToyRun], hosts: int, tmp_path: Path
) -> None:
    check_identity(reference, hosts, tmp_path)


def check_identity(reference: tuple[dict[str, Any], ToyRun], hosts: int, tmp_path: Path) -> None:
    settings, wanted = reference
    found = _run(True, tmp_path, hosts, settings)
    assert found.bits == wanted.bits
    assert found.snapshot.clients.keys() == wanted.snapshot.clients.keys()
    for client, state in wanted.snapshot.clients.items():
        assert found.snapshot.clients[client].keys() == state.keys()
        for name, array in state.items():
            np.testing.assert_array_equal(found.snapshot.clients[client][name], array)


def test_a_second_run_gives_the_same_bits(
    reference: tuple[dict[str, Any], ToyRun], tmp_path: Path
) -> None:
    settings, wanted = reference
    assert _run(False, tmp_path, 0, settings).bits == wanted.bits


def test_another_seed_gives_other_bits(
    reference: tuple[dict[str, Any], ToyRun], tmp_path: Path
) -> None:
    settings, wanted = reference
    assert _run(False, tmp_path, 0, settings | {"seed": 1}).bits != wanted.bits


def test_the_reference_shows_what_it_is_meant_to(reference: tuple[dict[str, Any], ToyRun]) -> None:
    settings, run = reference
    assert len({r["round"] for r in _rows(run)}) == 3
    if settings["method"]["name"] == "fedfip":
        churn = [r["value"] for r in _rows(run) if r["metric"] == "churn"]
        assert churn[2] > 0, "the mask never changes"
        assert any(len(s["private_units"]) for s in run.snapshot.clients.values())


def _rows(run: ToyRun) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(run.folder / "metrics.parquet").to_pylist()


def test_guests_validation_and_augmentation_change_nothing_of_it(
    local_ray: str, tmp_path: Path
) -> None:
    data = {
        "unseen": ["mnist"],
        "split": {"val": 0.1},
        "augment": {"crop_padding": 2, "flip": True},
    }
    settings = {"rounds": 2, "method": {"name": "fdse"}} | {
        f"data.{key}": value for key, value in data.items()
    }
    here = _run(False, tmp_path / "here", 0, settings)
    there = _run(False, tmp_path / "there", 3, settings)
    assert there.bits == here.bits
    assert here.summary["unseen"]["mnist"]["adapted"] == there.summary["unseen"]["mnist"]["adapted"]
    plain = _run(False, tmp_path / "plain", 0, settings | {"data.augment": {}})
    assert plain.bits != here.bits

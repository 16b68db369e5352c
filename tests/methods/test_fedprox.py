from pathlib import Path

import numpy as np
import pytest

from methods.fedprox import FedProx
from raysim.tensors import digest
from tests.toy import run_toy, toy_config


def moved(tmp_path: Path, mu: float) -> float:
    """How far one round moves the parameters from their initial values."""
    start, end = (
        run_toy(
            toy_config(rounds=1, method={"name": "fedprox", "mu": m}, local__lr=lr),
            tmp_path / f"{m}-{lr}",
        ).snapshot.model
        for m, lr in ((0, 1e-9), (mu, 0.05))
    )
    return sum(float(np.square(end[n] - start[n]).sum()) for n in end if "running" not in n)


def test_mu_0_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    neutral = run_toy(toy_config(method={"name": "fedprox", "mu": 0}), tmp_path / "prox")
    fedavg = run_toy(toy_config(), tmp_path / "avg")
    assert neutral.bits == fedavg.bits


def test_a_larger_mu_holds_the_model_nearer(tmp_path: Path) -> None:
    assert moved(tmp_path, 2.0) < 0.8 * moved(tmp_path, 0.0)


def test_mu_is_in_the_bits(tmp_path: Path) -> None:
    runs = [
        run_toy(toy_config(method={"name": "fedprox", "mu": mu}), tmp_path / str(mu))
        for mu in (0.01, 0.1)
    ]
    assert digest(runs[0].snapshot.model) != digest(runs[1].snapshot.model)


def test_defaults_and_aliases() -> None:
    assert FedProx().proximal_weight == 0.01
    assert FedProx.model_validate({"mu": 0.5}).proximal_weight == 0.5
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        FedProx.model_validate({"mu": -1})

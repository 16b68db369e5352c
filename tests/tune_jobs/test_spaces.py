"""Search spaces: what ships, what a user may write, and the grids that are made of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from methods import METHODS
from raysim.config import RunConfig
from raysim.errors import ConfigError
from tests.toy import toy_config
from tune_jobs.spaces import (
    SPACES,
    as_space,
    check_space,
    ends,
    grid,
    method_space,
    read_space,
    spread,
)
from tune_jobs.trainable import trial_config


def configured(method: str) -> Any:
    base = toy_config(method=method)

    def configure(values: Mapping[str, Any]) -> RunConfig:
        return trial_config(base, values)

    return configure


@pytest.mark.parametrize("name", METHODS)
def test_the_space_of_every_method_lies_within_its_keys(name: str) -> None:
    space = method_space(name)
    check_space(as_space(space, name), configured(name))


def test_every_space_that_ships_is_a_methods() -> None:
    assert SPACES.keys() <= METHODS.keys()


def test_a_users_space(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("method.rho: {uniform: [0.2, 0.9]}\nlocal.epochs: {randint: [1, 4]}\n")
    assert read_space(path) == {
        "method.rho": {"uniform": [0.2, 0.9]},
        "local.epochs": {"randint": [1, 4]},
    }


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({}, "method.rho: {uniform: [0.2, 0.9]}"),
        ({"method.rho": 0.3}, "expected one of choice, uniform"),
        ({"method.rho": {"unifrom": [0, 1]}}, "did you mean 'uniform'?"),
        ({"method.rho": {"uniform": [0.2]}}, "takes [from, to], numbers"),
        ({"method.rho": {"quniform": [0.2, 0.8]}}, "takes [from, to, step]"),
        ({"method.rho": {"uniform": [0.9, 0.2]}}, "from must be below to"),
        ({"method.rho": {"loguniform": [0, 1]}}, "starts above 0"),
        ({"local.epochs": {"randint": [0.5, 2]}}, "whole numbers"),
        ({"method.rho": {"choice": 3}}, "takes a list"),
    ],
)
def test_what_is_no_space_is_refused_with_the_form(tree: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        as_space(tree, "mine.yaml")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"method.roh": {"uniform": [0.2, 0.9]}}, "did you mean 'rho'?"),
        ({"method.rho": {"uniform": [0.2, 1.5]}}, "the space goes to method.rho=1.5"),
        ({"rounds": {"randint": [1, 9]}}, "rounds: cannot be searched"),
        ({"output.dir": {"choice": ["a"]}}, "cannot be searched"),
        ({"model.name": {"choice": ["cnn", "vgg"]}}, "model.name=vgg"),
    ],
)
def test_a_space_outside_the_config_is_refused_before_anything_runs(tree: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_space(as_space(tree, "mine.yaml"), configured("fedfip"))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("entry", "low", "high"),
    [
        ({"randint": [1, 4]}, 1, 3),  # Ray Tune leaves the upper end out
        ({"qrandint": [2, 8, 2]}, 2, 8),
        ({"uniform": [0.2, 0.8]}, 0.2, 0.8),
    ],
)
def test_ends(entry: Any, low: float, high: float) -> None:
    assert ends(entry) == [low, high]


def test_values_are_spread_evenly_on_the_entrys_scale() -> None:
    assert spread({"uniform": [0.2, 0.8]}, 3) == [0.2, 0.5, 0.8]
    assert spread({"loguniform": [0.001, 1.0]}, 4) == [0.001, 0.01, 0.1, 1.0]
    assert spread({"randint": [1, 4]}, 9) == [1, 2, 3]
    assert spread({"choice": ["a", "b"]}, 5) == ["a", "b"]
    assert spread({"quniform": [0.0, 1.0, 0.25]}, 9) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_grid_is_the_finest_that_is_not_too_large() -> None:
    space = as_space({"a": {"uniform": [0, 1]}, "b": {"choice": [1, 2]}}, "mine")
    found = grid(space, 7)  # 3 x 2; 4 x 2 would be 8
    assert [cell["a"] for cell in found] == [0, 0, 0.5, 0.5, 1, 1]
    assert [cell["b"] for cell in found] == [1, 2] * 3
    with pytest.raises(ConfigError, match="has 4 trials"):
        grid(space, 3)

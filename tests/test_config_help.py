import itertools
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from methods import METHODS
from raysim.cli import app
from raysim.config import load_config
from raysim.config_help import config_help, config_keys


def leaves(tree: object, prefix: str = "") -> set[str]:
    if not isinstance(tree, dict) or not tree:
        return {prefix[:-1]}
    return set().union(*(leaves(value, f"{prefix}{key}.") for key, value in tree.items()))


@pytest.mark.parametrize("name", METHODS)
def test_the_help_is_the_default_config_and_tells_of_every_key(name: str) -> None:
    text = config_help(name, METHODS[name])
    default = load_config(METHODS, overrides=[f"method={name}"])
    assert load_config(METHODS, text=text) == default
    told = leaves(yaml.safe_load(text))
    assert leaves(default.resolved()) <= told
    assert {key for key in config_keys(METHODS[name]) if "partition" not in key} <= told


def test_every_key_says_what_it_does() -> None:
    lines = config_help("fedfip", METHODS["fedfip"]).splitlines()
    silent = [
        line
        for before, line in itertools.pairwise(lines)
        if line.strip() and not line.strip().startswith("#") and not before.strip().startswith("#")
    ]
    assert [line.strip() for line in silent] == ["name: fedfip", "kind: domain_dirichlet"]


def test_the_command_prints_the_keys_of_the_method_at_hand() -> None:
    shown = CliRunner().invoke(app, ["run", "--help-config", "method=fdse"])
    assert shown.exit_code == 0
    assert "temperature: 0.5" in shown.output
    assert "One of ray, inprocess." in shown.output


def test_a_users_method_is_told_of_under_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    fields = '    alpha: float\n    """How much."""\n    beta: float = 0.5\n    """How often."""\n'
    file.write_text(f"from methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n{fields}")
    name = f"{file}:Mine"
    text = CliRunner().invoke(app, ["run", "--help-config", f"method={name}"]).output
    assert yaml.safe_load(text)["method"]["name"] == name
    assert "  # How much.\n  alpha: \n" in text
    assert "PydanticUndefined" not in text
    told = CliRunner().invoke(app, ["methods", name])
    assert told.exit_code == 0, told.output
    assert "method.alpha    must be given  How much." in told.output
    refused = CliRunner().invoke(app, ["run", f"method={name}"])
    assert refused.exit_code == 2
    assert "method.alpha: must be given" in refused.stderr

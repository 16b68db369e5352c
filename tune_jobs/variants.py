"""The rows of a table: methods, modules of a method switched off, or values of a hyperparameter."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.errors import ConfigError
from raysim.settings import did_you_mean
from raysim.yaml_text import parse_yaml
from tune_jobs.row_keys import check_row
from tune_jobs.spaces import method_space, spread

BASELINE = "fedavg"
_POINTS = 5
"""Values of each hyperparameter in a sensitivity sweep."""
_MODULES = {"fedfip": ("dsfp", "dsr", "sa")}
"""Switches of the modules that a paper's ablation takes away, by method."""
_ABLATION = {
    "fedfip": ((), ("dsfp",), ("dsfp", "dsr"), ("dsfp", "sa"), ("dsfp", "dsr", "sa")),
}
"""Modules that are on in each row of a paper's ablation, by method."""
_EXAMPLE = "random: {method: fedfip, method.mask: random}"
_KEPT = "method.rho"
"""The share of channels that FedFIP keeps."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row.

    Attributes:
        label: its name in the table.
        values: what it sets, by dotted key; `method` first.
        swept: the key whose values are swept, "" if none is.
    """

    label: str
    values: dict[str, Any]
    swept: str = ""


def methods(names: Sequence[str]) -> list[Variant]:
    """Return a row a method."""
    return [Variant(label=name, values={"method": name}) for name in names]


def ablation(method: str) -> list[Variant]:
    """Return the rows of the ablation in a method's paper, from no module to all.

    Raises:
        ConfigError: the method has no such modules.
    """
    _check("--ablation", method, _ABLATION)
    rows = []
    for on in _ABLATION[method]:
        switches = {f"method.{module}": module in on for module in _MODULES[method]}
        label = " + ".join(module.upper() for module in on) or "none"
        rows.append(Variant(label=label, values={"method": method} | switches))
    return rows


def sensitivity(method: str) -> list[Variant]:
    """Return a method as it is, and with each of its hyperparameters moved by itself."""
    rows = [Variant(label=method, values={"method": method})]
    for key, entry in method_space(method).items():
        for value in spread(entry, _POINTS):
            name = key.rpartition(".")[2]
            rows.append(
                Variant(label=f"{name}={value:g}", values={"method": method, key: value}, swept=key)
            )
    return rows


def sparsity(text: str) -> list[Variant]:
    """Return the baseline, and FedFIP at each share of kept channels.

    Args:
        text: `FROM:TO:STEP`, both ends included.

    Raises:
        ConfigError: not of this form.
    """
    found = re.fullmatch(r"(\d*\.?\d+):(\d*\.?\d+):(\d*\.?\d+)", text)
    low, high, step = (float(part) for part in found.groups()) if found else (0.0, 0.0, 0.0)
    if not (0 < low <= high <= 1 and step > 0):
        raise ConfigError(f"--sparsity {text}: expected FROM:TO:STEP in (0, 1], e.g. 0.2:0.8:0.2")
    shares = [round(low + i * step, 6) for i in range(math.floor((high - low) / step + 1e-9) + 1)]
    rows = [
        Variant(label=f"keep {share:g}", values={"method": "fedfip", _KEPT: share}, swept=_KEPT)
        for share in shares
    ]
    return [*methods([BASELINE]), *rows]


def rows_of(path: Path) -> list[Variant]:
    """Return the rows that a YAML file lists, their values by label.

    Raises:
        ConfigError: it cannot be read or is not of this form, or two rows are the same.
    """
    try:
        found = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--rows {path}: {error}") from None
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"--rows {path}: expected rows, e.g. {_EXAMPLE}")
    rows: list[Variant] = []
    for label, values in found.items():
        if not isinstance(values, dict) or not isinstance(values.get("method"), str):
            raise ConfigError(f"--rows {path}: {label}: expected the row's keys, e.g. {_EXAMPLE}")
        check_row(f"--rows {path}: {label}", values)
        ordered = {"method": values["method"]} | values
        if same := next((row.label for row in rows if row.values == ordered), None):
            raise ConfigError(f"--rows {path}: {same} and {label} are the same")
        rows.append(Variant(label=str(label), values=ordered))
    return rows


def _check(option: str, method: str, known: Mapping[str, Any]) -> None:
    if method not in known:
        raise ConfigError(f"{option} {method}: not for this method{did_you_mean(method, known)}")

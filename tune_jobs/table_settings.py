"""What a table is asked for: from the command line to a plan for Tune."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from raysim.config import RunConfig, build_config
from raysim.errors import ConfigError
from raysim.run import method_table, read_config
from raysim.settings import Settings, did_you_mean
from raysim.yaml_text import parse_yaml
from tune_jobs import variants
from tune_jobs.search_settings import data_words
from tune_jobs.study import Plan
from tune_jobs.trainable import trial_config
from tune_jobs.variants import BASELINE, Variant


class Row(Settings):
    """A row of the table; see `Variant`."""

    label: str
    values: dict[str, Any]
    swept: str = ""


class TableSettings(Settings):
    """A table; its plain values stand in `study.yaml`."""

    kind: Literal["table"] = "table"
    title: str
    """What its rows are, in a word."""
    config: dict[str, Any]
    """The resolved config that runs start from."""
    rows: tuple[Row, ...]
    """One a method or variant."""
    baseline: str
    """Label of the row that the others are compared with."""
    data: dict[str, dict[str, Any]]
    """What each data set sets, by its name."""
    seeds: PositiveInt
    """Seeds of each cell, from the config's on."""
    scoped: dict[str, dict[str, Any]]
    """What holds for one method or data set only, by its name."""

    def base(self) -> RunConfig:
        """Return the config that runs start from."""
        return build_config(dict(self.config), method_table())

    def cells(self) -> list[dict[str, Any]]:
        """Return the values of every run: rows within data sets within seeds.

        So the first seed of everything is there first.
        """
        first = self.base().seed
        return [
            own
            | self.scoped.get(name, {})
            | row.values
            | self.scoped.get(row.values["method"], {})
            | {"seed": first + i}
            for i in range(self.seeds)
            for name, own in self.data.items()
            for row in self.rows
        ]

    def place(self, index: int) -> tuple[str, str, int]:
        """Return row, data set and seed of a cell."""
        seed, rest = divmod(index, len(self.data) * len(self.rows))
        data, row = divmod(rest, len(self.rows))
        return self.rows[row].label, list(self.data)[data], self.base().seed + seed

    def plan(self) -> Plan:
        """Return what Tune is to do."""
        from ray import tune

        return Plan(base=self.base(), values=tune.grid_search(self.cells()))

    def words(self) -> str:
        """Say what is run."""
        base = self.base()
        return (
            f"Table of {self.title}: {len(self.rows)} rows x {', '.join(self.data)} x "
            f"{self.seeds} seeds = {len(self.cells())} runs of {base.rounds} rounds; figures are "
            f"of test images, means of the last {base.evaluation.last} evaluations"
        )


def read_settings(
    overrides: Sequence[str],
    *,
    methods: str,
    data: str | None,
    seeds: int,
    ablation: str | None,
    sensitivity: str | None,
    sparsity: str | None,
    config: Path | None,
    preset: str | None,
) -> TableSettings:
    """Return the settings of a command line; see `tune_jobs.table`.

    Raises:
        ConfigError: something contradicts or does not exist.
    """
    title, rows = _rows(methods, ablation, sensitivity, sparsity)
    plain = [word for word in overrides if not _is_scoped(word)]
    for word in plain:
        key = word.partition("=")[0]
        if key == "seed" or not key.startswith(("method", "data=")):
            continue
        raise ConfigError(
            f"{word}: a table has several; write fedfip:method.rho=0.3 for one method, "
            "pacs:data.image_size=64 for one data set"
        )
    base = read_config(plain, config, preset)
    sets = _data_sets(data or base.data.name)
    scoped = _scoped([w for w in overrides if _is_scoped(w)], [*sets, *_methods_of(rows)])
    labels = [row.label for row in rows]
    asked = TableSettings(
        title=title,
        config=base.resolved(),
        rows=tuple(Row(label=r.label, values=r.values, swept=r.swept) for r in rows),
        baseline=BASELINE if BASELINE in labels else labels[0],
        data=sets,
        seeds=seeds,
        scoped=scoped,
    )
    for values in asked.cells()[: len(rows) * len(sets)]:
        trial_config(base, values)
    return asked


def _rows(
    names: str, ablation: str | None, sensitivity: str | None, sparsity: str | None
) -> tuple[str, list[Variant]]:
    asked = {"--ablation": ablation, "--sensitivity": sensitivity, "--sparsity": sparsity}
    given = [option for option, value in asked.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other")
    if ablation is not None:
        return f"ablation of {ablation}", variants.ablation(ablation)
    if sensitivity is not None:
        _check_method(sensitivity)
        return f"sensitivity of {sensitivity}", variants.sensitivity(sensitivity)
    if sparsity is not None:
        return "sparsity", variants.sparsity(sparsity)
    table = method_table()
    chosen = list(table) if names == "all" else names.split(",")
    for name in chosen:
        _check_method(name)
    return "methods", variants.methods(list(dict.fromkeys(chosen)))


def _check_method(name: str) -> None:
    from raysim.config import find_in

    find_in(method_table(), name)


def _methods_of(rows: Sequence[Variant]) -> list[str]:
    return list(dict.fromkeys(row.values["method"] for row in rows))


def _data_sets(text: str) -> dict[str, dict[str, Any]]:
    found = {}
    for spec in text.split(","):
        words = dict(word.split("=", 1) for word in data_words(spec))
        found[words["data"]] = words
    return found


def _is_scoped(word: str) -> bool:
    return ":" in word.partition("=")[0]


def _scoped(words: Sequence[str], known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read `fedfip:method.rho=0.3`."""
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        scope, _, rest = word.partition(":")
        key, separator, value = rest.partition("=")
        if scope not in known:
            raise ConfigError(
                f"{word}: the table has no method or data set {scope!r}{did_you_mean(scope, known)}"
            )
        if not separator:
            raise ConfigError(f"{word!r} is not of the form NAME:key=value")
        found.setdefault(scope, {})[key] = parse_yaml(value, f"the value of {key}")
    return found

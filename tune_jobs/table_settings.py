"""What a table is asked for: from the command line to a plan for Tune."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt

from raysim.config import RunConfig, build_config
from raysim.errors import ConfigError
from raysim.run import method_table, read_config
from raysim.settings import Settings, did_you_mean
from raysim.yaml_text import parse_yaml
from tune_jobs import variants
from tune_jobs.outcome import Outcome
from tune_jobs.row_keys import check_row, check_tuned
from tune_jobs.search_settings import data_words
from tune_jobs.study import Plan
from tune_jobs.trainable import trial_config
from tune_jobs.variants import BASELINE, Variant

if TYPE_CHECKING:
    from raysim.method import Method


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
    compared: Literal["avg", "personal"] = "avg"
    """Whose accuracy is compared: the global model's, or personal ones' where there are any."""
    tune: dict[str, list[Any]] = Field(default_factory=dict)
    """Values to choose from for each row, by dotted key."""
    chosen: tuple[dict[str, Any], ...] = ()
    """What was chosen for each row within each data set; not in `study.yaml`."""
    reuse: tuple[str, ...] = ()
    """Folders of finished runs that are not run again."""

    def base(self) -> RunConfig:
        """Return the config that runs start from."""
        return build_config(dict(self.config), method_table())

    def cells(self) -> list[dict[str, Any]]:
        """Return the values of every run: rows within data sets within seeds.

        So the first seed of everything is there first.
        """
        first, lines = self.base().seed, self.lines()
        chosen = self.chosen or ({},) * len(lines)
        return [
            line | best | {"seed": first + i}
            for i in range(self.seeds)
            for line, best in zip(lines, chosen, strict=True)
        ]

    def combinations(self) -> list[dict[str, Any]]:
        """Return what each row is tried with, in the order in which ties are broken."""
        return [
            dict(zip(self.tune, values, strict=True)) for values in product(*self.tune.values())
        ]

    def trials(self) -> list[dict[str, Any]]:
        """Return the values of every run of tuning: combinations within rows within data sets."""
        seed = {"seed": self.base().seed}
        return [line | values | seed for line in self.lines() for values in self.combinations()]

    def lines(self) -> list[dict[str, Any]]:
        """Return the values of rows within data sets."""
        return [
            own | self.scoped.get(name, {}) | row.values | self.scoped.get(row.values["method"], {})
            for name, own in self.data.items()
            for row in self.rows
        ]

    def labels(self) -> list[tuple[str, str]]:
        """Return data set and row of each of `lines`."""
        return [(name, row.label) for name in self.data for row in self.rows]

    def place(self, index: int) -> tuple[str, str, int]:
        """Return row, data set and seed of a cell."""
        seed, rest = divmod(index, len(self.data) * len(self.rows))
        data, row = divmod(rest, len(self.rows))
        return self.rows[row].label, list(self.data)[data], self.base().seed + seed

    def plan(self, cells: Sequence[Mapping[str, Any]], known: Sequence[Outcome] = ()) -> Plan:
        """Return what Tune is to do.

        Args:
            cells: values of every run.
            known: runs that have been done.
        """
        from ray import tune

        done = [outcome.values for outcome in known]
        left = [values for values in cells if values not in done]
        values = tune.grid_search(left) if left else None
        return Plan(base=self.base(), values=values, known=known)

    def sources(self) -> list[Path]:
        """Return the folders that finished runs are taken from."""
        return [Path(source) for source in self.reuse]

    def words(self) -> str:
        """Say what is run."""
        base = self.base()
        return (
            f"Table of {self.title}: {len(self.rows)} rows x {', '.join(self.data)} x "
            f"{self.seeds} seeds = {len(self.cells())} runs of {base.rounds} rounds; figures are "
            f"of test images, means of the last {base.evaluation.last} evaluations"
        )

    def tuning_words(self) -> str:
        """Say how rows are tuned."""
        tried = ", ".join(f"{key} from {_listed(values)}" for key, values in self.tune.items())
        return (
            f"Tuned first, each row on each data set: {tried}; {len(self.trials())} runs with seed "
            f"{self.base().seed}, the highest validation AVG wins"
        )


def read_settings(
    overrides: Sequence[str],
    *,
    methods: str | None,
    data: str | None,
    seeds: int,
    ablation: str | None,
    sensitivity: str | None,
    sparsity: str | None,
    rows: Path | None,
    tune: Sequence[str],
    compare: Literal["avg", "personal"],
    baseline: str | None,
    reuse: Sequence[Path],
    config: Path | None,
    preset: str | None,
) -> TableSettings:
    """Return the settings of a command line; see `tune_jobs.table`.

    Raises:
        ConfigError: something contradicts or does not exist.
    """
    title, lines = _rows(methods, ablation, sensitivity, sparsity, rows)
    plain = [word for word in overrides if not _is_scoped(word)]
    for word in plain:
        key = word.partition("=")[0]
        if key == "seed" or not key.startswith(("method", "data=")):
            continue
        mine = f"{_methods_of(lines)[-1]}:{word}" if key.startswith("method.") else ""
        raise ConfigError(
            f"{word}: say of which row; write {mine or 'fedfip:method.rho=0.3'} for one method, "
            "pacs:data.image_size=64 for one data set; methods, data sets and seeds have options"
        )
    base = read_config(plain, config, preset)
    sets = _data_sets(data or base.data.name)
    scoped = _scoped([w for w in overrides if _is_scoped(w)], [*sets, *_methods_of(lines)])
    asked = TableSettings(
        title=title,
        config=base.resolved(),
        rows=tuple(Row(label=r.label, values=r.values, swept=r.swept) for r in lines),
        baseline=_baseline(baseline, [row.label for row in lines]),
        data=sets,
        seeds=seeds,
        scoped=scoped,
        compared=compare,
        tune=_tuned(tune),
        reuse=tuple(str(_folder(path)) for path in reuse),
    )
    _check(asked, plain)
    return asked


def _baseline(asked: str | None, labels: Sequence[str]) -> str:
    if asked is None:
        return BASELINE if BASELINE in labels else labels[0]
    if asked not in labels:
        raise ConfigError(f"--baseline {asked}: no such row{did_you_mean(asked, labels)}")
    return asked


def _check(asked: TableSettings, plain: Sequence[str]) -> None:
    """Try every row's settings, so that what is wrong is told before anything runs."""
    base, places = asked.base(), asked.labels()
    for name in _methods_of(asked.rows):
        check_row(f"{name}:", asked.scoped.get(name, ()))
    for (_, label), line in zip(places, asked.lines(), strict=True):
        own = line | dict.fromkeys(word.partition("=")[0] for word in plain)
        check_tuned(asked.tune, label, own, _method(line["method"]))
        for values in asked.combinations():
            try:
                trial_config(base, line | values)
            except ConfigError as error:
                raise ConfigError(f"{label}: {error}") from None


def _tuned(words: Sequence[str]) -> dict[str, list[Any]]:
    """Read `local.lr=0.03,0.1`."""
    found = {}
    for word in words:
        key, _, text = word.partition("=")
        values = parse_yaml(f"[{text}]", f"the values of {key}")
        if not key or not values or key in found:
            raise ConfigError(f"--tune {word}: expected KEY=VALUE,..., e.g. local.lr=0.03,0.1")
        if len({str(value) for value in values}) < len(values):
            raise ConfigError(f"--tune {word}: a value twice")
        found[key] = values
    return found


def _folder(path: Path) -> Path:
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"--reuse {path}: no such folder, or it may not be read")
    return path.resolve()


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _rows(
    names: str | None,
    ablation: str | None,
    sensitivity: str | None,
    sparsity: str | None,
    file: Path | None,
) -> tuple[str, list[Variant]]:
    asked = {
        **{"--methods": names, "--ablation": ablation, "--sensitivity": sensitivity},
        **{"--sparsity": sparsity, "--rows": file},
    }
    given = [option for option, value in asked.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other")
    if ablation is not None:
        return f"ablation of {ablation}", variants.ablation(ablation)
    if sensitivity is not None:
        _method(sensitivity)
        return f"sensitivity of {sensitivity}", variants.sensitivity(sensitivity)
    if sparsity is not None:
        return "sparsity", variants.sparsity(sparsity)
    if file is not None:
        found = variants.rows_of(file)
        for row in found:
            _method(row.values["method"])
        return file.stem.replace("_", " "), found
    table = method_table()
    chosen = list(table) if names in (None, "all") else names.split(",")
    for name in chosen:
        _method(name)
    return "methods", variants.methods(list(dict.fromkeys(chosen)))


def _method(name: str) -> type[Method]:
    from raysim.config import find_in

    return find_in(method_table(), name)


def _methods_of(rows: Sequence[Variant | Row]) -> list[str]:
    return list(dict.fromkeys(row.values["method"] for row in rows))


def _data_sets(text: str) -> dict[str, dict[str, Any]]:
    found = {}
    for spec in text.split(","):
        words = dict(word.split("=", 1) for word in data_words(spec))
        if words["data"] in found:
            raise ConfigError(f"--data {text}: {words['data']} twice")
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

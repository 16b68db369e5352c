"""What a search is asked for: from the command line to a plan for Tune."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveInt
from rich.console import Console

from raysim.config import RunConfig, build_config
from raysim.data.datasets import Dataset
from raysim.errors import ConfigError
from raysim.run import method_table, open_data, read_config
from raysim.settings import Settings, did_you_mean
from raysim.skeleton import method_of
from tune_jobs.row_keys import canonical
from tune_jobs.spaces import (
    Space,
    as_space,
    check_space,
    domains,
    grid,
    method_space,
    read_space,
)
from tune_jobs.study import Plan
from tune_jobs.trainable import trial_config

VAL_SHARE = 0.2
"""Share of the training images that is held out where the data has no validation split."""
_REDUCTION = 3
"""ASHA lets one trial in so many go on at each of its rungs."""


class SearchSettings(Settings):
    """A search; its plain values stand in `study.yaml`."""

    kind: Literal["search"] = "search"
    config: dict[str, Any]
    """The resolved config that trials start from."""
    space: dict[str, dict[str, list[Any]]]
    """See `tune_jobs.spaces`."""
    samples: PositiveInt
    """Trials; of a grid, at most so many."""
    scheduler: Literal["asha", "none"]
    """Whether trials that fall behind are stopped."""
    searcher: Literal["random", "grid", "optuna"]
    """What chooses values."""
    grace: PositiveInt
    """Rounds before a trial can be stopped."""
    std_weight: NonNegativeFloat
    """k of the score AVG - k * STD."""

    def base(self) -> RunConfig:
        """Return the config that trials start from."""
        return build_config(dict(self.config), method_table())

    def plan(self) -> Plan:
        """Return what Tune is to do.

        Raises:
            ConfigError: the searcher is not installed, or a grid is too large.
        """
        base = self.base()
        values: Any = domains(self.space)
        samples, searcher = self.samples, None
        if self.searcher == "grid":
            from ray import tune

            values, samples = tune.grid_search(grid(self.space, self.samples)), 1
        elif self.searcher == "optuna":
            searcher = _optuna(base.seed)
        else:
            from ray.tune.search import BasicVariantGenerator

            searcher = BasicVariantGenerator(random_state=base.seed)
        scheduler = None
        if self.scheduler == "asha":
            from ray.tune.schedulers import ASHAScheduler

            scheduler = ASHAScheduler(
                time_attr="round",
                max_t=base.rounds,
                grace_period=self.grace,
                reduction_factor=_REDUCTION,
            )
        return Plan(
            base=base,
            values=values,
            num_samples=samples,
            searcher=searcher,
            scheduler=scheduler,
            std_weight=self.std_weight,
        )

    def words(self) -> str:
        """Say what is searched."""
        base, trials = self.base(), self.samples
        if self.searcher == "grid":
            trials = len(grid(self.space, self.samples))
        text = (
            f"{self.searcher.capitalize()} search of {base.method.label} over "
            f"{', '.join(self.space)} on {base.data.name}: {trials} trials of {base.rounds} rounds"
        )
        if self.scheduler == "asha":
            text += f", of which ASHA may stop those that fall behind from round {self.grace} on"
        weight = f" - {self.std_weight:g} STD" if self.std_weight else ""
        return f"{text}; the highest validation AVG{weight} wins"


def read_settings(
    overrides: Sequence[str],
    *,
    space: str | None,
    data: str | None,
    max_rounds: int | None,
    grace: int | None,
    config: Path | None,
    preset: str | None,
    **rest: Any,
) -> SearchSettings:
    """Return the settings of a command line; see `tune_jobs.search`.

    Raises:
        ConfigError: something contradicts or does not exist.
    """
    words = list(overrides)
    if space in method_table() and read_config((), config, preset).method.name != space:
        words.insert(0, f"method={space}")
    words += data_words(data) if data else []
    words += [f"rounds={max_rounds}"] if max_rounds else []
    base = read_config(words, config, preset)
    chosen = _chosen_space(space, base, overrides)
    check_space(chosen, lambda values: trial_config(base, values))
    if grace is None:
        grace = _grace(base)
    if grace > base.rounds:
        raise ConfigError(f"--grace {grace}: a trial has {base.rounds} rounds")
    asked = SearchSettings(config=base.resolved(), space=chosen, grace=grace, **rest)
    asked.plan()  # what it refuses, it refuses before anything is written
    return asked


def _grace(base: RunConfig) -> int:
    """Return the first report by which trials may be told apart: a third of the rounds at least.

    In the first rounds all are at chance, and where a method's first rounds are all alike (FedFIP's
    warm-up), settings show nothing there.
    """
    every, rounds = base.evaluation.every, base.rounds
    phases = method_of(base).active_phases
    alike = next((r for r in range(rounds) if phases(r) != phases(0)), 0)
    third = rounds // _REDUCTION // every * every
    return min(max(every, third, -(-(alike + 1) // every) * every), rounds)


def data_words(spec: str) -> list[str]:
    """Return the overrides of `NAME` or `NAME=ROOT`."""
    name, _, root = spec.partition("=")
    return [f"data={name}"] + ([f"data.root={root}"] if root else [])


def with_validation(config: RunConfig, dataset: Dataset, console: Console) -> RunConfig:
    """Return the config with a validation split: its own, or one of `VAL_SHARE`, and say so.

    Raises:
        UserError: what is left cannot be dealt.
    """
    if all(len(dataset.labels(domain, "val")) for domain in dataset.domains):
        return config
    console.print(
        f"no validation split: {VAL_SHARE:g} of the training images are held out "
        f"(data.split.val={VAL_SHARE:g}); test images choose nothing",
        soft_wrap=True,
    )
    split = config.data.split.model_copy(update={"val": VAL_SHARE})
    found = config.model_copy(update={"data": config.data.model_copy(update={"split": split})})
    open_data(found, Console(quiet=True))  # it may leave too little to deal
    return found


def _chosen_space(space: str | None, base: RunConfig, overrides: Sequence[str]) -> Space:
    if space is None or space in method_table():
        if space is not None and base.method.name != space:
            raise ConfigError(f"--space {space} searches {space}, not method={base.method.name}")
        return _without_fixed(method_space(base.method.name), base, overrides)
    if not Path(space).suffix:
        near = did_you_mean(space, method_table())
        raise ConfigError(f"--space {space}: neither a method nor a YAML file{near}")
    return as_space(read_space(Path(space)), space)


def _without_fixed(space: Space, base: RunConfig, overrides: Sequence[str]) -> Space:
    """Leave out what the command line has set by hand, under whatever name."""
    method = type(base.method)
    fixed = {canonical(word.partition("=")[0], method) for word in overrides}
    left = {key: entry for key, entry in space.items() if canonical(key, method) not in fixed}
    if not left:
        raise ConfigError(f"nothing is left to search: {', '.join(space)} are set by hand")
    return left


def _optuna(seed: int) -> Any:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("--searcher optuna needs Optuna: pip install 'raysim[search]'")
    from ray.tune.search.optuna import OptunaSearch

    return OptunaSearch(metric="score", mode="max", seed=seed)

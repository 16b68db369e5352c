"""Search spaces: which values each hyperparameter may take.

A space is a mapping from dotted config keys to one entry `{kind: arguments}`, e.g.
`{method.rho: {uniform: [0.2, 0.9]}}`; kinds and arguments are Ray Tune's own (`tune.uniform`, ...).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.errors import ConfigError
from raysim.settings import did_you_mean
from raysim.yaml_text import parse_yaml

if TYPE_CHECKING:
    from raysim.config import RunConfig

Entry = dict[str, list[Any]]
Space = dict[str, Entry]

SPACES: dict[str, Space] = {
    "fedfip": {
        "method.rho": {"uniform": [0.2, 0.8]},
        "method.phi": {"uniform": [0.5, 3.0]},
        "method.mu": {"uniform": [0.0, 0.9]},
        "method.lambda": {"loguniform": [0.001, 1.0]},
    },
    "fdse": {
        "method.G": {"choice": [2, 3, 4]},
        "method.tau": {"loguniform": [0.01, 1.0]},
        "method.lambda": {"loguniform": [0.001, 1.0]},
        "method.beta": {"loguniform": [0.0001, 0.1]},
    },
    "fedprox": {"method.mu": {"loguniform": [0.001, 1.0]}},
    "scaffold": {"method.eta": {"uniform": [0.25, 1.0]}},
    "feddyn": {"method.alpha": {"loguniform": [0.001, 0.1]}},
    "moon": {
        "method.mu": {"loguniform": [0.1, 10.0]},
        "method.tau": {"uniform": [0.1, 1.0]},
    },
    "fedheal": {
        "method.tau": {"uniform": [0.0, 0.9]},
        "method.beta": {"uniform": [0.0, 1.0]},
    },
    "ditto": {"method.lambda": {"loguniform": [0.0001, 2.0]}},
    "dapperfl": {
        "method.alpha_0": {"uniform": [0.5, 1.0]},
        "method.epsilon": {"uniform": [0.05, 0.5]},
        "method.gamma": {"loguniform": [0.001, 0.1]},
    },
}
"""What is searched for a method; one without an entry has nothing to tune but `LEARNING_RATE`."""
LEARNING_RATE: Space = {"local.lr": {"loguniform": [0.01, 0.3]}}

_NUMBERS = {
    "uniform": 2,
    "quniform": 3,
    "loguniform": 2,
    "qloguniform": 3,
    "randint": 2,
    "qrandint": 3,
    "lograndint": 2,
}
"""Kinds whose arguments are numbers, and how many: from, to, and the step of those with a q."""
KINDS = ("choice", *_NUMBERS)
_FIXED = ("rounds", "seed", "evaluation.", "execution.", "output.")


def method_space(method: str) -> Space:
    """Return the space that ships for a method."""
    return SPACES.get(method, LEARNING_RATE)


def read_space(path: Path) -> Space:
    """Read a space from the user's YAML.

    Raises:
        ConfigError: it is not there, no YAML, or no space.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--space {path}: {error}") from None
    return as_space(parse_yaml(text, str(path)), str(path))


def as_space(tree: Any, source: str) -> Space:
    """Check the form of a space.

    Args:
        tree: plain values.
        source: how errors name them.

    Raises:
        ConfigError: an entry is not one kind with its arguments; the message shows how.
    """
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(
            f"{source}: expected lines of the form `method.rho: {{uniform: [0.2, 0.9]}}`"
        )
    return {str(key): _entry(f"{source}: {key}", entry) for key, entry in tree.items()}


def check_space(space: Space, configure: Callable[[Mapping[str, Any]], RunConfig]) -> None:
    """Try the ends of every entry before anything runs.

    Args:
        space: the space.
        configure: builds a trial's config from its values.

    Raises:
        ConfigError: a key is unknown or may not be searched, or an end is out of range.
    """
    start = {key: ends(entry)[0] for key, entry in space.items()}
    for key, entry in space.items():
        if key.startswith(_FIXED):
            raise ConfigError(f"{key}: cannot be searched; it is the same for all trials")
        for value in ends(entry):
            try:
                configure(start | {key: value})
            except ConfigError as error:
                raise ConfigError(f"the space goes to {key}={value}: {error}") from None


def ends(entry: Entry) -> list[Any]:
    """Return an entry's lowest and highest value; all values of a choice."""
    ((kind, arguments),) = entry.items()
    if kind == "choice":
        return list(arguments)
    low, high = arguments[:2]
    return [low, high - 1 if kind in ("randint", "lograndint") else high]


def is_logarithmic(entry: Entry) -> bool:
    """Say whether an entry's scale is logarithmic."""
    return "log" in next(iter(entry))


def spread(entry: Entry, points: int) -> list[Any]:
    """Return values evenly over an entry, on a logarithmic scale where that is the entry's.

    Args:
        entry: all values of a choice, and of whole numbers if there are no more than `points`.
        points: how many otherwise, >= 2.
    """
    ((kind, arguments),) = entry.items()
    if kind == "choice":
        return list(arguments)
    low, high = ends(entry)
    is_log = is_logarithmic(entry)
    a, b = (math.log(low), math.log(high)) if is_log else (low, high)
    places = [a + (b - a) * i / (points - 1) for i in range(points)]
    values = [math.exp(place) if is_log else place for place in places]
    values[0], values[-1] = low, high
    if kind.startswith("q"):
        step = arguments[2]
        values = [round(value / step) * step for value in values]
    if "randint" in kind:
        values = [round(value) for value in values]
    inner = [float(f"{v:.4g}") if isinstance(v, float) else v for v in values[1:-1]]
    return list(dict.fromkeys([values[0], *inner, values[-1]]))


def grid(space: Space, most: int) -> list[dict[str, Any]]:
    """Return the finest grid of at most so many trials.

    Every value of a choice is taken; the other entries get equally many values each.

    Args:
        space: the space.
        most: trials.

    Raises:
        ConfigError: two values each are too many already.
    """
    finest: list[dict[str, Any]] = []
    for points in range(2, most + 2):
        values = [spread(entry, points) for entry in space.values()]
        size = math.prod(map(len, values))
        if size > most and points == 2:
            raise ConfigError(
                f"--samples {most}: the coarsest grid over {', '.join(space)} has {size} trials"
            )
        if size > most:
            break
        finest = [dict(zip(space, cell, strict=True)) for cell in itertools.product(*values)]
    return finest


def domains(space: Space) -> dict[str, Any]:
    """Return the space as Ray Tune's search domains.

    Raises:
        ConfigError: Ray Tune does not take the arguments.
    """
    return {key: _domain(key, entry) for key, entry in space.items()}


def _domain(key: str, entry: Entry) -> Any:
    from ray import tune

    ((kind, arguments),) = entry.items()
    try:
        return tune.choice(arguments) if kind == "choice" else getattr(tune, kind)(*arguments)
    except ValueError as error:
        raise ConfigError(f"{key}: {kind} {arguments}: {error}") from None


def _entry(where: str, entry: Any) -> Entry:
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ConfigError(f"{where}: expected one of {', '.join(KINDS)}, e.g. {{uniform: [0, 1]}}")
    ((kind, arguments),) = entry.items()
    if kind not in KINDS:
        raise ConfigError(f"{where}: no kind {kind!r}{did_you_mean(str(kind), KINDS)}")
    if not isinstance(arguments, list) or not arguments:
        raise ConfigError(f"{where}: {kind} takes a list of values, got {arguments!r}")
    if kind != "choice":
        _check_numbers(f"{where}: {kind}", kind, arguments)
    return {kind: arguments}


def _check_numbers(where: str, kind: str, arguments: Sequence[Any]) -> None:
    whole = "randint" in kind
    wanted = (int,) if whole else (int, float)
    if len(arguments) != _NUMBERS[kind] or not all(type(value) in wanted for value in arguments):
        form = "[from, to, step]" if _NUMBERS[kind] == 3 else "[from, to]"
        numbers = "whole numbers" if whole else "numbers"
        raise ConfigError(f"{where} takes {form}, {numbers}; got {list(arguments)}")
    low, high, *step = arguments
    if not low < high or any(value <= 0 for value in step):
        raise ConfigError(f"{where}: from must be below to, and a step above 0; got {[*arguments]}")
    if "log" in kind and low <= 0:
        raise ConfigError(f"{where}: a logarithmic scale starts above 0, got {low}")

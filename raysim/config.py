"""The typed configuration of a run: YAML and `key=value` in, one frozen `RunConfig` out.

`execution` and `output` never change a bit of the result; everything else is the experiment, which
stands in every checkpoint.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, SerializeAsAny

from raysim.data.partition_kinds import DomainDirichlet
from raysim.data.settings import DataSettings
from raysim.errors import ConfigError
from raysim.execution import ExecutionSettings
from raysim.plugins import find_method
from raysim.settings import Named, Settings, aliases, did_you_mean
from raysim.validation import validate
from raysim.yaml_text import parse_yaml

if TYPE_CHECKING:
    from raysim.method import Method

MethodTable = Mapping[str, "type[Method]"]
_DEFAULT_METHOD = "fedfip"
NOT_EXPERIMENT = ("execution", "output")
FILE_KEY = "file_sha256"
"""A method from a user's file is another experiment when its text is another."""
_NOT_DATA = ("root", "cache", "policy")  # where the data lies and how it was prepared


class ModelSettings(Settings):
    """The network that every client trains."""

    name: Literal["cnn", "resnet10", "resnet18", "alexnet"] = "resnet10"
    """Architecture."""
    width: Annotated[int, Field(ge=1, le=1024)] = 16
    """Channels of the first stage; 64 is the usual ResNet."""
    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    """Layout of convolutions in memory; it changes the last bits of results. `channels_last` is
    the faster one on CPUs for all architectures here."""


class LocalSettings(Settings):
    """Training on a client: SGD over its shard, a fresh optimiser each round."""

    epochs: PositiveInt = 1
    """Passes over the shard a round."""
    batch_size: PositiveInt = 32
    """Examples a step; a last batch of one joins the batch before it."""
    lr: Annotated[float, Field(gt=0, le=10)] = 0.1
    """Learning rate of SGD."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 1.0e-5
    """L2 penalty of SGD."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on the learning rate from one round to the next."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """Global norm that gradients are clipped to; null does not clip."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs forward passes under autocast; weights and sums stay fp32."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """CPU threads of torch in each host; part of the experiment, since it changes last bits."""


class ParticipationSettings(Settings):
    """Who takes part in a round."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients drawn each round (at least one)."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What an update with NaN or infinity does: stop the run, or sit the phase out (counted); the
    global model stays as it is while all do."""


class EvaluationSettings(Settings):
    """When models are tested, and what the summary averages."""

    every: PositiveInt = 1
    """Rounds between two evaluations; the last round is always evaluated."""
    last: PositiveInt = 5
    """The summary's `last` is the mean of so many last evaluations."""


def _no_uri(value: Any) -> Any:
    if "://" in str(value):
        raise ConfigError(
            f"output.dir={value}: a path is needed: mount the store, or copy run directories there"
        )
    return os.path.expanduser(value) if isinstance(value, str | Path) else value


class OutputSettings(Settings):
    """What is written, and where."""

    dir: Annotated[Path, BeforeValidator(_no_uri)] = Path("runs")
    """Folder that run directories are made in."""
    checkpoint_every: PositiveInt = 5
    """Rounds between two checkpoints; the last round is always saved."""
    keep_checkpoints: PositiveInt = 2
    """Newest checkpoints that are kept."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    trackers: tuple[Literal["mlflow", "wandb"], ...] = ()
    """Further places that take each round's scalars; their packages are extras of these names."""
    report: bool = True
    """Write `report.html` (5 MB) at the end; `raysim report` writes it at any time."""


class RunConfig(Settings):
    """One run."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Every random draw of the run derives from it."""
    rounds: PositiveInt = 20
    """Communication rounds."""
    method: SerializeAsAny[Named]
    """The federated method and its hyperparameters."""
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    local: LocalSettings = LocalSettings()
    participation: ParticipationSettings = ParticipationSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    execution: ExecutionSettings = ExecutionSettings()
    output: OutputSettings = OutputSettings()

    def resolved(self) -> dict[str, Any]:
        """Return plain YAML-ready values; loading them gives this config again."""
        return self.model_dump(mode="json")

    def experiment(self, data_sha256: str, partition_sha256: str) -> dict[str, Any]:
        """Return the part that determines the result.

        Args:
            data_sha256: hash of the data, which takes the place of where it lies.
            partition_sha256: hash of who holds which examples, which takes the place of where that
                may have been read from.
        """
        tree = {k: v for k, v in self.resolved().items() if k not in NOT_EXPERIMENT}
        data = {k: v for k, v in tree["data"].items() if k not in _NOT_DATA}
        partition = {k: v for k, v in data["partition"].items() if k != "path"}
        partition["sha256"] = partition_sha256
        tree["data"] = data | {"partition": partition, "sha256": data_sha256}
        if self.method_sha256 is not None:
            tree["method"] = tree["method"] | {FILE_KEY: self.method_sha256}
        return tree

    @property
    def method_sha256(self) -> str | None:
        """Hash of `method_text`; None for methods that ship."""
        text = self.method_text
        return hashlib.sha256(text.encode()).hexdigest() if text is not None else None

    @property
    def method_text(self) -> str | None:
        """The text of a method from a user's file; None for those that ship."""
        source: tuple[str, str, str] | None = getattr(self.method, "source", None)
        return source[0] if source is not None else None


def load_config(
    methods: MethodTable,
    *,
    text: str = "",
    source: str = "the config",
    overrides: Sequence[str] = (),
) -> RunConfig:
    """Build a `RunConfig` from YAML text and `key=value` overrides (dotted keys, YAML values).

    Args:
        methods: method classes by name.
        text: YAML; empty for the defaults.
        source: how errors name the text.
        overrides: e.g. `("rounds=3", "method.rho=0.5", "method=fedavg")`.

    Raises:
        ConfigError: malformed YAML, an unknown key or value; the message names the nearest key or
            the range.
    """
    return build_config(_tree(text, source, overrides, methods), methods)


def chosen_method(
    methods: MethodTable,
    *,
    text: str = "",
    source: str = "the config",
    overrides: Sequence[str] = (),
) -> "tuple[str, type[Method]]":
    """Return the name and class of the method that a config asks for, whatever else is in it.

    Args:
        methods: see `load_config`, as for the rest.
        text: YAML.
        source: how errors name the text.
        overrides: `key=value` words.

    Raises:
        ConfigError: malformed YAML, or there is no such method.
    """
    section = _tree(text, source, overrides, methods).get("method")
    method, chosen = _pick_method(section, methods)
    return str(chosen.get("name", _DEFAULT_METHOD)), method


def read_execution(text: str, overrides: Sequence[str]) -> ExecutionSettings | None:
    """Return where a run will be executed, without its method, whose import takes seconds.

    Args:
        text: YAML; empty for the defaults.
        overrides: see `load_config`.

    Returns:
        None if something is wrong, as `load_config` will say.
    """
    with suppress(ConfigError):
        tree = _plain(_tree(text, "", overrides, {})) | {"method": Named(name="")}
        config: RunConfig = validate(RunConfig, tree, "")
        return config.execution
    return None


def _tree(text: str, source: str, overrides: Sequence[str], methods: MethodTable) -> dict[str, Any]:
    tree = parse_yaml(text, source) or {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: expected `key: value` lines, got {type(tree).__name__}")
    for item in sorted(overrides, key=lambda item: not _is_method(item)):
        _override(tree, item, methods)
    return tree


def _is_method(item: str) -> bool:
    """Tell the word that chooses the method, which comes before those that set its keys."""
    return item.partition("=")[0].strip() in ("method", "method.name")


def build_config(tree: dict[str, Any], methods: MethodTable) -> RunConfig:
    """Validate a plain tree; see `load_config`."""
    method, rest = _pick_method(tree.get("method"), methods)
    built = validate(method, rest, "method.")
    config: RunConfig = validate(RunConfig, _plain(tree) | {"method": built}, "")
    return config


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Write out what a tree may say in short."""
    plain = {key: _named(key, value) for key, value in tree.items()}
    return plain | {"data": _with_partition_kind(plain.get("data") or {})}


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys whose values differ between two experiment trees."""
    keys = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            keys += changed_keys(a, b, f"{prefix}{key}.")
        elif a != b:
            keys.append(f"{prefix}{key}")
    return keys


def _with_partition_kind(data: Any) -> Any:
    """Let `data.partition.alpha` alone mean the default kind."""
    if not isinstance(data, dict) or data.get("partition") is None:
        return data
    partition = data["partition"]
    if isinstance(partition, str):
        return data | {"partition": {"kind": partition}}
    if isinstance(partition, dict):
        return data | {"partition": {"kind": DomainDirichlet().kind} | partition}
    return data


_SHORTHAND = {"method": "name", "data": "name", "model": "name", "data.partition": "kind"}


def _named(key: str, value: Any) -> Any:
    """Read `method=fedavg` as `method.name=fedavg`, and likewise data, model and the partition."""
    if key in _SHORTHAND and isinstance(value, str):
        return {_SHORTHAND[key]: value}
    return value


def _override(tree: dict[str, Any], item: str, methods: MethodTable) -> None:
    key, separator, raw = item.partition("=")
    path = key.strip().split(".")
    if not separator or not all(path):
        raise ConfigError(f"{item!r} is not of the form key=value, e.g. method.rho=0.5")
    value = parse_yaml(raw, f"the value of {key}")
    node = tree
    for depth, part in enumerate(path[:-1]):
        child = _named(".".join(path[: depth + 1]), node.get(part))
        if child is not None and not isinstance(child, dict):
            raise ConfigError(f"{key}: {'.'.join(path[: depth + 1])} is a value, not a section")
        node[part] = node = dict(child or {})
    leaf = path[-1]
    if path[:-1] == ["method"]:  # rho=0.5 also replaces a keep_ratio that a file has set
        with suppress(ConfigError):  # without methods nothing is imported, the user's file neither
            known = find_in(methods, node.get("name", _DEFAULT_METHOD)) if methods else None
            for spelling in _spellings(known, leaf):
                node.pop(spelling, None)
    if len(path) == 1 and leaf in _SHORTHAND and isinstance(value, str):
        before = _named(leaf, node.get(leaf))
        same = isinstance(before, dict) and before.get("name", _DEFAULT_METHOD) == value
        keep = before if leaf != "method" or same else None  # another method has other keys
        value = (dict(keep) if isinstance(keep, dict) else {}) | {"name": value}
    node[leaf] = value


def find_in(methods: MethodTable, name: Any) -> "type[Method]":
    """Return the method of a name: from the table, a user's file or an entry point.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    found = methods.get(name) or find_method(name) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(f"method.name: no method {name!r}{did_you_mean(str(name), methods)}")
    return found


def _pick_method(section: Any, methods: MethodTable) -> "tuple[type[Method], dict[str, Any]]":
    section = _named("method", section) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"method: expected a name or a section, got {section!r}")
    return find_in(methods, section.get("name", _DEFAULT_METHOD)), section


def _spellings(cls: type[Any] | None, key: str) -> list[str]:
    fields = cls.model_fields if cls else {}
    spelled = ([name, *aliases(field)] for name, field in fields.items())
    return next((names for names in spelled if key in names), [])

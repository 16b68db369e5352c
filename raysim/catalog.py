"""What the methods are, in words and in measured bytes."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from raysim.config import MethodTable, RunConfig, build_config
from raysim.data.datasets import Dataset, open_dataset
from raysim.data.partition import make_partition
from raysim.data.shards import Shard
from raysim.method import Method
from raysim.settings import aliases
from raysim.skeleton import method_of

_CLIENTS = 400  # tiny shards: a step takes moments, and bytes do not depend on their size
_ROUNDS_TRIED = 50


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one client sends and receives in a round with all phases."""

    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """A field of a method.

    Attributes:
        name: the key under `method.`.
        symbols: what papers call it; accepted as keys too.
        default: its default.
        required: it has no default and must be given.
        source: where the default comes from, "" if the method's documents do not say.
        description: what it does.
    """

    name: str
    symbols: tuple[str, ...]
    default: object
    required: bool
    source: str
    description: str


def hyperparameters(method: type[Method]) -> list[Hyperparameter]:
    """Return a method's hyperparameters in the order of its fields."""
    sources = _sources(method)
    return [
        Hyperparameter(
            name,
            tuple(alias for alias in aliases(field) if alias != name),
            None if field.is_required() else field.get_default(call_default_factory=True),
            field.is_required(),
            sources.get(name, ""),
            " ".join((field.description or "").split()),
        )
        for name, field in method.model_fields.items()
        if name != "name"
    ]


def description(method: type[Method]) -> str:
    """Return the docstring of the method's module: paper, objective, table of symbols."""
    module = inspect.getmodule(method)
    return inspect.cleandoc((module and module.__doc__) or method.__doc__ or "")


def _sources(method: type[Method]) -> dict[str, str]:
    """Read the column "from" of the tables in the docstrings of the method and its bases."""
    texts = [inspect.cleandoc(c.__doc__ or "") for c in method.__mro__ if issubclass(c, Method)]
    sources: dict[str, str] = {}
    for line in "\n".join([*texts, description(method)]).splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4:
            sources |= {field.partition("[")[0]: cells[3] for field in cells[1].split(", ")}
    return sources


def measure_traffic(methods: MethodTable) -> Mapping[str, Traffic]:
    """Run one client of each method for one round of the default model, and count.

    Args:
        methods: method classes by name; those with a key that must be given are left out.
    """
    configs = {
        name: build_config({"method": name, "data": {"clients": _CLIENTS}}, methods)
        for name, method in methods.items()
        if not any(item.required for item in hyperparameters(method))
    }
    if not configs:
        return {}
    first = next(iter(configs.values()))
    dataset = open_dataset(first.data, first.seed)
    partition = make_partition(dataset, first.data.partition, _CLIENTS, first.seed)
    shard = partition.shards[0]
    return {name: _one_round(config, dataset, shard) for name, config in configs.items()}


def _one_round(config: RunConfig, dataset: Dataset, shard: Shard) -> Traffic:
    from raysim.host import Host
    from raysim.server import Server

    method = method_of(config)
    round_ = max(range(_ROUNDS_TRIED), key=lambda r: (len(method.active_phases(r)), -r))
    server = Server(config, len(dataset.classes), len(dataset.domains))
    host = Host(config, {0: shard})
    up = down = 0
    for phase in method.active_phases(round_):
        message, received = server.broadcast(round_, phase)
        partial, report = host.run_phase(round_, phase, [0], server.weights(), message)
        server.aggregate(round_, phase, [partial])
        up += sum(client.bytes_up for client in report.clients)
        down += received
    return Traffic(up, down)

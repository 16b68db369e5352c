"""The `execution` section of a run's configuration: where the work is done."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from raysim.errors import ConfigError
from raysim.settings import Settings

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_SELECTOR = re.compile(rf"!?({_LABEL}|in\({_LABEL}(, ?{_LABEL})*\))")
_KNOWN_BY_RAY = {
    "CPU": "execution.cpus_per_host",
    "GPU": "execution.gpus_per_host",
    "memory": "nodes with a custom resource of your own",
    "object_store_memory": "nodes with a custom resource of your own",
}


def _selectors(labels: dict[str, str]) -> dict[str, str]:
    """Refuse what Ray cannot read."""
    for name, wanted in labels.items():
        if not _SELECTOR.fullmatch(wanted):
            raise ConfigError(
                f"execution.placement.labels.{name}: {wanted!r} is no selector of Ray's: give a "
                "value, !value, in(value, value) or !in(value, value)"
            )
    return labels


def _custom(resources: dict[str, float]) -> dict[str, float]:
    """Refuse what has a setting of its own, or cannot be asked for so."""
    for name in sorted(resources.keys() & _KNOWN_BY_RAY.keys()):
        raise ConfigError(
            f"execution.placement.resources: {name} is Ray's own resource; use "
            f"{_KNOWN_BY_RAY[name]}"
        )
    return resources


class PlacementSettings(Settings):
    """Which nodes take hosts, and how hosts lie on them."""

    strategy: Literal["spread", "pack"] = "spread"
    """`spread` gives the next host to the node that has fewest of them; `pack` fills a node before
    it begins another."""
    accelerator_type: str | None = None
    """Accelerator that a node must have, as Ray names it, e.g. H100."""
    labels: Annotated[dict[str, str], AfterValidator(_selectors)] = Field(default_factory=dict)
    """What a node's labels must be, e.g. `{zone: a}`, `{zone: "!a"}` or `{zone: "in(a, b)"}`."""
    resources: Annotated[dict[str, Annotated[float, Field(ge=1e-4)]], AfterValidator(_custom)] = (
        Field(default_factory=dict)
    )
    """Custom resources that each host reserves, e.g. `{fast_disk: 1}`."""


class ExecutionSettings(Settings):
    """Where the work is done; never changes a bit of the result."""

    backend: Literal["ray", "inprocess"] = "ray"
    """`inprocess` runs everything in this process, without Ray."""
    hosts: PositiveInt | Literal["auto"] = "auto"
    """Actor processes that hold clients; auto fills the CPUs (or GPUs) that are free, and those of
    nodes that come later."""
    max_hosts: PositiveInt | None = None
    """Most hosts of `hosts=auto`, which Ray's autoscaler, if there is one, is asked for; null takes
    what is there and asks for nothing."""
    cpus_per_host: Annotated[float, Field(ge=1e-4)] = 1
    """CPUs reserved for a host."""
    gpus_per_host: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = "auto"
    """GPUs reserved for a host, which trains on one; fractions let hosts share it. auto is 1 where
    the cluster has any, else 0."""
    placement: PlacementSettings = PlacementSettings()
    address: str | None = None
    """Ray cluster to join; null joins RAY_ADDRESS if that is set, else starts a local one."""
    wait_s: Annotated[float, Field(gt=0)] = 180
    """Longest wait for a host to start, in seconds."""
    hang_s: Annotated[float, Field(gt=0)] = 1800
    """Longest that a process may take over one step before it counts as hung, in seconds: a host
    over a client's, the server over its aggregation."""
    retries: NonNegativeInt = 3
    """Times in a row that processes or nodes may be lost in one step before the run gives up."""
    state_memory_mb: NonNegativeInt = 4096
    """Private client states that a process keeps in memory; the rest goes to the run directory."""

    @model_validator(mode="after")
    def _max_goes_with_auto(self) -> "ExecutionSettings":
        if self.max_hosts is not None and self.hosts != "auto":
            raise ConfigError(
                f"execution.max_hosts={self.max_hosts} goes with execution.hosts=auto, which is "
                f"{self.hosts} here: give one of them"
            )
        return self

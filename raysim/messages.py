"""What crosses between clients, hosts, server and driver: arrays, numbers and strings only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysim.aggregation import Weighted
from raysim.tensors import Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one client's step gives back.

    Attributes:
        sums: contributions that are added over clients, by name.
        gathered: arrays that the server needs client by client, by name.
        state: the client's new private state; None leaves it as it was. Never leaves the host
            except into a checkpoint.
        metrics: scalars of this step, e.g. the mean training loss.
        watched: contributions whose means the report may show, by name; no client would send them,
            so that they are not counted as sent.
    """

    sums: Mapping[str, Weighted] = field(default_factory=dict)
    gathered: Arrays = field(default_factory=dict)
    state: Arrays | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    watched: Mapping[str, Weighted] = field(default_factory=dict)

    def bytes_up(self) -> int:
        """Return the bytes of what the client sends."""
        sent = [value for value, _ in self.sums.values()] + list(self.gathered.values())
        return sum(value.nbytes for value in sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """One client's phase in numbers: what is sent and kept, what was measured, how long it took."""

    client: int
    host: int
    num_examples: int
    metrics: Mapping[str, float]
    bytes_up: int
    state_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host's part of a phase.

    Attributes:
        host: its number.
        clients: its clients' reports.
        partial_bytes: what it sends to the server: sums over its clients, and what is gathered.
        seconds: in local training ("fit"), and in the whole call ("busy").
    """

    host: int
    clients: Sequence[ClientReport]
    partial_bytes: int
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class EvalUnit:
    """A fixed slice of a domain's split: the unit in which global evaluation is shared out.

    Batches never depend on the number of hosts, so neither do the bits.
    """

    domain: int
    start: int
    stop: int
    split: str = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSum:
    """Sums over held-out examples of one domain.

    `client` is -1 for the global model, else whose model it is: a client's personal one, or that of
    a guest (ids from the number of clients on), adapted to its unseen domain.
    """

    client: int
    domain: int
    start: int
    num_examples: int
    num_correct: int
    loss: float
    split: str = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Size and work of the global model as it is evaluated.

    Attributes:
        params: scalars, counted by the mask (pruned filters' own scalars left out).
        params_sliced: scalars of the physically sliced model.
        flops: multiply-adds of one example's forward pass, counted by the mask.
        flops_sliced: multiply-adds of the physically sliced model.
    """

    params: int
    params_sliced: int
    flops: int
    flops_sliced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a run has to remember at the end of a round.

    Attributes:
        model: the global model.
        memory: what else the method's server side remembers.
        clients: private state by client id (clients without any are left out).
    """

    model: Arrays
    memory: Arrays
    clients: Mapping[int, Arrays]


JsonDict = dict[str, Any]

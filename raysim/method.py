"""The rule book of a federated method. The defaults are FedAvg; a method overrides what it changes.

A method holds hyperparameters and nothing else. All state is named arrays that are passed in and
returned, so hooks can be run again, on any host, with the same bits. Hooks must not touch files,
clocks, process-wide randomness or their arguments' arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from raysim.aggregation import Partial, Weighted
from raysim.channels import ChannelGroup
from raysim.config import LocalSettings
from raysim.costs import count_costs
from raysim.messages import Costs, Update
from raysim.models import ChannelModel, build_model
from raysim.plugins import rebuild
from raysim.seeds import Stream, generator
from raysim.settings import Named
from raysim.tensors import Array, Arrays, as_entry, load_arrays, num_bytes, state_arrays
from raysim.training import Batch, FitResult, ShardData, Stopwatch, fit

if TYPE_CHECKING:
    from raysim.chart import Chart
    from raysim.record import Record


@dataclass(frozen=True, kw_only=True)
class View:
    """What client-side and server-side hooks both see.

    Attributes:
        seed: the run's seed.
        round: 0-based round.
        phase: one of the method's phases, or "evaluate".
        model: the skeleton; load arrays into it before use, its contents are arbitrary.
        weights: the global model that this round started from (read-only).
        num_domains: domains of the data set.
        num_clients: clients of the run, whether they take part in this round or not.
    """

    seed: int
    round: int
    phase: str
    model: ChannelModel
    weights: Arrays
    num_domains: int
    num_clients: int

    def generator(self, stream: Stream, *key: int) -> np.random.Generator:
        """Return the NumPy generator of a stream for this round and the given further key."""
        return generator(self.seed, stream, self.round, *key)


@dataclass(frozen=True, kw_only=True)
class ClientView(View):
    """What a client-side hook sees.

    Attributes:
        client: id.
        shard: the client's training examples.
        state: the client's private arrays: model entries under their own names, whatever else a
            method keeps under names with a slash ("previous/...").
        message: what the server broadcast for this phase beside the weights.
        local: settings of local training.
        stopwatch: counts the seconds in `fit`.
    """

    client: int
    shard: ShardData
    state: Arrays
    message: Arrays
    local: LocalSettings
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def num_examples(self) -> int:
        """Number of the client's training examples, its weight in averages."""
        return len(self.shard)

    @property
    def own_entries(self) -> Arrays:
        """The part of the state that takes the place of entries of the received model."""
        return {name: array for name, array in self.state.items() if "/" not in name}

    def fit(self, loss: Callable[[Batch], Tensor], **options: Any) -> FitResult:
        """Train `model` on the shard; the options are those of `raysim.training.fit`.

        A second fit in one phase needs a stream of its own, unless it is to see the same batches.
        """
        key = (self.seed, self.round, self.client)
        result = fit(self.model, self.shard, self.local, loss, key=key, **options)
        self.stopwatch.seconds += result.seconds
        return result


@dataclass(frozen=True, kw_only=True)
class ServerView(View):
    """What a server-side hook sees.

    Attributes:
        memory: what the method remembers beside the model.
    """

    memory: Arrays


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The server's state after a phase.

    Attributes:
        model: the dense global model.
        memory: the method's other arrays.
        watched: what the phase shows to the report, by name; no part of the state.
    """

    model: Arrays
    memory: Arrays = field(default_factory=dict)
    watched: Mapping[str, Array] = field(default_factory=dict)


class Method(Named):
    """A federated method; see the module docstring for what hooks may do.

    A subclass's fields are its hyperparameters.

    Attributes:
        title: the method's name as papers write it.
        paper: authors, venue, year.
        shared: what crosses the wire, in a few words.
        private: what a client keeps, in a few words.
        phases: the phases of a round, in order.
        gathers: updates hold arrays of the model's size that the server needs one by one, so that
            hosts send them a few clients at a time.
        adapts: the method can fit a model to an unseen domain without labels (`load_adapted`).
        source: text, file and class if the class comes from a user's file.
    """

    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = ""
    shared: ClassVar[str] = ""
    private: ClassVar[str] = ""
    phases: ClassVar[tuple[str, ...]] = ("fit",)
    adapts: ClassVar[bool] = False
    gathers: ClassVar[bool] = False

    source: ClassVar[tuple[str, str, str] | None] = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Travel by reference, or as source text if the class comes from a user's file."""
        if self.source is None:
            return super().__reduce_ex__(protocol)
        return rebuild, (self.source, self.model_dump())

    # Both sides ------------------------------------------------------------------------------

    def remarks(self, rounds: int) -> Sequence[str]:
        """Return what a person should know of a run of so many rounds with these settings."""
        return ()

    def active_phases(self, round_: int) -> tuple[str, ...]:
        """Return the phases of a round, in order."""
        return self.phases

    def build_model(self, name: str, num_classes: int, image_size: int, width: int) -> ChannelModel:
        """Build the network; torch's generator is seeded. See `raysim.models.build_model`."""
        return build_model(name, num_classes, image_size, width)

    def is_private(self, entry: str, model: ChannelModel) -> bool:
        """Say whether a model entry stays on the client. Called on both sides.

        Args:
            entry: name in the model's `state_dict`.
            model: the network, with any weights.
        """
        return False

    # Client ----------------------------------------------------------------------------------

    def init_client(self, client: ClientView) -> Arrays:
        """Return a client's state before its first round."""
        return {}

    def loss(self, model: nn.Module, batch: Batch, client: ClientView) -> Tensor:
        """Return the training loss of a batch.

        Args:
            model: the client's model in training mode, or a method's own that it trains beside it.
            batch: images [B, 3, S, S], float32, normalised, and labels [B], int64.
            client: whose batch it is.

        Returns:
            A scalar to call `backward` of.
        """
        return functional.cross_entropy(model(batch.images), batch.labels)

    def objective(self, client: ClientView) -> Callable[[Batch], Tensor]:
        """Return the loss of a batch for one fit; the model to train is loaded already."""
        return lambda batch: self.loss(client.model, batch, client)

    def before_step(self, client: ClientView) -> Callable[[], None] | None:
        """Return what changes the gradients before each optimiser step of one fit, if anything."""
        return None

    def client_step(self, client: ClientView) -> Update:
        """Run a phase on a client: by default train from the received model and send the result."""
        load_arrays(client.model, client.weights | client.own_entries)
        result = client.fit(self.objective(client), before_step=self.before_step(client))
        trained = state_arrays(client.model)
        private = {e: a for e, a in trained.items() if self.is_private(e, client.model)}
        shared = {e: a for e, a in trained.items() if e not in private}
        return Update(
            sums=weighted(shared, client.num_examples),
            state=private or None,
            metrics={"loss": result.loss},
        )

    def load_personal(self, client: ClientView) -> bool:
        """Load the client's personal model into `client.model`; False if the method has none.

        Called after aggregation: `client.weights` is the new global model.
        """
        if not client.own_entries:
            return False
        load_arrays(client.model, client.weights | client.own_entries)
        return True

    def load_adapted(self, client: ClientView) -> bool:
        """Load a model adapted to a client that never trained, of a domain that nobody trained on.

        Called after aggregation for guests, if the method `adapts`; labels must not be read.
        Returns False if there is no such model.
        """
        return False

    # Server ----------------------------------------------------------------------------------

    def init_server(self, server: ServerView) -> Arrays:
        """Return the method's memory before the first round."""
        return {}

    def broadcast(self, server: ServerView) -> Arrays:
        """Return what a phase sends to every client beside the weights (phase "evaluate" too)."""
        return {}

    def aggregate(self, server: ServerView, partial: Partial) -> ServerState:
        """Return the server's state after a phase: by default the weighted means of the model.

        Sums under names with a slash are no model entries and are left to the method.

        Args:
            server: weights and memory from before the phase.
            partial: the exact sums of all updates of the phase.
        """
        entries = [name for name in partial.sums if "/" not in name]
        means = {e: as_entry(partial.sums[e].mean(), server.weights[e]) for e in entries}
        return ServerState(model=server.weights | means, memory=server.memory)

    def bytes_down(self, server: ServerView, message: Arrays) -> int:
        """Return the bytes that a phase sends to each client: the weights once, and its message.

        Args:
            server: at the beginning of the phase.
            message: what `broadcast` returned for it.
        """
        first = server.phase == self.active_phases(server.round)[0]
        shared = {e: a for e, a in server.weights.items() if not self.is_private(e, server.model)}
        return num_bytes(message) + (num_bytes(shared) if first else 0)

    def load_global(self, model: ChannelModel, weights: Arrays, message: Arrays) -> None:
        """Load the global model as it is evaluated.

        Args:
            model: the skeleton to load it into.
            weights: the dense global model.
            message: what `broadcast` returned for the phase "evaluate".
        """
        load_arrays(model, weights)

    def costs(self, server: ServerView, image_size: int) -> Costs:
        """Return parameters and multiply-adds of the global model as it is evaluated.

        Args:
            server: after the last round.
            image_size: side of the images in pixels.
        """
        self.load_global(server.model, server.weights, self.broadcast(server))
        params, flops = count_costs(server.model, image_size)
        dense = sum(flops.values())
        return Costs(params=params, params_sliced=params, flops=dense, flops_sliced=dense)

    def describe(self, server: ServerView) -> Mapping[str, float]:
        """Return figures that are recorded after each phase, e.g. the share of kept units."""
        return {}

    # Afterwards ------------------------------------------------------------------------------

    def panels(self, run: "Record") -> "Sequence[Chart]":
        """Return charts of what was `watched`; by default of the names in `raysim.watched`."""
        from raysim.panels_clients import client_panels
        from raysim.panels_units import unit_panels

        return [*unit_panels(run), *client_panels(run)]


class Averaging(Method):
    """Base of methods that average the whole model and have no rule of their own for BatchNorm.

    | symbol | field | default | from |
    |---|---|---|---|
    | - | buffers | average | released codes average whole states, running statistics included |
    """

    buffers: Literal["average", "local"] = "average"
    """BatchNorm's running statistics: averaged as weights are, or kept on each client."""

    def is_private(self, entry: str, model: ChannelModel) -> bool:
        """Keep running statistics on the client if `buffers` says so."""
        return self.buffers == "local" and entry in dict(model.named_buffers())


def weighted(arrays: Mapping[str, Array], weight: int) -> dict[str, Weighted]:
    """Give every array the same weight.

    Args:
        arrays: by name.
        weight: usually the client's number of examples.
    """
    return {name: Weighted(array, weight) for name, array in arrays.items()}


__all__ = [
    "Averaging",
    "Batch",
    "ChannelGroup",
    "ClientView",
    "Method",
    "ServerState",
    "ServerView",
    "ShardData",
    "Update",
    "View",
    "as_entry",
    "weighted",
]

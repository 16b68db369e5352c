"""FedBN: normalisation layers stay on the client (Li et al., ICLR 2021).

    min  sum_i n_i / n * F_i(w, b_i)      w the shared entries, b_i client i's normalisation layers

Up: the shared entries, n_i. Down: the shared entries. Private: scale, shift and running statistics
of every normalisation layer, which are found by module type.

| symbol | field | default | from |
|---|---|---|---|
| - | require_norm | true | the method is empty on a net without such layers |
| - | global_norm | average | the FDSE authors' FedBN, whose server averages the layers too |

What is tested as "personal" is the method's result. FedBN's server has no normalisation layers of
its own, so for the test of a "global" model `global_norm: average` lends it the mean of the
clients' layers: a copy that goes up under the names "evaluation/...", is counted in the bytes,
is used by `load_global` alone, and never reaches a client or the model's state. `initial` sends
nothing and tests with layers that were never trained, at chance.

Deviates: clients weigh by their examples (the authors' digits code: equally), as in the FDSE
authors' FedBN. The authors find layers by the letters "bn" in a name and so miss those of a
ResNet's shortcuts. Personal models are tested after aggregation.
"""

from typing import ClassVar, Literal

from torch import nn

from raysim.aggregation import Partial
from raysim.errors import ConfigError
from raysim.method import (
    ClientView,
    Method,
    ServerState,
    ServerView,
    Update,
    as_entry,
    weighted,
)
from raysim.models import ChannelModel
from raysim.tensors import Arrays, load_arrays, prefixed, under

NORM_LAYERS = (
    nn.modules.batchnorm._NormBase,  # BatchNorm, SyncBatchNorm and InstanceNorm of any dimension
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


class FedBN(Method):
    """Everything but normalisation layers is averaged."""

    title: ClassVar[str] = "FedBN"
    paper: ClassVar[str] = "Li et al., ICLR 2021"
    shared: ClassVar[str] = "all but normalisation"
    private: ClassVar[str] = "normalisation layers"

    name: str = "fedbn"
    require_norm: bool = True
    """Refuse a model without normalisation layers, on which FedBN is FedAvg."""
    global_norm: Literal["average", "initial"] = "average"
    """Normalisation layers of the global model when it is tested; clients never see them."""

    def build_model(self, name: str, num_classes: int, image_size: int, width: int) -> ChannelModel:
        """Build the network and check that it has normalisation layers."""
        model = super().build_model(name, num_classes, image_size, width)
        if self.require_norm and not norm_entries(model):
            raise ConfigError(
                f"method.name=fedbn: model {name} has no normalisation layer that clients could "
                "keep; choose another model, or method.require_norm=false to run FedAvg"
            )
        return model

    def is_private(self, entry: str, model: ChannelModel) -> bool:
        """Keep the entries of normalisation layers."""
        return entry in norm_entries(model)

    def client_step(self, client: ClientView) -> Update:
        """Train; lend the normalisation layers for the test of the global model if asked to."""
        update = super().client_step(client)
        if self.global_norm == "initial" or not update.state:
            return update
        lent = weighted(prefixed("evaluation", update.state), client.num_examples)
        return Update(sums={**update.sums, **lent}, state=update.state, metrics=update.metrics)

    def aggregate(self, server: ServerView, partial: Partial) -> ServerState:
        """Average the shared entries; keep the mean of lent layers apart from the model."""
        lent = {n: s for n, s in partial.sums.items() if n.startswith("evaluation/")}
        memory = {
            name: as_entry(total.mean(), server.weights[name.removeprefix("evaluation/")])
            for name, total in lent.items()
        }
        return ServerState(model=super().aggregate(server, partial).model, memory=memory)

    def broadcast(self, server: ServerView) -> Arrays:
        """Send nothing to clients that train."""
        return server.memory if server.phase == "evaluate" else {}

    def load_global(self, model: ChannelModel, weights: Arrays, message: Arrays) -> None:
        """Load the shared entries and the lent or initial normalisation layers."""
        load_arrays(model, weights | under("evaluation", message))


def norm_entries(model: nn.Module) -> set[str]:
    """Return the names of all parameters and buffers of normalisation layers."""
    return {
        f"{path}.{leaf}" if path else leaf
        for path, module in model.named_modules()
        if isinstance(module, NORM_LAYERS)
        for leaf in (*module._parameters, *module._buffers)
    }

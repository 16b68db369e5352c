"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021).

    w_i <- argmin_w  F_i(w) - <h_i, w> + alpha / 2 ||w - w_t||^2     h_i <- h_i - alpha (w_i - w_t)
    h   <- h - alpha |S| / N mean_i (w_i - w_t)                      w   <- mean_i w_i - h / alpha

| symbol | field | default | from |
|---|---|---|---|
| alpha | alpha | 0.01 | FLGo's grid 0.001 ... 0.1; 0.1 swings for 20 rounds of digits_mini |

Up: weights, n_i, a one to be counted. Down: weights. Private: h_i, under "dual/...". h is in the
server's memory. h and h_i start at 0. alpha = 0 is FedAvg bit for bit, h and h_i not used.

The global model w leads the clients' mean by -h / alpha: with all clients it is twice as far from
w_t as the mean after the first round.

Deviates: means weigh by examples, as FedAvg's do here (printed: equally), which makes the weighted
objective the one that is minimised. SGD for a fixed number of epochs stands for argmin. Terms are
for parameters and added as gradients; BatchNorm's statistics are averaged as in FedAvg.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysim.aggregation import Partial, Weighted
from raysim.gradients import pull, shift
from raysim.method import Averaging, ClientView, ServerState, ServerView, Update, as_entry
from raysim.tensors import Array, Arrays, prefixed, to_array, under


class FedDyn(Averaging):
    """Clients' objectives are bent so that their minima become those of the global objective."""

    title: ClassVar[str] = "FedDyn"
    paper: ClassVar[str] = "Acar et al., ICLR 2021"
    shared: ClassVar[str] = "the whole model"
    private: ClassVar[str] = "its dual variable"

    name: str = "feddyn"
    alpha: Annotated[float, Field(ge=0)] = 0.01
    """Strength of the dynamic regularisation."""

    # Client ----------------------------------------------------------------------------------

    def before_step(self, client: ClientView) -> Callable[[], None] | None:
        """Add alpha (w - w_t) - h_i to the gradients."""
        towards = pull(client.model, client.weights, self.alpha)
        dual = under("dual", client.state)
        if towards is None or not dual:
            return towards
        away = shift(client.model, {name: -h for name, h in dual.items()})

        def both() -> None:
            away()
            towards()

        return both

    def client_step(self, client: ClientView) -> Update:
        """Train, then renew h_i."""
        update = super().client_step(client)
        if self.alpha == 0:
            return update
        dual = under("dual", client.state)
        for name, weight in client.model.named_parameters():
            received = client.weights[name]
            old = dual.get(name, np.zeros_like(received))
            dual[name] = as_entry(moved_dual(old, to_array(weight), received, self.alpha), received)
        return replace(
            update,
            sums={**update.sums, "drawn/clients": Weighted(np.ones(1, np.float32), 1)},
            state=(update.state or {}) | prefixed("dual", dual),
        )

    # Server ----------------------------------------------------------------------------------

    def init_server(self, server: ServerView) -> Arrays:
        """Start with h = 0."""
        if self.alpha == 0:
            return {}
        names = dict(server.model.named_parameters())
        return prefixed("dual", {n: np.zeros_like(server.weights[n]) for n in names})

    def aggregate(self, server: ServerView, partial: Partial) -> ServerState:
        """Average the model, renew h, and move the parameters by -h / alpha."""
        if self.alpha == 0:
            return super().aggregate(server, partial)
        model = super().aggregate(server, partial).model
        share = partial.sums["drawn/clients"].weight / server.num_clients
        memory = {}
        for name, old in under("dual", server.memory).items():
            mean, received = partial.sums[name].mean(), server.weights[name]
            dual = moved_dual(old, mean, received, self.alpha * share)
            memory[f"dual/{name}"] = as_entry(dual, old)
            model[name] = as_entry(mean - dual / self.alpha, received)
        return ServerState(model=model, memory=memory)


def moved_dual(dual: Array, trained: Array, received: Array, rate: float) -> NDArray[np.float64]:
    """Return h - rate (w_new - w_t) as float64; the rate is alpha, on the server times |S| / N."""
    step = trained.astype(np.float64) - received
    return dual.astype(np.float64) - rate * step

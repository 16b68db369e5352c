"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020), option II.

    g   <- grad F_i(w) - c_i + c                                    each local step
    c_i <- c_i - c + (w_t - w_i) / (K lr)                           after K steps
    w   <- w_t + eta (mean_i w_i - w_t)       c <- c + |S| / N mean_i (c_i_new - c_i)

| symbol | field | default | from |
|---|---|---|---|
| eta | server_lr | 1.0 | the paper's experiments, FLGo |
| - | control | true | false is FedAvg bit for bit (with eta = 1) |

Up: weights, n_i, the change of c_i. Down: weights, c. Private: c_i, under "own_variate/...". c is
in the server's memory. c and c_i start at 0, so that the first round is FedAvg's.

Deviates: the model's mean weighs by examples, as FedAvg's does here, that of variates is uniform,
as printed. With momentum m, a gradient moves the model by more than lr: K is replaced by FedNova's
K_m = sum_{k=1..K} (1 - m^k) / (1 - m), which is K for m = 0; otherwise c_i would be up to
1 / (1 - m) times too large. Weight decay counts as a part of F_i. Gradient clipping
(local.max_grad_norm) shrinks steps that the variates cannot know of. Variates and eta are for
parameters; BatchNorm's statistics are averaged as in FedAvg.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from raysim.aggregation import Partial
from raysim.gradients import shift
from raysim.method import (
    Averaging,
    ClientView,
    ServerState,
    ServerView,
    Update,
    as_entry,
    weighted,
)
from raysim.settings import alias
from raysim.tensors import Array, Arrays, prefixed, to_array, under
from raysim.training import num_batches


class Scaffold(Averaging):
    """Local gradients are corrected by the difference of global and own control variate."""

    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    shared: ClassVar[str] = "model, control variate"
    private: ClassVar[str] = "its control variate"

    name: str = "scaffold"
    server_lr: Annotated[float, Field(gt=0), alias("server_lr", "eta")] = 1.0
    """Step of the server towards the mean of the clients' parameters."""
    control: bool = True
    """Use control variates."""

    # Client ----------------------------------------------------------------------------------

    def before_step(self, client: ClientView) -> Callable[[], None] | None:
        """Add c - c_i to the gradients."""
        if not self.control:
            return None
        own = own_variate(client)
        correction = {n: c - own[n] for n, c in under("variate", client.message).items()}
        return shift(client.model, correction)

    def client_step(self, client: ClientView) -> Update:
        """Train, then renew c_i; its change goes up with the model."""
        update = super().client_step(client)
        if not self.control:
            return update
        steps = client.local.epochs * num_batches(client.num_examples, client.local.batch_size)
        path = client.local.lr * client.local.lr_decay**client.round
        path *= effective_steps(steps, client.local.momentum)
        own, shared = own_variate(client), under("variate", client.message)
        new = {
            name: renewed(own[name], shared[name], client.weights[name], to_array(weight), path)
            for name, weight in client.model.named_parameters()
        }
        change = {name: new[name] - own[name] for name in new}
        return replace(
            update,
            sums={**update.sums, **weighted(prefixed("variate_change", change), 1)},
            state=(update.state or {}) | prefixed("own_variate", new),
        )

    # Server ----------------------------------------------------------------------------------

    def init_server(self, server: ServerView) -> Arrays:
        """Start with c = 0."""
        if not self.control:
            return {}
        names = dict(server.model.named_parameters())
        return prefixed("variate", {n: np.zeros_like(server.weights[n]) for n in names})

    def broadcast(self, server: ServerView) -> Arrays:
        """Send c to clients that train."""
        return server.memory if server.phase == "fit" else {}

    def aggregate(self, server: ServerView, partial: Partial) -> ServerState:
        """Average the model by examples; move c by the sum of the variates' changes over N."""
        changes = under(
            "variate_change", {n: s.total() for n, s in partial.sums.items() if "/" in n}
        )
        model = super().aggregate(server, partial).model
        if self.server_lr != 1.0:
            for name, _ in server.model.named_parameters():
                old = server.weights[name].astype(np.float64)
                step = self.server_lr * (partial.sums[name].mean() - old)
                model[name] = as_entry(old + step, server.weights[name])
        memory = {
            f"variate/{name}": as_entry(old + changes[name] / server.num_clients, old)
            for name, old in under("variate", server.memory).items()
        }
        return ServerState(model=model, memory=memory)


def own_variate(client: ClientView) -> Arrays:
    """Return c_i by parameter name, zeros before the client's first round."""
    own = under("own_variate", client.state)
    return own or {n: np.zeros_like(client.weights[n]) for n, _ in client.model.named_parameters()}


def effective_steps(num_steps: int, momentum: float) -> float:
    """Return K_m: how far K equal gradients move the model, in units of lr times the gradient.

    Args:
        num_steps: K >= 1.
        momentum: m in [0, 1).

    Source: FedNova (Wang et al., NeurIPS 2020), section 4.1; K for m = 0.
    """
    geometric = (1 - momentum**num_steps) / (1 - momentum)
    return (num_steps - momentum * geometric) / (1 - momentum)


def renewed(own: Array, shared: Array, received: Array, trained: Array, path: float) -> Array:
    """Return c_i - c + (w_t - w_i) / path.

    Args:
        own: c_i.
        shared: c.
        received: w_t.
        trained: w_i.
        path: K lr.
    """
    moved = (received.astype(np.float64) - trained) / path
    return as_entry(own - shared.astype(np.float64) + moved, received)

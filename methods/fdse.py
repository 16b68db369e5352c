"""FDSE: Federated Learning with Domain Shift Eraser (Wang et al., CVPR 2025, arXiv 2503.13063).

    (2-3) y = relu(BN_DFE(concat(a, DSE(a)))), a = relu(BN_DSE(DFE(x))); DFE has ceil(T/G) outputs
    (4-6) L_con^l = |mu^ - mu_g|^2 / d + ((|s^|_1 - |s_g|_1) / d)^2; mu^, s^: running estimates
          (decay 0.9) of mean and variance of BN_DFE's input; mu_g, s_g: BN_DFE's own as received
    (7)   min CE + lambda sum_l w_l L_con^l,  w_l = exp(beta l) / sum_j exp(beta j)
    (8)   DFE, BN_DFE, head: w <- w + mean_k |D_k| sum_k x_k D_k / |D_k|,  D_k = w_k - w,
          x = argmin over the simplex of |sum_k x_k D_k / |D_k||
    (9)   DSE, BN_DSE: v_k <- sum_j A_kj v_j,  A = softmax_rows(cos(v_k, v_j) / tau)

| symbol | field | default | from |
|---|---|---|---|
| G | groups | 2 | paper and code, everywhere |
| tau | temperature | 0.5 | the code's configs for Office-Caltech10 and PACS |
| lambda | consistency_weight | 0.05 | the code's config for Office-Caltech10; PACS has 0.5 |
| beta | depth_weight | 0.001 | paper |
| - | consensus, dse | min_norm, depthwise | paper, code; the others are variants of a digest |
| - | adapt_epochs, adapt_lr | 5, 0.1 | ours; section 5.4 adapts, its steps are not public |

Up and down: everything but BN_DSE's running statistics, which stay private; of the DSE tensors a
client receives its own row alone (the simulator broadcasts all rows, bytes are counted for one).
The regulariser rests in the first round. BN_DFE's running statistics are averaged, all clients
alike. The method's result is the PERSONAL model after aggregation: shared entries, the client's
own DSE tensors and BN_DSE statistics. The global model is a stand-in: shared entries, the mean
over clients of the DSE tensors, and BN_DSE normalising each test slice by that slice's own
statistics, since no client's statistics may be used; so it sees up to 200 unlabelled test images
of one domain at once.

Deviates: consensus and attention run for each tensor, as in the code (paper: layer). The block is
the code's first version, whose size is the paper's: identity copies in convolutions (Eq. 3 has
none), scaled copies in linear layers, b a DSE tensor. Guards that neither paper nor code has: a
zero update takes no part in the consensus but counts in the mean norm; a zero tensor has cosine 0
to all. The EMA starts at mu_g, s_g, and gradients flow through the current batch only: the paper is
silent. `consensus: mean` (everything shared averaged by number of examples), `dse: pointwise` (1x1
expansion) are readings of a digest; `dse: off` keeps the plain network, and with `consensus: mean`
and lambda 0 it is FedAvg.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from raysim.aggregation import Partial
from raysim.config import LocalSettings
from raysim.consensus import consensus_step, mix
from raysim.consistency import Consistency
from raysim.method import (
    Batch,
    ClientView,
    Method,
    ServerState,
    ServerView,
    Update,
    as_entry,
    weighted,
)
from raysim.models import ChannelModel, build_model
from raysim.models.decomposed import decompose, normalise_by_batch, parts, roles
from raysim.seeds import Stream
from raysim.settings import alias
from raysim.tensors import Arrays, load_arrays, prefixed, state_arrays, under
from raysim.training import ShardData, fit, freeze_batchnorm
from raysim.watched import watched_weights


class FDSE(Method):
    """Shared feature extractors moved by consensus, personal domain erasers by similarity."""

    title: ClassVar[str] = "FDSE"
    paper: ClassVar[str] = "Wang et al., CVPR 2025"
    shared: ClassVar[str] = "extractor, eraser, head"
    private: ClassVar[str] = "eraser statistics"
    adapts: ClassVar[bool] = True
    gathers: ClassVar[bool] = True

    name: str = "fdse"
    groups: Annotated[PositiveInt, alias("groups", "G")] = 2
    """A layer's DFE has 1 / groups of its channels; its DSE expands them to all."""
    temperature: Annotated[float, Field(gt=0), alias("temperature", "tau")] = 0.5
    """Small: each client keeps its own DSE; large: all get the mean."""
    consistency_weight: Annotated[float, Field(ge=0), alias("consistency_weight", "lambda")] = 0.05
    """Weight of the consistency regulariser."""
    depth_weight: Annotated[float, alias("depth_weight", "beta")] = 0.001
    """Above 0, deeper layers weigh more in the regulariser."""
    consensus: Literal["min_norm", "mean"] = "min_norm"
    """How shared entries move: Eq. 8, or the mean by number of examples."""
    dse: Literal["depthwise", "pointwise", "off"] = "depthwise"
    """Expansion of convolutions: 3x3, 1x1, or the plain network."""
    adapt_epochs: PositiveInt = 5
    """Passes over a guest's unlabelled training images before it is tested."""
    adapt_lr: Annotated[float, Field(gt=0)] = 0.1
    """Learning rate of these."""

    def build_model(self, name: str, num_classes: int, image_size: int, width: int) -> ChannelModel:
        """Decompose the hidden layers of the plain model."""
        model = build_model(name, num_classes, image_size, width)
        return model if self.dse == "off" else decompose(model, self.groups, self.dse)

    def is_private(self, entry: str, model: ChannelModel) -> bool:
        """Keep BN_DSE's running statistics on the client."""
        return roles(model)[entry] == "dse_statistics"

    # Client ----------------------------------------------------------------------------------

    def client_step(self, client: ClientView) -> Update:
        """Train the personal model; send shared and DSE tensors one by one, statistics summed."""
        self._load_own(client)
        regulariser = Consistency(client.model, self.depth_weight)
        on = self.consistency_weight > 0 and client.round > 0 and self.dse != "off"
        with regulariser.recording() if on else ExitStack():
            loss = self._regularised(client, regulariser) if on else self.objective(client)
            result = client.fit(loss)
        metrics = {"loss": result.loss} | ({"consistency": regulariser.mean()} if on else {})
        return self._update(client, metrics)

    def _regularised(
        self, client: ClientView, regulariser: Consistency
    ) -> Callable[[Batch], Tensor]:
        task = self.objective(client)

        def loss(batch: Batch) -> Tensor:
            value = task(batch)
            consistency = regulariser.take()
            # BatchNorm is frozen for a batch of one, which has no variance to be consistent.
            return value + self.consistency_weight * consistency if len(batch) > 1 else value

        return loss

    def _update(self, client: ClientView, metrics: dict[str, float]) -> Update:
        trained, role = state_arrays(client.model), roles(client.model)
        mean = self.consensus == "mean"
        averaged = ("statistics", "shared") if mean else ("statistics",)
        private = {e: a for e, a in trained.items() if role[e] == "dse_statistics"}
        summed = {e: a for e, a in trained.items() if role[e] in averaged}
        return Update(
            sums=weighted(summed, client.num_examples if mean else 1),
            gathered={e: a for e, a in trained.items() if e not in private and e not in summed},
            state=private or None,
            metrics=metrics,
        )

    def load_personal(self, client: ClientView) -> bool:
        """Load shared entries and the client's own; a client that never trained has no model."""
        if not client.state:
            return False
        self._load_own(client)
        return True

    def load_adapted(self, client: ClientView) -> bool:
        """Fit the mean DSE tensors to the guest's images; without erasers there is nothing to fit.

        Source: FDSE, sections 4.2 and 5.4.
        """
        if self.dse == "off":
            return False
        load_arrays(client.model, client.weights)
        adapt(
            client.model,
            client.shard,
            client.local,
            key=(client.seed, client.round, client.client),
            lr=self.adapt_lr,
            epochs=self.adapt_epochs,
            depth_weight=self.depth_weight,
        )
        return True

    def _load_own(self, client: ClientView) -> None:
        own = {entry: rows[client.client] for entry, rows in under("dse", client.message).items()}
        load_arrays(client.model, client.weights | own | client.own_entries)
        normalise_by_batch(client.model, False)

    # Server ----------------------------------------------------------------------------------

    def init_server(self, server: ServerView) -> Arrays:
        """Give every client the initial DSE tensors: rows [client, ...]."""
        role = roles(server.model)
        rows = {e: a for e, a in server.weights.items() if role[e] == "dse"}
        return prefixed("dse", {e: np.stack([a] * server.num_clients) for e, a in rows.items()})

    def broadcast(self, server: ServerView) -> Arrays:
        """Send the DSE tensors, for a client to take its own row."""
        return server.memory

    def bytes_down(self, server: ServerView, message: Arrays) -> int:
        """Count all that is not private once: the own DSE row is as large as the global one."""
        return super().bytes_down(server, {})

    def aggregate(self, server: ServerView, partial: Partial) -> ServerState:
        """Move shared entries by consensus, mix the cohort's DSE tensors, average statistics."""
        model = dict(super().aggregate(server, partial).model)
        updates, memory = partial.in_client_order(), dict(server.memory)
        cohort = [client for client, _ in updates]
        watched: Arrays = {"cohort": np.array(cohort, np.int32)}
        for entry in updates[0][1] if updates else ():
            trained = [arrays[entry] for _, arrays in updates]
            old, rows = server.weights[entry], memory.get(f"dse/{entry}")
            if rows is None:
                step, watched[f"consensus/{entry}"] = consensus_step(old, trained)
                model[entry] = as_entry(old + step, old)
            else:
                rows = rows.copy()
                mixed, watched[f"attention/{entry}"] = mix(np.stack(trained), self.temperature)
                rows[cohort] = mixed
                memory[f"dse/{entry}"] = rows
                model[entry] = as_entry(rows.mean(0, dtype=np.float64), old)
        return ServerState(model=model, memory=memory, watched=watched_weights(watched))

    def load_global(self, model: ChannelModel, weights: Arrays, message: Arrays) -> None:
        """Load the mean DSE tensors, with BN_DSE normalising by the statistics of each slice."""
        load_arrays(model, weights)
        normalise_by_batch(model, True)


# Unseen clients -------------------------------------------------------------------------------


def adapt(
    model: ChannelModel,
    shard: ShardData,
    local: LocalSettings,
    *,
    key: tuple[int, int, int],
    lr: float,
    epochs: int,
    depth_weight: float = 0.001,
) -> tuple[float, float]:
    """Fit the DSE modules of a model to a client that never trained, without its labels.

    DSE tensors follow L_con alone, of the batch's own statistics; BN_DSE's running statistics
    become the client's; every other entry keeps its bits.

    Args:
        model: decomposed, the global state loaded; adapted in place.
        shard: the client's examples; labels are not read.
        local: batch size and the other settings of training; weight decay is left out.
        key: (seed, round, client), which fixes the batches.
        lr: learning rate.
        epochs: passes over the shard.
        depth_weight: beta.

    Returns:
        L_con before and after, each the mean over batches, with the batch's statistics alone.

    Source: FDSE, sections 4.2 and 5.4.
    Deviates: steps and learning rate are not public, nor what the running statistics do. The
        running estimates of Eq. 5 are left out: they make the gradient 100 times smaller at first.
    """
    before = measure(model, shard, local.batch_size, depth_weight)
    regulariser = Consistency(model, depth_weight, decay=0.0)

    def loss(batch: Batch) -> Tensor:
        model(batch.images)
        return regulariser.take()

    with _erasers_only(model), regulariser.recording():
        fit(
            model,
            shard,
            local.model_copy(update={"weight_decay": 0.0}),
            loss,
            key=key,
            stream=Stream.ADAPT,
            lr=lr,
            epochs=epochs,
        )
    return before, measure(model, shard, local.batch_size, depth_weight)


@contextmanager
def _erasers_only(model: ChannelModel) -> Iterator[None]:
    """Leave only the DSE modules trainable, with new running statistics."""
    model.train()
    freeze_batchnorm(model)
    role = roles(model)
    for entry, parameter in model.named_parameters():
        parameter.requires_grad_(role[entry] == "dse")
    norms = [(part.norm, part.norm.momentum) for part in parts(model)]
    for norm, _ in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches: a few have to do
    try:
        yield
    finally:
        for norm, momentum in norms:
            norm.momentum = momentum
        model.requires_grad_(True)


@torch.no_grad()
def measure(model: ChannelModel, shard: ShardData, batch_size: int, depth_weight: float) -> float:
    """Return L_con of a shard against BN_DFE's running statistics.

    The model ends in eval mode, its state as before.
    """
    model.eval()
    normalise_by_batch(model, True)
    regulariser = Consistency(model, depth_weight, decay=0.0)
    with regulariser.recording():
        for batch in shard.batches(batch_size):
            model(batch.images)
            regulariser.take()
    normalise_by_batch(model, False)
    return regulariser.mean()

"""DapperFL: domain-adaptive pruning for devices of unequal size (Jia et al., NeurIPS 2024).

    a_t = max((1 - eps)^(t-1) a_0, a_min)          t = 1, 2, ...
    w   = a_t W + (1 - a_t) what                   W received, what fine-tuned from it      (MFP)
    M_i = the channels of largest l1 norm in w, a share rho_i of each layer removed
    L   = CE + gamma * mean_x ||g(x)||_2^2         g: everything before the head            (DAR)
    W  <- sum_i n_i/n (w_i M_i + W (1 - M_i))      w_i trained from w M_i              (recovery)

| symbol | field | default | from |
|---|---|---|---|
| rho_i | removal_ratios[i mod 5] | 0, .2, .4, .6, .8 | paper, five levels of device; REMOVED |
| a_0, a_min, eps | fusion_start, fusion_floor, fusion_decay | .9, .1, .2 | paper |
| gamma | feature_penalty | 0.01 | paper |
| - | fine_tune_epochs | 1 | paper: epoch 1 of 5 |
| - | average | recovered | paper; zero_filled is what the released code does |

Up: recovered weights and n_i. Down: weights. Private: the client's channel mask. Personal model:
the new global model, pruned by the client's mask. All ratios 0 and gamma = 0 is FedAvg, bit for
bit.

Deviates: units are the `inner` ones (a first convolution's filter with its norm entries and the
columns that read it), sliced out physically; the paper's masks touch every layer. A client of ratio
0 has nothing to prune, so it skips the fusion and trains all epochs in one go; others start a new
optimiser on the slice. The slice always trains for an epoch: with `local.epochs: 1` there is no
fine-tuning and no fusion, the received model itself is pruned, and the penalty acts at once
(pruning after the only epoch stayed near chance). Recovery runs on the client, so that updates stay
summable: bytes_up counts the dense model, the `kept_parameters` figure what would have to be sent.
`average: zero_filled` is the released code's average, in which the removed part of every weight
tensor is 0. That code also takes the unsquared norm, in epoch 1 too, and never reaches its fusion.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeInt
from torch import Tensor
from torch.nn import functional

from raysim.channels import Groups, Mask, num_units, per_group, select_units
from raysim.method import Averaging, Batch, ClientView, Update, weighted
from raysim.seeds import Stream
from raysim.settings import alias
from raysim.structures import Structure, filter_norms
from raysim.tensors import Arrays, load_arrays, state_arrays

Ratio = Annotated[float, Field(ge=0, lt=1)]


class DapperFL(Averaging):
    """Each client trains a slice of the model that fits its device."""

    title: ClassVar[str] = "DapperFL"
    paper: ClassVar[str] = "Jia et al., NeurIPS 2024"
    shared: ClassVar[str] = "recovered slices"
    private: ClassVar[str] = "its channel mask"

    name: str = "dapperfl"
    removal_ratios: Annotated[
        tuple[Ratio, ...], Field(min_length=1), alias("removal_ratios", "rho")
    ] = (0.0, 0.2, 0.4, 0.6, 0.8)
    """Share of each layer's channels that a client removes; clients take turns by id."""
    fusion_start: Annotated[float, Field(ge=0, le=1), alias("fusion_start", "alpha_0")] = 0.9
    """Share of the received model in the fused one, in round 1."""
    fusion_floor: Annotated[float, Field(ge=0, le=1), alias("fusion_floor", "alpha_min")] = 0.1
    """What that share decays to."""
    fusion_decay: Annotated[float, Field(ge=0, le=1), alias("fusion_decay", "epsilon")] = 0.2
    """Part of it that is lost from round to round."""
    feature_penalty: Annotated[float, Field(ge=0), alias("feature_penalty", "gamma")] = 0.01
    """Weight of the squared norm of features."""
    fine_tune_epochs: NonNegativeInt = 1
    """Dense local epochs before the pruning; at least one of `local.epochs` is left after it."""
    average: Literal["recovered", "zero_filled"] = "recovered"
    """What stands in for removed weights: the received ones, or the released code's zeros."""

    def removal_ratio(self, client: int) -> float:
        """Return rho_i, the share of channels that a client removes."""
        return self.removal_ratios[client % len(self.removal_ratios)]

    # Client ----------------------------------------------------------------------------------

    def client_step(self, client: ClientView) -> Update:
        """Train the client's slice of the model and send it as part of a whole one."""
        received = client.weights | client.own_entries
        groups = client.model.channel_groups("inner")
        load_arrays(client.model, received)
        if self.removal_ratio(client.client) > 0:
            trained, kept, loss = self._train_pruned(client, received, groups)
        else:
            trained, kept, loss = self._train_dense(client, groups)
        own = {e: a for e, a in trained.items() if self.is_private(e, client.model)}
        parameters = {name: client.weights[name] for name, _ in client.model.named_parameters()}
        state = own | ({"kept/units": kept.mask_C} if any(self.removal_ratios) else {})
        return Update(
            sums=weighted({e: a for e, a in trained.items() if e not in own}, client.num_examples),
            state=state or None,
            metrics={"loss": loss, "kept_parameters": float(kept.num_scalars(parameters))},
        )

    def _train_dense(self, client: ClientView, groups: Groups) -> tuple[Arrays, Structure, float]:
        plain = self._num_plain_epochs(client) * client.num_examples
        result = client.fit(self._regularised(client, plain))
        everything = Structure(groups, np.ones(num_units(groups), np.bool_), sliced=True)
        return state_arrays(client.model), everything, result.loss

    def _train_pruned(
        self, client: ClientView, received: Arrays, groups: Groups
    ) -> tuple[Arrays, Structure, float]:
        """Fine-tune, fuse, prune, train the slice, recover."""
        first = self._num_plain_epochs(client)
        rest = client.local.epochs - first
        tuned = client.fit(self.objective(client), epochs=first)
        share = fusion_share(client.round, self.fusion_start, self.fusion_floor, self.fusion_decay)
        dense = fuse(received, state_arrays(client.model), share) if first else received
        mask_C = largest_channels(dense, groups, self.removal_ratio(client.client))
        kept = Structure(groups, mask_C, sliced=True)
        kept.load(client.model, dense)
        sliced = client.fit(self._regularised(client, 0), epochs=rest, stream=Stream.SLICED)
        base = received if self.average == "recovered" else without_weights(received)
        loss = (first * tuned.loss + rest * sliced.loss) / client.local.epochs
        return kept.read(client.model, base), kept, loss

    def _num_plain_epochs(self, client: ClientView) -> int:
        return min(self.fine_tune_epochs, client.local.epochs - 1)

    def _regularised(self, client: ClientView, num_plain: int) -> Callable[[Batch], Tensor]:
        """Return the loss that adds the penalty once so many examples have been seen."""
        if self.feature_penalty == 0:
            return self.objective(client)
        num_seen = 0

        def loss(batch: Batch) -> Tensor:
            nonlocal num_seen
            num_seen += len(batch)
            features_BE = client.model.features(batch.images)
            task = functional.cross_entropy(client.model.head(features_BE), batch.labels)
            if num_seen <= num_plain:
                return task
            return task + self.feature_penalty * squared_norm(features_BE)

        return loss

    def load_personal(self, client: ClientView) -> bool:
        """Load the channels of the client's mask from the new global model."""
        mask_C = client.state.get("kept/units")
        if mask_C is None:
            return super().load_personal(client)
        kept = Structure(client.model.channel_groups("inner"), mask_C, sliced=True)
        kept.load(client.model, client.weights | client.own_entries)
        return True


# The paper's equations, in its order ----------------------------------------------------------
# Suffixes: B batch, E embedding, C channel units.


def fusion_share(round_: int, start: float, floor: float, decay: float) -> float:
    """Return a_t = max((1 - eps)^(t-1) a_0, a_min) of the 0-based round t - 1."""
    return float(max((1 - decay) ** round_ * start, floor))


def fuse(received: Arrays, tuned: Arrays, share: float) -> Arrays:
    """Return w = a W + (1 - a) what, entry by entry, running statistics included."""
    return {e: share * array + (1 - share) * tuned[e] for e, array in received.items()}


def largest_channels(dense: Arrays, groups: Groups, removal_ratio: float) -> Mask:
    """Return M [C], each layer's channels of largest l1 norm; ties go to the lower channel.

    Args:
        dense: the fused model.
        groups: the layers whose channels are pruned.
        removal_ratio: rho, the share of each layer's channels that goes; at least one stays.
    """
    norms = zip(groups, per_group(groups, filter_norms(dense, groups)), strict=True)
    masks = [select_units(norm_L, [group], 1 - removal_ratio, 0.0) for group, norm_L in norms]
    return np.concatenate(masks)


def squared_norm(features_BE: Tensor) -> Tensor:
    """Return the batch mean of ||g(x)||_2^2."""
    return features_BE.float().square().sum(1).mean()


def without_weights(dense: Arrays) -> Arrays:
    """Return the model with every weight tensor at zero, biases and statistics as they are."""
    return {e: np.zeros_like(a) if e.endswith(".weight") else a for e, a in dense.items()}

"""MOON: model-contrastive federated learning (Li, He, Song, CVPR 2021).

    L_i = CE + mu * mean_x  -log  e^{cos(z, z_glob) / tau}
                                  -----------------------------------------------
                                  e^{cos(z, z_glob) / tau} + e^{cos(z, z_prev) / tau}

z, z_glob, z_prev: representations of x by the model in training, by the received model, and by the
client's own model after its last local training; the latter two are frozen, in eval mode.

| symbol | field | default | from |
|---|---|---|---|
| mu | contrastive_weight | 1.0 | DapperFL's table for multi-domain data; authors 5 (CIFAR-10), 1 |
| tau | temperature | 0.5 | the authors |
| - | projection | 0 (off) | the multi-domain code bases; the authors have 256 |

Up: weights (those of the projection head too), n_i. Down: weights. Private: the previous model,
under "previous/...". mu = 0 is FedAvg bit for bit (with the same network).

Deviates: one previous model is kept (the authors' default). A client without one, in its first
round, trains without the term, which is 0 then. Without a projection head z is the head's input;
with one the head reads z, as the authors have it.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor, nn
from torch.nn import functional

from raysim.channels import ChannelGroup, Scope
from raysim.method import Averaging, Batch, ClientView, Update
from raysim.models import ChannelModel
from raysim.settings import alias
from raysim.tensors import Arrays, load_arrays, prefixed, state_arrays, under


class MOON(Averaging):
    """Representations are drawn to the global model's and away from the previous local one's."""

    title: ClassVar[str] = "MOON"
    paper: ClassVar[str] = "Li et al., CVPR 2021"
    shared: ClassVar[str] = "the whole model"
    private: ClassVar[str] = "its last model"

    name: str = "moon"
    contrastive_weight: Annotated[float, Field(ge=0), alias("contrastive_weight", "mu")] = 1.0
    """Weight of the contrastive term."""
    temperature: Annotated[float, Field(gt=0), alias("temperature", "tau")] = 0.5
    """Temperature of the contrastive term."""
    projection: NonNegativeInt = 0
    """Size of the projection head's output; 0 is no projection head."""

    def build_model(self, name: str, num_classes: int, image_size: int, width: int) -> ChannelModel:
        """Build the network, with a projection head if there is to be one."""
        model = super().build_model(name, num_classes, image_size, width)
        return Projected(model, self.projection) if self.projection else model

    def objective(self, client: ClientView) -> Callable[[Batch], Tensor]:
        """Add the contrastive term once the client has a previous model."""
        plain = super().objective(client)
        previous = under("previous", client.state)
        if self.contrastive_weight == 0 or not previous:
            return plain
        model = client.model
        anchors = frozen(model, client.weights | client.own_entries), frozen(model, previous)

        def loss(batch: Batch) -> Tensor:
            z = model.features(batch.images)
            with torch.no_grad():
                z_global, z_previous = (anchor.features(batch.images) for anchor in anchors)
            term = contrastive_loss(z, z_global, z_previous, self.temperature)
            return functional.cross_entropy(model.head(z), batch.labels) + (
                self.contrastive_weight * term
            )

        return loss

    def client_step(self, client: ClientView) -> Update:
        """Train, and remember the trained model."""
        update = super().client_step(client)
        if self.contrastive_weight == 0:
            return update
        previous = prefixed("previous", state_arrays(client.model))
        return replace(update, state=(update.state or {}) | previous)


class Projected(ChannelModel):
    """A model whose head reads a two-layer projection of the features."""

    def __init__(self, encoder: ChannelModel, size: int) -> None:
        """Take over the encoder's body.

        Args:
            encoder: its head is replaced.
            size: length of z.
        """
        super().__init__()
        inputs, num_classes = encoder.head.in_features, encoder.head.out_features
        encoder.head = nn.Identity()  # type: ignore[assignment]
        self.encoder = encoder
        self.projection = nn.Sequential(
            nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, size)
        )
        self.head = nn.Linear(size, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, 3, H, W] to z [B, size]."""
        z: Tensor = self.projection(self.encoder.features(x))
        return z

    def channel_groups(self, scope: Scope) -> tuple[ChannelGroup, ...]:
        """Return the encoder's groups; what its head would read, the projection reads."""

        def moved(path: str) -> str:
            leaf = path.removeprefix("head.")
            return f"projection.0.{leaf}" if leaf != path else f"encoder.{path}"

        return tuple(
            replace(
                group,
                producer=moved(group.producer),
                norm=moved(group.norm) if group.norm else None,
                gate=moved(group.gate),
                slots=tuple(replace(slot, entry=moved(slot.entry)) for slot in group.slots),
            )
            for group in self.encoder.channel_groups(scope)
        )


def frozen(model: ChannelModel, arrays: Arrays) -> ChannelModel:
    """Return a copy of the model with other contents, in eval mode and without gradients."""
    twin = copy.deepcopy(model)
    load_arrays(twin, arrays)
    return twin.eval().requires_grad_(False)


def contrastive_loss(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    """Return the mean of -log(e^{s_g / tau} / (e^{s_g / tau} + e^{s_p / tau})), s = cosine.

    Args:
        z: [B, E], of the model in training.
        z_global: [B, E], constant.
        z_previous: [B, E], constant.
        temperature: tau > 0.
    """
    others = (z_global.float(), z_previous.float())
    logits = torch.stack([functional.cosine_similarity(z.float(), o) for o in others], dim=1)
    target = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    return functional.cross_entropy(logits / temperature, target)

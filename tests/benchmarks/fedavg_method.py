"""The method of the FedAvg workload; see `fedavg.py`. Hosts build it from this file's text."""

from typing import Any, ClassVar, Literal

import torch
from torch import nn

from raysim import training
from raysim.method import Averaging, ClientView, Update
from raysim.models import ChannelModel

SEED = 0
MEAN, STD = 0.1307, 0.3081


class Plain(ChannelModel):
    """Any network as it is, behind the workload's normalisation."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x.sub_(MEAN).div_(STD))
        return logits

    def features(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("trained as a whole")

    def channel_groups(self, scope: object) -> tuple[Any, ...]:
        return ()


class Workload(Averaging):
    """FedAvg with the workload's networks and order of batches."""

    title: ClassVar[str] = "FedAvg workload"
    network: Literal["cnn", "resnet18"] = "cnn"
    """Network."""

    def build_model(self, name: str, num_classes: int, image_size: int, width: int) -> ChannelModel:
        """Build the workload's network with its own initial weights."""
        torch.manual_seed(SEED)
        if self.network == "resnet18":
            from torchvision.models import resnet18  # takes seconds to import

            return Plain(resnet18(num_classes=10))
        return Plain(
            nn.Sequential(
                *(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10)),
            )
        )

    def client_step(self, client: ClientView) -> Update:
        """Take the client's step with batches in the order that all harnesses share."""
        key = SEED * 1_000_003 + client.round * 1009 + client.client
        shuffle = torch.Generator().manual_seed(key)

        def order(num_examples: int, batch_size: int, _: object) -> list[Any]:
            dealt = torch.randperm(num_examples, generator=shuffle).split(batch_size)
            return [index.numpy() for index in dealt]

        own, training.batch_order = training.batch_order, order
        try:
            return super().client_step(client)
        finally:
            training.batch_order = own

"""What every model offers: features, a linear head, and named channel groups behind gates."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from raysim.channels import ChannelGroup, Scope, Slot
from raysim.errors import ConfigError


class Gate(nn.Module):
    """Switches channels off by multiplying with a mask.

    The mask is a plain attribute, not a buffer: it is structure, never part of a model's state.

    Attributes:
        mask: [C] tensor (bool, or floating point) or None, which lets everything pass.
    """

    mask: Tensor | None

    def __init__(self) -> None:
        """Start open."""
        super().__init__()
        self.mask = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x ([B, C] or [B, C, H, W]), times the mask if there is one."""
        if self.mask is None:
            return x
        return x * self.mask.view(1, -1, *(1,) * (x.dim() - 2))


class GatedLayer(nn.Module):
    """A convolution or linear layer, its batch norm, an optional ReLU, and the gate behind them.

    The gate stands after the ReLU: a closed gate there still has a gradient, so a pruned unit can
    be measured and come back. Before the ReLU its gradient would be zero for ever.
    """

    def __init__(
        self,
        producer: nn.Conv2d | nn.Linear,
        norm: nn.BatchNorm1d | nn.BatchNorm2d,
        *,
        relu: bool = True,
    ) -> None:
        """Chain the parts.

        Args:
            producer: its output channels are the layer's units.
            norm: over those channels.
            relu: whether a ReLU follows the norm; without one the layer ends in a residual sum.
        """
        super().__init__()
        self.producer = producer
        self.norm = norm
        self.gate = Gate()
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Return gate(relu(norm(producer(x))))."""
        x = self.norm(self.producer(x))
        gated: Tensor = self.gate(torch.relu(x) if self.relu else x)
        return gated

    def group(self, path: str, consumers: Iterable[Slot] = ()) -> ChannelGroup:
        """Describe this layer's units.

        Args:
            path: dotted path of this layer in its model.
            consumers: input axes of the layers that read the units.
        """
        entries = [f"{path}.producer.weight"]
        if self.producer.bias is not None:
            entries.append(f"{path}.producer.bias")
        entries += [f"{path}.norm.{x}" for x in ("weight", "bias", "running_mean", "running_var")]
        return ChannelGroup(
            name=path,
            size=self.norm.num_features,
            producer=f"{path}.producer",
            norm=f"{path}.norm",
            gate=f"{path}.gate",
            slots=(*(Slot(entry, 0) for entry in entries), *consumers),
            relu=self.relu,
        )


class ChannelModel(nn.Module, ABC):
    """An image classifier: features, then a linear head.

    Attributes:
        head: the classifier on top of `features`.
        layout: memory format that four-dimensional entries are kept in.
    """

    head: nn.Linear
    layout: torch.memory_format = torch.contiguous_format

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Map images [B, 3, H, W] to embeddings [B, E], the head's input."""

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, 3, H, W] to logits [B, num_classes]."""
        logits: Tensor = self.head(self.features(x))
        return logits

    @abstractmethod
    def channel_groups(self, scope: Scope) -> tuple[ChannelGroup, ...]:
        """Return the groups of channel units, in forward order.

        Group sizes are those of the model as built, whatever has been sliced since.

        Args:
            scope: "inner" are the units that can be sliced out physically: a unit owns its
                producer's row, its norm entries and its consumers' columns. "all" is every hidden
                output channel, owning its row and norm entries only (the FedFIP paper's count).
        """


class Chain(ChannelModel):
    """A model without branches: gated layers, pools and reshapes, then the head."""

    def __init__(self, body: nn.Sequential, num_classes: int) -> None:
        """Add the head to the body.

        Args:
            body: maps images to [B, E]; its last module is a `GatedLayer`.
            num_classes: outputs of the head.
        """
        super().__init__()
        last = body[-1]
        assert isinstance(last, GatedLayer)
        self.body = body
        self.head = nn.Linear(last.norm.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, 3, H, W] to embeddings [B, E]."""
        embedding: Tensor = self.body(x)
        return embedding

    def channel_groups(self, scope: Scope) -> tuple[ChannelGroup, ...]:
        """Return one group per gated layer; see `ChannelModel.channel_groups`."""
        layers = [
            (f"body.{name}", layer)
            for name, layer in self.body.named_children()
            if isinstance(layer, GatedLayer)
        ]
        if scope == "all":
            return tuple(layer.group(path) for path, layer in layers)
        readers: list[tuple[str, nn.Module]] = [
            *((f"{path}.producer", layer.producer) for path, layer in layers[1:]),
            ("head", self.head),
        ]
        return tuple(
            layer.group(path, [_input_slot(reader_path, reader, layer.norm.num_features)])
            for (path, layer), (reader_path, reader) in zip(layers, readers, strict=True)
        )


def _input_slot(path: str, reader: nn.Module, num_channels: int) -> Slot:
    """Return the input axis of a reader; a linear one may read flattened maps."""
    repeat = reader.in_features // num_channels if isinstance(reader, nn.Linear) else 1
    return Slot(f"{path}.weight", 1, repeat)


def require_image_size(model: str, image_size: int, smallest: int) -> None:
    """Raise ConfigError if images are too small for a model's strides and pools."""
    if image_size < smallest:
        raise ConfigError(
            f"data.image_size={image_size} is too small for {model}, which needs {smallest}; "
            "enlarge the images or choose another model"
        )

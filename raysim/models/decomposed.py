"""FDSE's split of a layer into a shared extractor (DFE) and a cheap personal eraser (DSE)."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysim.models.base import ChannelModel, GatedLayer
from raysim.tensors import named_state

Expansion = Literal["depthwise", "pointwise"]
Role = Literal["shared", "statistics", "dse", "dse_statistics"]


class Decomposed(nn.Module):
    """What produces the T output channels of a decomposed layer, in place of its convolution.

        a = relu(BN_DSE(DFE(x)))               m = ceil(T / G) channels
        y = first T of concat(a, DSE(a)) + b   convolution: G - 1 cheap copies beside each map
        y = first T of DSE(a) + b              linear layer: G scaled copies of each unit
        y = a + DSE(a) + b                     G = 1, both kinds

    The layer's own norm (BN_DFE) and ReLU follow. b exists where the layer has a bias.

    Attributes:
        dfe: the layer's own kernel, stride and padding with m outputs.
        norm: BN_DSE.
        dse: each output reads one of the m channels.
        bias: b [T] or None.
        by_batch: in eval mode, normalise by the batch's statistics instead of the running ones.
            Not state, like a gate's mask.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, groups: int, expansion: Expansion) -> None:
        """Build the parts with PyTorch's default initialisation; b starts at 0.

        Args:
            layer: the layer to decompose; only its shape counts.
            groups: G >= 1. Where it does not divide T, the last copies are cut off.
            expansion: DSE of a convolution: 3x3 or 1x1 filters.

        Source: FDSE (CVPR 2025), Eq. 2-3, and table A3 of its supplement as relayed by others.
        """
        super().__init__()
        self.groups = groups
        self.outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
        inner = -(-self.outputs // groups)
        self.dfe: nn.Conv2d | nn.Linear
        self.norm: nn.BatchNorm1d | nn.BatchNorm2d
        self.dse: nn.Conv1d | nn.Conv2d
        has_bias = layer.bias is not None
        if isinstance(layer, nn.Linear):
            self.dfe = nn.Linear(layer.in_features, inner, has_bias)
            self.norm = nn.BatchNorm1d(inner)
            self.dse = nn.Conv1d(inner, inner * groups, 1, groups=inner, bias=False)
        else:
            self.dfe = _narrowed(layer, inner)
            self.norm = nn.BatchNorm2d(inner)
            copies = inner * max(groups - 1, 1)
            kernel = 3 if expansion == "depthwise" else 1
            self.dse = nn.Conv2d(
                inner, copies, kernel, padding=kernel // 2, groups=inner, bias=False
            )
        self.bias = nn.Parameter(torch.zeros(self.outputs)) if has_bias else None
        self.by_batch = False

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, S, H, W] to [B, T, H', W'], or [B, S] to [B, T]."""
        a = torch.relu(self._normalised(self.dfe(x)))
        copies: Tensor = self.dse(a) if a.dim() == 4 else self.dse(a[:, :, None])[:, :, 0]
        if self.groups == 1:
            y = a + copies
        elif a.dim() == 4:
            y = torch.cat((a, copies), 1)[:, : self.outputs]
        else:
            y = copies[:, : self.outputs]
        return y if self.bias is None else y + self.bias.view(1, -1, *(1,) * (y.dim() - 2))

    def _normalised(self, x: Tensor) -> Tensor:
        norm = self.norm
        # A single value a channel has no spread; then the running statistics have to do.
        if self.training or not self.by_batch or x.numel() == x.shape[1]:
            normalised: Tensor = norm(x)
            return normalised
        return functional.batch_norm(
            x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps
        )


def decompose(model: ChannelModel, groups: int, expansion: Expansion) -> ChannelModel:
    """Decompose every hidden layer of a model in place, ResNets' shortcuts too, and return it.

    The channel groups of a decomposed model mean nothing: it cannot be pruned.

    Args:
        model: as `build_model` returns it.
        groups: G >= 1.
        expansion: see `Decomposed`.
    """
    for layer in list(model.modules()):
        if isinstance(layer, GatedLayer):
            layer.add_module("producer", Decomposed(layer.producer, groups, expansion))
    return model


def decomposed_layers(model: nn.Module) -> list[GatedLayer]:
    """Return the layers whose producer is decomposed, in forward order; `norm` is BN_DFE."""
    return [layer for _, layer in _named_layers(model)]


def parts(model: nn.Module) -> Iterator[Decomposed]:
    """Yield the decomposed producers, in forward order."""
    for module in model.modules():
        if isinstance(module, Decomposed):
            yield module


def normalise_by_batch(model: nn.Module, on: bool) -> None:
    """Let BN_DSE use the batch's statistics in eval mode, or its running ones."""
    for part in parts(model):
        part.by_batch = on


def roles(model: nn.Module) -> dict[str, Role]:
    """Return what each entry of the model's state is, by module type and path.

    "dse": expansion, BN_DSE's affine entries and b. "dse_statistics": BN_DSE's running ones.
    "statistics": running statistics of all other norms. "shared": everything else.
    """
    buffers = {name for name, _ in model.named_buffers()}
    erasers = {
        f"{path}.producer.{entry}"
        for path, layer in _named_layers(model)
        for entry in named_state(layer.producer)
        if not entry.startswith("dfe.")
    }

    def role(entry: str) -> Role:
        if entry in erasers:
            return "dse_statistics" if entry in buffers else "dse"
        return "statistics" if entry in buffers else "shared"

    return {entry: role(entry) for entry in named_state(model)}


def _named_layers(model: nn.Module) -> list[tuple[str, GatedLayer]]:
    return [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, GatedLayer)
        and isinstance(module.get_submodule("producer"), Decomposed)
    ]


def _narrowed(layer: nn.Conv2d, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(
        layer.in_channels,
        outputs,
        layer.kernel_size,  # type: ignore[arg-type]
        layer.stride,  # type: ignore[arg-type]
        layer.padding,  # type: ignore[arg-type]
        bias=layer.bias is not None,
    )

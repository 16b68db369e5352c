"""Builds the one model object that a host or server loads all states into."""

from typing import TYPE_CHECKING

import torch

from raysim.config import RunConfig
from raysim.errors import ConfigError
from raysim.models import ChannelModel
from raysim.models.base import Gate
from raysim.seeds import Stream, torch_seed

if TYPE_CHECKING:
    from raysim.method import Method


def method_of(config: RunConfig) -> "Method":
    """Return the config's method with its real type."""
    from raysim.method import Method

    assert isinstance(config.method, Method)
    return config.method


def build_skeleton(config: RunConfig, num_classes: int, device: torch.device) -> ChannelModel:
    """Build the model of a run; every process gets the same initial weights.

    Args:
        config: seed, model and image size count.
        num_classes: outputs of the head.
        device: where the model is put.

    Raises:
        ConfigError: a layer of the method's own network is none for channels_last.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, Stream.INIT))
        model = method_of(config).build_model(
            config.model.name, num_classes, config.data.image_size, config.model.width
        )
    layouts = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    layout = layouts[config.model.memory_format]
    if layout is torch.channels_last:
        _refuse_few_strided_inputs(model)
    model.layout = layout
    model.to(device=device, memory_format=layout)  # type: ignore[call-overload]
    return model


_FEW = 16
"""Channels in a vector register of AVX-512, the widest there is."""


def _refuse_few_strided_inputs(model: torch.nn.Module) -> None:
    """Refuse layers whose weight gradients oneDNN writes past its workspace in channels_last.

    See uxlfoundation/oneDNN, issue 6035; version 3.12, of torch 2.14, still does it.
    """
    for name, layer in model.named_modules():
        if (
            isinstance(layer, torch.nn.Conv2d)
            and max(layer.kernel_size) == 1 < max(layer.stride)
            and layer.in_channels // layer.groups < _FEW
        ):
            raise ConfigError(
                f"{name}: a 1x1 convolution of stride {max(layer.stride)} with fewer than {_FEW} "
                "inputs corrupts memory on CPUs in channels_last: set "
                "model.memory_format=contiguous, or take every s-th pixel before one of stride 1"
            )


def refresh(model: ChannelModel) -> None:
    """Undo whatever a step may have left on the skeleton: gates, frozen parameters, modes."""
    modules = list(model.modules())  # walking takes longer than what is done on the way
    if not all(module.training for module in modules):
        model.train()
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None:
                parameter.requires_grad_(True)
                parameter.grad = None
        if isinstance(module, Gate):
            module.mask = None

"""Image classifiers whose channels are known by name, so that methods can rank and slice them."""

from collections.abc import Callable

from raysim.errors import ConfigError
from raysim.models.alexnet import build_alexnet
from raysim.models.base import ChannelModel, Gate, GatedLayer
from raysim.models.cnn import build_cnn
from raysim.models.resnet import build_resnet10, build_resnet18

__all__ = ["MODELS", "ChannelModel", "Gate", "GatedLayer", "build_model"]

MODELS: dict[str, Callable[[int, int, int], ChannelModel]] = {
    "cnn": build_cnn,
    "resnet10": build_resnet10,
    "resnet18": build_resnet18,
    "alexnet": build_alexnet,
}


def build_model(name: str, num_classes: int, image_size: int, width: int = 64) -> ChannelModel:
    """Build a model with PyTorch's default initialisation, drawn from torch's global generator.

    Args:
        name: one of `MODELS`.
        num_classes: outputs of the head, >= 1.
        image_size: side of the square RGB images in pixels.
        width: channels of the first convolution, >= 1; all others in proportion. 64 is usual.

    Raises:
        ConfigError: the name is unknown, a number is too small, or the images are too small.
    """
    if name not in MODELS:
        raise ConfigError(f"model.name={name!r} is unknown; choose from {', '.join(MODELS)}")
    if num_classes < 1 or width < 1:
        raise ConfigError(f"num_classes={num_classes} and model.width={width} must be at least 1")
    return MODELS[name](num_classes, image_size, width)

"""A small AlexNet-like network with batch norm, for 8 to 64 pixel images."""

from collections import OrderedDict

from torch import nn

from raysim.models.base import Chain, ChannelModel, GatedLayer, require_image_size


def build_cnn(num_classes: int, image_size: int, width: int) -> ChannelModel:
    """Build conv5 stride 2 | conv3, pool | conv3, pool | linear | head.

    No layer before a batch norm has a bias, which the norm would cancel.

    Args:
        num_classes: outputs of the head.
        image_size: side of the images in pixels, >= 8.
        width: channels of the first convolution; the others have 2, 4 and 4 times as many.

    Raises:
        ConfigError: the images are too small.
    """
    require_image_size("cnn", image_size, 8)
    side = (image_size + 1) // 2 // 4
    body = OrderedDict[str, nn.Module](
        conv1=_convolution(3, width, kernel=5, stride=2),
        conv2=_convolution(width, 2 * width, kernel=3),
        pool2=nn.MaxPool2d(2),
        conv3=_convolution(2 * width, 4 * width, kernel=3),
        pool3=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        hidden=GatedLayer(
            nn.Linear(4 * width * side**2, 4 * width, bias=False), nn.BatchNorm1d(4 * width)
        ),
    )
    return Chain(nn.Sequential(body), num_classes)


def _convolution(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> GatedLayer:
    return GatedLayer(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )

"""AlexNet with batch norm, as FDSE (CVPR 2025) uses it for 256 pixel images."""

from collections import OrderedDict

from torch import nn

from raysim.models.base import Chain, ChannelModel, GatedLayer, require_image_size


def build_alexnet(num_classes: int, image_size: int, width: int) -> ChannelModel:
    """Build five convolutions, two hidden linear layers and a head, all hidden ones with a norm.

    Args:
        num_classes: outputs of the head.
        image_size: side of the images in pixels, >= 63 so that the third pool has a map to pool.
        width: channels of the first convolution; 64 is the paper's network, with 192, 384, 256 and
            256 channels in the others and 1024 units in the linear layers.

    Raises:
        ConfigError: the images are too small.

    Source: FDSE, section 5.1; padding 2, 2, 1, 1, 1 as in the baselines of the authors' code.
    """
    require_image_size("alexnet", image_size, 63)
    hidden = 16 * width
    body = OrderedDict[str, nn.Module](
        conv1=_convolution(3, width, kernel=11, stride=4, padding=2),
        pool1=nn.MaxPool2d(3, 2),
        conv2=_convolution(width, 3 * width, kernel=5, padding=2),
        pool2=nn.MaxPool2d(3, 2),
        conv3=_convolution(3 * width, 6 * width, kernel=3, padding=1),
        conv4=_convolution(6 * width, 4 * width, kernel=3, padding=1),
        conv5=_convolution(4 * width, 4 * width, kernel=3, padding=1),
        pool5=nn.MaxPool2d(3, 2),
        resize=nn.AdaptiveAvgPool2d(6),
        flatten=nn.Flatten(),
        hidden1=GatedLayer(nn.Linear(4 * width * 6 * 6, hidden), nn.BatchNorm1d(hidden)),
        hidden2=GatedLayer(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden)),
    )
    return Chain(nn.Sequential(body), num_classes)


def _convolution(
    inputs: int, outputs: int, *, kernel: int, stride: int = 1, padding: int
) -> GatedLayer:
    return GatedLayer(nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.BatchNorm2d(outputs))

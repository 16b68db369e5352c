"""Residual networks of basic blocks (He et al., CVPR 2016) with a stem that fits the image size."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from raysim.channels import ChannelGroup, Scope, Slot
from raysim.models.base import ChannelModel, GatedLayer, require_image_size

_SMALLEST_IMAGENET_STEM = 64


def build_resnet10(num_classes: int, image_size: int, width: int) -> ChannelModel:
    """Build four stages of one block each; see `ResNet`."""
    return ResNet((1, 1, 1, 1), num_classes, image_size, width)


def build_resnet18(num_classes: int, image_size: int, width: int) -> ChannelModel:
    """Build four stages of two blocks each; see `ResNet`."""
    return ResNet((2, 2, 2, 2), num_classes, image_size, width)


class BasicBlock(nn.Module):
    """relu(conv2(conv1(x)) + shortcut(x)); the outputs of conv1 are the block's inner units.

    A shortcut of stride s is one of stride 1 on every s-th pixel, which is the same: oneDNN gets
    the other wrong where inputs are few, see `raysim.skeleton`.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Build the two convolutions, and a 1x1 shortcut where the shape changes.

        Args:
            inputs: channels of the input.
            outputs: channels of both convolutions.
            stride: of the first convolution and the shortcut.
        """
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, kernel=3, stride=stride)
        self.conv2 = _convolution(outputs, outputs, kernel=3, relu=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = _convolution(inputs, outputs, kernel=1, relu=False)
        self._stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H / stride, W / stride]."""
        inner = self.conv2(self.conv1(x))
        if self._stride != 1:
            x = x[:, :, :: self._stride, :: self._stride]
        return torch.relu(inner + self.shortcut(x))


class ResNet(ChannelModel):
    """A stem, four stages at widths 1, 2, 4 and 8, global average pooling, and the head."""

    def __init__(
        self, num_blocks: tuple[int, int, int, int], num_classes: int, image_size: int, width: int
    ) -> None:
        """Build the network.

        Args:
            num_blocks: blocks of each stage.
            num_classes: outputs of the head.
            image_size: side of the images in pixels, >= 8; below 64 the stem is the CIFAR one
                (3x3, stride 1), from 64 up the ImageNet one (7x7, stride 2, then a max-pool).
            width: channels of the stem and the first stage.

        Raises:
            ConfigError: the images are too small.
        """
        super().__init__()
        require_image_size("resnet", image_size, 8)
        self.pool: nn.Module
        if image_size < _SMALLEST_IMAGENET_STEM:
            self.stem = _convolution(3, width, kernel=3)
            self.pool = nn.Identity()
        else:
            self.stem = _convolution(3, width, kernel=7, stride=2)
            self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.stages = nn.Sequential()
        inputs = width
        for stage, num in enumerate(num_blocks):
            outputs = width * 2**stage
            strides = [1 if stage == 0 else 2, *(1,) * (num - 1)]
            blocks = nn.Sequential()
            for stride in strides:
                blocks.append(BasicBlock(inputs, outputs, stride))
                inputs = outputs
            self.stages.append(blocks)
        self.head = nn.Linear(inputs, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, 3, H, W] to embeddings [B, 8 * width]."""
        maps: Tensor = self.stages(self.pool(self.stem(x)))
        return maps.mean(dim=(2, 3))

    def channel_groups(self, scope: Scope) -> tuple[ChannelGroup, ...]:
        """Return the groups; "inner" are the blocks' first convolutions.

        Channels of the residual stream are tied across layers and cannot be sliced one by one, so
        "inner" leaves them out. See `ChannelModel.channel_groups`.
        """
        if scope == "inner":
            return tuple(
                block.conv1.group(f"{path}.conv1", [Slot(f"{path}.conv2.producer.weight", 1)])
                for path, block in self._blocks()
            )
        return (self.stem.group("stem"), *self._all_groups())

    def _blocks(self) -> Iterator[tuple[str, BasicBlock]]:
        for path, module in self.named_modules():
            if isinstance(module, BasicBlock):
                yield path, module

    def _all_groups(self) -> Iterator[ChannelGroup]:
        for path, block in self._blocks():
            for name, layer in block.named_children():
                if isinstance(layer, GatedLayer):
                    yield layer.group(f"{path}.{name}")


def _convolution(
    inputs: int, outputs: int, *, kernel: int, stride: int = 1, relu: bool = True
) -> GatedLayer:
    return GatedLayer(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        relu=relu,
    )

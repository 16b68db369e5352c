"""Random crops and flips of training batches, by torchvision, from a keyed generator.

Shape suffixes: B batch, H height, W width.
"""

import numpy as np
import torch
from torch import Tensor

from raysim.data.settings import AugmentSettings


def augment(images: Tensor, settings: AugmentSettings, rng: np.random.Generator) -> Tensor:
    """Crop and mirror each image of a batch on its own.

    Args:
        images: uint8 [B,3,H,W].
        settings: what to do; padding is black.
        rng: the generator to draw from, as much for every image whatever is drawn.

    Returns:
        uint8 [B,3,H,W], on the same device.
    """
    from torchvision.transforms.v2 import functional  # half a second that other runs need not pay

    size, (height, width) = len(images), images.shape[-2:]
    pad = settings.crop_padding
    if pad:
        padded = functional.pad(images, [pad] * 4)
        corners = rng.integers(0, 2 * pad, (size, 2), endpoint=True).tolist()
        crops = [
            functional.crop(image, top, left, height, width)
            for image, (top, left) in zip(padded, corners, strict=True)
        ]
        images = torch.stack(crops)
    if settings.flip:
        mirrored = torch.from_numpy(rng.random(size) < 0.5).to(images.device)
        flipped = functional.horizontal_flip(images)
        images = torch.where(mirrored[:, None, None, None], flipped, images)
    return images

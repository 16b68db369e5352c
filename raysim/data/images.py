"""Images brought to a size."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def resize(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Bring one image to a size, bilinearly, whatever its aspect ratio.

    Args:
        pixels: uint8 [3, H, W].
        size: height and width of the result.

    Returns:
        uint8 [3, size, size].
    """
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    resized = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized, np.uint8).transpose(2, 0, 1)

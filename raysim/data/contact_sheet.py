"""Contact sheets: what a data set looks like, domain by domain, a row of images a class."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from raysim.data.datasets import Dataset
from raysim.data.shards import SPLITS

GAP = 2
"""Pixels between images."""
_IMAGES_A_CLASS = 10
_TILE = 64  # small images are shown enlarged by a whole factor up to this size
_MARGIN = 16
_TITLE = 22
_BLOCKS_A_ROW = 2
_IMAGES_A_ROW = 8
_SIDES = (64, 48, 32)  # pixels of an image, the first that keeps all images within the next line
_SHEET_PIXELS = 4_500_000  # about 12 MB of a page when the images are photographs
_INK, _FAINT, _PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)


def draw(dataset: Dataset) -> bytes:
    """Draw a block a domain, a row a class: the first training images of each.

    Args:
        dataset: what to show.

    Returns:
        A PNG file.

    Raises:
        DataError: the data set cannot be read.
    """
    counts = {split: dataset.counts(split).sum(axis=0).tolist() for split in SPLITS}
    blocks = [
        _block(dataset, domain, {split: of[position] for split, of in counts.items()})
        for position, domain in enumerate(dataset.domains)
    ]
    return as_png(_arrange(blocks))


def strip(
    dataset: Dataset, domain: str, labels: Sequence[int], per_class: int, side: int
) -> Image.Image:
    """Draw rows of training images without any text.

    Args:
        dataset: what to show.
        domain: one of its domains.
        labels: a row each.
        per_class: images a row, the first ones of the class, >= 1.
        side: pixels of an image.

    Returns:
        RGBA, `side + GAP` pixels an image both ways; transparent where there is no image.

    Raises:
        DataError: the data set cannot be read.
    """
    step = side + GAP
    sheet = Image.new("RGBA", (per_class * step, len(labels) * step))
    for row, label in enumerate(labels):
        for column, tile in enumerate(_tiles(dataset, domain, label, per_class, side)):
            sheet.paste(tile, (column * step, row * step))
    return sheet


def shown_side(image_size: int) -> int:
    """Return the pixels that a small image is enlarged to; large ones stay as they are."""
    return image_size * max(1, _TILE // image_size)


def fit_tiles(num_rows: int, image_size: int) -> tuple[int, int]:
    """Choose how images are shown so that a page stays small enough to open.

    Args:
        num_rows: rows of images on the page, >= 1.
        image_size: pixels of an image in the data set.

    Returns:
        Pixels of an image on the page and images a row.
    """
    sides = [min(side, image_size) for side in _SIDES]
    for side in sides:
        if num_rows * _IMAGES_A_ROW * side**2 <= _SHEET_PIXELS:
            return side, _IMAGES_A_ROW
    fitting = _SHEET_PIXELS // (num_rows * sides[-1] ** 2)
    return sides[-1], max(1, fitting)


def as_png(image: Image.Image) -> bytes:
    """Encode an image as a PNG file."""
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _tiles(dataset: Dataset, domain: str, label: int, count: int, side: int) -> list[Image.Image]:
    """Read the first images of a class, at one size: sharp when enlarged, smooth when reduced."""
    rows = np.flatnonzero(dataset.labels(domain, "train") == label)[:count]
    enlarged = side >= dataset.image_size
    how = Image.Resampling.NEAREST if enlarged else Image.Resampling.BILINEAR
    images = dataset.examples(domain, "train", rows).images.transpose(0, 2, 3, 1)
    return [
        Image.fromarray(np.ascontiguousarray(image)).resize((side, side), how) for image in images
    ]


def _block(dataset: Dataset, domain: str, sizes: Mapping[str, int]) -> Image.Image:
    """Draw one domain: a title with its images by split, and a row a class."""
    tile = shown_side(dataset.image_size)
    font = ImageFont.load_default(14)
    left = int(max(font.getlength(name) for name in dataset.classes)) + 10
    step = tile + GAP
    size = (left + _IMAGES_A_CLASS * step, _TITLE + len(dataset.classes) * step)
    block = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(block)
    pen.text((0, 0), domain, fill=_INK, font=ImageFont.load_default(17))
    counts = " + ".join(f"{size} {split}" for split, size in sizes.items() if size)
    pen.text((size[0] - GAP, 2), counts, fill=_FAINT, font=font, anchor="ra")
    for label, name in enumerate(dataset.classes):
        top = _TITLE + label * step
        pen.text((left - 8, top + tile / 2), name, fill=_INK, font=font, anchor="rm")
        for column, picture in enumerate(_tiles(dataset, domain, label, _IMAGES_A_CLASS, tile)):
            block.paste(picture, (left + column * step, top))
    return block


def _arrange(blocks: list[Image.Image]) -> Image.Image:
    """Put blocks of equal size on one sheet, row by row."""
    width, height = blocks[0].width + _MARGIN, blocks[0].height + _MARGIN
    columns = min(_BLOCKS_A_ROW, len(blocks))
    rows = -(-len(blocks) // columns)
    sheet = Image.new("RGB", (columns * width + _MARGIN, rows * height + _MARGIN), _PAPER)
    for position, block in enumerate(blocks):
        row, column = divmod(position, columns)
        sheet.paste(block, (_MARGIN + column * width, _MARGIN + row * height))
    return sheet

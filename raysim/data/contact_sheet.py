"""Contact sheets: what a data set looks like, domain by domain, a row of images a class."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from raysim.data.datasets import Dataset
from raysim.data.preparing.staging import write_aside
from raysim.data.shards import SPLITS
from raysim.errors import DataError

GAP = 2
"""Pixels between images."""
_TILE = 64  # small images are shown enlarged by a whole factor up to this size
_MARGIN = 16
_TITLE = 22
_BLOCKS_A_ROW = 2
_INK, _FAINT, _PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)


def draw(dataset: Dataset, path: str | Path, per_class: int = 10, split: str = "train") -> None:
    """Draw a block a domain, a row a class, and write it as PNG.

    Args:
        dataset: what to show.
        path: the PNG file; it appears complete or not at all.
        per_class: examples of each class, the first ones of the split, >= 1.
        split: "train", "val" or "test".

    Raises:
        DataError: the file cannot be written, or the data set cannot be read.
    """
    blocks = [_block(dataset, domain, per_class, split) for domain in dataset.domains]
    _write_png(_arrange(blocks), Path(path))


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
        for column, tile in enumerate(_tiles(dataset, domain, "train", label, per_class, side)):
            sheet.paste(tile, (column * step, row * step))
    return sheet


def shown_side(image_size: int) -> int:
    """Return the pixels that a small image is enlarged to; large ones stay as they are."""
    return image_size * max(1, _TILE // image_size)


def _tiles(
    dataset: Dataset, domain: str, split: str, label: int, count: int, side: int
) -> list[Image.Image]:
    """Read the first images of a class, at one size: sharp when enlarged, smooth when reduced."""
    rows = np.flatnonzero(dataset.labels(domain, split) == label)[:count]
    enlarged = side >= dataset.image_size
    how = Image.Resampling.NEAREST if enlarged else Image.Resampling.BILINEAR
    images = dataset.examples(domain, split, rows).images.transpose(0, 2, 3, 1)
    return [
        Image.fromarray(np.ascontiguousarray(image)).resize((side, side), how) for image in images
    ]


def _block(dataset: Dataset, domain: str, per_class: int, split: str) -> Image.Image:
    """Draw one domain: a title and a row a class."""
    tile = shown_side(dataset.image_size)
    font = ImageFont.load_default(14)
    left = int(max(font.getlength(name) for name in dataset.classes)) + 10
    step = tile + GAP
    size = (left + per_class * step, _TITLE + len(dataset.classes) * step)
    block = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(block)
    pen.text((0, 0), domain, fill=_INK, font=ImageFont.load_default(17))
    sizes = {split: len(dataset.labels(domain, split)) for split in SPLITS}
    counts = " + ".join(f"{size} {split}" for split, size in sizes.items() if size)
    pen.text((size[0] - GAP, 2), counts, fill=_FAINT, font=font, anchor="ra")
    for label, name in enumerate(dataset.classes):
        top = _TITLE + label * step
        pen.text((left - 8, top + tile / 2), name, fill=_INK, font=font, anchor="rm")
        for column, picture in enumerate(_tiles(dataset, domain, split, label, per_class, tile)):
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


def _write_png(image: Image.Image, path: Path) -> None:
    content = io.BytesIO()
    image.save(content, "PNG")
    try:
        write_aside(path, content.getvalue())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error

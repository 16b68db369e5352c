"""A contact sheet: one PNG that shows what a data set looks like, domain by domain."""

import os
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from raysim.data.datasets import Dataset
from raysim.errors import DataError

_TILE = 64  # small images are shown enlarged by a whole factor up to this size
_GAP = 2
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
        split: "train" or "test".

    Raises:
        DataError: the file cannot be written, or the data set cannot be read.
    """
    blocks = [_block(dataset, domain, per_class, split) for domain in dataset.domains]
    _write_png(_arrange(blocks), Path(path))


def _block(dataset: Dataset, domain: str, per_class: int, split: str) -> Image.Image:
    """Draw one domain: a title and a row a class."""
    labels = dataset.labels(domain, split)
    tile = dataset.image_size * max(1, _TILE // dataset.image_size)
    font = ImageFont.load_default(14)
    left = int(max(font.getlength(name) for name in dataset.classes)) + 10
    step = tile + _GAP
    size = (left + per_class * step, _TITLE + len(dataset.classes) * step)
    block = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(block)
    pen.text((0, 0), domain, fill=_INK, font=ImageFont.load_default(17))
    counts = " + ".join(f"{len(dataset.labels(domain, s))} {s}" for s in ("train", "test"))
    pen.text((size[0] - _GAP, 2), counts, fill=_FAINT, font=font, anchor="ra")
    for label, name in enumerate(dataset.classes):
        top = _TITLE + label * step
        pen.text((left - 8, top + tile / 2), name, fill=_INK, font=font, anchor="rm")
        rows = np.flatnonzero(labels == label)[:per_class]
        for column, image in enumerate(dataset.examples(domain, split, rows).images):
            picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
            picture = picture.resize((tile, tile), Image.Resampling.NEAREST)
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
    """Write aside, then rename."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as aside:
            image.save(Path(aside) / "sheet.png", "PNG")
            os.replace(Path(aside) / "sheet.png", path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error

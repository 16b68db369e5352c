from pathlib import Path

import numpy as np
from PIL import Image

from raysim.data.contact_sheet import GAP, draw, shown_side, strip
from raysim.data.datasets import open_dataset
from raysim.data.settings import DataSettings


def test_strips_hold_the_first_images_of_each_class() -> None:
    dataset = open_dataset(DataSettings())
    side = dataset.image_size
    pixels = np.asarray(strip(dataset, "mnist_m", range(2, 5), 3, side))
    assert pixels.shape == (3 * (side + GAP), 3 * (side + GAP), 4)
    labels = dataset.labels("mnist_m", "train")
    images = dataset.examples("mnist_m", "train").images
    for row, label in enumerate(range(2, 5)):
        for column, position in enumerate(np.flatnonzero(labels == label)[:3]):
            top, left = row * (side + GAP), column * (side + GAP)
            shown = pixels[top : top + side, left : left + side]
            np.testing.assert_array_equal(shown[..., :3].transpose(2, 0, 1), images[position])
            assert (shown[..., 3] == 255).all()


def test_rows_with_fewer_images_are_clear_at_the_end() -> None:
    dataset = open_dataset(DataSettings())
    pixels = np.asarray(strip(dataset, "syn", [7], 101, 8))
    clear = (pixels[:8, ::10, 3] == 0).tolist()
    assert clear == [[False] * 100 + [True]] * 8  # 100 training images of each class


def test_reduced_images_keep_their_mean() -> None:
    """Smooth reduction averages; picking pixels would not."""
    dataset = open_dataset(DataSettings())
    full = np.asarray(strip(dataset, "mnist_m", [0], 1, 32))[:32, :32, :3]
    small = np.asarray(strip(dataset, "mnist_m", [0], 1, 8))[:8, :8, :3]
    blocks = full.reshape(8, 4, 8, 4, 3).mean(axis=(1, 3))
    assert np.abs(blocks - small).mean() < 12
    assert np.abs(full[::4, ::4].astype(float) - blocks).mean() > 24


def test_small_images_are_enlarged_by_whole_factors() -> None:
    assert [shown_side(size) for size in (8, 28, 32, 64, 224)] == [64, 56, 64, 64, 224]


def test_a_drawn_sheet_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    path.write_text("old")
    draw(open_dataset(DataSettings()), path, per_class=1)
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
    assert list(tmp_path.iterdir()) == [path]

import io

import numpy as np
import pytest
from PIL import Image

from raysim.data.contact_sheet import GAP, draw, fit_tiles, shown_side, strip
from raysim.data.datasets import open_dataset
from raysim.data.settings import DataSettings
from tests.data.test_report import in_memory


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


@pytest.mark.parametrize(
    ("num_rows", "image_size", "expected"),
    [
        (40, 32, (32, 8)),  # digits
        (28, 224, (64, 8)),  # 4 x 7: PACS
        (4 * 65, 224, (32, 8)),  # Office-Home
        (6 * 345, 224, (32, 2)),  # DomainNet
        (100_000, 64, (32, 1)),
        (6 * 345, 28, (28, 2)),  # never enlarged
    ],
)
def test_pictures_shrink_before_they_get_fewer(
    num_rows: int, image_size: int, expected: tuple[int, int]
) -> None:
    assert fit_tiles(num_rows, image_size) == expected


def test_a_sheet_has_the_first_images_of_every_class_of_every_domain() -> None:
    """Red is the domain, green the class, blue the row; 8 px are shown as 64."""
    dataset = in_memory([[16, 4], [4, 20]], classes=("dog", "cat"))
    with Image.open(io.BytesIO(draw(dataset))) as image:
        assert image.format == "PNG"
        colours, counts = np.unique(np.asarray(image).reshape(-1, 3), axis=0, return_counts=True)
    shown = dict(zip(map(tuple, colours.tolist()), counts.tolist(), strict=True))
    rows = {
        (domain, label): [colour[2] for colour in shown if colour[:2] == (domain, label)]
        for domain in (0, 1)
        for label in (0, 1)
    }
    assert rows == {  # every fourth row tests
        (0, 0): [0, 1, 2, 4, 5, 6, 8, 9, 10, 12],
        (0, 1): [16, 17, 18],
        (1, 0): [0, 1, 2],
        (1, 1): [4, 5, 6, 8, 9, 10, 12, 13, 14, 16],
    }
    assert {shown[(*place, row)] for place, found in rows.items() for row in found} == {64 * 64}

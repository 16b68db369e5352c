"""Random crops and flips."""

import numpy as np
import torch
from torch import Tensor

from raysim.augmentation import augment
from raysim.config import LocalSettings
from raysim.data.settings import AugmentSettings
from raysim.seeds import Stream, generator
from raysim.training import ShardData, fit


def images(count: int = 12, side: int = 6) -> Tensor:
    draw = np.random.default_rng(0)
    return torch.from_numpy(draw.integers(1, 256, (count, 3, side, side), np.uint8))


def rng(epoch: int = 0) -> np.random.Generator:
    return generator(0, Stream.AUGMENT, 0, 0, epoch)


def test_every_crop_is_a_window_of_the_padded_image() -> None:
    before = images()
    after = augment(before, AugmentSettings(crop_padding=2), rng())
    padded = np.pad(before.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    corners = set()
    for image, wide in zip(after.numpy(), padded, strict=True):
        found = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if np.array_equal(image, wide[:, top : top + 6, left : left + 6])
        ]
        assert len(found) == 1
        corners |= set(found)
    assert len(corners) > 4  # each image has a corner of its own
    assert after.dtype == torch.uint8


def test_flips_mirror_some_images_and_leave_the_others() -> None:
    before = images(40)
    after = augment(before, AugmentSettings(flip=True), rng())
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(after, before, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(after, before, strict=True)]
    assert all(m != s for m, s in zip(mirrored, same, strict=True))
    assert 8 < sum(mirrored) < 32


def test_equal_keys_draw_equal_changes_and_other_keys_others() -> None:
    settings = AugmentSettings(crop_padding=2, flip=True)
    first, again, other = (augment(images(), settings, rng(epoch)) for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_training_sees_new_changes_in_each_epoch_and_round_and_testing_none() -> None:
    shard = ShardData(
        images=images(8),
        labels=torch.arange(8) % 2,
        domains=torch.zeros(8, dtype=torch.int64),
        mean=torch.zeros(1, 3, 1, 1),
        std=torch.ones(1, 3, 1, 1),
        augment=AugmentSettings(crop_padding=2),
    )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 2))
    seen: list[bytes] = []

    def loss(batch: object) -> Tensor:
        pictures: Tensor = batch.images  # type: ignore[attr-defined]
        order = pictures.flatten(1).sum(1).argsort()
        seen.append(pictures[order].numpy().tobytes())
        return model(pictures / 255).square().mean()

    local = LocalSettings(batch_size=8, epochs=2, lr=1e-6)
    for round_ in (0, 1, 1):
        fit(model, shard, local, loss, key=(0, round_, 3))  # type: ignore[arg-type]
    assert len(set(seen[:4])) == 4
    assert seen[2:4] == seen[4:6]
    assert torch.equal(shard.batch(slice(None)).images, shard.images.float())

"""The one local training loop, and the examples it runs over."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from raysim.augmentation import augment
from raysim.config import LocalSettings
from raysim.data.datasets import Dataset
from raysim.data.settings import AugmentSettings
from raysim.seeds import Stream, generator
from raysim.tensors import Array

_AS_THEY_ARE = AugmentSettings()
_READ_BYTES = 2**24
"""Pixels that are read for several shards at once."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Images float32 [B,3,H,W] normalised, labels int64 [B], domains int64 [B]."""

    images: Tensor
    labels: Tensor
    domains: Tensor

    def __len__(self) -> int:
        """Return B."""
        return len(self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardData:
    """Examples resident on a device as uint8, normalised batch by batch.

    Attributes:
        images: uint8 [N,3,H,W].
        labels: int64 [N].
        domains: int64 [N], the domain id of each example.
        mean: float32 [1,3,1,1] in 0..255.
        std: float32 [1,3,1,1] in 0..255.
        augment: random changes to the images that `fit` trains on.
    """

    images: Tensor
    labels: Tensor
    domains: Tensor
    mean: Tensor
    std: Tensor
    augment: AugmentSettings = _AS_THEY_ARE

    def __len__(self) -> int:
        """Return N."""
        return len(self.labels)

    def batch(self, index: Tensor | slice, rng: np.random.Generator | None = None) -> Batch:
        """Return the chosen examples as normalised floats, augmented if a generator is given."""
        images = self.images[index]
        if rng is not None:
            images = augment(images, self.augment, rng)
        floats = images.to(torch.float32).sub_(self.mean).div_(self.std)
        return Batch(floats, self.labels[index], self.domains[index])

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all examples in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.batch(slice(start, start + size))

    @classmethod
    def load(
        cls, dataset: Dataset, rows: Mapping[int, Array], split: str, device: torch.device
    ) -> "ShardData":
        """Decode some rows of a data set onto a device, domain by domain; see `load_all`."""
        return cls.load_all(dataset, {0: rows}, split, device)[0]

    @classmethod
    def load_all(
        cls,
        dataset: Dataset,
        rows_of: Mapping[int, Mapping[int, Array]],
        split: str,
        device: torch.device,
    ) -> "dict[int, ShardData]":
        """Decode the rows of many shards; files are opened for many shards at a time.

        Args:
            dataset: the data set.
            rows_of: row indices by shard and domain id.
            split: "train", "val" or "test".
            device: where the examples stay.

        Returns:
            The shards under their numbers, each with its examples domain by domain.
        """
        blank = {k: _Blank.of(rows, dataset.image_size) for k, rows in rows_of.items()}
        most = _READ_BYTES // (3 * dataset.image_size**2)
        for d in sorted({d for rows in rows_of.values() for d in rows}):
            wanted = {k: rows[d] for k, rows in rows_of.items() if d in rows}
            for block in _blocks(wanted, most):
                if len(block) == 1:  # too large to be read twice
                    blank[block[0]].read(dataset, d, split, wanted[block[0]])
                    continue
                index = np.concatenate([wanted[k] for k in block])
                together = _Blank.of({d: index}, dataset.image_size)
                together.read(dataset, d, split, index)
                start = 0
                for k in block:
                    start = blank[k].copy(together, start, d, len(wanted[k]))
        scale = [torch.tensor(v).view(1, 3, 1, 1) * 255 for v in (dataset.mean, dataset.std)]
        return {
            k: cls(
                images=torch.from_numpy(filled.images).to(device),
                labels=torch.from_numpy(filled.labels).to(device),
                domains=torch.from_numpy(filled.domains).to(device),
                mean=scale[0].to(device),
                std=scale[1].to(device),
                augment=dataset.settings.augment,
            )
            for k, filled in blank.items()
        }

    def counts(self, num_domains: int) -> Array:
        """Return the examples by domain, int64 [D]."""
        return torch.bincount(self.domains, minlength=num_domains).numpy(force=True)


@dataclass(slots=True)
class _Blank:
    """Arrays of a shard that are being filled, domain by domain."""

    images: Array
    labels: Array
    domains: Array
    filled: int = 0

    @classmethod
    def of(cls, rows: Mapping[int, Array], side: int) -> "_Blank":
        """Make room for rows, given by domain id."""
        size = sum(map(len, rows.values()))
        images = np.empty((size, 3, side, side), np.uint8)
        return cls(images, np.empty(size, np.int64), np.empty(size, np.int64))

    def read(self, dataset: Dataset, domain: int, split: str, index: Array) -> None:
        """Append rows of a domain."""
        here = self._append(domain, len(index))
        name = dataset.domains[domain]
        self.labels[here] = dataset.read(name, split, index, self.images[here])

    def copy(self, other: "_Blank", start: int, domain: int, size: int) -> int:
        """Append rows of another; returns where the next ones start there."""
        here, there = self._append(domain, size), slice(start, start + size)
        self.images[here], self.labels[here] = other.images[there], other.labels[there]
        return there.stop

    def _append(self, domain: int, size: int) -> slice:
        here = slice(self.filled, self.filled + size)
        self.domains[here] = domain
        self.filled = here.stop
        return here


def _blocks(wanted: Mapping[int, Array], most: int) -> Iterator[list[int]]:
    """Group shards so that each group has at most so many rows, or is a single shard."""
    block: list[int] = []
    size = 0
    for shard, index in wanted.items():
        if block and size + len(index) > most:
            yield block
            block, size = [], 0
        block.append(shard)
        size += len(index)
    if block:
        yield block


@dataclass(slots=True)
class Stopwatch:
    """Seconds that local training has taken."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FitResult:
    """What local training measured: mean loss over examples and epochs, steps and seconds taken."""

    loss: float
    num_steps: int
    seconds: float


def batch_order(num_examples: int, batch_size: int, rng: np.random.Generator) -> list[Array]:
    """Deal shuffled example indices to batches; a last batch of one joins the one before it.

    BatchNorm cannot normalise a single example by its own statistics.
    """
    order = rng.permutation(num_examples)
    batches = [order[i : i + batch_size] for i in range(0, num_examples, batch_size)]
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [np.concatenate(batches[-2:])]
    return batches


def num_batches(num_examples: int, batch_size: int) -> int:
    """Return how many batches `batch_order` deals."""
    dealt = -(-num_examples // batch_size)
    last = num_examples - (dealt - 1) * batch_size
    return dealt - 1 if dealt > 1 and last == 1 else dealt


def fit(
    model: nn.Module,
    shard: ShardData,
    local: LocalSettings,
    loss: Callable[[Batch], Tensor],
    *,
    key: tuple[int, int, int],
    stream: Stream = Stream.BATCHES,
    lr: float | None = None,
    epochs: int | None = None,
    before_step: Callable[[], None] | None = None,
    after_step: Callable[[], None] | None = None,
) -> FitResult:
    """Train the model in place by SGD with a fresh optimiser.

    A shard of a single example is trained with BatchNorm's running statistics.

    Args:
        model: in train mode afterwards as before.
        shard: the examples.
        local: settings of local training.
        loss: maps a batch to a scalar; called under autocast when the precision is bf16.
        key: (seed, round, client), which fixes the batches.
        stream: a second fit in the same round needs a stream of its own.
        lr: overrides `local.lr`; decays alike.
        epochs: overrides `local.epochs`.
        before_step: called between each backward pass and the optimiser step, before clipping.
        after_step: called after each optimiser step.
    """
    started = time.perf_counter()
    seed, *place = key
    trainable = [p for p in model.parameters() if p.requires_grad]
    rate = (local.lr if lr is None else lr) * local.lr_decay ** place[0]
    step = _sgd(trainable, rate, local.momentum, local.weight_decay)
    total = torch.zeros((), dtype=torch.float64, device=shard.images.device)
    num_seen = num_steps = 0
    for epoch in range(local.epochs if epochs is None else epochs):
        rng = generator(seed, stream, *place, epoch)
        changes = None
        if shard.augment.on:
            changes = generator(seed, Stream.AUGMENT, *place, epoch, int(stream))
        for index in batch_order(len(shard), local.batch_size, rng):
            batch = shard.batch(torch.from_numpy(index).to(shard.labels.device), changes)
            if len(batch) == 1:
                freeze_batchnorm(model)
            for parameter in trainable:
                parameter.grad = None
            with autocast(local, shard.images.device):
                value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            if before_step is not None:
                before_step()
            if local.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(trainable, local.max_grad_norm)
            step()
            if after_step is not None:
                after_step()
            total += value.detach().double() * len(batch)  # on the device: nothing waits for it
            num_seen += len(batch)
            num_steps += 1
    return FitResult(float(total) / max(num_seen, 1), num_steps, time.perf_counter() - started)


def _sgd(
    parameters: Sequence[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> Callable[[], None]:
    """Return what takes the steps of a fresh `torch.optim.SGD`, bit by bit.

    The class itself imports torch's compiler when it is first used: a second, and 80 MiB. And it
    copies the first gradients, as momentum begins with them; here they become the momentum, since
    the next backward pass makes new ones.
    """
    moving: dict[int, Tensor] = {}

    @torch.no_grad()
    def step() -> None:
        for i, parameter in enumerate(parameters):
            change = parameter.grad
            if change is None:
                continue
            if weight_decay:
                change = change.add(parameter, alpha=weight_decay)
            if momentum:
                before = moving.get(i)
                change = change if before is None else before.mul_(momentum).add_(change)
                moving[i] = change
            parameter.add_(change, alpha=-lr)

    return step


def autocast(local: LocalSettings, device: torch.device) -> torch.autocast:
    """Return the autocast context of the precision setting."""
    return torch.autocast(device.type, torch.bfloat16, enabled=local.precision == "bf16")


def freeze_batchnorm(model: nn.Module) -> None:
    """Let every BatchNorm layer normalise by its running statistics, and leave them as they are."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()

"""Testing: exact counts by domain, and the figures that papers report from them."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from raysim.messages import EvalSum, EvalUnit
from raysim.training import ShardData

EVAL_BATCH = 200


def eval_units(sizes: Sequence[int], split: str = "test") -> list[EvalUnit]:
    """Cut each domain's split into units of at most `EVAL_BATCH` examples.

    Args:
        sizes: examples by domain id.
        split: "test" or "val".
    """
    return [
        EvalUnit(domain=domain, start=start, stop=min(start + EVAL_BATCH, size), split=split)
        for domain, size in enumerate(sizes)
        for start in range(0, size, EVAL_BATCH)
    ]


@torch.no_grad()
def evaluate(
    model: nn.Module, shard: ShardData, *, client: int, start: int = 0, split: str = "test"
) -> list[EvalSum]:
    """Test a loaded model; returns one sum for each domain that the shard holds.

    Args:
        model: any mode; left in eval mode.
        shard: held-out examples.
        client: whose model it is; -1 for the global one.
        start: position of the first example in its domain's split.
        split: "test" or "val".
    """
    model.eval()
    losses, hits = [], []
    for batch in shard.batches(EVAL_BATCH):
        logits = model(batch.images).float()
        losses.append(functional.cross_entropy(logits, batch.labels, reduction="none").double())
        hits.append(logits.argmax(1) == batch.labels)
    loss, hit = torch.cat(losses), torch.cat(hits)
    sums = []
    for domain in torch.unique(shard.domains).tolist():
        own = shard.domains == domain
        sums.append(
            EvalSum(
                client=client,
                domain=domain,
                start=start,
                num_examples=int(own.sum()),
                num_correct=int(hit[own].sum()),
                loss=float(loss[own].sum()),
                split=split,
            )
        )
    return sums


def merge(sums: Iterable[EvalSum]) -> dict[tuple[str, int, int], EvalSum]:
    """Join the sums of each (split, client, domain), losses in the order of `start`."""
    groups: dict[tuple[str, int, int], list[EvalSum]] = {}
    for item in sorted(sums, key=lambda s: (s.split, s.client, s.domain, s.start)):
        groups.setdefault((item.split, item.client, item.domain), []).append(item)
    return {
        key: EvalSum(
            split=key[0],
            client=key[1],
            domain=key[2],
            start=0,
            num_examples=sum(s.num_examples for s in group),
            num_correct=sum(s.num_correct for s in group),
            loss=math.fsum(s.loss for s in group),
        )
        for key, group in groups.items()
    }


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return AVG and STD as the papers do: plain mean, standard deviation with ddof=1.

    The deviation of a single value is 0.
    """
    array = np.asarray(values, np.float64)
    std = float(array.std(ddof=1)) if len(array) > 1 else 0.0
    return float(array.mean()), std

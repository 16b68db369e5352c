import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from raysim.evaluation import EVAL_BATCH, eval_units, evaluate, mean_and_std, merge
from raysim.messages import EvalSum
from raysim.training import ShardData


def shard(labels: list[int], domains: list[int]) -> ShardData:
    size = len(labels)
    images = torch.arange(size, dtype=torch.uint8).view(size, 1, 1, 1).expand(size, 3, 2, 2)
    return ShardData(
        images=images.contiguous(),
        labels=torch.tensor(labels),
        domains=torch.tensor(domains),
        mean=torch.zeros(1, 3, 1, 1),
        std=torch.ones(1, 3, 1, 1),
    )


class Constant(nn.Module):
    """Always says class 1."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, 2.0, 1.0]]).expand(len(images), 3)


def test_worked_metric() -> None:
    avg, std = mean_and_std([90, 80, 70, 60])
    assert avg == 75
    assert std == pytest.approx(12.9099, abs=5e-5)
    assert mean_and_std([42.0]) == (42.0, 0.0)


def test_units_cover_each_test_split_once() -> None:
    units = eval_units([EVAL_BATCH * 2 + 1, 0, 3])
    covered = [(u.domain, i) for u in units for i in range(u.start, u.stop)]
    assert len(covered) == len(set(covered)) == EVAL_BATCH * 2 + 4
    assert all(0 < u.stop - u.start <= EVAL_BATCH for u in units)
    assert {u.domain for u in units} == {0, 2}


def test_counts_and_losses_by_domain() -> None:
    model = Constant().train()
    found = evaluate(model, shard([1, 0, 1, 2], [0, 0, 3, 3]), client=5, start=40)
    assert [(s.domain, s.num_examples, s.num_correct) for s in found] == [(0, 2, 1), (3, 2, 1)]
    assert {(s.client, s.start) for s in found} == {(5, 40)}
    norm = math.log(1 + math.e**2 + math.e)
    assert found[0].loss == pytest.approx((norm - 2) + norm, abs=1e-5)
    assert found[1].loss == pytest.approx((norm - 2) + (norm - 1), abs=1e-5)
    assert not model.training


@given(st.permutations(range(6)))
def test_merging_does_not_depend_on_the_order(order: list[int]) -> None:
    parts = [
        EvalSum(
            client=-1, domain=i % 2, start=i, num_examples=i + 1, num_correct=i, loss=0.1 * 3**i
        )
        for i in range(6)
    ]
    wanted, found = merge(parts), merge([parts[i] for i in order])
    assert found == wanted
    assert list(found) == list(wanted)
    assert found["test", -1, 1].num_examples == 2 + 4 + 6

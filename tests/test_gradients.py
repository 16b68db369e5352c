import numpy as np
import pytest
import torch
from torch import nn

from raysim.gradients import pull, shift
from raysim.tensors import state_arrays


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))


@pytest.fixture
def model() -> nn.Module:
    model = small_model()
    model(torch.randn(2, 3, 5, 5))
    return model.to(memory_format=torch.channels_last)


def backward(model: nn.Module) -> None:
    model.zero_grad()
    torch.manual_seed(1)
    model(torch.randn(4, 3, 5, 5)).square().mean().backward()


def test_pull_and_shift_are_the_gradients_of_their_terms(model: nn.Module) -> None:
    rng = np.random.default_rng(0)
    anchor, offset = (
        {n: rng.normal(size=a.shape).astype(np.float32) for n, a in state_arrays(model).items()}
        for _ in range(2)
    )
    for array in (*anchor.values(), *offset.values()):
        array.flags.writeable = False
    backward(model)
    plain = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    term = sum(
        0.7 / 2 * (p - torch.tensor(anchor[n])).square().sum() + (p * torch.tensor(offset[n])).sum()
        for n, p in model.named_parameters()
    )
    names, parameters = zip(*model.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(term, parameters), strict=True))

    towards, away = pull(model, anchor, 0.7), shift(model, offset)
    assert towards is not None
    backward(model)
    towards()
    away()

    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name] + expected[name])


def test_pull_uses_the_anchor_of_its_making_and_leaves_buffers_alone(model: nn.Module) -> None:
    anchor = state_arrays(model)
    step = pull(model, anchor, 2.0)
    for array in anchor.values():
        array += 5
    before = {n: b.clone() for n, b in model.named_buffers()}
    for parameter in model.parameters():
        parameter.grad = None

    step()

    assert all(not p.grad.any() for p in model.parameters())
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())


def test_nothing_to_add_is_none(model: nn.Module) -> None:
    assert pull(model, state_arrays(model), 0.0) is None

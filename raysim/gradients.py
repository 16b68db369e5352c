"""Terms that methods add to gradients between the backward pass and the optimiser step.

A quadratic or linear term of an objective is added as its gradient: exact, cheaper than a second
graph, and the training loss that is recorded stays the task's.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from raysim.tensors import Array


def pull(
    model: nn.Module, anchor: Mapping[str, Array], strength: float
) -> Callable[[], None] | None:
    """Return what adds strength * (w - anchor), the gradient of strength / 2 * ||w - anchor||^2.

    Args:
        model: its parameters are w; buffers are left alone.
        anchor: arrays by entry name, at least those of all parameters.
        strength: >= 0; with 0 there is nothing to add, and None is returned.
    """
    if strength == 0:
        return None
    pairs = _paired(model, anchor)

    def add() -> None:
        for parameter, fixed in pairs:
            _add(parameter, parameter.detach() - fixed, strength)

    return add


def shift(model: nn.Module, offset: Mapping[str, Array]) -> Callable[[], None]:
    """Return what adds a constant to the gradients, the gradient of <offset, w>.

    Args:
        model: its parameters are w.
        offset: arrays by entry name, at least those of all parameters.
    """
    pairs = _paired(model, offset)

    def add() -> None:
        for parameter, constant in pairs:
            _add(parameter, constant, 1.0)

    return add


def _paired(model: nn.Module, arrays: Mapping[str, Array]) -> list[tuple[nn.Parameter, Tensor]]:
    return [
        (parameter, torch.empty_like(parameter).copy_(torch.tensor(arrays[name])))
        for name, parameter in model.named_parameters()
    ]


def _add(parameter: nn.Parameter, term: Tensor, factor: float) -> None:
    if parameter.grad is None:
        parameter.grad = term * factor
    else:
        parameter.grad.add_(term, alpha=factor)

"""FDSE's consistency regulariser: how far BN_DFE's inputs are from the global statistics (Eq. 4-7).

A layer's term compares running estimates of mean and variance over (B, H, W) with the running
statistics of the received model; deeper layers may weigh more.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from raysim.models.decomposed import decomposed_layers

DECAY = 0.9
"""Share of the old estimate in Eq. 5, as in the BatchNorm it mirrors."""


class Consistency:
    """L_con of one client's local training; keeps the running estimates between batches."""

    def __init__(self, model: nn.Module, depth_weight: float, decay: float = DECAY) -> None:
        """Take BN_DFE's running statistics, as the model has them now, for the global ones.

        Args:
            model: decomposed, with the received state loaded.
            depth_weight: beta.
            decay: share of the old estimate in the new one; 0 is the batch alone.
        """
        self._norms = [layer.norm for layer in decomposed_layers(model)]
        self._global = [_running(norm) for norm in self._norms]
        self._estimates = list(self._global)
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._values: list[Tensor] = []
        self._depth_weight = depth_weight
        self._decay = decay

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Watch the inputs of BN_DFE, for `take` after each forward pass."""
        with ExitStack() as stack:
            for norm in self._norms:
                handle = norm.register_forward_pre_hook(self._record)
                stack.callback(handle.remove)
            yield

    def take(self) -> Tensor:
        """Return L_con after the latest forward pass, and move the estimates on."""
        terms = []
        for layer, seen in enumerate(self._seen):
            moved = [
                self._decay * old + (1 - self._decay) * new
                for old, new in zip(self._estimates[layer], seen, strict=True)
            ]
            terms.append(layer_consistency(moved[0], moved[1], *self._global[layer]))
            self._estimates[layer] = (moved[0].detach(), moved[1].detach())
        self._seen.clear()
        weights = depth_weights(len(terms), self._depth_weight)
        value = (torch.stack(terms) * weights.to(terms[0].device)).sum()
        self._values.append(value.detach())
        return value

    def mean(self) -> float:
        """Return the mean of L_con over the batches so far."""
        return float(torch.stack(self._values).mean())

    def _record(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen.append(channel_statistics(inputs[0].float()))


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance [C] of [B, C] or [B, C, H, W] (FDSE, Eq. 4)."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    var, mean = torch.var_mean(x, axes, correction=0)
    return mean, var


def layer_consistency(mean: Tensor, var: Tensor, mean_g: Tensor, var_g: Tensor) -> Tensor:
    """Return one layer's |mean - mean_g|^2 / d + ((|var|_1 - |var_g|_1) / d)^2 (FDSE, Eq. 6)."""
    spread = (var.abs().sum() - var_g.abs().sum()) / len(var)
    return (mean - mean_g).square().mean() + spread.square()


def depth_weights(num_layers: int, depth_weight: float) -> Tensor:
    """Return w_l = exp(beta l) / sum_j exp(beta j) (FDSE, Eq. 7)."""
    return torch.softmax(depth_weight * torch.arange(num_layers), 0)


def _running(norm: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(norm.running_mean, Tensor)
    assert isinstance(norm.running_var, Tensor)
    return norm.running_mean.clone(), norm.running_var.clone()

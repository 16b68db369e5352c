"""Fisher importance of channel units: mean squared per-example gradients, one number a unit.

With a the activation in front of a unit's gate m and h = m * a behind it, example n and unit j have

    gate form:    g_nj = sum over positions of a * dL_n/dh               F_nj = g_nj^2
    weight form:  g_nj = d_nj U_n^T, the gradient of the unit's filter   F_nj = mean(g_nj^2)

where d = dL/dh * relu'(a) * gamma / sqrt(var + eps) is the gradient at the producer's output and U
its unfolded input. Neither form multiplies by m, so a unit that is switched off is measured as if
it were on (the ghost path): that is how a pruned unit can return.

The same code serves statistics (`importance`) and, inside a training step, any term that needs a
gradient through the importances (`UnitRecorder.scores`).

Shape suffixes: B batch, N examples, D domains, C all units, L the units of one group, P positions,
I inputs of a filter (input channels x kernel).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from raysim.channels import ChannelGroup, Groups, Mask, num_units, per_group
from raysim.models.base import Gate
from raysim.training import Batch

Form = Literal["gate", "weight"]
Differentiable = Literal["no", "surrogate", "exact"]


def set_gates(model: nn.Module, groups: Groups, mask_C: Mask | None) -> None:
    """Switch units on and off in the forward pass; None opens all gates of the groups.

    Args:
        model: the model the groups belong to, already on its device.
        groups: the groups, in order.
        mask_C: [C] bool; False switches a unit off.
    """
    device = next(model.parameters()).device
    masks = [None] * len(groups) if mask_C is None else per_group(groups, mask_C)
    for group, mask_L in zip(groups, masks, strict=True):
        gate = model.get_submodule(group.gate)
        assert isinstance(gate, Gate)
        gate.mask = None if mask_L is None else torch.tensor(mask_L, device=device)


class UnitRecorder:
    """Keeps what importances need from the latest forward pass of a model.

    Use as a context manager around the forward pass and `scores`:

        with UnitRecorder(model, groups) as recorder:
            loss_sum = cross_entropy(model(images), labels, reduction="sum")
            scores = recorder.scores(loss_sum, form="gate")

    It also works on a physically sliced model, where L is the number of units that are left.
    """

    def __init__(self, model: nn.Module, groups: Sequence[ChannelGroup]) -> None:
        """Remember the modules; nothing is hooked yet.

        Args:
            model: the model the groups belong to.
            groups: the groups, in order.
        """
        self._model = model
        self._groups = tuple(groups)
        self._handles: list[RemovableHandle] = []
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}

    def __enter__(self) -> "UnitRecorder":
        """Hook the producers and gates."""
        for group in self._groups:
            self._watch(group.producer)
            self._watch(group.gate)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the hooks and let go of the recorded tensors."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._inputs.clear()
        self._outputs.clear()

    def scores(
        self, loss_sum: Tensor, *, form: Form, differentiable: Differentiable = "no"
    ) -> list[Tensor]:
        """Return each example's squared gradient for each unit of each group.

        Args:
            loss_sum: scalar, the *sum* over the batch of per-example losses, with its graph.
            form: "gate" or "weight", see the module's docstring. The weight form differentiates
                the norm as in evaluation mode, also while training.
            differentiable: "no" returns constants and frees the graph. "surrogate" lets gradients
                flow through activations and producer inputs only, with dL/dh held constant (no
                second-order work). "exact" differentiates everything twice. The last two keep the
                graph for the task's own backward.

        Returns:
            One float tensor [B, L] a group, >= 0.

        Raises:
            KeyError: no forward pass was recorded.

        Source: FedFIP (Lin et al., CVPR 2026), F_j = E[(dL_task/dw_j)^2].
        """
        gates = [self._outputs[group.gate] for group in self._groups]
        gradients = torch.autograd.grad(
            loss_sum,
            gates,
            create_graph=differentiable == "exact",
            retain_graph=differentiable != "no",
        )
        with torch.set_grad_enabled(differentiable != "no"):
            return [
                self._group_scores(group, gradient, form, exact=differentiable == "exact")
                for group, gradient in zip(self._groups, gradients, strict=True)
            ]

    def _watch(self, path: str) -> None:
        def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._inputs[path] = inputs[0]
            self._outputs[path] = output

        module = self._model.get_submodule(path)
        self._handles.append(module.register_forward_hook(keep))

    def _group_scores(
        self, group: ChannelGroup, gradient: Tensor, form: Form, *, exact: bool
    ) -> Tensor:
        activation = self._inputs[group.gate]
        if form == "gate":
            return gate_scores(activation, gradient)
        scale = _norm_scale(self._model, group)
        if scale is not None:
            scale = scale if exact else scale.detach()
            gradient = gradient * scale.view(1, -1, *(1,) * (gradient.dim() - 2))
        if group.relu:
            gradient = gradient * (activation > 0)
        producer = self._model.get_submodule(group.producer)
        squares = weight_scores(
            unfolded(producer, self._inputs[group.producer]), _flat_positions(gradient)
        )
        return squares / _filter_size(producer)


def scored_loss(
    model: nn.Module, batch: Batch, groups: Groups, form: Form, differentiable: Differentiable
) -> tuple[Tensor, Tensor]:
    """Return the cross entropy of a batch and the scores that belong to it.

    Args:
        model: a `ChannelModel`, dense or sliced.
        batch: B examples on the model's device.
        groups: the groups, in order.
        form: "gate" or "weight".
        differentiable: see `UnitRecorder.scores`.

    Returns:
        The sum over the batch, scalar, and [B, C], each example's squared gradient for each unit
        that the model has.
    """
    with UnitRecorder(model, groups) as recorder:
        loss_sum = functional.cross_entropy(model(batch.images), batch.labels, reduction="sum")
        scores = recorder.scores(loss_sum, form=form, differentiable=differentiable)
    return loss_sum, torch.cat(scores, dim=1)


def domain_means(
    score_BL: Tensor, domain_B: Tensor, domains: Sequence[int], at_least: int
) -> dict[int, Tensor]:
    """Average scores over the examples of each domain.

    Args:
        score_BL: float [B, L].
        domain_B: int [B], the domain of each example.
        domains: the domains that are wanted.
        at_least: examples below which a domain is left out, >= 1.

    Returns:
        Means [L] by domain, in the order of `domains`.
    """
    rows = {domain: domain_B == domain for domain in domains}
    return {d: score_BL[mine].mean(0) for d, mine in rows.items() if int(mine.sum()) >= at_least}


def gate_scores(activation: Tensor, gradient: Tensor) -> Tensor:
    """Return the squared per-example gradients of gates.

    Args:
        activation: [B, L, ...], in front of the gates.
        gradient: [B, L, ...], of the loss behind the gates.

    Returns:
        [B, L], (sum over positions of activation * gradient)^2.
    """
    return _flat_positions(activation * gradient).sum(2).square()


def weight_scores(unfolded_BIP: Tensor, gradient_BLP: Tensor) -> Tensor:
    """Return the squared norm of each filter's per-example gradient.

    Args:
        unfolded_BIP: [B, I, P], the producer's unfolded input.
        gradient_BLP: [B, L, P], at the producer's output.

    Returns:
        [B, L], sum over I of (gradient_BLP unfolded_BIP^T)^2.
    """
    num_filters, num_positions = gradient_BLP.shape[1:]
    num_inputs = unfolded_BIP.shape[1]
    if num_positions**2 >= num_filters * num_inputs:
        rows_BLI = gradient_BLP @ unfolded_BIP.transpose(1, 2)
        return rows_BLI.square().sum(2)
    # ||d U^T||^2 = d (U^T U) d^T: for small maps with many channels the positions' Gram matrix is
    # orders of magnitude smaller than the gradients of all filters.
    gram_BPP = unfolded_BIP.transpose(1, 2) @ unfolded_BIP
    return ((gradient_BLP @ gram_BPP) * gradient_BLP).sum(2).clamp_min(0)


def _filter_size(producer: nn.Module) -> int:
    """Return the scalars of one filter as built, so that slicing inputs changes no mean."""
    if isinstance(producer, nn.Conv2d):
        return producer.in_channels * math.prod(producer.kernel_size)
    assert isinstance(producer, nn.Linear)
    return producer.in_features


def unfolded(producer: nn.Module, inputs: Tensor) -> Tensor:
    """Return the patches [B, I, P] a convolution multiplies; a linear layer sees one, P = 1."""
    if not isinstance(producer, nn.Conv2d):
        return _flat_positions(inputs)
    assert producer.groups == 1
    assert not isinstance(producer.padding, str)
    return functional.unfold(
        inputs,
        kernel_size=producer.kernel_size,
        dilation=producer.dilation,
        padding=producer.padding,
        stride=producer.stride,
    )


def _flat_positions(x: Tensor) -> Tensor:
    """Return [B, C, P] of [B, C, H, W], or [B, C, 1] of [B, C]."""
    return x.unsqueeze(2) if x.dim() == 2 else x.flatten(2)


def _norm_scale(model: nn.Module, group: ChannelGroup) -> Tensor | None:
    """Return gamma / sqrt(var + eps) [L], the slope of the norm in evaluation mode."""
    if group.norm is None:
        return None
    norm = model.get_submodule(group.norm)
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d))
    assert norm.running_var is not None
    return norm.weight / (norm.running_var + norm.eps).sqrt()


def importance(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    domains: NDArray[np.integer[Any]] | Tensor,
    num_domains: int,
    groups: Groups,
    form: Form,
    batch_size: int,
) -> NDArray[np.float64]:
    """Measure each unit's empirical Fisher importance on each domain.

    The model is measured where it stands: gates that are set stay set (the masked point), and batch
    norm uses its running statistics, because in training mode one example's loss depends on the
    others. The model's modes, gradients and buffers are as before afterwards.

    Args:
        model: a `ChannelModel` in dense shape.
        images: [N, 3, H, W] float, on the model's device.
        labels: [N] int64, on the model's device.
        domains: [N] int in [0, num_domains).
        num_domains: D >= 1.
        groups: the groups, in order.
        form: "gate" or "weight".
        batch_size: examples measured at a time, >= 1; bounds the memory.

    Returns:
        [D, C] float64, >= 0: the mean over a domain's examples of their squared gradients; a domain
        without examples has zeros.

    Raises:
        ValueError: the numbers of images and domain ids differ.

    Source: FedFIP (Lin et al., CVPR 2026), F_ij^(k) = E_{x in D_i^(k)}[(dL_task/dw_j)^2].
    """
    domain_N = np.asarray(torch.as_tensor(domains).cpu())
    if len(domain_N) != len(images):
        raise ValueError(f"{len(images)} images but {len(domain_N)} domain ids")
    sums_DC = np.zeros((num_domains, num_units(groups)), dtype=np.float64)
    with _evaluating(model), torch.enable_grad(), UnitRecorder(model, groups) as recorder:
        for start in range(0, len(images), batch_size):
            batch = slice(start, start + batch_size)
            logits = model(images[batch])
            loss_sum = functional.cross_entropy(logits, labels[batch], reduction="sum")
            score_BC = torch.cat(recorder.scores(loss_sum, form=form), dim=1).double().cpu().numpy()
            for domain in np.unique(domain_N[batch]):
                sums_DC[domain] += score_BC[domain_N[batch] == domain].sum(axis=0)
    count_D = np.bincount(domain_N, minlength=num_domains)
    return sums_DC / np.maximum(count_D, 1)[:, None]


def batch_importance(
    model: nn.Module, batch: Batch, num_domains: int, groups: Groups, form: Form, batch_size: int
) -> NDArray[np.float64]:
    """Measure the `importance` of each unit on the examples of one batch, [D, C]."""
    return importance(
        model, batch.images, batch.labels, batch.domains, num_domains, groups, form, batch_size
    )


def sampled_rows(domains: Tensor, most: int, rng: np.random.Generator) -> Tensor:
    """Choose examples to measure: a random few of each domain.

    Args:
        domains: [N] int.
        most: examples of a domain, >= 1; a domain with fewer gives all.
        rng: what the choice comes from.

    Returns:
        Row numbers, int64 on the device of `domains`, domain by domain and ascending in each.
    """
    domain_N = domains.numpy(force=True)
    chosen = [
        np.sort(rng.permutation(np.flatnonzero(domain_N == domain))[:most])
        for domain in np.unique(domain_N)
    ]
    return torch.from_numpy(np.concatenate(chosen)).to(domains.device)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode for a while; each module's own mode comes back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training

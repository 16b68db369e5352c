"""Parameters and multiply-adds of a model as it stands, layer by layer."""

import inspect
from typing import Any

import torch
from torch import nn

from raysim.tensors import named_state


def count_costs(model: nn.Module, image_size: int) -> tuple[int, dict[str, int]]:
    """Count parameters, and the multiply-adds of one example's forward pass by layer.

    Papers on pruning call multiply-adds FLOPs; additions of biases, normalisation and activations
    are not counted.

    Args:
        model: float entries of any (sliced) shape.
        image_size: side of the square RGB image in pixels.

    Returns:
        Number of trainable scalars, and multiply-adds by dotted module name (leaves only).
    """
    from torch.utils import flop_counter  # imports triton: not at every start

    # Torch keeps its compiler from tracing the mode, and for that imports it: 2 s and 150 MiB.
    mode: Any = getattr(flop_counter, "_FlopCounterMode", flop_counter.FlopCounterMode)
    mode.__torch_dispatch__ = inspect.unwrap(mode.__torch_dispatch__)
    device = next(iter(named_state(model).values())).device
    was_training = model.training
    model.eval()
    with torch.no_grad(), flop_counter.FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, image_size, image_size, device=device))
    model.train(was_training)
    root = type(model).__name__
    leaves = {n for n, m in model.named_modules() if n and not any(m.children())}
    flops = {}
    for path, counts in counter.get_flop_counts().items():
        name = path.removeprefix(f"{root}.")
        if name in leaves and counts:
            flops[name] = sum(counts.values()) // 2
    return sum(p.numel() for p in model.parameters()), flops

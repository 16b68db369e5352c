"""The global model of a run directory as a plain torch module, and its accuracy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

from raysim.checkpoint import latest_checkpoint
from raysim.config import RunConfig
from raysim.data.datasets import open_dataset
from raysim.data.intake import ready
from raysim.evaluation import eval_units, evaluate, merge
from raysim.models import ChannelModel, GatedLayer
from raysim.server import Server
from raysim.training import ShardData


def restore_global(
    config: RunConfig, folder: Path, num_classes: int, num_domains: int
) -> ChannelModel:
    """Load the global model of a run's newest checkpoint, as it is evaluated.

    Args:
        config: the run.
        folder: its directory.
        num_classes: outputs of the head.
        num_domains: domains of the data set.

    Returns:
        The model in eval mode, without gates: units that a mask switches off have a zero norm, and
        units that are sliced out are not there, so that `state_dict()` holds all there is to it.

    Raises:
        ResumeError: no checkpoint is left.
    """
    checkpoint = latest_checkpoint(folder / "checkpoints")
    state = checkpoint.load()
    with _threads(config.local.threads):
        server = Server(config, num_classes, num_domains)
    server.restore(state.model, state.memory)
    model = server.global_model(checkpoint.round - 1)
    _close_gates(model)
    return model.eval().requires_grad_(False)


def accuracy(model: nn.Module, config: RunConfig) -> dict[str, float]:
    """Test a model as a run tests its global model; returns percent by domain.

    Args:
        model: maps normalised images [B, 3, H, W] to logits.
        config: the run, whose data have to be there.

    Raises:
        UserError: the data are not there.
    """
    dataset = open_dataset(ready(config.data, lambda text: None), config.seed)
    sizes = [len(dataset.labels(domain, "test")) for domain in dataset.domains]
    sums = []
    with _threads(config.local.threads):
        for unit in eval_units(sizes):
            rows = {unit.domain: np.arange(unit.start, unit.stop, dtype=np.int64)}
            shard = ShardData.load(dataset, rows, unit.split, torch.device("cpu"))
            sums += evaluate(model, shard, client=-1, start=unit.start, split=unit.split)
    found = merge(sums).values()
    return {dataset.domains[s.domain]: 100.0 * s.num_correct / s.num_examples for s in found}


def _close_gates(model: nn.Module) -> None:
    """Write masks into the norms before the gates: what they give for a closed unit is 0 too."""
    for layer in model.modules():
        if isinstance(layer, GatedLayer) and layer.gate.mask is not None:
            keep_L = layer.gate.mask.to(layer.norm.weight.dtype)
            with torch.no_grad():
                layer.norm.weight.mul_(keep_L)
                layer.norm.bias.mul_(keep_L)
            layer.gate.mask = None


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Use the run's number of torch threads, which last bits depend on, inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)

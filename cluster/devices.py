"""Which device a host trains on, and whether its memory can hold what the hosts put there."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

from raysim.config import RunConfig
from raysim.data.shards import Shard
from raysim.errors import ClusterError
from raysim.skeleton import build_skeleton

_MIB = 2**20
_CONTEXT = 300 * _MIB
"""What CUDA and its libraries take for a process, at least."""


def assigned_device(gpu_ids: Sequence[Any], visible: str | None) -> str:
    """Name the torch device of the GPU that Ray assigned to this process.

    Args:
        gpu_ids: as `ray.get_gpu_ids()` gives them; empty without a GPU.
        visible: CUDA_VISIBLE_DEVICES. Ray narrows it to the assigned GPU unless it was told to
            leave the variable alone (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES, as in jobs).
    """
    if not gpu_ids:
        return "cpu"
    wanted = str(gpu_ids[0])
    if visible is None:
        return f"cuda:{wanted}"
    shown = [name.strip() for name in visible.split(",")]
    return f"cuda:{shown.index(wanted)}" if wanted in shown else "cuda:0"


def own_device(*, demanded: bool) -> str:
    """Return the torch device of this actor, and make a GPU the current one.

    Args:
        demanded: whether the config names a number of GPUs; else the CPU will do.

    Raises:
        ClusterError: torch cannot use the GPU that was demanded.
    """
    device = assigned_device(ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if device == "cpu":
        return device
    if torch.cuda.is_available():
        torch.cuda.set_device(device)
        return device
    if demanded:
        raise ClusterError(
            "Ray assigned a GPU, but torch sees none there: install torch with CUDA on that node "
            "and check `nvidia-smi` there, or train on CPUs with execution.gpus_per_host=0"
        )
    return "cpu"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Device memory that a host needs at the least, in bytes.

    Attributes:
        model: parameters and momentum.
        batch: what a batch keeps for its backward pass, or the gradients that take its place.
        examples: the clients' resident uint8 images.
    """

    model: int
    batch: int
    examples: int

    @property
    def total(self) -> int:
        """All of it, and what CUDA takes for itself."""
        return self.model + self.batch + self.examples + _CONTEXT


def footprint(config: RunConfig, num_classes: int, num_examples: int) -> Footprint:
    """Estimate what a host needs, from below: no run that fits is refused.

    Nothing is computed: the model has shapes but no values, and no device is touched.

    Args:
        config: of the run.
        num_classes: outputs of the head.
        num_examples: resident training examples.
    """
    side = config.data.image_size
    model = build_skeleton(config, num_classes, torch.device("meta"))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    size = max(min(config.local.batch_size, num_examples), 2)
    kept = 0
    # A user's own model may ask for values; its activations are then left out.
    with suppress(RuntimeError, NotImplementedError):
        kept = kept_bytes(model, torch.empty(size, 3, side, side, device="meta"))
    return Footprint(
        model=weights * (2 if config.local.momentum else 1),
        batch=max(kept // 2 if config.local.precision == "bf16" else kept, weights),
        examples=num_examples * 3 * side**2,
    )


def kept_bytes(model: torch.nn.Module, images: Tensor) -> int:
    """Return the bytes that a forward pass keeps for its backward pass, without parameters.

    Args:
        model: in train mode.
        images: float [B,3,H,W].
    """
    own = {id(p) for p in model.parameters()}
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        base = tensor._base if tensor._base is not None else tensor
        if id(base) not in own:
            alive.append(base)  # else another tensor could get its id
            kept[id(base)] = base.numel() * base.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(images)
    return sum(kept.values())


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Hosts on one device.

    Attributes:
        needed: by the host that needs most.
        sharing: hosts on the device.
    """

    needed: Footprint
    sharing: int

    def check(self, device_bytes: int) -> None:
        """Refuse hosts whose device cannot hold them.

        Args:
            device_bytes: memory of the device.

        Raises:
            ClusterError: it cannot; the message says what takes how much, and what to lower.
        """
        needed, sharing = self.needed, self.sharing
        if needed.total * sharing <= device_bytes:
            return
        told = (
            f"{_mib(needed.model)} parameters and momentum, {_mib(needed.batch)} activations of a "
            f"batch, {_mib(needed.examples)} images of its clients, {_mib(_CONTEXT)} CUDA itself"
        )
        has, fewer = f"the GPU has {_mib(device_bytes)}", ""
        if sharing > 1:
            whole = _mib(needed.total * sharing)
            has = f"{sharing} hosts that share a GPU need {whole}, and {has}"
            fewer = "raise execution.gpus_per_host, so that fewer hosts share a GPU, or "
        lower = "local.batch_size, data.image_size or model.width (local.precision=bf16 helps too)"
        if needed.examples > needed.batch + needed.model:
            lower = "data.image_size, or give the run more GPUs to share the clients"
        raise ClusterError(
            f"a host needs at least {_mib(needed.total)} on its GPU: {told}; {has}. "
            f"To fit, {fewer}lower {lower}"
        )


def device_share(
    config: RunConfig, shards: Sequence[Shard], num_classes: int, num_hosts: int, gpus: float
) -> DeviceShare | None:
    """Estimate what hosts need of a GPU; None if they have none.

    Args:
        config: of the run.
        shards: of the clients.
        num_classes: outputs of the head.
        num_hosts: that the clients are dealt to.
        gpus: of a host.
    """
    if not gpus:
        return None
    sizes = [shard.num_train for shard in shards]
    fullest = max(-(-sum(sizes) // num_hosts), *sizes)
    sharing = min(int(1 / gpus + 1e-6), num_hosts)
    return DeviceShare(footprint(config, num_classes, fullest), sharing)


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB" if size < 10 * 2**30 else f"{size / 2**30:.1f} GiB"

"""What a process computes on: equal bits are promised for equal hardware only."""

import platform
from pathlib import Path


def processor(device: str) -> str:
    """Name the processor behind a torch device, and the instructions that torch uses of a CPU's.

    Args:
        device: e.g. "cpu" or "cuda:0".
    """
    import torch

    if device == "cpu":
        return f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}"
    return torch.cuda.get_device_name(device)


def cpu_name() -> str:
    """Name this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

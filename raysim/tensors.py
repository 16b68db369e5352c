"""Named arrays: the only form in which state crosses a process, a file or a method's hooks.

A model's state is its floating-point parameters and buffers by dotted name. Integer buffers
(BatchNorm's num_batches_tracked) are counters of the skeleton, not state: they are never sent,
averaged or stored.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import nn

Array = NDArray[Any]
Arrays = dict[str, Array]


_PLACES: "WeakKeyDictionary[nn.Module, list[tuple[str, dict[str, Any], str]]]" = WeakKeyDictionary()


def named_state(model: "nn.Module") -> "dict[str, torch.Tensor]":
    """Return the model's live floating-point parameters and buffers by dotted name.

    Args:
        model: its modules must stay the same from the first call on; their tensors need not.
    """
    if model not in _PLACES:  # walking the modules takes longer than a small client's copy
        named = dict(model.named_parameters()) | dict(model.named_buffers())
        _PLACES[model] = [_place(model, name) for name, t in named.items() if t.is_floating_point()]
    return {name: tensors[leaf].detach() for name, tensors, leaf in _PLACES[model]}


def _place(model: "nn.Module", name: str) -> tuple[str, dict[str, Any], str]:
    """Return a name, the dictionary that holds the tensor of this name, and its key there."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    return name, module._parameters if leaf in module._parameters else module._buffers, leaf


def state_arrays(model: "nn.Module") -> Arrays:
    """Copy the model's state to C-contiguous NumPy arrays."""
    return {name: to_array(tensor) for name, tensor in named_state(model).items()}


def to_array(tensor: "torch.Tensor") -> Array:
    """Copy one tensor to a C-contiguous array on the CPU."""
    return np.array(tensor.detach().cpu().numpy(), order="C")


def as_entry(value: Array, like: Array) -> Array:
    """Round a float64 mean to the dtype of the model entry that it replaces."""
    return np.ascontiguousarray(value, dtype=like.dtype)


def load_arrays(model: "nn.Module", arrays: Mapping[str, Array]) -> None:
    """Load state into the model in place; an entry of another shape takes the place of the old one.

    Taking other shapes is what makes one skeleton serve every physically sliced structure:
    convolution, linear and normalisation layers compute with whatever shapes their tensors have.

    Args:
        model: the skeleton; its device and memory format are kept.
        arrays: exactly the names of `named_state(model)`.

    Raises:
        KeyError: names are missing or unknown.
    """
    import torch

    state = named_state(model)
    if state.keys() != arrays.keys():
        odd = sorted(state.keys() ^ arrays.keys())
        raise KeyError(f"state does not fit the model: {odd[:5]} ({len(odd)} names differ)")
    for name, tensor in state.items():
        array = arrays[name]
        if tensor.shape == array.shape and tensor.device.type == "cpu":
            np.copyto(tensor.numpy(), array)  # read-only arrays are fine, and no copy is left over
        elif tensor.shape == array.shape:
            tensor.copy_(torch.tensor(array))
        else:
            _replace(model, name, torch.tensor(array, device=tensor.device))


def _replace(model: "nn.Module", name: str, value: "torch.Tensor") -> None:
    import torch

    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    old = getattr(module, leaf)
    if value.dim() == 4:  # a layout never depends on what was loaded before
        layout = getattr(model, "layout", torch.contiguous_format)
        value = value.contiguous(memory_format=layout)
    if leaf in module._parameters:
        module._parameters[leaf] = torch.nn.Parameter(value, requires_grad=old.requires_grad)
    else:
        module._buffers[leaf] = value


def num_scalars(arrays: Mapping[str, Array]) -> int:
    """Return the number of scalars in all arrays."""
    return sum(array.size for array in arrays.values())


def num_bytes(arrays: Mapping[str, Array]) -> int:
    """Return the bytes of all arrays as they would cross a wire uncompressed."""
    return sum(array.nbytes for array in arrays.values())


def digest(arrays: Mapping[str, Array]) -> str:
    """Return the sha256 of names, dtypes, shapes and little-endian bytes in name order."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def prefixed(prefix: str, arrays: Mapping[str, Array]) -> Arrays:
    """Return the arrays under `prefix/name`."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def under(prefix: str, arrays: Mapping[str, Array]) -> Arrays:
    """Return the arrays stored under `prefix/`, without the prefix."""
    start = f"{prefix}/"
    return {name[len(start) :]: a for name, a in arrays.items() if name.startswith(start)}

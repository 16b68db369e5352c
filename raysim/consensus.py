"""FDSE's aggregation: consensus of the shared tensors, attention over the personal ones (Eq. 8-9).

Shape suffixes: K clients, M clients that moved, P values of a tensor.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysim.aggregation import NonFiniteError
from raysim.tensors import Array

Floats = NDArray[np.float64]

CONSENSUS_VALUES = 2**24
"""Values of all clients' updates that the consensus looks at together: it bounds its memory."""
TINY = 1e-12
"""Least norm that a vector is divided by."""


def consensus_step(old: Array, trained: list[Array]) -> tuple[Floats, Floats]:
    """Find the step of a shared tensor: mean norm times the least-norm mean of directions.

    <step, D_k> >= 0 for every client. Zero updates have no direction, so they take no part in the
    consensus; in it they would have all the weight and freeze the tensor for everyone.

    Args:
        old: the tensor as sent, any shape.
        trained: the clients' tensors, at least one, in an order that is always the same.

    Returns:
        The step, float64 of the shape of `old`, and the clients' weights x, float64 [K], which sum
        to 1 unless nobody moved.

    Raises:
        NonFiniteError: a tensor holds NaN or infinity.

    Source: FDSE, Eq. 8.
    """
    columns = max(1, CONSENSUS_VALUES // len(trained))
    parts = [slice(start, start + columns) for start in range(0, old.size, columns)]
    gram_KK = torch.zeros(len(trained), len(trained), dtype=torch.float64)
    for part in parts:
        update_KP = _updates(old, trained, part)
        gram_KK += update_KP @ update_KP.T
    norm_K = gram_KK.diagonal().sqrt()
    moving = norm_K > 0
    weight_K = np.zeros(len(trained))
    if not bool(moving.any()):
        return np.zeros(old.shape), weight_K
    inverse_M = 1 / norm_K[moving]
    cosine_MM = gram_KK[moving][:, moving] * inverse_M * inverse_M[:, None]
    weight_K[moving.numpy()] = min_norm_weights(cosine_MM.numpy())
    weight_M = torch.from_numpy(weight_K)[moving] * inverse_M
    steps = [weight_M @ _updates(old, trained, part)[moving] for part in parts]
    step_P = norm_K.mean() * torch.cat(steps)
    return np.asarray(step_P.numpy().reshape(old.shape), np.float64), weight_K


def _updates(old: Array, trained: list[Array], part: slice) -> Tensor:
    """Return some columns of the clients' updates, float64 [K, P].

    torch, not NumPy: its number of threads is part of the experiment, hence so are its bits.
    """
    columns = np.stack([array.reshape(-1)[part] for array in trained]).astype(np.float64)
    update_KP = torch.from_numpy(columns - old.reshape(-1)[part])
    if not bool(torch.isfinite(update_KP).all()):
        raise NonFiniteError("NaN or infinity in an update")
    return update_KP


def min_norm_weights(gram: Floats) -> Floats:
    """Return x = argmin x' Gram x over the simplex (x >= 0, sum x = 1).

    Exact: x is proportional to the non-negative least-squares solution of
    [Gram^(1/2); 1'] z = [0; 1]. A singular Gram matrix has many minimisers x, of which this is one.

    Args:
        gram: [K, K], positive semidefinite.
    """
    from scipy.optimize import nnls  # a third of a second that other methods need not pay

    values, vectors = np.linalg.eigh(gram)
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    size = len(gram)
    solution, _ = nnls(np.vstack([root, np.ones(size)]), np.append(np.zeros(size), 1.0))
    return np.asarray(solution / solution.sum(), np.float64)


def attention(value_KP: Floats, temperature: float) -> Floats:
    """Return A [K, K] = softmax over rows of cos(v_k, v_j) / tau.

    A zero tensor has cosine 0 to every other and to itself, so its client gets the plain mean.

    Args:
        value_KP: [K, P], one tensor a client, finite.
        temperature: tau > 0.

    Source: FDSE, Eq. 9.
    """
    norm_K = np.sqrt(np.square(value_KP).sum(1))
    unit_KP = torch.from_numpy(value_KP / np.maximum(norm_K, TINY)[:, None])
    cosine_KK = (unit_KP @ unit_KP.T).numpy()
    weight_KK = np.exp((cosine_KK - cosine_KK.max(1, keepdims=True)) / temperature)
    return np.asarray(weight_KK / weight_KK.sum(1, keepdims=True), np.float64)


def mix(tensors: Array, temperature: float) -> tuple[Floats, Floats]:
    """Return each client's next DSE tensor, sum_j A_kj v_j, [K, ...] as given, and A [K, K].

    Raises:
        NonFiniteError: a tensor holds NaN or infinity.
    """
    value_KP = tensors.reshape(len(tensors), -1).astype(np.float64)
    if not np.isfinite(value_KP).all():
        raise NonFiniteError("NaN or infinity in a DSE tensor")
    weight_KK = attention(value_KP, temperature)
    mixed_KP = (torch.from_numpy(weight_KK) @ torch.from_numpy(value_KP)).numpy()
    return np.asarray(mixed_KP.reshape(tensors.shape), np.float64), weight_KK

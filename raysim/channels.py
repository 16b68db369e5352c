"""Channel units: which scalars of a model belong to which channel, and how to slice by them.

A unit is one output channel of a convolution or of a hidden linear layer. The units of all groups
are numbered flat, in group order.

Shape suffixes: C all units of all groups, L the units of one group. Masks are bool.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raysim.errors import ConfigError
from raysim.tensors import Array, Arrays

Scope = Literal["inner", "all"]
Mask = NDArray[np.bool_]
Groups = Sequence["ChannelGroup"]


@dataclass(frozen=True)
class Slot:
    """One axis of one state entry along which the units of a group run.

    Attributes:
        entry: dotted name of a parameter or buffer.
        axis: the axis the units run along.
        repeat: consecutive positions each unit owns (the map size where a map is flattened).
    """

    entry: str
    axis: int
    repeat: int = 1


@dataclass(frozen=True)
class ChannelGroup:
    """The units that one layer produces.

    Attributes:
        name: unique among the groups of a model.
        size: number of units, L >= 1.
        producer: path of the convolution or linear module whose output channels are the units.
        norm: path of the normalisation module right after the producer, or None.
        gate: path of the gate module that can switch units off.
        slots: everything that leaves the model with a unit.
        relu: whether a ReLU stands between the normalisation and the gate.
    """

    name: str
    size: int
    producer: str
    norm: str | None
    gate: str
    slots: tuple[Slot, ...]
    relu: bool = True


def num_units(groups: Groups) -> int:
    """Return C, the number of units of all groups."""
    return sum(group.size for group in groups)


def per_group(groups: Groups, vector_C: NDArray[Any]) -> list[NDArray[Any]]:
    """Split an array over all units into one view per group.

    Args:
        groups: the groups, in order.
        vector_C: [..., C], any dtype.

    Returns:
        Views [..., L] on `vector_C`, one a group.

    Raises:
        ValueError: the last axis is not C long.
    """
    if vector_C.shape[-1] != num_units(groups):
        raise ValueError(f"{vector_C.shape[-1]} values for {num_units(groups)} channel units")
    ends = np.cumsum([group.size for group in groups], dtype=np.intp)
    return np.split(vector_C, ends[:-1], axis=-1)


def layer_mean_scores(score_C: NDArray[np.float64], groups: Groups) -> NDArray[np.float64]:
    """Divide each group's scores by their mean, so that layers of any gradient scale compare.

    Args:
        score_C: [C], >= 0.
        groups: the groups, in order.

    Returns:
        [C]; a group whose scores are all zero stays zero.
    """
    parts = []
    for score_L in per_group(groups, score_C):
        mean = float(score_L.mean())
        parts.append(score_L / mean if mean > 0 else np.zeros_like(score_L))
    return np.concatenate(parts).astype(np.float64, copy=False)


def select_units(
    score_C: NDArray[np.float64], groups: Groups, keep_ratio: float, min_keep: float
) -> Mask:
    """Keep exactly the best `keep_ratio` of all units, with a reserve in every group.

    n_keep = max(1, floor(keep_ratio * C + 0.5)). Each group first keeps its best
    max(1, ceil(min_keep * L)) units, the rest is filled over all groups by falling score;
    ties go to the lower unit number. A fraction of 0 means no reserve, and a group may empty.

    Args:
        score_C: [C], finite.
        groups: the groups, in order.
        keep_ratio: in (0, 1].
        min_keep: in [0, 1].

    Returns:
        Mask [C] with exactly n_keep units set.

    Raises:
        ConfigError: a ratio is out of range, or the reserves need more than n_keep units.
        FloatingPointError: a score is not finite; the message names the group.

    Source: FedFIP (Lin et al., CVPR 2026), the global mask M_j = 1[F_j >= theta_rho].
    Deviates: an exact count instead of a threshold, which would keep every tie; the reserve keeps
        a ranking over all layers from emptying one.
    """
    if not 0 < keep_ratio <= 1 or not 0 <= min_keep <= 1:
        raise ConfigError(
            f"keep_ratio={keep_ratio} must lie in (0, 1] and min_keep={min_keep} in [0, 1]"
        )
    _require_finite(score_C, groups)
    total = num_units(groups)
    n_keep = max(1, math.floor(keep_ratio * total + 0.5))
    mask_C = np.zeros(total, dtype=np.bool_)
    if min_keep > 0:
        for mask_L, score_L in zip(
            per_group(groups, mask_C), per_group(groups, score_C), strict=True
        ):
            mask_L[_descending(score_L)[: _reserve(score_L.size, min_keep)]] = True
    reserved = int(mask_C.sum())
    if reserved > n_keep:
        raise ConfigError(
            f"min_keep={min_keep} reserves {reserved} of {total} channels but "
            f"keep_ratio={keep_ratio} keeps {n_keep}; raise keep_ratio or lower min_keep"
        )
    order = _descending(score_C)
    mask_C[order[~mask_C[order]][: n_keep - reserved]] = True
    return mask_C


def same_profile(score_C: NDArray[np.float64], groups: Groups, mask_C: Mask) -> Mask:
    """Keep as many units of each group as a mask does, but the best by other scores.

    Args:
        score_C: [C]; ties go to the lower unit number.
        groups: the groups, in order.
        mask_C: [C], the mask whose numbers count.

    Returns:
        Mask [C]; a model sliced by it has the size and the work of one sliced by `mask_C`.
    """
    chosen_C = np.zeros_like(mask_C)
    parts = (per_group(groups, array) for array in (chosen_C, score_C, mask_C))
    for chosen_L, score_L, mask_L in zip(*parts, strict=True):
        chosen_L[_descending(score_L)[: int(mask_L.sum())]] = True
    return chosen_C


def _require_finite(score_C: NDArray[np.float64], groups: Groups) -> None:
    for group, score_L in zip(groups, per_group(groups, score_C), strict=True):
        bad = int((~np.isfinite(score_L)).sum())
        if bad:
            raise FloatingPointError(f"{bad} of {group.size} scores of {group.name} are not finite")


def _descending(score: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.argsort(-score, kind="stable")


def _reserve(size: int, fraction: float) -> int:
    # Rounded first: 0.07 * 100 is a little more than 7 in floating point.
    return max(1, math.ceil(round(fraction * size, 9)))


def take(arrays: Mapping[str, Array], groups: Groups, mask_C: Mask) -> Arrays:
    """Slice a dense state down to the units of a mask.

    A scalar stays only if every unit axis it touches stays: S[o, i] = out[o] * in[i].

    Args:
        arrays: dense arrays by entry name; a subset of a model's state is fine.
        groups: the groups, in order.
        mask_C: [C], the units to keep.

    Returns:
        Sliced copies; entries without slots are the very arrays passed in.

    Source: FedFIP, structure-aware aggregation (the shared slice).
    """
    positions = _positions(groups, mask_C)
    sliced = {}
    for entry, array in arrays.items():
        for axis, index in positions.get(entry, {}).items():
            array = np.take(array, index, axis=axis)
        sliced[entry] = array
    return sliced


def put(
    dense: Mapping[str, Array], sliced: Mapping[str, Array], groups: Groups, mask_C: Mask
) -> Arrays:
    """Scatter sliced values into a dense state: the inverse of `take`.

    Args:
        dense: supplies every scalar outside the slice.
        sliced: arrays as `take` returns them; entries may be missing and then stay dense.
        groups: the groups, in order.
        mask_C: [C], the mask that `sliced` was taken with.

    Returns:
        A new dict with the entries of `dense`; no input array is modified.

    Raises:
        KeyError: `sliced` has an entry that `dense` lacks.
        ValueError: a sliced array's shape does not fit the mask.
    """
    unknown = sorted(sliced.keys() - dense.keys())
    if unknown:
        raise KeyError(f"entries without a dense counterpart: {unknown[:5]}")
    positions = _positions(groups, mask_C)
    return {
        entry: _scatter(array, sliced[entry], positions.get(entry, {}), entry)
        if entry in sliced
        else array
        for entry, array in dense.items()
    }


def take_units(arrays: Mapping[str, Array], groups: Groups, units: ArrayLike) -> Arrays:
    """Copy all that some units own, slot by slot.

    Unlike `take`, a slice is dense along its other axes: this is what a client stores so that it
    can bring a unit back whatever the other units are then.

    Args:
        arrays: dense arrays by entry name.
        groups: the groups, in order.
        units: flat unit numbers in [0, C); their order does not matter.

    Returns:
        Copies by `entry@axis`, units ascending along the axis; groups without a unit are absent.

    Raises:
        ValueError: a unit number is out of range.
    """
    return {
        f"{entry}@{axis}": np.take(arrays[entry], index, axis=axis)
        for entry, axes in _positions(groups, unit_mask(groups, units)).items()
        for axis, index in axes.items()
        if index.size and entry in arrays
    }


def put_units(
    arrays: Mapping[str, Array], stored: Mapping[str, Array], groups: Groups, units: ArrayLike
) -> Arrays:
    """Write back what `take_units` stored for the same units.

    Args:
        arrays: dense arrays by entry name.
        stored: the result of `take_units` for `units`.
        groups: the groups, in order.
        units: flat unit numbers in [0, C).

    Returns:
        A new dict; touched arrays are copies, no input array is modified.

    Raises:
        KeyError: `stored` lacks a slot of a unit.
        ValueError: a unit number is out of range, or a stored shape does not fit.
    """
    restored = dict(arrays)
    for entry, axes in _positions(groups, unit_mask(groups, units)).items():
        for axis, index in axes.items():
            if index.size and entry in restored:
                value = stored[f"{entry}@{axis}"]
                restored[entry] = _scatter(restored[entry], value, {axis: index}, entry)
    return restored


def kept_parameters(shapes: Mapping[str, tuple[int, ...]], groups: Groups, mask_C: Mask) -> int:
    """Return the number of scalars `take` would leave of arrays with these shapes.

    Args:
        shapes: dense shapes by entry name.
        groups: the groups, in order.
        mask_C: [C], the units to keep.
    """
    positions = _positions(groups, mask_C)
    return sum(
        math.prod(_sliced_shape(shape, positions.get(entry, {}))) for entry, shape in shapes.items()
    )


def unit_mask(groups: Groups, units: ArrayLike) -> Mask:
    """Return the mask [C] with some units set.

    Raises:
        ValueError: a unit number is out of range.
    """
    index = np.asarray(units, dtype=np.intp)
    total = num_units(groups)
    if index.size and not (index.min() >= 0 and index.max() < total):
        raise ValueError(f"unit numbers must lie in [0, {total})")
    mask_C = np.zeros(total, dtype=np.bool_)
    mask_C[index] = True
    return mask_C


def _positions(groups: Groups, mask_C: Mask) -> dict[str, dict[int, NDArray[np.intp]]]:
    """Return, by entry and axis, the positions that the units of the mask own."""
    positions: dict[str, dict[int, NDArray[np.intp]]] = {}
    for group, mask_L in zip(groups, per_group(groups, mask_C), strict=True):
        for slot in group.slots:
            owned = np.flatnonzero(np.repeat(mask_L, slot.repeat))
            positions.setdefault(slot.entry, {})[slot.axis] = owned
    return positions


def _sliced_shape(shape: tuple[int, ...], axes: Mapping[int, NDArray[np.intp]]) -> tuple[int, ...]:
    return tuple(axes[axis].size if axis in axes else size for axis, size in enumerate(shape))


def _scatter(dense: Array, value: Array, axes: Mapping[int, NDArray[np.intp]], entry: str) -> Array:
    expected = _sliced_shape(dense.shape, axes)
    if value.shape != expected:
        raise ValueError(f"{entry} has shape {value.shape}, the units make it {expected}")
    if not axes:
        return value
    # Axes behind the last unit axis stay plain slices, which copies whole filters at once.
    leading = dense.shape[: max(axes) + 1]
    index = np.ix_(*(axes.get(axis, np.arange(size)) for axis, size in enumerate(leading)))
    scattered = dense.copy()
    scattered[index] = value
    return scattered

"""A model under a channel mask: its units sliced out physically, or switched off by gates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from raysim.aggregation import masked_mean
from raysim.channels import (
    Groups,
    Mask,
    kept_parameters,
    per_group,
    put,
    put_units,
    take,
    take_units,
)
from raysim.costs import count_costs
from raysim.fisher import set_gates
from raysim.messages import Costs
from raysim.models import ChannelModel
from raysim.tensors import (
    Array,
    Arrays,
    as_entry,
    load_arrays,
    named_state,
    prefixed,
    state_arrays,
    under,
)


@dataclass(frozen=True, slots=True)
class Structure:
    """The units of a mask.

    Attributes:
        groups: the channel groups of the model.
        mask_C: bool [C], the units that are there.
        sliced: slice the others out; False switches them off instead.
    """

    groups: Groups
    mask_C: Mask
    sliced: bool

    @property
    def num_units(self) -> int:
        """Number of units of the mask."""
        return int(self.mask_C.sum())

    def with_units(self, more_C: Mask) -> "Structure":
        """Return the structure of these units and more."""
        return replace(self, mask_C=self.mask_C | more_C)

    def inside(self, other_C: Mask) -> Mask:
        """Return another mask over the units that the loaded model has."""
        return other_C[self.mask_C] if self.sliced else other_C

    def take(self, dense: Arrays) -> Arrays:
        """Return the part of a dense state that belongs to the structure; see `channels.take`."""
        return take(dense, self.groups, self.mask_C)

    def put(self, dense: Arrays, part: Arrays) -> Arrays:
        """Return a dense state with a part of this structure written in; see `channels.put`."""
        return put(dense, part, self.groups, self.mask_C)

    def load(self, model: ChannelModel, dense: Arrays) -> None:
        """Give the model this structure, with the values of a dense state."""
        if self.sliced:
            load_arrays(model, self.take(dense))
        else:
            load_arrays(model, dense)
            set_gates(model, self.groups, self.mask_C)

    def read(self, model: ChannelModel, dense: Arrays) -> Arrays:
        """Return the dense state with the structure's units as the model has them now."""
        trained = state_arrays(model)
        if not self.sliced:  # decay and momentum move units that are off: leave them out
            trained = self.take(trained)
        return self.put(dense, trained)

    def coverage(self, dense: Arrays) -> Arrays:
        """Return dense arrays that are 1 where a scalar belongs to the structure, else 0."""
        zeros = {entry: np.zeros_like(array) for entry, array in dense.items()}
        ones = {entry: np.ones_like(array) for entry, array in self.take(dense).items()}
        return self.put(zeros, ones)

    def covered(self, dense: Arrays) -> Arrays:
        """Return a dense state and its coverage, of which `covered_means` makes averages.

        Args:
            dense: a client's trained model.

        Returns:
            `trained/...`, the values where the structure covers them and else 0, and `covered/...`.
        """
        covered = self.coverage(dense)
        trained = {entry: array * covered[entry] for entry, array in dense.items()}
        return prefixed("trained", trained) | prefixed("covered", covered)

    def num_scalars(self, dense: Mapping[str, Array]) -> int:
        """Return how many scalars of a dense state belong to the structure."""
        shapes = {entry: array.shape for entry, array in dense.items()}
        return kept_parameters(shapes, self.groups, self.mask_C)

    def sizes(self) -> dict[str, int]:
        """Return the number of units in each group, by its name."""
        parts = zip(self.groups, per_group(self.groups, self.mask_C), strict=True)
        return {group.name: int(mask_L.sum()) for group, mask_L in parts}

    def costs(self, model: ChannelModel, dense: Arrays, image_size: int) -> Costs:
        """Count by the mask's filters alone, and as the structure is computed physically."""
        load_arrays(model, dense)
        shapes = {name: p.shape for name, p in model.named_parameters()}
        params, flops = count_costs(model, image_size)
        for group, mask_L in zip(self.groups, per_group(self.groups, self.mask_C), strict=True):
            rows = int(mask_L.sum())
            own = sum(
                int(np.prod(shapes[slot.entry][1:]))
                for slot in group.slots
                if slot.axis == 0 and slot.entry in shapes
            )
            params -= (len(mask_L) - rows) * own
            flops[group.producer] = flops[group.producer] * rows // len(mask_L)
        self.load(model, dense)
        params_sliced, flops_sliced = count_costs(model, image_size)
        return Costs(
            params=params,
            params_sliced=params_sliced,
            flops=sum(flops.values()),
            flops_sliced=sum(flops_sliced.values()),
        )


def freeze(
    model: ChannelModel, dense: Arrays, frozen: Structure, whole: Structure
) -> Callable[[], None]:
    """Freeze the units of one structure inside a model that is loaded with a larger one.

    Args:
        model: loaded with `whole`.
        dense: any dense state, for its shapes.
        frozen: the units that must not move.
        whole: the model's structure.

    Returns:
        What has to run after each optimiser step; `requires_grad` is off where it is enough.
    """
    kept = frozen.coverage(dense)
    if whole.sliced:
        kept = whole.take(kept)
    parameters = dict(model.named_parameters())
    partly = []
    for entry, tensor in named_state(model).items():
        is_kept = torch.from_numpy(kept[entry] > 0).to(tensor.device)
        if not bool(is_kept.all()):
            partly.append((tensor, is_kept, tensor.clone()))
        elif entry in parameters:
            parameters[entry].requires_grad_(False)

    def restore() -> None:
        for tensor, is_kept, value in partly:
            tensor.copy_(torch.where(is_kept, value, tensor))

    return restore


def silenced(dense: Arrays, groups: Groups, units: Array) -> Arrays:
    """Zero what consumers multiply some units with: the units are there and change nothing.

    Args:
        dense: a dense state; not modified.
        groups: the channel groups.
        units: flat unit numbers.
    """
    consumers = [
        replace(group, slots=tuple(slot for slot in group.slots if slot.axis > 0))
        for group in groups
    ]
    columns = take_units(dense, consumers, units)
    zeros = {name: np.zeros_like(array) for name, array in columns.items()}
    return put_units(dense, zeros, consumers, units)


def covered_means(old: Arrays, totals: Mapping[str, Array]) -> Arrays:
    """Average each scalar over the clients whose structure covers it.

    Args:
        old: the dense model; its dtypes, and its values where no client covers them.
        totals: sums over clients of weight times `Structure.covered`, by the same names.
    """
    trained, covered = under("trained", totals), under("covered", totals)
    return {
        entry: as_entry(masked_mean(trained[entry], covered[entry], array), array)
        for entry, array in old.items()
    }


def filter_norms(dense: Arrays, groups: Groups) -> Array:
    """Return the l1 norm of each unit's filter, float64 [C]."""
    return np.concatenate([w.sum(1, dtype=np.float64) for w in _absolute_filters(dense, groups)])


def filter_magnitudes(dense: Arrays, groups: Groups) -> Array:
    """Return the mean absolute weight of each unit's filter, float64 [C]."""
    return np.concatenate([w.mean(1, dtype=np.float64) for w in _absolute_filters(dense, groups)])


def _absolute_filters(dense: Arrays, groups: Groups) -> list[Array]:
    """Return the absolute weights [L, I] of each group's filters."""
    filters = [dense[f"{group.producer}.weight"] for group in groups]
    return [np.abs(w).reshape(len(w), -1) for w in filters]

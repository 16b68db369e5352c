"""Channel units that a client trains for itself and keeps from round to round.

A client's state holds their flat numbers as `private_units` and all that they own, dense along its
other axes, as `private/...` (see `take_units`). A unit that becomes shared is the server's from
then on.
"""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from raysim.channels import Groups, Mask, put_units, take_units, unit_mask
from raysim.method import Batch, ClientView
from raysim.seeds import Stream
from raysim.structures import Structure, freeze, silenced
from raysim.tensors import Arrays, prefixed, under
from raysim.training import freeze_batchnorm


def private_mask(state: Arrays, groups: Groups) -> Mask:
    """Return the units that a client has kept, bool [C].

    Args:
        state: the client's state; one without private units is fine.
        groups: the channel groups.
    """
    return unit_mask(groups, state.get("private_units", ()))


def private_state(dense: Arrays, state: Arrays, shared: Structure, whole: Structure) -> Arrays:
    """Return what a client keeps of its private units: those from earlier rounds, and new ones.

    Args:
        dense: the client's trained model, from which all of them are copied.
        state: the client's state so far.
        shared: the units that are the server's; none of them is kept.
        whole: shared and new private units.
    """
    private_C = private_mask(state, shared.groups) | whole.mask_C
    units = np.flatnonzero(private_C & ~shared.mask_C)
    return {"private_units": units} | prefixed("private", take_units(dense, shared.groups, units))


def with_private(
    dense: Arrays, state: Arrays, shared: Structure, whole: Structure, *, silent: bool
) -> Arrays:
    """Put a client's private units back into the model that it has received.

    Args:
        dense: the received model; not modified.
        state: the client's state.
        shared: the units that are the server's; they stay as received.
        whole: shared units and those that the client is about to use.
        silent: whether used units that are neither shared nor kept start `silenced`; otherwise they
            are as received.
    """
    groups, own_C = shared.groups, private_mask(state, shared.groups)
    new_C = whole.mask_C & ~shared.mask_C & ~own_C
    if silent and new_C.any():
        dense = silenced(dense, groups, np.flatnonzero(new_C))
    if not own_C.any():
        return dense
    restored = put_units(dense, under("private", state), groups, np.flatnonzero(own_C))
    return shared.put(restored, shared.take(dense))


def fit_private(
    client: ClientView,
    loss: Callable[[Batch], Tensor],
    received: Arrays,
    shared: Structure,
    whole: Structure,
    lr: float,
) -> Arrays:
    """Train a client's private units for an epoch around the shared ones, which stay as they are.

    BatchNorm normalises by its running statistics. `client.model` is left with the result.

    Args:
        client: whose examples and settings of local training are used.
        loss: maps a batch to a scalar.
        received: the dense model to start from.
        shared: the units that must not move.
        whole: shared and private units.
        lr: the learning rate.

    Returns:
        The dense model with the trained units.
    """
    whole.load(client.model, received)
    freeze_batchnorm(client.model)
    client.fit(
        loss,
        stream=Stream.PRIVATE_STEP,
        lr=lr,
        epochs=1,
        after_step=freeze(client.model, received, shared, whole),
    )
    return whole.read(client.model, received)

"""Private units: kept from round to round, put back, trained around shared units."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch.nn import functional

from raysim.channels import ChannelGroup, Slot, num_units
from raysim.config import LocalSettings
from raysim.method import ClientView
from raysim.models import build_model
from raysim.private_units import fit_private, private_mask, private_state, with_private
from raysim.structures import Structure
from raysim.tensors import Array, Arrays, digest, state_arrays
from raysim.training import Batch, ShardData

# Unit j produces row j of w and reads column j of x.
GROUPS = (ChannelGroup("g", 4, "w", None, "gate", (Slot("w", 0), Slot("x", 1))),)


def structure(*units: int) -> Structure:
    mask_C = np.zeros(4, np.bool_)
    mask_C[list(units)] = True
    return Structure(GROUPS, mask_C, sliced=True)


def dense(value: float) -> Arrays:
    return {"w": np.full((4, 2), value), "x": np.full((2, 4), value), "b": np.full(2, value)}


def units_of(arrays: Arrays) -> tuple[list[float], list[float]]:
    """Return the first scalar of each unit's row and column."""
    return arrays["w"][:, 0].tolist(), arrays["x"][0].tolist()


def test_a_client_without_state_has_no_private_units() -> None:
    assert private_mask({}, GROUPS).tolist() == [False] * 4
    received = dense(1)
    assert with_private(received, {}, structure(0, 1), structure(0, 1), silent=True) is received


def test_kept_units_come_back_as_they_were() -> None:
    state = private_state(dense(5), {}, structure(0, 1), structure(0, 1, 3))
    assert state["private_units"].tolist() == [3]
    assert private_mask(state, GROUPS).tolist() == [False, False, False, True]
    received = dense(1)
    found = with_private(received, state, structure(0, 1), structure(0, 1, 3), silent=True)
    assert units_of(found) == ([1, 1, 1, 5], [1, 1, 1, 5])
    assert_array_equal(found["b"], received["b"])
    assert digest(received) == digest(dense(1))


def test_units_are_kept_beyond_the_rounds_that_use_them() -> None:
    state = private_state(dense(5), {}, structure(0), structure(0, 3))
    later = private_state(dense(6), state, structure(0), structure(0, 2))
    assert later["private_units"].tolist() == [2, 3]


def test_a_unit_that_becomes_shared_is_the_server_s() -> None:
    state = private_state(dense(5), {}, structure(0), structure(0, 2, 3))
    shared = structure(0, 3)
    found = with_private(dense(1), state, shared, shared, silent=True)
    assert units_of(found) == ([1, 1, 5, 1], [1, 1, 5, 1])
    assert private_state(found, state, shared, shared)["private_units"].tolist() == [2]


@pytest.mark.parametrize("silent", [True, False])
def test_only_units_without_a_copy_start_silent(silent: bool) -> None:
    state = private_state(dense(5), {}, structure(0), structure(0, 3))
    found = with_private(dense(1), state, structure(0), structure(0, 2, 3), silent=silent)
    # Unit 2 is new: it computes, and with `silent` nothing listens. Unit 1 is not used at all.
    assert units_of(found) == ([1, 1, 1, 5], [1, 1, 0 if silent else 1, 5])


def test_shared_scalars_are_as_received_where_they_meet_private_ones() -> None:
    # Rows of w are units 0-1, its columns units 2-3: a private row crosses shared columns.
    groups = (
        ChannelGroup("rows", 2, "w", None, "g1", (Slot("w", 0),)),
        ChannelGroup("columns", 2, "v", None, "g2", (Slot("w", 1),)),
    )
    shared = Structure(groups, np.array([1, 0, 1, 0], np.bool_), sliced=True)
    whole = shared.with_units(np.array([0, 1, 0, 1], np.bool_))
    state = private_state({"w": np.full((2, 2), 5.0)}, {}, shared, whole)
    found = with_private({"w": np.ones((2, 2))}, state, shared, whole, silent=True)
    assert_array_equal(found["w"], [[1, 5], [5, 5]])


# Training ----------------------------------------------------------------------------------------


def toy_client() -> ClientView:
    torch.manual_seed(0)
    size = 12
    shard = ShardData(
        images=torch.randint(0, 256, (size, 3, 16, 16), dtype=torch.uint8),
        labels=torch.arange(size) % 3,
        domains=torch.zeros(size, dtype=torch.int64),
        mean=torch.full((1, 3, 1, 1), 127.0),
        std=torch.full((1, 3, 1, 1), 64.0),
    )
    local = LocalSettings(batch_size=4, epochs=3)
    model = build_model("cnn", 3, 16, 4)
    return ClientView(
        seed=1,
        round=2,
        phase="fit",
        model=model,
        weights={},
        num_domains=1,
        num_clients=4,
        client=3,
        shard=shard,
        state={},
        message={},
        local=local,
    )


def masks(total: int) -> tuple[Array, Array]:
    shared_C = np.arange(total) % 3 > 0
    return shared_C, shared_C | (np.arange(total) % 6 == 0)


@pytest.mark.parametrize("sliced", [True, False])
def test_shared_units_stay_while_private_ones_learn(sliced: bool) -> None:
    client = toy_client()
    groups = client.model.channel_groups("inner")
    shared_C, whole_C = masks(num_units(groups))
    shared, whole = (Structure(groups, m, sliced=sliced) for m in (shared_C, whole_C))
    received = state_arrays(client.model)
    seen = 0

    def loss(batch: Batch) -> torch.Tensor:
        nonlocal seen
        seen += len(batch)
        return functional.cross_entropy(client.model(batch.images), batch.labels)

    trained = fit_private(client, loss, received, shared, whole, lr=0.1)
    assert seen == len(client.shard)  # one epoch, whatever `local.epochs` says
    assert digest(shared.take(trained)) == digest(shared.take(received))
    private = private_state(trained, {}, shared, whole)
    before = private_state(received, {}, shared, whole)
    assert private["private_units"].tolist() == np.flatnonzero(whole_C & ~shared_C).tolist()
    weights = [name for name in private if "producer.weight@0" in name]
    assert weights
    assert all(not np.array_equal(private[name], before[name]) for name in weights)
    for entry, array in trained.items():
        if "running_" in entry:
            assert_array_equal(array, received[entry])
    unused = whole.coverage(received)
    for entry, array in trained.items():
        assert_array_equal(array[unused[entry] == 0], received[entry][unused[entry] == 0])

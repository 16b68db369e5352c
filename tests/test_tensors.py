from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

from raysim.models import build_model
from raysim.tensors import (
    digest,
    load_arrays,
    num_bytes,
    num_scalars,
    prefixed,
    state_arrays,
    under,
)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def test_state_is_float_parameters_and_buffers() -> None:
    names = set(state_arrays(net()))
    assert names == {
        *("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    }


def test_state_is_a_copy_and_loads_back() -> None:
    model = net()
    arrays = state_arrays(model)
    arrays["0.weight"] += 1
    assert not np.array_equal(arrays["0.weight"], state_arrays(model)["0.weight"])
    load_arrays(model, arrays)
    for name, array in state_arrays(model).items():
        assert_array_equal(array, arrays[name])


def test_loading_does_not_alias_and_takes_read_only_arrays() -> None:
    model, arrays = net(), state_arrays(net())
    for array in arrays.values():
        array.setflags(write=False)
    before = digest(arrays)
    load_arrays(model, arrays)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    assert digest(arrays) == before


def test_other_shapes_replace_entries_and_come_back() -> None:
    model, dense = net(), state_arrays(net())
    small = {name: a[:2] for name, a in dense.items()}
    load_arrays(model, small)
    assert model(torch.zeros(2, 3, 5, 5)).shape == (2, 2, 3, 3)
    assert model[0].weight.requires_grad
    load_arrays(model, dense)
    assert digest(state_arrays(model)) == digest(dense)


def test_wrong_names_are_refused() -> None:
    arrays = state_arrays(net())
    missing = {name: a for name, a in arrays.items() if name != "0.bias"}
    for odd in (missing, arrays | {"2.weight": np.zeros(1)}):
        with pytest.raises(KeyError, match=r"0\.bias|2\.weight"):
            load_arrays(net(), odd)


def test_channels_last_stays_channels_last_in_a_sliced_model() -> None:
    model = build_model("resnet10", 10, 16, 4)
    model.layout = torch.channels_last
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    arrays = state_arrays(model)
    assert all(a.flags.c_contiguous for a in arrays.values())
    name = next(n for n, a in arrays.items() if a.ndim == 4 and a.shape[2] == 3)
    value = dict(model.named_parameters())[name]
    assert value.is_contiguous(memory_format=torch.channels_last)


def changed(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    first, *_ = arrays
    renamed = dict(arrays)
    renamed["other"] = renamed.pop(first)
    return [
        renamed,
        arrays | {first: arrays[first] + np.float32(1e-7)},
        arrays | {first: arrays[first].astype(np.float64)},
        arrays | {first: arrays[first].reshape(-1)},
        arrays | {"extra": np.zeros(0)},
    ]


def test_digest_sees_names_values_dtypes_and_shapes_but_no_order() -> None:
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.arange(4.0)}
    assert digest(dict(reversed(arrays.items()))) == digest(arrays)
    assert digest({n: np.asfortranarray(a) for n, a in arrays.items()}) == digest(arrays)
    others = {digest(odd) for odd in changed(arrays)}
    assert len(others) == 5
    assert digest(arrays) not in others


def test_digest_tells_the_zeros_apart() -> None:
    assert digest({"a": np.array([0.0])}) != digest({"a": np.array([-0.0])})


def test_sizes_and_prefixes() -> None:
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, bool)}
    assert num_scalars(arrays) == 10
    assert num_bytes(arrays) == 28
    named = prefixed("own", arrays) | {"ownership": np.zeros(1)}
    assert named.keys() == {"own/a", "own/b", "ownership"}
    assert under("own", named).keys() == arrays.keys()

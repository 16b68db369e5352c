from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from methods import METHODS
from methods.fedavg import FedAvg
from methods.fedbn import FedBN, norm_entries
from raysim.config import RunConfig, build_config
from raysim.errors import ConfigError
from raysim.host import Host
from raysim.method import Method
from raysim.models import ChannelModel, GatedLayer
from raysim.server import Server
from raysim.skeleton import build_skeleton
from raysim.tensors import digest
from tests.toy import TEST_METHODS, dealt, run_toy, toy_config, toy_tree


class _WithoutNorm(Method):
    """Takes the normalisation layers out of any model."""

    def build_model(self, name: str, num_classes: int, image_size: int, width: int) -> ChannelModel:
        model = super().build_model(name, num_classes, image_size, width)
        for module in model.modules():
            if isinstance(module, GatedLayer):
                module.norm = nn.Identity()  # type: ignore[assignment]
        return model


class BareFedBN(FedBN, _WithoutNorm):
    name: str = "bare_fedbn"


class BareFedAvg(FedAvg, _WithoutNorm):
    name: str = "bare_fedavg"


BARE: dict[str, type[Method]] = {"bare_fedbn": BareFedBN, "bare_fedavg": BareFedAvg}


def bare_config(method: dict[str, object]) -> RunConfig:
    return build_config(toy_tree(method=method), METHODS | TEST_METHODS | BARE)


def test_layers_are_found_by_type_whatever_their_name() -> None:
    model = nn.ModuleDict(
        {
            "downsample": nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)),
            "a": nn.GroupNorm(1, 2),
            "b": nn.LayerNorm(2),
            "c": nn.InstanceNorm2d(2, affine=True, track_running_stats=True),
            "subnet": nn.Linear(2, 2),  # has the letters of a norm, and is none
        }
    )
    counter = "num_batches_tracked"
    statistics = ("weight", "bias", "running_mean", "running_var", counter)
    assert norm_entries(model) == {
        *(f"downsample.1.{leaf}" for leaf in statistics),
        *(f"c.{leaf}" for leaf in statistics),
        *("a.weight", "a.bias", "b.weight", "b.bias"),
    }


@pytest.mark.parametrize("name", ["cnn", "resnet10"])
def test_every_norm_entry_of_our_models_is_private(name: str) -> None:
    model = FedBN().build_model(name, 10, 16, 4)
    by_name = {n for n in model.state_dict() if ".norm." in n}
    assert {n for n in model.state_dict() if FedBN().is_private(n, model)} == by_name


def test_a_model_without_norm_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no normalisation layer.*method.require_norm=false"):
        build_skeleton(bare_config({"name": "bare_fedbn"}), 10, torch.device("cpu"))


def test_on_a_model_without_norm_layers_it_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    fedbn = bare_config({"name": "bare_fedbn", "require_norm": False})
    fedavg = bare_config({"name": "bare_fedavg"})
    assert run_toy(fedbn, tmp_path / "bn").bits == run_toy(fedavg, tmp_path / "avg").bits


@pytest.mark.parametrize("global_norm", ["average", "initial"])
def test_what_goes_up_and_what_is_tested(global_norm: str) -> None:
    config = toy_config(method={"name": "fedbn", "global_norm": global_norm})
    dataset, partition = dealt(config)
    server = Server(config, len(dataset.classes), len(dataset.domains))
    host = Host(config, {c: partition.shards[c] for c in (0, 1)})
    initial = server.weights()
    partial, _ = host.run_phase(0, "fit", [0, 1], initial, server.broadcast(0, "fit")[0])
    host.commit()
    server.aggregate(0, "fit", [partial])
    server.commit()
    weights = server.weights()

    model = build_skeleton(config, len(dataset.classes), torch.device("cpu"))
    private = norm_entries(model) & set(initial)
    states = host.snapshot()
    assert all(set(state) == private for state in states.values())
    assert not private & set(partial.sums)
    assert all(np.array_equal(weights[n], initial[n]) for n in private)
    assert server.broadcast(1, "fit")[0] == {}

    method = config.method
    assert isinstance(method, FedBN)
    method.load_global(model, weights, server.broadcast(0, "evaluate")[0])
    loaded = model.state_dict()
    sizes = [partition.shards[c].num_train for c in (0, 1)]
    for name in private:
        mean = np.average([states[c][name] for c in (0, 1)], axis=0, weights=sizes)
        expected = mean if global_norm == "average" else initial[name]
        np.testing.assert_allclose(loaded[name].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_lending_layers_for_the_test_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    average, initial = (
        run_toy(toy_config(method={"name": "fedbn", "global_norm": g}), tmp_path / g).snapshot
        for g in ("average", "initial")
    )
    assert digest(average.model) == digest(initial.model)
    assert average.clients.keys() == initial.clients.keys()
    assert all(digest(average.clients[c]) == digest(initial.clients[c]) for c in average.clients)

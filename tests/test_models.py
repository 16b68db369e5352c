import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from methods import METHODS
from raysim.channels import Scope, num_units
from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.models import MODELS, ChannelModel, Gate, build_model
from raysim.models.base import GatedLayer
from raysim.models.resnet import BasicBlock
from raysim.skeleton import build_skeleton
from raysim.tensors import named_state

torch.set_num_threads(1)

SMALL = {"cnn": 32, "resnet10": 32, "resnet18": 32, "alexnet": 64}


def small_model(name: str, image_size: int | None = None) -> ChannelModel:
    torch.manual_seed(0)
    return build_model(name, 5, image_size or SMALL[name], 4)


@pytest.mark.parametrize(
    ("name", "image_size", "width", "expected"),
    [
        ("resnet18", 32, 64, 11_173_962),
        ("resnet10", 32, 64, 4_903_242),
        ("cnn", 32, 32, 358_698),
        ("alexnet", 64, 64, 12_974_154),
        ("alexnet", 256, 64, 12_974_154),
    ],
)
def test_parameter_counts_of_the_published_networks(name, image_size, width, expected):
    with torch.device("meta"):
        model = build_model(name, 10, image_size, width)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize(
    ("name", "scope", "expected"),
    [
        ("resnet18", "inner", 1_920),
        ("resnet18", "all", 4_800),
        ("resnet10", "inner", 960),
        ("cnn", "inner", 64 * 5 + 32),
        ("alexnet", "inner", 3_200),
    ],
)
def test_number_of_units_at_full_width(name, scope, expected):
    width = 32 if name == "cnn" else 64
    with torch.device("meta"):
        model = build_model(name, 10, 64, width)
    assert num_units(model.channel_groups(scope)) == expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("image_size", [32, 64, 96])
def test_forward_is_the_head_on_the_features(name, image_size):
    if image_size < SMALL[name]:
        pytest.skip("too small for this model")
    model = small_model(name, image_size).eval()
    x = torch.randn(2, 3, image_size, image_size)
    features = model.features(x)
    assert features.shape == (2, model.head.in_features)
    torch.testing.assert_close(model(x), model.head(features))
    assert model(x).shape == (2, 5)


@pytest.mark.parametrize("scope", ["inner", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_slots_fit_the_state_and_no_axis_has_two_owners(name, scope: Scope):
    model = small_model(name)
    state = named_state(model)
    groups = model.channel_groups(scope)
    owned = [(slot.entry, slot.axis) for group in groups for slot in group.slots]
    assert len(set(owned)) == len(owned)
    assert len({group.name for group in groups}) == len(groups)
    for group in groups:
        assert isinstance(model.get_submodule(group.gate), Gate)
        for slot in group.slots:
            assert state[slot.entry].shape[slot.axis] == group.size * slot.repeat


@pytest.mark.parametrize("name", MODELS)
def test_scope_all_owns_every_hidden_producer_and_no_consumer(name):
    model = small_model(name)
    groups = model.channel_groups("all")
    producers = {
        path
        for path, module in model.named_modules()
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)) and path != "head"
    }
    assert {group.producer for group in groups} == producers
    assert all(slot.axis == 0 for group in groups for slot in group.slots)
    assert {group.name for group in model.channel_groups("inner")} <= {g.name for g in groups}


def test_biases_of_producers_belong_to_their_units():
    first = small_model("alexnet").channel_groups("inner")[0]
    assert "body.conv1.producer.bias" in {slot.entry for slot in first.slots}


def test_a_flattened_map_owns_a_run_of_columns():
    groups = {g.name: g for g in small_model("cnn").channel_groups("inner")}
    consumer = groups["body.conv3"].slots[-1]
    assert (consumer.entry, consumer.axis, consumer.repeat) == (
        "body.hidden.producer.weight",
        1,
        16,
    )


def test_resnet_stem_follows_the_image_size():
    assert small_model("resnet10", 63).stem.producer.weight.shape[2:] == (3, 3)
    assert small_model("resnet10", 64).stem.producer.weight.shape[2:] == (7, 7)


@pytest.mark.parametrize("name", MODELS)
def test_no_layer_is_one_whose_weight_gradients_onednn_gets_wrong(name):
    layers = [m for m in build_model(name, 10, 64, 4).modules() if isinstance(m, nn.Conv2d)]
    assert layers
    assert not [m for m in layers if m.kernel_size == (1, 1) and m.stride != (1, 1)]


def test_a_network_with_such_a_layer_is_refused_in_channels_last(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n\nfrom methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n"
        "    def build_model(self, *given):\n        model = super().build_model(*given)\n"
        "        model.extra = nn.Conv2d(4, 8, 1, stride=2)\n        return model\n"
    )
    words = [f"method={file}:Mine", "model.width=4"]
    with pytest.raises(ConfigError, match=r"extra: a 1x1 .* set model\.memory_format=contiguous"):
        build_skeleton(load_config(METHODS, overrides=words), 10, torch.device("cpu"))
    words.append("model.memory_format=contiguous")
    assert build_skeleton(load_config(METHODS, overrides=words), 10, torch.device("cpu"))


def test_a_shortcut_is_a_strided_convolution() -> None:
    block = BasicBlock(16, 32, stride=2).eval()
    layer = block.shortcut
    assert isinstance(layer, GatedLayer)
    x = torch.rand(2, 16, 7, 7, dtype=torch.float64)
    block.double()
    strided = functional.conv2d(x, layer.producer.weight, stride=2)
    expected = torch.relu(block.conv2(block.conv1(x)) + layer.norm(strided))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_initialisation_depends_on_torch_generator_only(name):
    first, second = named_state(small_model(name)), named_state(small_model(name))
    assert all(torch.equal(first[entry], second[entry]) for entry in first)
    torch.manual_seed(1)
    other = named_state(build_model(name, 5, SMALL[name], 4))
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_gate_broadcasts_over_batch_and_positions(shape):
    gate, x = Gate(), torch.randn(shape)
    assert gate(x) is x
    gate.mask = torch.tensor([True, False, True])
    y = gate(x)
    assert torch.equal(y[:, [0, 2]], x[:, [0, 2]])
    assert not y[:, 1].any()


def test_a_gate_mask_is_not_state():
    model = small_model("cnn")
    before = set(model.state_dict())
    for module in model.modules():
        if isinstance(module, Gate):
            module.mask = torch.ones(1)
    assert set(model.state_dict()) == before
    assert copy.deepcopy(model).body.conv1.gate.mask is not None


@pytest.mark.parametrize(
    ("name", "classes", "size", "width", "words"),
    [
        ("vgg", 10, 32, 4, "vgg"),
        ("alexnet", 10, 62, 4, "image_size=62"),
        ("cnn", 10, 7, 4, "image_size=7"),
        ("resnet10", 10, 4, 4, "image_size=4"),
        ("cnn", 0, 32, 4, "num_classes=0"),
        ("cnn", 10, 32, 0, "width=0"),
    ],
)
def test_impossible_models_are_refused(name, classes, size, width, words):
    with pytest.raises(ConfigError, match=words):
        build_model(name, classes, size, width)


@pytest.mark.parametrize(("name", "size"), [("alexnet", 63), ("cnn", 8), ("resnet18", 8)])
def test_the_smallest_images_work(name, size):
    logits = build_model(name, 3, size, 2)(torch.randn(2, 3, size, size))
    assert np.isfinite(logits.detach().numpy()).all()

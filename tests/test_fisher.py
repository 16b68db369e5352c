import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from raysim.channels import num_units, per_group, put, select_units, take
from raysim.fisher import (
    UnitRecorder,
    batch_importance,
    domain_means,
    importance,
    sampled_rows,
    scored_loss,
    set_gates,
    weight_scores,
)
from raysim.models import MODELS, ChannelModel, Gate, GatedLayer, build_model
from raysim.tensors import load_arrays, state_arrays
from raysim.training import Batch

torch.set_num_threads(1)

SIZES = {"cnn": 16, "resnet10": 16, "resnet18": 16, "alexnet": 64}
FORMS = ["gate", "weight"]


def trained_like(name: str, image_size: int | None = None) -> ChannelModel:
    """Return a small float64 model whose norms are not at their initial values."""
    torch.manual_seed(0)
    model = build_model(name, 3, image_size or SIZES[name], 3).double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.3, 0.5)
                module.running_mean.uniform_(-0.2, 0.2)
                module.running_var.uniform_(0.3, 1.5)
    return model


def examples(model: ChannelModel, image_size: int, num: int = 5):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(num, 3, image_size, image_size, generator=generator, dtype=torch.float64)
    return images, torch.arange(num) % model.head.out_features


def some_units(groups) -> np.ndarray:
    rng = np.random.default_rng(2)
    return select_units(rng.random(num_units(groups)), groups, 0.6, 0.05)


class Ghost(nn.Module):
    """The oracle's layer: closed units add nothing, yet their filters have a gradient.

    h = m a + (1 - m) (a' - stopgrad(a')), with a' computed from stopgrad(x).
    """

    def __init__(self, layer: GatedLayer) -> None:
        super().__init__()
        self.producer, self.norm, self.relu = layer.producer, layer.norm, layer.relu
        self.mask = layer.gate.mask

    def activation(self, x: Tensor) -> Tensor:
        x = self.norm(self.producer(x))
        return torch.relu(x) if self.relu else x

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            return self.activation(x)
        ghost = self.activation(x.detach())
        mask = self.mask.double().view(1, -1, *(1,) * (ghost.dim() - 2))
        return mask * self.activation(x) + (1 - mask) * (ghost - ghost.detach())


def loop_oracle(model, images, labels, groups, form) -> np.ndarray:
    """Return [N, C] squared gradients of real leaves, one example at a time."""
    model = copy.deepcopy(model).eval()
    leaves = []
    for group in groups:
        path = group.gate.rpartition(".")[0]
        layer = model.get_submodule(path)
        if form == "weight":
            model.set_submodule(path, Ghost(layer))
            leaves.append(layer.producer.weight)
        else:
            mask = torch.ones(group.size) if layer.gate.mask is None else layer.gate.mask
            layer.gate.mask = mask.double().requires_grad_()
            leaves.append(layer.gate.mask)
    rows = []
    for image, label in zip(images, labels, strict=True):
        loss = cross_entropy(model(image[None]), label[None])
        gradients = torch.autograd.grad(loss, leaves)
        rows.append(torch.cat([g.square().reshape(len(g), -1).mean(1) for g in gradients]))
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scope", ["inner", "all"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "size"), [("cnn", 16), ("resnet10", 16), ("resnet10", 64), ("alexnet", 64)]
)
def test_batched_scores_equal_a_loop_over_examples(name, size, form, scope, masked):
    model = trained_like(name, size).eval()
    groups = model.channel_groups(scope)
    set_gates(model, groups, some_units(groups) if masked else None)
    images, labels = examples(model, size)
    with UnitRecorder(model, groups) as recorder:
        loss_sum = cross_entropy(model(images), labels, reduction="sum")
        scores = torch.cat(recorder.scores(loss_sum, form=form), dim=1)
    expected = loop_oracle(model, images, labels, groups, form)
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-7, atol=1e-12 * expected.max())
    assert expected.max() > 0


def test_both_ways_to_square_filter_gradients_agree():
    torch.manual_seed(0)
    for inputs, filters, positions in [(2, 3, 9), (30, 20, 4), (7, 5, 1)]:
        u = torch.randn(4, inputs, positions, dtype=torch.float64)
        d = torch.randn(4, filters, positions, dtype=torch.float64)
        expected = torch.einsum("nlp,nip->nli", d, u).square().sum(2)
        torch.testing.assert_close(weight_scores(u, d), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_importance_is_the_mean_over_each_domain(form, batch_size):
    model = trained_like("cnn")
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16, num=7)
    domains = np.array([2, 0, 2, 0, 0, 2, 2])
    measured = importance(model, images, labels, domains, 4, groups, form, batch_size)
    per_example = loop_oracle(model, images, labels, groups, form)
    assert measured.dtype == np.float64
    for domain in (0, 2):
        np.testing.assert_allclose(measured[domain], per_example[domains == domain].mean(0))
    assert not measured[[1, 3]].any()


def test_importance_of_no_examples_is_zero():
    model = trained_like("cnn")
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16)
    none = importance(model, images[:0], labels[:0], np.zeros(0, int), 2, groups, "gate", 4)
    assert none.shape == (2, num_units(groups))
    assert not none.any()
    with pytest.raises(ValueError, match="5 images but 4"):
        importance(model, images, labels, np.zeros(4, int), 2, groups, "gate", 4)


def test_importance_leaves_the_model_as_it_was():
    model = trained_like("resnet10").train()
    model.stem.eval()  # a frozen part must not be woken up
    groups = model.channel_groups("inner")
    set_gates(model, groups, some_units(groups))
    before, modes = state_arrays(model), [m.training for m in model.modules()]
    images, labels = examples(model, 16)
    importance(model, images, labels, torch.zeros(5, dtype=torch.long), 1, groups, "weight", 2)
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert all((array == before[name]).all() for name, array in state_arrays(model).items())
    assert not any(m._forward_hooks for m in model.modules())


def test_importance_works_for_a_caller_without_gradients():
    model = trained_like("cnn")
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16)
    with torch.no_grad():
        assert importance(model, images, labels, np.zeros(5, int), 1, groups, "gate", 5).any()


@pytest.mark.parametrize("training", [False, True])
def test_gate_gradient_is_the_norms_affine_identity(training):
    """dL/dm = gamma dL/dgamma + beta dL/dbeta for open gates, in either mode of batch norm."""
    model = trained_like("resnet10").train(training)
    images, labels = examples(model, 16)
    for group in model.channel_groups("all"):
        gate, norm = model.get_submodule(group.gate), model.get_submodule(group.norm)
        gate.mask = torch.ones(group.size, dtype=torch.float64, requires_grad=True)
        loss = cross_entropy(model(images), labels)
        dm, dgamma, dbeta = torch.autograd.grad(loss, [gate.mask, norm.weight, norm.bias])
        torch.testing.assert_close(dm, norm.weight * dgamma + norm.bias * dbeta)
        gate.mask = None


def test_gate_scores_follow_the_same_identity():
    model = trained_like("cnn").eval()
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16, num=1)
    with UnitRecorder(model, groups) as recorder:
        loss = cross_entropy(model(images), labels, reduction="sum")
        norms = [model.get_submodule(group.norm) for group in groups]
        affine = torch.autograd.grad(
            loss, [p for n in norms for p in (n.weight, n.bias)], retain_graph=True
        )
        scores = recorder.scores(loss, form="gate")
    for score, norm, dgamma, dbeta in zip(scores, norms, affine[::2], affine[1::2], strict=True):
        expected = (norm.weight * dgamma + norm.bias * dbeta).square().detach()
        torch.testing.assert_close(score[0], expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_switched_off_units_have_importance(name, form):
    model = trained_like(name)
    groups = model.channel_groups("inner")
    mask_C = some_units(groups)
    images, labels = examples(model, 16)
    arguments = (images, labels, np.zeros(5, int), 1, groups, form, 5)
    dense = importance(model, *arguments)[0]
    set_gates(model, groups, mask_C)
    masked = importance(model, *arguments)[0]
    set_gates(model, groups, None)
    alive = dense > 0
    assert (~mask_C & alive).any()
    assert (masked[~mask_C & alive] > 0).mean() > 0.9
    assert not np.allclose(masked, dense)  # measured at the masked point, not the dense one
    assert np.array_equal(importance(model, *arguments)[0], dense)


def test_gates_can_be_set_and_opened():
    model = trained_like("cnn").eval()
    groups = model.channel_groups("inner")
    images, _ = examples(model, 16)
    dense = model(images)
    set_gates(model, groups, some_units(groups))
    assert not torch.allclose(model(images), dense)
    set_gates(model, groups, np.ones(num_units(groups), bool))
    assert torch.equal(model(images), dense)
    set_gates(model, groups, None)
    assert all(m.mask is None for m in model.modules() if isinstance(m, Gate))


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-13), (torch.float32, 5e-6)])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "size"), [*SIZES.items(), ("cnn", 32), ("resnet10", 64)])
def test_masked_and_sliced_models_are_the_same_function(name, size, training, dtype, atol):
    """After a step of SGD the kept scalars agree too. Rounding in float32 depends on the CPU."""
    model = trained_like(name, size).to(dtype).train(training)
    groups = model.channel_groups("inner")
    mask_C = some_units(groups)
    dense = state_arrays(model)
    sliced = copy.deepcopy(model)
    load_arrays(sliced, take(dense, groups, mask_C))
    set_gates(model, groups, mask_C)
    images, labels = examples(model, size, num=8)
    outputs = []
    for part in (model, sliced):
        optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
        logits = part(images.to(dtype))
        cross_entropy(logits, labels).backward()
        optimizer.step()
        outputs.append(logits.detach())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=atol)
    trained = put(dense, state_arrays(sliced), groups, mask_C)
    kept = take(state_arrays(model), groups, mask_C)
    for entry, array in take(trained, groups, mask_C).items():
        np.testing.assert_allclose(array, kept[entry], rtol=1e-4, atol=1e-6)
    assert any((kept[entry] != array).any() for entry, array in take(dense, groups, mask_C).items())


@pytest.mark.parametrize("form", FORMS)
def test_a_sliced_model_has_the_scores_of_the_kept_units(form):
    model = trained_like("cnn").eval()
    groups = model.channel_groups("inner")
    mask_C = some_units(groups)
    sliced = copy.deepcopy(model)
    load_arrays(sliced, take(state_arrays(model), groups, mask_C))
    set_gates(model, groups, mask_C)
    images, labels = examples(model, 16)
    scores = []
    for part in (model, sliced):
        with UnitRecorder(part, groups) as recorder:
            loss_sum = cross_entropy(part(images), labels, reduction="sum")
            scores.append(recorder.scores(loss_sum, form=form))
    for dense_BL, kept_BL, mask_L in zip(*scores, per_group(groups, mask_C), strict=True):
        torch.testing.assert_close(kept_BL, dense_BL[:, torch.tensor(mask_L)])


def contrastive(scores: list[Tensor]) -> Tensor:
    """A scale-free function of the importances, like the paper's structure vectors."""
    importance_C = torch.cat(scores, dim=1).mean(0)
    target_C = torch.linspace(0, 1, importance_C.numel(), dtype=importance_C.dtype)
    return -torch.cosine_similarity(importance_C, target_C, dim=0)


def term_and_gradient(form: str, differentiable: str, *, training: bool):
    model = trained_like("resnet10").train(training)
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16)
    with UnitRecorder(model, groups) as recorder:
        loss_sum = cross_entropy(model(images), labels, reduction="sum")
        term = contrastive(recorder.scores(loss_sum, form=form, differentiable=differentiable))
    weights = [p for name, p in model.named_parameters() if name.endswith("producer.weight")]
    gradients = torch.autograd.grad(term, weights, retain_graph=True, allow_unused=True)
    assert all(torch.isfinite(g).all() for g in gradients if g is not None)
    (loss_sum / 5 + term).backward()  # the task's backward still has its graph
    filled = [
        torch.zeros_like(w) if g is None else g for w, g in zip(weights, gradients, strict=True)
    ]
    return term.item(), torch.cat([g.flatten() for g in filled])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_surrogate_and_exact_agree_in_value_and_both_train(form, training):
    surrogate, surrogate_gradient = term_and_gradient(form, "surrogate", training=training)
    exact, exact_gradient = term_and_gradient(form, "exact", training=training)
    assert surrogate == exact
    assert surrogate_gradient.norm() > 0
    assert exact_gradient.norm() > 0
    assert not torch.equal(surrogate_gradient, exact_gradient)


def test_surrogate_of_the_gate_form_points_downhill():
    _, surrogate = term_and_gradient("gate", "surrogate", training=False)
    _, exact = term_and_gradient("gate", "exact", training=False)
    assert torch.dot(surrogate, exact) > 0


@pytest.mark.parametrize(
    ("entry", "position"),
    [("body.conv2.producer.weight", (0, 0, 1, 1)), ("body.conv2.norm.weight", (1,))],
)
@pytest.mark.parametrize("form", FORMS)
def test_exact_gradient_matches_finite_differences(form, entry, position):
    model = trained_like("cnn").eval()
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16)
    weight = model.get_parameter(entry)

    def term(differentiable: str = "no") -> Tensor:
        with UnitRecorder(model, groups) as recorder:
            loss_sum = cross_entropy(model(images), labels, reduction="sum")
            return contrastive(recorder.scores(loss_sum, form=form, differentiable=differentiable))

    (gradient,) = torch.autograd.grad(term("exact"), weight)
    step, values = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            weight[position] += sign * step
        values.append(term().item())
        with torch.no_grad():
            weight[position] -= sign * step
    assert gradient[position].item() == pytest.approx(
        (values[0] - values[1]) / (2 * step), rel=1e-4
    )


@pytest.mark.parametrize("form", FORMS)
def test_plain_scores_carry_no_graph(form):
    model = trained_like("cnn")
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16)
    with UnitRecorder(model, groups) as recorder:
        loss_sum = cross_entropy(model(images), labels, reduction="sum")
        assert not any(s.requires_grad for s in recorder.scores(loss_sum, form=form))
    with pytest.raises(KeyError):
        recorder.scores(loss_sum, form=form)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", FORMS)
def test_float32_importance_is_finite_and_close_to_float64(name, form):
    model = trained_like(name)
    groups = model.channel_groups("all")
    images, labels = examples(model, SIZES[name])
    arguments = (labels, np.zeros(5, int), 1, groups, form, 5)
    double = importance(model, images, *arguments)
    single = importance(model.float(), images.float(), *arguments)
    np.testing.assert_allclose(single, double, rtol=1e-3, atol=1e-5 * double.max())


# Batches and domains ---------------------------------------------------------------------------


def test_importance_of_a_batch_is_that_of_its_examples():
    model = trained_like("cnn")
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16, num=7)
    domains = torch.tensor([2, 0, 2, 0, 0, 2, 2])
    batch = Batch(images, labels, domains)
    expected = importance(model, images, labels, domains, 4, groups, "gate", 3)
    np.testing.assert_array_equal(batch_importance(model, batch, 4, groups, "gate", 3), expected)
    assert expected.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("differentiable", ["no", "surrogate", "exact"])
def test_scored_loss_is_the_summed_loss_and_its_scores(form, differentiable):
    model = trained_like("cnn").eval()
    groups = model.channel_groups("inner")
    images, labels = examples(model, 16)
    batch = Batch(images, labels, torch.zeros(5, dtype=torch.int64))
    loss_sum, score_BC = scored_loss(model, batch, groups, form, differentiable)
    torch.testing.assert_close(loss_sum, 5 * cross_entropy(model(images), labels))
    expected = loop_oracle(model, images, labels, groups, form)
    np.testing.assert_allclose(score_BC.detach().numpy(), expected, rtol=1e-7, atol=1e-12)
    assert score_BC.requires_grad == (differentiable != "no")
    if differentiable != "no":  # the graph is there for the task's own backward
        (loss_sum + score_BC.sum()).backward()


def test_domain_means_leave_out_domains_with_few_examples():
    scores = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8], [9, 10]])
    domains = torch.tensor([4, 1, 4, 0, 2])
    means = domain_means(scores, domains, [0, 3, 4], at_least=1)
    assert {domain: mean.tolist() for domain, mean in means.items()} == {0: [7, 8], 4: [3, 4]}
    assert [*means] == [0, 4]
    assert [*domain_means(scores, domains, [4, 2, 1, 0], at_least=2)] == [4]
    assert domain_means(scores, domains, [0, 3], at_least=2) == {}


@pytest.mark.parametrize("most", [1, 3, 100])
def test_sampled_rows_are_a_few_of_each_domain(most):
    domains = torch.tensor([3, 0, 3, 3, 0, 5, 3, 3, 3, 3])
    rows = sampled_rows(domains, most, np.random.default_rng(0))
    assert rows.dtype == torch.int64
    assert torch.bincount(domains[rows]).tolist() == [min(n, most) for n in (2, 0, 0, 7, 0, 1)]
    for domain in (0, 3, 5):
        own = rows[domains[rows] == domain].tolist()
        assert own == sorted(set(own))
    assert domains[rows].tolist() == sorted(domains[rows].tolist())
    again = sampled_rows(domains, most, np.random.default_rng(0))
    assert torch.equal(rows, again)
    draws = {tuple(sampled_rows(domains, 3, np.random.default_rng(s)).tolist()) for s in range(9)}
    assert len(draws) > 1

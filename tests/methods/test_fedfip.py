"""FedFIP: the worked numbers of its equations, and what it promises through the real executor.

Six units in two layers: 0-2 in layer A, 3-5 in layer B. Client 1 holds domains 0 (30 examples) and
1 (10), client 2 domains 1 (20) and 2 (20).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from methods.fedfip import (
    FedFIP,
    contrastive_loss,
    domain_weighted,
    moved_prototype,
    project,
    reactivated_units,
    structure_vector,
)
from raysim.aggregation import ExactSum, Weighted
from raysim.channels import (
    ChannelGroup,
    Slot,
    layer_mean_scores,
    num_units,
    per_group,
    put,
    select_units,
    take,
    take_units,
)
from raysim.config import load_config
from raysim.messages import Update
from raysim.method import ClientView
from raysim.presets import preset_text
from raysim.tensors import Arrays, digest, under
from tests.methods.contract import EVERYONE, World, arrays_of
from tests.toy import FEDFIP, run_toy, toy_config

GROUPS = (
    ChannelGroup("A", 3, "a", None, "ga", ()),
    ChannelGroup("B", 3, "b", None, "gb", ()),
)
F1_DC = np.array([[4, 1, 0.5, 2, 0, 1], [0, 3, 0.5, 2, 4, 1], [0] * 6], np.float64)
F2_DC = np.array([[0] * 6, [1, 1, 0, 2, 0, 3], [1, 1, 4, 0, 0, 1]], np.float64)
N1_D, N2_D = np.array([30, 10, 0]), np.array([0, 20, 20])
FT1_C, FT2_C = np.array([3, 1.5, 0.5, 2, 1, 1]), np.array([1, 1, 2, 1, 0, 2])
GLOBAL_C = np.array([2, 1.25, 1.25, 1.5, 0.5, 1.5])
MASK_C = np.array([1, 0, 0, 1, 0, 1], bool)


def units(mask_C: np.ndarray[Any, Any]) -> set[int]:
    return set(np.flatnonzero(mask_C).tolist())


def mask_of(*kept: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask_C = np.zeros(6, bool)
    mask_C[list(kept)] = True
    return mask_C


# The paper's equations: worked numbers ---------------------------------------------------------


def test_importance_is_weighted_by_domain_then_by_client() -> None:
    assert_allclose(domain_weighted(F1_DC, N1_D), FT1_C, atol=1e-15)
    assert_allclose(domain_weighted(F2_DC, N2_D), FT2_C, atol=1e-15)
    total = ExactSum((6,))
    for value, counts in ((FT1_C, N1_D), (FT2_C, N2_D)):
        total.add(value, int(counts.sum()))
    assert_allclose(total.mean(), GLOBAL_C, atol=1e-9)


@pytest.mark.parametrize(("keep", "wanted"), [(3, {0, 3, 5}), (2, {0, 3}), (4, {0, 1, 3, 5})])
def test_mask_has_the_exact_size_and_ties_go_to_the_lower_unit(keep: int, wanted: set[int]) -> None:
    assert units(select_units(GLOBAL_C, GROUPS, keep / 6, 0.0)) == wanted


def test_guard_and_layer_means_keep_a_layer_alive() -> None:
    weak_C = np.array([2, 1.25, 1.25, 0.015, 0.005, 0.015])
    assert units(select_units(weak_C, GROUPS, 0.5, 0.0)) == {0, 1, 2}
    assert units(select_units(weak_C, GROUPS, 0.5, 0.05)) == {0, 1, 3}
    scores = layer_mean_scores(weak_C, GROUPS)
    assert_allclose(scores, [1.3333, 0.8333, 0.8333, 1.2857, 0.4286, 1.2857], atol=5e-5)
    assert units(select_units(scores, GROUPS, 0.5, 0.0)) == {0, 3, 5}


@pytest.mark.parametrize(
    ("score_C", "phi", "wanted"),
    [
        (FT1_C, 1.0, {1}),  # unit 4 has exactly 1.0, which is not above
        (FT2_C, 1.0, {2}),
        (FT1_C, 1.5, set()),
        (FT2_C, 1.5, {2}),
        (FT1_C, 0.0, {1, 2, 4}),
    ],
)
def test_reactivation(score_C: Any, phi: float, wanted: set[int]) -> None:
    assert units(reactivated_units(score_C, MASK_C, phi, 6)) == wanted
    assert units(MASK_C | reactivated_units(score_C, MASK_C, phi, 6)) == wanted | {0, 3, 5}


def test_reactivation_cap_takes_the_largest_and_breaks_ties_low() -> None:
    score_C = np.array([9.0, 1, 2, 9, 2, 9])
    assert units(reactivated_units(score_C, MASK_C, 0.5, 2)) == {2, 4}
    assert units(reactivated_units(score_C, MASK_C, 0.5, 1)) == {2}
    assert units(reactivated_units(score_C, MASK_C, 0.5, 0)) == set()


@given(
    hnp.arrays(np.float64, 12, elements=st.floats(0, 10)),
    hnp.arrays(np.bool_, 12),
    st.floats(0, 10),
    st.floats(0, 10),
)
def test_a_higher_threshold_reactivates_fewer_units(
    score_C: Any, mask_C: Any, low: float, high: float
) -> None:
    low, high = sorted((low, high))
    few = units(reactivated_units(score_C, mask_C, high, 12))
    assert few <= units(reactivated_units(score_C, mask_C, low, 12))
    assert not few & units(mask_C)


V1_0, V1_1 = np.array([4, 2, 1]) / 7, np.array([0, 2, 1]) / 3
V2_1, V2_2 = np.array([1, 2, 3]) / 6, np.array([1, 0, 1]) / 2


def test_structure_vectors() -> None:
    wanted = {(1, 0): V1_0, (1, 1): V1_1, (2, 1): V2_1, (2, 2): V2_2}
    for (client, domain), vector_L in wanted.items():
        table = F1_DC if client == 1 else F2_DC
        assert_allclose(structure_vector(table[domain][MASK_C]), vector_L, atol=1e-15)


def new_prototypes() -> np.ndarray[Any, np.dtype[np.float64]]:
    """pt over all six units: the sample-weighted means of the structure vectors."""
    pt_DC = np.zeros((3, 6))
    pt_DC[0, MASK_C] = V1_0
    pt_DC[1, MASK_C] = (10 * V1_1 + 20 * V2_1) / 30
    pt_DC[2, MASK_C] = V2_2
    return pt_DC


def test_prototypes_move_by_their_momentum() -> None:
    pt_DC = new_prototypes()
    assert_allclose(pt_DC[1, MASK_C], np.array([1, 4, 4]) / 9, atol=1e-15)
    old_C = np.zeros(6)
    old_C[MASK_C] = [0, 0.5, 0.5]
    moved_C = moved_prototype(old_C, pt_DC[1], 0.4)
    assert_allclose(moved_C[MASK_C], [0.066667, 0.466667, 0.466667], atol=1e-6)
    assert_array_equal(moved_prototype(None, pt_DC[1], 0.4), pt_DC[1])  # no mean with zeros


def test_prototypes_are_projected_onto_a_new_mask() -> None:
    new_C = mask_of(0, 1, 3)
    ema_C = np.zeros(6)
    ema_C[MASK_C] = [0.4 / 6, 2.8 / 6, 2.8 / 6]
    table_DC = np.stack([new_prototypes()[1], ema_C, mask_of(5).astype(float)])
    projected_DC, known_D = project(table_DC, new_C)
    assert_allclose(projected_DC[0, new_C], [0.2, 0, 0.8], atol=1e-15)
    assert_allclose(projected_DC[1, new_C], [0.125, 0, 0.875], atol=1e-15)
    assert known_D.tolist() == [True, True, False]  # nothing is left of the third
    assert_array_equal(projected_DC[2], np.zeros(6))


def loss_of(rows: list[Any], own: list[int], tau: float = 1.0) -> torch.Tensor:
    prototype_KL = torch.tensor(new_prototypes()[:, MASK_C])
    return contrastive_loss(torch.tensor(np.stack(rows)), prototype_KL, own, tau)


def test_contrastive_loss() -> None:
    assert float(loss_of([V1_0], [0])) == pytest.approx(0.904745, abs=1e-6)
    assert float(loss_of([V1_1], [1])) == pytest.approx(0.778894, abs=1e-6)
    assert float(loss_of([V1_0, V1_1], [0, 1])) == pytest.approx(1.683639, abs=1e-6)
    assert float(loss_of([V2_1], [1])) == pytest.approx(0.922929, abs=1e-6)
    assert float(loss_of([V2_2], [2])) == pytest.approx(0.906847, abs=1e-6)
    assert float(loss_of([V2_1, V2_2], [1, 2])) == pytest.approx(1.829776, abs=1e-6)
    assert float(loss_of([V1_0, V1_1], [0, 1], 0.1)) == pytest.approx(0.128261, abs=1e-6)


def test_gradient_of_the_contrastive_loss() -> None:
    wanted = {
        0: [-0.018897, 0, 0, 0.002054, 0, 0.071480],
        1: [0.150757, 0, 0, 0.002409, 0, -0.004817],
    }
    for domain, numbers in wanted.items():
        importance_C = torch.tensor(F1_DC[domain], requires_grad=True)
        vector_L = structure_vector(importance_C[torch.from_numpy(MASK_C)])
        prototype_KL = torch.tensor(new_prototypes()[:, MASK_C])
        contrastive_loss(vector_L[None], prototype_KL, [domain], 1.0).backward()  # type: ignore[no-untyped-call]
        gradient_C = importance_C.grad
        assert gradient_C is not None
        assert_allclose(gradient_C.numpy(), numbers, atol=1e-6)
        assert float(importance_C.detach() @ gradient_C) == pytest.approx(0, abs=1e-12)


@given(hnp.arrays(np.float64, (1, 5), elements=st.floats(0.01, 10)), st.floats(0.1, 100))
def test_contrastive_loss_ignores_scale_and_has_bounds(vector: Any, scale: float) -> None:
    prototype = torch.eye(4, 5, dtype=torch.float64)
    a = contrastive_loss(torch.tensor(vector), prototype, [2], 1.0)
    b = contrastive_loss(torch.tensor(vector * scale), prototype, [2], 1.0)
    assert float(a) == pytest.approx(float(b), abs=1e-9)
    assert np.log1p(3 / np.e) - 1e-9 <= float(a) <= np.log1p(3 * np.e) + 1e-9


def test_only_the_shared_slice_is_averaged() -> None:
    groups = (
        ChannelGroup("out", 3, "w", None, "g1", (Slot("w", 0),)),
        ChannelGroup("in", 3, "v", None, "g2", (Slot("w", 1),)),
    )
    mask_C = np.array([1, 0, 1, 1, 0, 0], bool)
    old = {"w": (np.arange(9).reshape(3, 3) + 1) / 10}
    total = ExactSum((2, 1))
    for value in (1.0, 3.0):
        total.add(take({"w": np.full((3, 3), value)}, groups, mask_C)["w"], 20)
    new = put(old, {"w": total.mean()}, groups, mask_C)["w"]
    assert_allclose(new, [[2, 0.2, 0.3], [0.4, 0.5, 0.6], [2, 0.8, 0.9]], atol=1e-9)


# Through the executor --------------------------------------------------------------------------


def fedfip(**fields: Any) -> FedFIP:
    method = toy_config(method=FEDFIP | fields).method
    assert isinstance(method, FedFIP)
    return method


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return digest(dict(a)) == digest(dict(b))


@pytest.mark.parametrize("scope", ["inner", "all"])
def test_all_units_and_no_regulariser_is_fedavg_to_the_bit(scope: str, tmp_path: Path) -> None:
    plain = run_toy(toy_config(rounds=3), tmp_path / "a")
    settings = {"rho": 1.0, "lambda": 0.0, "scope": scope}
    found = run_toy(toy_config(rounds=3, method=FEDFIP | settings), tmp_path / "b")
    assert found.summary["weights_sha256"] == plain.summary["weights_sha256"]
    assert found.summary["domains"] == plain.summary["domains"]


def test_everything_off_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    plain = run_toy(toy_config(), tmp_path / "a")
    off = {"name": "fedfip", "rho": 0.3, "dsfp": False, "dsr": False, "warmup_rounds": 0}
    found = run_toy(toy_config(method=off), tmp_path / "b")
    assert found.summary["weights_sha256"] == plain.summary["weights_sha256"]


@pytest.mark.parametrize("form", ["gate", "weight"])
@pytest.mark.parametrize("gradient", ["surrogate", "exact"])
def test_the_regulariser_changes_the_weights(form: str, gradient: str) -> None:
    fields = {"contrastive_gradient": gradient, "fisher": form, "mask_every": 1}
    without = World(fedfip(**fields, contrastive_weight=0.0)).play()
    little = World(fedfip(**fields, contrastive_weight=1e-3)).play()
    # No prototypes are known in the first round, so the term is not there yet.
    assert same(little.server.weights(), without.server.weights())
    much = World(fedfip(**fields, contrastive_weight=0.5)).play()
    for world in (without, little, much):
        world.play()
    assert not same(little.server.weights(), without.server.weights())
    assert not same(much.server.weights(), little.server.weights())
    assert any("contrastive" in update.metrics for *_, update in much.sent)


def test_both_gradients_take_the_same_value_to_different_weights() -> None:
    worlds = {}
    for gradient in ("surrogate", "exact"):
        method = fedfip(contrastive_gradient=gradient, contrastive_weight=0.5, mask_every=100)
        worlds[gradient] = World(method, local={"batch_size": 512}).play().play((0,))
    values = [w.sent[-1][3].metrics["contrastive"] for w in worlds.values()]
    assert values[0] == pytest.approx(values[1], rel=1e-4)  # one batch: before any step
    assert values[0] > 0.5
    assert not same(*(w.server.weights() for w in worlds.values()))


def masks(method: FedFIP, rounds: int) -> list[set[int]]:
    world, found = World(method), []
    for _ in range(rounds):
        world.play()
        found.append(units(world.server.snapshot()[1]["mask"]))
    return found


def returned(found: list[set[int]]) -> set[int]:
    """Units that were kept, then pruned, then kept, or pruned first and kept later."""
    back: set[int] = set()
    for index in range(1, len(found)):
        back |= found[index] - found[index - 1]
    return back


@pytest.mark.parametrize("form", ["gate", "weight"])
def test_a_pruned_unit_returns(form: str) -> None:
    fields: dict[str, Any] = {"mask_every": 1, "reactivation": "off", "dsr": False, "fisher": form}
    assert returned(masks(fedfip(**fields, keep_ratio=0.5), 5))


def test_no_unit_returns_if_pruned_units_measure_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap that the test above would fall into: masked units without importance."""
    step = FedFIP.client_step

    def blind(self: FedFIP, client: ClientView) -> Update:
        update = step(self, client)
        if client.phase == "importance":
            value, weight = update.sums["importance"]
            kept_C = client.message["mask"]
            seen = Weighted(value * kept_C + 1e-9 * kept_C, weight)
            return replace(update, sums={"importance": seen})
        return update

    monkeypatch.setattr(FedFIP, "client_step", blind)
    method = fedfip(mask_every=1, reactivation="off", dsr=False, keep_ratio=0.5)
    assert not returned(masks(method, 5))


# Private units ---------------------------------------------------------------------------------

EAGER: dict[str, Any] = {
    "keep_ratio": 0.3,
    "reactivation_threshold": 0.1,
    "reactivation_cap": 0.5,
    "mask_every": 100,
}


def private_of(state: Arrays) -> Arrays:
    return under("private", state)


@pytest.mark.parametrize("reactivation", ["private", "joint"])
@pytest.mark.parametrize("scope", ["inner", "all"])
def test_private_units_never_reach_an_update(reactivation: str, scope: str) -> None:
    world = World(fedfip(**EAGER, reactivation=reactivation, scope=scope)).play().play()
    groups = world.server._model.channel_groups(scope)
    mask_C = world.server.snapshot()[1]["mask"]
    dense = {e: a.shape for e, a in world.server.weights().items()}
    wanted = {e: a.shape for e, a in take(world.server.weights(), groups, mask_C).items()}
    seen = 0
    for _, phase, _, update in world.sent:
        if phase != "fit":
            continue
        sent = arrays_of(update)
        assert update.state is not None
        assert not any("private" in name or "importance" in name for name in sent)
        shared = under("shared", sent)
        assert {e: a.shape for e, a in shared.items()} == wanted
        own = update.state["private_units"]
        assert len(own)
        assert not mask_C[own].any()
        values = np.concatenate([a.ravel() for a in shared.values()])
        for name, array in private_of(update.state).items():
            entry, axis = name.rsplit("@", 1)
            if axis == "0" and entry.endswith("producer.weight") and array.size:
                assert array.shape[1:] == dense[entry][1:]
                # No private scalar is among the sent, but for what chance makes equal.
                assert np.isin(array, values).sum() <= 1
                seen += 1
    assert seen


def test_private_units_persist_from_round_to_round() -> None:
    world = World(fedfip(**EAGER)).play().play()
    first = world.snapshot().clients[0]
    assert len(first["private_units"])
    world.play((1,))
    assert same(world.snapshot().clients[0], first)  # sat out
    # A private step at a rate of nothing brings back what was kept, not the server's stale units.
    still = World(fedfip(**EAGER, private_lr=1e-30)).restore(world.snapshot(), 3)
    still.play((0,))
    after = still.snapshot().clients[0]
    assert_array_equal(after["private_units"], first["private_units"])
    for name, array in private_of(first).items():
        assert_allclose(private_of(after)[name], array, rtol=0, atol=1e-30)
    groups = still.server._model.channel_groups("inner")
    assert not same(
        take_units(still.server.weights(), groups, after["private_units"]), private_of(after)
    )


def test_a_private_copy_is_dropped_when_its_unit_becomes_shared() -> None:
    world = World(fedfip(**EAGER)).play()
    state = world.snapshot().clients[0]
    unit = int(state["private_units"][0])
    model, memory = world.server.snapshot()
    mask_C = memory["mask"].copy()
    mask_C[unit] = True
    world.server.restore(model, memory | {"mask": mask_C})
    world.play((0,))
    assert unit not in world.snapshot().clients[0]["private_units"]


def test_the_private_step_leaves_shared_weights_bit_identical() -> None:
    with_step = World(fedfip(**EAGER, reactivation="private", dsr=False))
    without = World(fedfip(**EAGER, reactivation="off", dsr=False))
    joint = World(fedfip(**EAGER, reactivation="joint", dsr=False))
    for world in (with_step, without, joint):
        for _ in range(3):
            world.play()
    assert same(with_step.server.weights(), without.server.weights())
    assert not same(joint.server.weights(), without.server.weights())
    assert all(
        update.metrics["reactivated"] > 0 for _, p, _, update in with_step.sent if p == "fit"
    )


@pytest.mark.parametrize("scope", ["inner", "all"])
def test_the_private_step_trains_private_units(scope: str) -> None:
    world = World(fedfip(**EAGER, scope=scope)).play()
    before = world.snapshot().clients
    after = world.play().snapshot().clients
    for client in EVERYONE:
        assert_array_equal(after[client]["private_units"], before[client]["private_units"])
        assert not same(private_of(after[client]), private_of(before[client]))


def test_rows_of_pruned_units_stay_as_they_are_on_the_server() -> None:
    world = World(fedfip(**EAGER)).play()
    before, memory = world.server.snapshot()
    world.play().play((0, 1))
    after = world.server.weights()
    groups = world.server._model.channel_groups("inner")
    pruned_C = ~memory["mask"]
    for group, start in zip(groups, np.cumsum([0, *(g.size for g in groups)]), strict=False):
        rows = pruned_C[start : start + group.size]
        entry = f"{group.producer}.weight"
        assert_array_equal(after[entry][rows], before[entry][rows])
        kept = ~rows
        assert not np.array_equal(after[entry][kept], before[entry][kept])


def test_personal_models_hold_the_reactivated_units() -> None:
    world = World(fedfip(**EAGER)).play()
    found = world.evaluate()
    assert {s.client for s in found} == {-1, *EVERYONE}
    off = World(fedfip(**EAGER, reactivation="off")).play()
    assert {s.client for s in off.evaluate()} == {-1}


# Switches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dsfp", [False, True])
@pytest.mark.parametrize("dsr", [False, True])
@pytest.mark.parametrize("sa", [False, True])
def test_ablation_switches(dsfp: bool, dsr: bool, sa: bool) -> None:
    method = fedfip(dsfp=dsfp, dsr=dsr, sa=sa, keep_ratio=0.5, contrastive_weight=0.1)
    world = World(method).play().play()
    memory = world.server.snapshot()[1]
    total = len(memory["mask"])
    assert memory["mask"].sum() == (total // 2 if dsfp else total)
    assert bool(memory["known"].any()) == dsr
    assert any("contrastive" in u.metrics for *_, u in world.sent) == dsr
    names = {n.split("/")[0] for _, p, _, u in world.sent if p == "fit" for n in u.sums}
    assert names - {"structure"} == ({"shared"} if sa else {"trained", "covered"})


def test_structure_aware_aggregation_matters_only_with_private_units() -> None:
    def weights(**fields: Any) -> Arrays:
        return World(fedfip(**fields, dsr=False, mask_every=100)).play().server.weights()

    fields: dict[str, Any] = {"keep_ratio": 0.3, "reactivation_threshold": 0.1}
    with_sa = weights(**fields, reactivation="off")
    without = weights(**fields, reactivation="off", sa=False)
    for entry, array in with_sa.items():
        assert_allclose(without[entry], array, rtol=1e-6, atol=1e-8)
    joint = weights(**fields, reactivation="joint", reactivation_cap=0.5)
    mixed = weights(**fields, reactivation="joint", reactivation_cap=0.5, sa=False)
    assert any(np.abs(mixed[e] - joint[e]).max() > 1e-4 for e in joint)


def test_control_masks_have_the_same_size() -> None:
    found = {}
    for mask in ("fisher", "random", "layerwise_random", "magnitude"):
        world = World(fedfip(mask=mask, keep_ratio=0.4)).play()
        found[mask] = world.server.snapshot()[1]["mask"]
    total = len(found["fisher"])
    assert {int(m.sum()) for m in found.values()} == {int(0.4 * total + 0.5)}
    assert len({m.tobytes() for m in found.values()}) == 4


def test_a_layerwise_random_mask_costs_what_the_fisher_mask_does() -> None:
    """After the same warm-up importances are the same, and so is the first mask's profile."""
    costs = set()
    for mask in ("fisher", "layerwise_random"):
        world = World(fedfip(mask=mask, keep_ratio=0.4)).play()
        costs.add(world.server.costs())
    assert len(costs) == 1


def test_a_random_mask_stands_still_and_a_magnitude_mask_follows_the_filters() -> None:
    first, *rest = masks(fedfip(mask="random", mask_every=1, dsr=False), 3)
    assert all(mask == first for mask in rest)
    world = World(fedfip(mask="magnitude", keep_ratio=0.5, min_keep=0.01))
    weights = world.server.weights()
    groups = world.server._model.channel_groups("inner")
    norms = np.concatenate(
        [np.abs(weights[f"{g.producer}.weight"]).reshape(g.size, -1).mean(1) for g in groups]
    )
    world.play()
    wanted_C = select_units(norms.astype(np.float64), groups, 0.5, 0.01)
    assert units(world.server.snapshot()[1]["mask"]) == units(wanted_C)


def test_no_reserve_is_one_unit_a_layer() -> None:
    """A layer without any unit could not run."""
    world = World(fedfip(mask="magnitude", keep_ratio=0.5, min_keep=0.0)).play()
    kept_C = world.server.snapshot()[1]["mask"]
    groups = world.server._model.channel_groups("inner")
    assert kept_C.sum() == math.floor(0.5 * num_units(groups) + 0.5)
    assert all(mask_L.any() for mask_L in per_group(groups, kept_C))


def test_masks_come_after_warm_up_and_then_every_few_rounds() -> None:
    method = fedfip(warmup_rounds=2, mask_every=3)
    assert [r for r in range(10) if method.forms_mask(r)] == [2, 5, 8]
    assert method.remarks(2) == ["no mask before round 3 (method.warmup_rounds)"]
    assert not method.remarks(3)
    assert not fedfip(warmup_rounds=2, dsfp=False, dsr=False).remarks(2)
    assert method.active_phases(1) == ("fit",)
    assert method.active_phases(2) == ("importance", "fit")
    world = World(method).play().play()
    assert world.server.snapshot()[1]["mask"].all()
    assert not world.play().server.snapshot()[1]["mask"].all()


@pytest.mark.parametrize("model", ["cnn", "resnet10"])
@pytest.mark.parametrize("scope", ["inner", "all"])
def test_scopes_and_models_run_and_count_their_costs(model: str, scope: str) -> None:
    world = World(fedfip(scope=scope, keep_ratio=0.5), model={"name": model})
    dense = world.server.costs()
    assert dense.params == dense.params_sliced
    world.play().play((0, 2))
    costs = world.server.costs()
    assert costs.params < dense.params
    assert costs.flops < dense.flops
    if scope == "inner":
        assert costs.params_sliced < dense.params_sliced
    figures = world.method.describe(world.server._view(1, "fit", world.server._state))
    groups = world.server._model.channel_groups(scope)
    assert figures["kept_units"] == int(0.5 * num_units(groups) + 0.5)
    assert figures["kept_units"] == sum(figures[f"kept_units/{g.name}"] for g in groups)


@pytest.mark.parametrize("preset", ["literal", "stable"])
def test_presets_run(preset: str, tmp_path: Path) -> None:
    from methods import METHODS

    text = preset_text(preset)
    config = load_config(METHODS, text=text, overrides=["execution.backend=inprocess"])
    assert isinstance(config.method, FedFIP)
    changes = {"warmup_rounds": 0, "mask_every": 1, "fisher_samples": 8}
    method = config.method.model_copy(update=changes)
    world = World(method, local={"batch_size": 16}).play().play((1, 3))
    assert world.server.snapshot()[1]["mask"].sum() < len(world.server.snapshot()[1]["mask"])
    if preset == "literal":
        assert (method.scope, method.fisher, method.fisher_point) == ("all", "weight", "dense")
        assert method.contrastive_gradient == "exact"
        assert method.reactivation_scale == "raw"


def test_aliases_are_the_papers_symbols() -> None:
    symbols = {"name": "fedfip", "rho": 0.7, "phi": 2.0, "mu": 0.4, "lambda": 0.005}
    method = toy_config(method=symbols).method
    assert isinstance(method, FedFIP)
    assert method.keep_ratio == 0.7
    assert method.reactivation_threshold == 2.0
    assert method.prototype_momentum == 0.4
    assert method.contrastive_weight == 0.005


# Who is there and who is not -------------------------------------------------------------------


def test_an_absent_domain_keeps_its_prototype() -> None:
    world = World(fedfip(keep_ratio=1.0, mask_every=1)).play()
    before = world.server.snapshot()[1]
    assert before["known"].tolist() == [True, True, True, False]  # nobody holds domain 3
    world.play((2,))  # domain 0 alone
    after = world.server.snapshot()[1]
    assert_allclose(after["prototypes"][1:], before["prototypes"][1:], rtol=1e-6)
    assert not np.array_equal(after["prototypes"][0], before["prototypes"][0])
    assert after["known"].tolist() == before["known"].tolist()


def test_prototypes_sum_to_one_on_the_mask() -> None:
    world = World(fedfip(keep_ratio=0.4, mask_every=1)).play().play((0, 3)).play((2,))
    memory = world.server.snapshot()[1]
    known = memory["known"]
    assert_allclose(memory["prototypes"][known].sum(1), 1.0, atol=1e-6)
    assert not memory["prototypes"][:, ~memory["mask"]].any()


def test_importance_is_measured_for_the_domains_that_a_client_holds() -> None:
    world = World(fedfip()).play()
    state = world.snapshot().clients[2]
    assert state["importance"].shape[0] == 4
    assert state["importance"][0].any()
    assert not state["importance"][1:].any()


def test_a_run_with_partial_participation_learns(tmp_path: Path) -> None:
    run = run_toy(toy_config(rounds=4, method=FEDFIP, local={"lr": 0.1, "epochs": 2}), tmp_path)
    losses = [
        row["value"]
        for row in pq.read_table(run.folder / "metrics.parquet").to_pylist()
        if row["metric"] == "loss" and row["split"] == "train" and row["client"] == -1
    ]
    assert losses[-1] < losses[0]
    assert np.isfinite(run.summary["avg"])

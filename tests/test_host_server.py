"""Host and server by themselves: staging, commit, refusal of what is not finite, errors by name."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from methods.fedavg import FedAvg
from raysim.errors import RunError
from raysim.messages import Update
from raysim.method import ClientView
from raysim.server import Server
from raysim.skeleton import build_skeleton, refresh
from raysim.tensors import digest, state_arrays
from tests.methods.contract import EVERYONE, World, bits
from tests.toy import PrivateHead, toy_config


class NaNFrom(FedAvg):
    """Clients in `bad` send NaN."""

    bad: tuple[int, ...] = (1,)

    def client_step(self, client: ClientView) -> Update:
        update = super().client_step(client)
        if client.client in self.bad:
            value, _ = update.sums["head.bias"]
            value[0] = np.nan
        return update


class Broken(FedAvg):
    def client_step(self, client: ClientView) -> Update:
        if client.client == 3:
            raise ValueError("the disk is on fire")
        return super().client_step(client)


@pytest.fixture(autouse=True)
def _deterministic_flag() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def test_phases_stage_and_commit_makes_it_so() -> None:
    world = World(PrivateHead())
    start = bits(world.snapshot())
    world.phase("fit", EVERYONE)
    assert bits(world.snapshot()) == start, "before the end of the round nothing has happened"
    world.server.commit()
    world.hosts[0].commit()
    after = bits(world.snapshot())
    assert after["model"] != start["model"]
    assert after.keys() == {"model", "memory", *(f"client {c}" for c in EVERYONE)}


def test_a_round_that_was_not_committed_is_forgotten_by_the_next() -> None:
    world, other = World(PrivateHead()), World(PrivateHead())
    world.phase("fit", (0, 1))  # the driver died here, and resumes with the same round
    world.restore(world.snapshot(), 0).play((2,))
    other.play((2,))
    assert bits(world.snapshot()) == bits(other.snapshot())


def test_an_unfinished_round_leaves_no_staged_state_to_the_next_round() -> None:
    world = World(PrivateHead())
    world.phase("fit", (0,))
    world.round += 1
    world.play((1,))
    assert world.snapshot().clients.keys() == {1}


def test_non_finite_updates_stop_the_run_by_name() -> None:
    with pytest.raises(RunError, match=r"client 1 \(domains: optdigits, mnist_m\).*round 1.*fit"):
        World(NaNFrom()).play()
    with pytest.raises(RunError, match=r"head\.bias"):
        World(NaNFrom()).play()


def test_or_are_skipped_and_counted() -> None:
    settings: dict[str, Any] = {"participation": {"fraction": 1.0, "nonfinite": "skip"}}
    world = World(NaNFrom(), **settings)
    message, _ = world.server.broadcast(0, "fit")
    partial, report = world.hosts[0].run_phase(0, "fit", EVERYONE, world.server.weights(), message)
    assert [r.client for r in report.clients if "skipped" in r.metrics] == [1]
    wanted = World(FedAvg()).play((0, 2, 3)).server.weights()
    world.server.aggregate(0, "fit", [partial])
    world.server.commit()
    assert digest(world.server.weights()) == digest(wanted)


def test_the_model_stays_while_everyone_is_skipped() -> None:
    world = World(NaNFrom(bad=EVERYONE), **{"participation.nonfinite": "skip"})
    start = bits(world.snapshot())
    assert bits(world.play().play().snapshot()) == start


def test_a_failure_names_client_domains_round_phase_and_cause() -> None:
    pattern = r"client 3 \(domains: optdigits, mnist_m\).*round 1, phase 'fit'.*ValueError.*on fire"
    with pytest.raises(RunError, match=pattern):
        World(Broken()).play()


def test_every_process_starts_from_the_same_weights() -> None:
    config = toy_config()
    torch.manual_seed(5)
    a = digest(state_arrays(build_skeleton(config, 10, torch.device("cpu"))))
    torch.manual_seed(6)
    state = torch.get_rng_state()
    b = digest(state_arrays(build_skeleton(config, 10, torch.device("cpu"))))
    assert a == b
    assert torch.equal(torch.get_rng_state(), state)
    other = toy_config(seed=1)
    assert digest(state_arrays(build_skeleton(other, 10, torch.device("cpu")))) != a


def test_refresh_undoes_what_a_step_leaves() -> None:
    model = build_skeleton(toy_config(), 10, torch.device("cpu"))
    gates = [m for m in model.modules() if type(m).__name__ == "Gate"]
    gates[0].mask = torch.zeros(4)
    model.eval()
    parameter = next(model.parameters())
    parameter.requires_grad_(False)
    parameter.grad = torch.ones_like(parameter)
    refresh(model)
    assert gates[0].mask is None
    assert model.training
    assert parameter.requires_grad
    assert parameter.grad is None


def test_server_counts_bytes_and_costs() -> None:
    world = World(FedAvg())
    _, down = world.server.broadcast(0, "fit")
    assert down == sum(a.nbytes for a in world.server.weights().values())
    assert world.server.broadcast(0, "evaluate")[1] == 0
    model = build_skeleton(world.config, 10, torch.device("cpu"))
    assert world.server.costs().params == sum(p.numel() for p in model.parameters())


def test_counting_costs_does_not_import_the_compiler() -> None:
    code = (
        "import sys\nfrom raysim.costs import count_costs\nfrom torch import nn\n"
        "print(count_costs(nn.Sequential(nn.Conv2d(3, 4, 3)), 8), 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(112, {'0': 3888}) False\n"


def test_private_entries_cost_no_download() -> None:
    plain, private = World(FedAvg()), World(PrivateHead())
    head = sum(a.nbytes for n, a in plain.server.weights().items() if n.startswith("head."))
    difference = plain.server.broadcast(0, "fit")[1] - private.server.broadcast(0, "fit")[1]
    assert difference == head


def test_the_mean_is_weighted_by_examples() -> None:
    world = World(FedAvg()).play((0, 3))
    updates = [(u.sums["head.weight"].value, u.sums["head.weight"].weight) for *_, u in world.sent]
    wanted = sum(v.astype(np.float64) * n for v, n in updates) / sum(n for _, n in updates)
    np.testing.assert_allclose(world.server.weights()["head.weight"], wanted, atol=1e-7)


def test_server_restores() -> None:
    config = toy_config()
    world = World(FedAvg()).play()
    server = Server(config, 10, 4)
    assert server.digest() != world.server.digest()
    server.restore(*world.server.snapshot())
    assert server.digest() == world.server.digest()

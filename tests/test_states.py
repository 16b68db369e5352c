"""Private states come back as they were put, wherever the budget lets them lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raysim import states
from raysim.executor import InProcessExecutor
from raysim.states import ClientStates, StateFiles, save_arrays
from raysim.tensors import Arrays, digest
from tests.toy import dealt, run_toy, toy_config

MODES = [0, 100, 10**6]
"""Budgets: everything on disk, some of it, nothing."""


def state(value: float, size: int = 10) -> Arrays:
    """Return a state of 4 * size + 8 bytes, with an array of each awkward kind."""
    return {
        "w": np.full(size, value, np.float32),
        "previous/scalar": np.array(value, np.float64),
        "empty": np.zeros((0, 3), np.int64),
    }


def contents(found: Any) -> dict[int, str]:
    return {client: digest(found[client]) for client in found}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("budget", MODES)
def test_states_come_back_to_the_bit(budget: int, tmp_path: Path) -> None:
    held = ClientStates(budget, tmp_path / "s")
    strange = {"bits": np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)} | state(3.0)
    strange["turned"] = np.arange(6.0).reshape(2, 3).T
    for client in (30, 2, 7):
        held.put(client, strange)
    assert list(held) == [2, 7, 30]
    assert len(held) == 3
    for client in held:
        assert held[client].keys() == strange.keys()
        assert digest(held[client]) == digest(strange)
    assert 4 not in held
    with pytest.raises(KeyError):
        held[4]
    assert held.get(4) is None


def test_what_fits_stays_in_memory(tmp_path: Path) -> None:
    held = ClientStates(100, tmp_path / "s")
    assert not (tmp_path / "s").exists()
    held.put(1, state(1.0))  # 48 bytes
    held.put(2, state(2.0))
    assert files(tmp_path) == []
    held.put(3, state(3.0))
    held.put(4, state(4.0, 1))
    assert files(tmp_path) == ["000003.safetensors", "000004.safetensors"]
    assert held.bytes_in_memory == 96


def test_a_state_that_shrinks_comes_back_to_memory(tmp_path: Path) -> None:
    held = ClientStates(100, tmp_path / "s")
    held.put(1, state(1.0, 50))
    assert files(tmp_path) == ["000001.safetensors"]
    held.put(1, state(2.0))
    assert files(tmp_path) == []
    assert digest(held[1]) == digest(state(2.0))


def test_dropped_states_are_gone(tmp_path: Path) -> None:
    held = ClientStates(50, tmp_path / "s")
    for client in (1, 2):
        held.put(client, state(client))
    for client in (1, 2, 3):
        held.drop(client)
    assert (list(held), held.bytes_in_memory, files(tmp_path)) == ([], 0, [])


def test_cleared_states_leave_no_folder(tmp_path: Path) -> None:
    held = ClientStates(0, tmp_path / "s")
    held.put(1, state(1.0))
    held.clear()
    assert len(held) == 0
    assert not (tmp_path / "s").exists()
    held.clear()
    held.put(1, state(2.0))
    assert digest(held[1]) == digest(state(2.0))


def test_the_files_of_a_killed_run_are_not_taken_for_states(tmp_path: Path) -> None:
    ClientStates(0, tmp_path / "s").put(1, state(1.0))
    assert list(ClientStates(0, tmp_path / "s")) == []


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "stage", "absorb"]), st.integers(0, 4), st.integers(0, 40)
    ),
    max_size=30,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.sampled_from([0, 60, 200, 10**6]), st.sampled_from([0, 60, 10**6]))
def test_budgets_change_where_states_lie_and_nothing_else(
    tmp_path: Path, operations: list[tuple[str, int, int]], budget: int, staged_budget: int
) -> None:
    held = ClientStates(budget, tmp_path / "held")
    staged = ClientStates(staged_budget, tmp_path / "staged")
    wanted: dict[int, str] = {}
    wanted_staged: dict[int, str] = {}
    for number, (what, client, size) in enumerate(operations):
        new = state(number, size)
        if what == "put":
            held.put(client, new)
            wanted[client] = digest(new)
        elif what == "stage":
            staged.put(client, new)
            wanted_staged[client] = digest(new)
        elif what == "drop":
            held.drop(client)
            wanted.pop(client, None)
        else:
            held.absorb(staged)
            wanted |= wanted_staged
            wanted_staged = {}
        assert contents(held) == wanted
        assert contents(staged) == wanted_staged
        assert held.bytes_in_memory <= budget
        on_disk = files(tmp_path / "held")
        in_memory = [c for c in held if f"{c:06d}.safetensors" not in on_disk]
        assert held.bytes_in_memory == sum(48 + held[c]["w"].nbytes - 40 for c in in_memory)
    held.clear()
    staged.clear()
    assert files(tmp_path) == []


def full_after(count: int) -> Callable[[Arrays, Path], None]:
    """Return a writer whose disk is full after some files."""
    left = count

    def write(arrays: Arrays, path: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        save_arrays(arrays, path)

    return write


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_full_disk_leaves_the_former_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    held = ClientStates(100, tmp_path / "held")
    for client in (1, 2):
        held.put(client, state(client))
    staged = ClientStates(10**6, tmp_path / "staged")
    for client in (1, 2, 3, 4):
        staged.put(client, state(10 * client, 40))
    before = contents(held)
    monkeypatch.setattr(states, "save_arrays", full_after(room))
    with pytest.raises(OSError, match="No space left"):
        held.absorb(staged)
    assert contents(held) == before
    assert len(staged) == 4
    monkeypatch.undo()
    held.absorb(staged)
    assert contents(held) == {c: digest(state(10 * c, 40)) for c in (1, 2, 3, 4)}
    assert contents(staged) == {}


def test_a_full_disk_is_an_oserror_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        save_arrays(state(1.0), tmp_path / "missing" / "x.safetensors")


def test_state_files_read_what_was_saved(tmp_path: Path) -> None:
    found = StateFiles(tmp_path)
    assert (list(found), len(found)) == ([], 0)
    save_arrays(state(1.0), found.path(12))
    save_arrays(state(2.0), found.path(1_000_003))
    assert list(found) == [12, 1_000_003]
    assert digest(found[1_000_003]) == digest(state(2.0))
    with pytest.raises(KeyError):
        found[5]


@pytest.mark.parametrize("method", ["private_head", "ditto", "scaffold"])
def test_a_run_without_memory_for_states_has_the_same_bits(method: str, tmp_path: Path) -> None:
    tree: dict[str, Any] = {"method": method, "rounds": 3}
    wanted = run_toy(toy_config(**tree), tmp_path / "memory")
    spilled = toy_config(**tree, **{"execution.state_memory_mb": 0})
    found = run_toy(spilled, tmp_path / "disk")
    assert found.bits == wanted.bits
    assert contents(found.snapshot.clients) == contents(wanted.snapshot.clients)
    assert len(found.snapshot.clients) >= 4


def test_a_run_in_this_process_leaves_no_states_behind(tmp_path: Path) -> None:
    config = toy_config(method="ditto", **{"execution.state_memory_mb": 0})
    dataset, partition = dealt(config)
    executor = InProcessExecutor(config, partition, dataset, tmp_path / "states")
    run_toy(config, tmp_path, executor=executor)
    assert not (tmp_path / "states").exists()

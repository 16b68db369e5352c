"""What fits on a node, and which nodes get new hosts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.rooms import Node, choose_nodes, room, suits
from raysim.execution import PlacementSettings


@pytest.mark.parametrize(
    ("has", "demand", "wanted"),
    [
        ({"CPU": 3}, {"CPU": 1}, 3),
        ({"CPU": 0.3}, {"CPU": 0.1}, 3),
        ({"CPU": 3.9}, {"CPU": 2}, 1),
        ({"CPU": 8, "GPU": 2}, {"CPU": 1, "GPU": 0.5}, 4),
        ({"CPU": 8, "GPU": 2}, {"CPU": 1, "GPU": 0.4}, 4),
        ({"CPU": 8, "GPU": 1.4}, {"CPU": 1, "GPU": 0.4}, 3),
        ({"CPU": 3, "GPU": 8}, {"CPU": 1, "GPU": 0.5}, 3),
        ({"CPU": 8}, {"CPU": 1, "GPU": 1}, 0),
        ({}, {"CPU": 1}, 0),
        ({"CPU": 8, "disk": 3}, {"CPU": 1, "disk": 1.5}, 2),
    ],
)
def test_room(has: Any, demand: Any, wanted: int) -> None:
    assert room(has, demand) == wanted


@pytest.mark.parametrize(
    ("selector", "value", "good"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", None, False),
        ("!a", "a", False),
        ("!a", "b", True),
        ("!a", None, True),
        ("in(a, b)", "b", True),
        ("in(a,b)", "b", True),
        ("in(a, b)", "c", False),
        ("in(a, b)", None, False),
        ("!in(a, b)", "b", False),
        ("!in(a, b)", "c", True),
    ],
)
def test_labels(selector: str, value: str | None, good: bool) -> None:
    labels = {} if value is None else {"zone": value}
    node = Node("n", "10.0.0.1", {}, {}, labels)
    assert suits(node, PlacementSettings(labels={"zone": selector})) is good


def test_a_node_that_is_drained_will_not_do() -> None:
    assert not suits(Node("n", "10.0.0.1", {}, {}, draining=True), PlacementSettings())


@pytest.mark.parametrize(
    ("strategy", "left", "there", "count", "wanted"),
    [
        ("spread", {"a": 2, "b": 2}, {}, 3, ["a", "b", "a"]),
        ("spread", {"a": 1, "b": 4}, {}, 3, ["b", "a", "b"]),  # ties: most room
        ("spread", {"a": 2, "b": 2}, {"a": 2}, 3, ["b", "b", "a"]),
        ("pack", {"a": 2, "b": 2}, {}, 3, ["a", "a", "b"]),
        ("pack", {"a": 1, "b": 4}, {}, 3, ["b", "b", "b"]),
        ("pack", {"a": 2, "b": 4}, {"a": 2}, 3, ["a", "a", "b"]),
        ("spread", {"a": 1, "b": 0}, {}, 3, ["a"]),
        ("pack", {"a": -1}, {"a": 3}, 2, []),
        ("spread", {}, {}, 2, []),
    ],
)
def test_choices(
    strategy: str, left: dict[str, int], there: dict[str, int], count: int, wanted: list[str]
) -> None:
    assert choose_nodes(left, there, strategy, count) == wanted


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 5), max_size=5),
    st.sampled_from(["spread", "pack"]),
    st.integers(0, 20),
)
def test_all_the_room_is_used(left: dict[str, int], strategy: str, count: int) -> None:
    chosen = choose_nodes(left, {}, strategy, count)
    assert len(chosen) == min(count, sum(left.values()))
    assert all(chosen.count(node) <= n for node, n in left.items())
    if strategy == "pack":
        sizes = sorted(left.values(), reverse=True)
        fewest = next(k for k in range(6) if sum(sizes[:k]) >= len(chosen))
        assert len(set(chosen)) == fewest

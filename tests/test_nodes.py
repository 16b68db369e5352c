"""Nodes of different sizes: used fully, chosen as the config says, with the bits of one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import NAME, assert_undisturbed, hosts_by_node, running
from tests.killing import Nodes

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def uneven(cluster: Nodes) -> Iterator[Nodes]:
    """Three nodes: 1 CPU; 2 CPUs and a GPU in zone a; 3 CPUs and two GPUs in zone b."""
    cluster.add(num_cpus=1, labels={NAME: "small"})
    cluster.add(num_cpus=2, num_gpus=1, labels={NAME: "middle", "zone": "a"})
    kind = {"accelerator_type:H100": 1, "disk": 2}
    cluster.add(num_cpus=3, num_gpus=2, labels={NAME: "large", "zone": "b"}, resources=kind)
    yield cluster
    cluster.clear()


def test_three_uneven_nodes_give_the_bits_of_one_process(
    uneven: Nodes, quiet_long: Path, tmp_path: Path
) -> None:
    with running(uneven, tmp_path, "execution.gpus_per_host=0") as until:
        until("6 hosts on Ray cluster")
        until("^run directory")
    assert_undisturbed(tmp_path, quiet_long)


def test_hosts_lie_where_the_config_says(uneven: Nodes) -> None:
    cases = {
        "gpus_per_host=0 hosts=3": {"small": 1, "middle": 1, "large": 1},
        "gpus_per_host=0 hosts=3 placement.strategy=pack": {"large": 3},
        "gpus_per_host=0 cpus_per_host=2": {"middle": 1, "large": 1},
        "gpus_per_host=0 placement.labels.zone='!b'": {"small": 1, "middle": 2},
        "gpus_per_host=0 placement.resources.disk=1": {"large": 2},
        # Ray's GPUs here are none that torch could use: what was not demanded may be a CPU.
        "hosts=auto": {"middle": 1, "large": 2},
        "placement.accelerator_type=H100": {"large": 2},
    }
    found = hosts_by_node(uneven, *(words.split() for words in cases))
    assert dict(zip(cases, found, strict=True)) == cases


def test_what_can_never_be_is_refused(uneven: Nodes) -> None:
    cases = {
        "gpus_per_host=0 hosts=7": ["has 6 CPU and 3 GPU on 4 nodes, enough for 6"],
        "gpus_per_host=0 hosts=3 cpus_per_host=2": ["enough for 2", "with 3 CPU holds 1"],
        "placement.labels.zone=c": ["on nodes with zone=c", "its labels are zone=(none)"],
        "placement.accelerator_type=A100": ["accelerator_type:A100", "enough for 0"],
        "gpus_per_host=0.5": ["torch sees none there", "execution.gpus_per_host=0"],
    }
    found = hosts_by_node(uneven, *(words.split() for words in cases))
    for told, expected in zip(found, cases.values(), strict=True):
        assert all(text in told for text in expected), told

"""What trials reserve: arithmetic that is done before anything waits for a cluster."""

from typing import Any

import pytest

from raysim.errors import ClusterError
from tests.toy import toy_config
from tune_jobs.resources import bundles, check_room, has_hosts, rooms

ON_RAY: dict[str, Any] = {"backend": "ray", "hosts": 4}


def test_a_trial_in_one_process_takes_its_threads() -> None:
    config = toy_config(local__threads=2)
    assert not has_hosts(config)
    assert bundles(config, num_gpus=0) == [{"CPU": 2}]


def test_auto_hosts_mean_one_process() -> None:
    assert bundles(toy_config(execution={"backend": "ray"}), num_gpus=0) == [{"CPU": 1}]


def test_hosts_have_bundles_of_their_own() -> None:
    config = toy_config(execution=ON_RAY | {"cpus_per_host": 0.5})
    assert bundles(config, num_gpus=0) == [{"CPU": 1}] + [{"CPU": 0.5}] * 4


def test_no_more_hosts_than_clients() -> None:
    assert len(bundles(toy_config(execution=ON_RAY, data__clients=3), num_gpus=0)) == 4


@pytest.mark.parametrize(("setting", "gpus"), [("auto", 1), (0.25, 0.25)])
def test_gpus_go_to_whoever_trains(setting: Any, gpus: float) -> None:
    inprocess = toy_config(execution__gpus_per_host=setting)
    assert bundles(inprocess, num_gpus=2) == [{"CPU": 1, "GPU": gpus}]
    hosts = toy_config(execution=ON_RAY | {"hosts": 1, "gpus_per_host": setting})
    assert bundles(hosts, num_gpus=2) == [{"CPU": 1}, {"CPU": 1, "GPU": gpus}]


def test_how_many_trials_fit() -> None:
    assert rooms([{"CPU": 1}, {"CPU": 1}], [{"CPU": 3}, {"CPU": 1}], most=9) == 2
    assert rooms([{"CPU": 2}], [{"CPU": 3}, {"CPU": 1}], most=9) == 1  # a bundle is on one node
    assert rooms([{"CPU": 1}], [{"CPU": 64}], most=5) == 5


def test_a_trial_that_never_fits_is_refused_with_the_arithmetic() -> None:
    wanted = bundles(toy_config(execution=ON_RAY), num_gpus=0)
    check_room(wanted, [{"CPU": 5}])
    with pytest.raises(ClusterError) as error:
        check_room(wanted, [{"CPU": 2}, {"CPU": 2}])
    said = str(error.value)
    assert "1 CPU for itself and 4 hosts with 1 CPU each, 5 CPU in all" in said
    assert "the cluster has 4 CPU on 2 nodes" in said
    assert "execution.hosts" in said

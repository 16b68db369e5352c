import time
import urllib.request
from pathlib import Path

import pytest

from tests.toy import dealt, federation, toy_config

SILENT = "local"  # a method that sends nothing: zero bytes must not be refused


def scraped(port: int, name: str, wait_s: float = 60) -> list[str]:
    """Return FedAvg's lines of a metric that Ray serves for Prometheus, once there are any."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            found = page.read().decode().splitlines()
        lines = [x for x in found if x.startswith(name) and 'method="fedavg"' in x]
        if lines:
            return lines
        time.sleep(0.5)
    return []


def test_actors_have_names_for_ray_to_show() -> None:
    from cluster.actors import ClientHost, ServerActor

    host = object.__new__(ClientHost)
    host._index = 3
    assert (repr(host), repr(object.__new__(ServerActor))) == ("host-3", "server")


@pytest.mark.slow
def test_ray_serves_rounds_examples_and_bytes(local_ray: str, tmp_path: Path) -> None:
    import ray

    from cluster.executor import RayExecutor

    for method in (SILENT, "fedavg"):
        config = toy_config(method=method, execution={"backend": "ray", "hosts": 2})
        dataset, partition = dealt(config)
        executor = RayExecutor(config, partition, dataset)
        try:
            federation(config, executor, tmp_path / method).run()
        finally:
            executor.close()
    port = ray.nodes()[0]["MetricsExportPort"]
    # First what is served for a while only: the last value of a gauge.
    assert scraped(port, "ray_raysim_examples_per_s")
    (own,) = scraped(port, "ray_raysim_rounds_total")
    assert float(own.rsplit(" ", 1)[1]) == 2.0
    (sent,) = scraped(port, "ray_raysim_bytes_up_total")
    assert float(sent.rsplit(" ", 1)[1]) > 0

"""Updates that the server needs one by one, more of them than the object store has room for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toy import ROOT, environment, run_toy, toy_config

STORE = 80 * 2**20  # the least that Ray takes is 75 MiB
SETTINGS = {
    "method": {"name": "fdse"},
    "rounds": 1,
    "data": {"clients": 80, "image_size": 16},
    "model": {"name": "cnn", "width": 64},
    "participation": {"fraction": 1.0},
    "evaluation": {"every": 1},
}
ON_A_SMALL_STORE = """
import json, sys
from pathlib import Path
import ray
from cluster.executor import RayExecutor
from tests.toy import dealt, federation, toy_config

ray.init("local", num_cpus=2, object_store_memory=int(sys.argv[1]), include_dashboard=False)
config = toy_config(**json.loads(sys.argv[2]), execution={"backend": "ray", "hosts": 2})
executor = RayExecutor(config, *reversed(dealt(config)))
federation(config, executor, Path(sys.argv[3])).run()
executor.close()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_cohort_larger_than_the_object_store_gives_the_same_bits(tmp_path: Path) -> None:
    quiet = run_toy(toy_config(**SETTINGS), tmp_path / "quiet")
    assert quiet.summary["bytes_up"] > STORE
    folder = tmp_path / "ray"
    words = [str(STORE), json.dumps(SETTINGS), str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_SMALL_STORE, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0"),
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["weights_sha256"] == quiet.summary["weights_sha256"]
    assert (folder / "metrics.parquet").read_bytes() == quiet.bits[0]

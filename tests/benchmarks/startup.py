"""How long it takes from the command to a run that is ready, beside what Ray and torch take alone.

python -m tests.benchmarks.startup [--repeat 3]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.toy import command, environment

ALONE = """
import time
import ray
began = time.perf_counter()
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
@ray.remote
class Actor:
    def load(self):
        import torch
actor = Actor.remote()
ray.get(actor.load.remote())
print(time.perf_counter() - began)
ray.shutdown()
"""
LIGHT = {
    "import raysim": [sys.executable, "-c", "import raysim"],
    "raysim --help": [str(Path(sys.executable).with_name("raysim")), "--help"],
}


def alone() -> float:
    """Return the seconds that `ray.init` and `import torch` in an actor take together."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=True, env=environment()
    )
    return float(done.stdout.split()[-1])


def until_ready() -> tuple[float, float]:
    """Return the seconds from the command until the run is ready, and to the end of round 1."""
    began, ready = time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        words = command("rounds=1", "data.clients=4", f"output.dir={folder}")
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env=environment()
        ) as process:
            for line in process.stdout or []:
                if "ready in" in line:
                    ready = time.perf_counter() - began
                if line.startswith("round"):
                    return ready, time.perf_counter() - began
    sys.exit("the run ended before its first round")


def light(words: list[str]) -> float:
    """Return the wall seconds of a command."""
    began = time.perf_counter()
    subprocess.run(words, capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Time all in turn and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    floors, runs = [], []
    for _ in range(repeat):
        floors.append(alone())
        runs.append(until_ready())
    floor = statistics.median(floors)
    ready, first = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"ray.init and import torch in an actor: {floor:.1f} s")
    print(f"raysim: ready after {ready:.1f} s ({ready / floor:.2f} x), round 1 after {first:.1f} s")
    for name, words in LIGHT.items():
        print(f"{name}: {statistics.median(light(words) for _ in range(5)):.2f} s")


if __name__ == "__main__":
    main()

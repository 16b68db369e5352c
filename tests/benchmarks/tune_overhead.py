"""What reporting to Ray Tune costs: the share of a trial's time between its steps.

python -m tests.benchmarks.tune_overhead [--rounds 12] [key=value ...]

One trial in one process, a report a round. Time outside the steps is Tune's: the report's way to
the driver, the scheduler's decision, checkpoints of the experiment, the call of the next step.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune
from rich.console import Console

from raysim.run import read_config
from tune_jobs import progress
from tune_jobs.search_settings import VAL_SHARE
from tune_jobs.study import Plan, conducted, new_study


class Clock(progress.Follower):
    """Notes when reports arrive and how long their steps took."""

    seen: list[tuple[float, float]] = []  # noqa: RUF012 - one study a process

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any) -> None:
        """Note a report."""
        self.seen.append((time.monotonic(), result["time_this_iter_s"]))


def main() -> None:
    """Run the trial and print the share."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    progress.Follower = Clock  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        words = [f"rounds={args.rounds}", f"data.split.val={VAL_SHARE}", f"output.dir={folder}"]
        base = read_config([*words, *args.overrides])
        study = new_study(base, "overhead", {"kind": "search"})
        plan = Plan(base=base, values=tune.grid_search([{"seed": 0}]))
        with conducted(plan, Path(study), Console(file=sys.stderr), "tune_jobs.search"):
            pass
    arrived, steps = zip(*Clock.seen, strict=True)
    wall, inside = arrived[-1] - arrived[0], sum(steps[1:])
    number = len(steps) - 1
    outside = (wall - inside) / number
    print(f"{number} steps of {inside / number:.3f} s in {wall:.2f} s")
    print(f"outside them {1000 * outside:.1f} ms a report, {100 * (1 - inside / wall):.2f} %")


if __name__ == "__main__":
    main()

"""Many rounds: memory, object store and open files stay as they are after a warm-up.

python -m tests.benchmarks.soak [--rounds 300] [--clients 100] [--hosts 2] [--method ditto]
"""

import argparse
from typing import Any

import numpy as np

from cluster.executor import RayExecutor
from tests.benchmarks.processes import object_store, on_ray, open_files, pids, resident_mib
from tests.toy import federation

EVERY = 10


class Watch:
    """Looks at the processes every `EVERY` rounds."""

    def __init__(self, executor: RayExecutor) -> None:
        self._executor = executor
        self.samples: list[dict[str, float]] = []

    def on_round(self, summary: Any) -> None:
        if summary.round % EVERY:
            return
        seen: dict[str, float] = {"round": summary.round, "s/round": summary.seconds}
        for who, pid in pids(self._executor).items():
            seen[f"{who} MiB"] = resident_mib(pid)
            seen[f"{who} files"] = open_files(pid)
        self.samples.append(seen | object_store())

    def on_notice(self, text: str) -> None:
        print(text)


def main() -> None:
    """Run and print first, last and slope of each figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--method", default="ditto", help="one with private state")
    parser.add_argument("--warm-up", type=int, default=30, help="rounds left out of the slope")
    args = parser.parse_args()
    samples = soak(args.method, args.rounds, args.clients, args.hosts)
    warm = [sample for sample in samples if sample["round"] > args.warm_up] or samples
    print(f"{args.method}, {args.clients} clients, {args.hosts} hosts, {args.rounds} rounds;")
    print(f"after round {warm[0]['round']:.0f}; slope a hundred rounds")
    print(f"{'':16}{'first':>10}{'last':>10}{'highest':>10}{'slope':>10}")
    rounds = np.array([sample["round"] for sample in warm])
    for name in [key for key in warm[0] if key != "round"]:
        values = np.array([sample[name] for sample in warm])
        slope = 100 * np.polyfit(rounds, values, 1)[0] if len(warm) > 1 else float("nan")
        row = (values[0], values[-1], values.max(), slope)
        print(f"{name:16}" + "".join(f"{value:10.2f}" for value in row))


def soak(method: str, rounds: int, clients: int, hosts: int) -> list[dict[str, float]]:
    """Run and return what was seen."""
    words = [
        *(f"rounds={rounds}", f"method={method}", f"data.clients={clients}"),
        *("data.image_size=16", "model.name=cnn", "model.width=8"),
        *(f"evaluation.every={EVERY}", f"execution.hosts={hosts}"),
        *("output.checkpoint_every=50", "local.lr=0.01"),
    ]
    with on_ray(words) as (config, executor, folder):
        watch = Watch(executor)
        federation(config, executor, folder, observers=[watch]).run()
    return watch.samples


if __name__ == "__main__":
    main()

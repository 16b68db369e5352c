"""Seconds a round against clients, parameters and hosts, each swept alone, with fitted slopes.

python -m tests.benchmarks.cost_model

FedAvg on 16 px digits, a cnn, one epoch; two hosts but where hosts are swept.
"""

import numpy as np

from tests.benchmarks.timed import timed

ROUNDS = 6
SWEEPS: dict[str, dict[float, list[str]]] = {
    "clients, 8 examples each": {
        clients: [f"data.clients={clients}", f"data.split.use={clients * 8 / 4000}"]
        for clients in (25, 50, 100, 200)
    },
    "million parameters, 20 clients": {
        params: [f"model.width={width}", "data.clients=20", "data.split.use=0.04"]
        for width, params in ((8, 0.011), (32, 0.162), (64, 0.640), (128, 2.541))
    },
    "hosts, 40 clients": {
        hosts: ["data.clients=40", "data.split.use=0.08", f"execution.hosts={hosts}"]
        + (["execution.cpus_per_host=0.25"] if hosts > 2 else [])
        for hosts in (1, 2, 4, 8)
    },
}


def main() -> None:
    """Run all sweeps and print each with the line through it."""
    common = [
        *("method=fedavg", f"rounds={ROUNDS}", f"evaluation.every={ROUNDS}", "model.name=cnn"),
        *("data.image_size=16", "data.partition.alpha=100", "data.partition.min_examples=2"),
        *("model.width=8", "execution.hosts=2", "output.checkpoint_every=100"),
    ]
    for name, points in SWEEPS.items():
        print(f"{name}: s a round (training, steps, waiting)")
        seconds = []
        for point, words in points.items():
            run = timed(*common, *words)
            seconds.append(run.round_seconds())
            shares = ", ".join(f"{share:.0%}" for share in run.shares().values())
            print(f"  {point:>7g}  {seconds[-1]:8.3f}  ({shares})", flush=True)
        slope, start = np.polyfit(list(points), seconds, 1)
        print(f"  line: {start:.3f} s + {slope:.4f} s each")


if __name__ == "__main__":
    main()

"""What pruning saves: FedFIP's rounds over dense FedAvg's.

python -m tests.benchmarks.pruning [--rounds 4] [--clients 4] [--fisher-every 1]

ResNet-18 with the CIFAR stem, 32 x 32, 5 local epochs, 64 examples a client on average, two hosts.
FedFIP prunes from the first round on and, unless told otherwise, measures Fisher information in
every round.
"""

import argparse

from tests.benchmarks.timed import round_seconds, timings

METHODS = {
    "fedavg": ["method=fedavg"],
    "rho=0.5 lambda=0": ["method.rho=0.5", "method.lambda=0"],
    "rho=0.5 lambda=0.01": ["method.rho=0.5", "method.lambda=0.01"],
    "rho=0.2 lambda=0": ["method.rho=0.2", "method.lambda=0"],
    "rho=0.2 lambda=0.01": ["method.rho=0.2", "method.lambda=0.01"],
}
TRAIN_IMAGES, EXAMPLES = 4000, 64


def main() -> None:
    """Time all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--fisher-every", type=int, default=1)
    args = parser.parse_args()
    common = [
        *(f"rounds={args.rounds}", f"evaluation.every={args.rounds}", "local.epochs=5"),
        *("model.name=resnet18", "model.width=64", f"data.clients={args.clients}"),
        f"data.split.use={args.clients * EXAMPLES / TRAIN_IMAGES}",
        *("data.partition.alpha=100", "data.partition.min_examples=8"),
        "output.checkpoint_every=100",
    ]
    fedfip = ["method=fedfip", "method.warmup_rounds=0", f"method.mask_every={args.fisher_every}"]
    dense = 0.0
    print(f"{'':22}{'s a round':>10}{'of FedAvg':>11}")
    for name, words in METHODS.items():
        own = words if name == "fedavg" else [*fedfip, *words]
        seconds = round_seconds(timings(*common, *own))
        dense = dense or seconds
        print(f"{name:22}{seconds:10.2f}{seconds / dense:11.2f}", flush=True)


if __name__ == "__main__":
    main()

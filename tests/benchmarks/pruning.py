"""What pruning saves: FedFIP's rounds over dense FedAvg's.

python -m tests.benchmarks.pruning [--clients 2]

ResNet-18 with the CIFAR stem, 32 x 32, 5 local epochs, 64 examples a client on average, two hosts.
FedFIP prunes from the first round on and forms a mask in every fifth, its default. Shown are the
mean over one such period, a round without and one with a Fisher pass, and the multiply-adds of the
sliced model, all over FedAvg's.
"""

import argparse
import statistics

from tests.benchmarks.timed import timed

PERIOD = 5
"""Rounds between two masks, as FedFIP has it by default."""
VARIANTS = [
    [f"method.rho={rho}", f"method.lambda={weight}", f"method.ranking={ranking}"]
    for ranking in ("raw", "layer_mean")
    for rho in (0.5, 0.2)
    for weight in (0, 0.01)
]
TRAIN_IMAGES, EXAMPLES = 4000, 64


def main() -> None:
    """Time all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=2)
    clients = parser.parse_args().clients
    rounds = PERIOD + 1  # the first is left out; the last measures again
    common = [
        *(f"rounds={rounds}", f"evaluation.every={rounds}", "local.epochs=5"),
        *("model.name=resnet18", "model.width=64", f"data.clients={clients}"),
        f"data.split.use={clients * EXAMPLES / TRAIN_IMAGES}",
        *("data.partition.alpha=100", "data.partition.min_examples=8"),
        "output.checkpoint_every=100",
    ]
    dense = timed(*common, "method=fedavg")
    second, flops = statistics.mean(dense.rounds()), dense.summary["flops"]
    print(f"FedAvg: {second:.2f} s a round")
    print(f"{'FedFIP':52}{'period':>8}{'without':>9}{'with':>7}{'flops':>7}")
    for words in VARIANTS:
        run = timed(*common, "method=fedfip", "method.warmup_rounds=0", *words)
        *plain, measuring = run.rounds()
        seconds = (statistics.mean(run.rounds()), statistics.mean(plain), measuring)
        period, without, with_ = (value / second for value in seconds)
        share = run.summary["flops_sliced"] / flops
        name = " ".join(word.removeprefix("method.") for word in words)
        print(f"{name:52}{period:8.2f}{without:9.2f}{with_:7.2f}{share:7.2f}", flush=True)


if __name__ == "__main__":
    main()

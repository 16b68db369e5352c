"""Clients x hosts -> seconds a round, peak memory of each process, bytes into the server.

python -m tests.benchmarks.scale [--clients 20 100 1000] [--hosts 1 2] [--rounds 4]

Each configuration runs in a process of its own, so that peaks are its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

COLUMNS = ("clients", "hosts", "s/round", "MB to server", "driver", "server", "largest host")


def main() -> None:
    """Run all configurations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100, 1000])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--one", action="store_true", help="run one configuration; prints JSON")
    args = parser.parse_args()
    if args.one:
        found = measure(args.clients[0], args.hosts[0], args.rounds, args.method)
        print(json.dumps(found))
        return
    print(f"{args.method}, cnn of width 8, 16 px, digits_mini; peak resident memory in MiB")
    print("  ".join(f"{name:>12}" for name in COLUMNS), flush=True)
    for clients in args.clients:
        for hosts in args.hosts:
            row = in_a_process(clients, hosts, args.rounds, args.method)
            print("  ".join(f"{row[name]:>12}" for name in COLUMNS), flush=True)


def in_a_process(clients: int, hosts: int, rounds: int, method: str) -> dict[str, Any]:
    """Measure one configuration in a process of its own."""
    words = ["--one", "--clients", str(clients), "--hosts", str(hosts)]
    words += ["--rounds", str(rounds), "--method", method]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.scale", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(clients: int, hosts: int, rounds: int, method: str) -> dict[str, Any]:
    """Run one configuration; returns a row of the table."""
    import pyarrow.parquet as pq

    from tests.benchmarks.processes import on_ray, pids, resident_mib
    from tests.toy import federation

    words = [
        *(f"rounds={rounds}", f"method={method}", f"data.clients={clients}"),
        *("data.image_size=16", "data.partition.min_examples=2", "model.name=cnn"),
        *("model.width=8", f"evaluation.every={rounds}", f"execution.hosts={hosts}"),
    ]
    with on_ray(words) as (config, executor, folder):
        federation(config, executor, folder).run()
        peaks = {who: resident_mib(pid, peak=True) for who, pid in pids(executor).items()}
        rows = pq.read_table(folder / "timings.parquet").to_pylist()
    seconds = [row["seconds"] for row in rows if row["what"] == "round"][1:]
    sent = [row["bytes"] for row in rows if row["what"] == "partial"]
    largest = max(peak for who, peak in peaks.items() if who.startswith("host"))
    return {
        "clients": clients,
        "hosts": hosts,
        "s/round": round(statistics.median(seconds), 2),
        "MB to server": round(sum(sent) / rounds / 1e6, 3),
        "driver": round(peaks["driver"]),
        "server": round(peaks["server"]),
        "largest host": round(largest),
    }


if __name__ == "__main__":
    main()

"""What is killed, and how many seconds that costs: each row a real run on two hosts.

python -m tests.benchmarks.kills

Seconds are what the struck round took longer than the others, or else as the row says. `bits` says
whether metrics and weights are those of an undisturbed run.
"""

import itertools
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.killing import Nodes, fault
from tests.toy import INPROCESS, ROOT, bits_of, command, environment, only_run, run_command

ROUNDS, STRUCK = 8, 4
RUN = [
    *("method.name=tests/killing.py:FaultyDitto", f"rounds={ROUNDS}", "data.clients=10"),
    *("data.image_size=16", "data.partition.alpha=100", "model.name=cnn", "model.width=4"),
    *("output.tensorboard=false", "output.checkpoint_every=1", "execution.retries=9"),
]
HOSTS = "execution.hosts=2"
Deed = Callable[["subprocess.Popen[str]"], object]


class Run:
    """A run from the command line, with the second in which each line came."""

    def __init__(self, words: Sequence[str], deed: Deed | None = None, **more: str) -> None:
        """Run to the end.

        Args:
            words: after `python -m raysim.run`.
            deed: done after the line of round `STRUCK` - 1.
            **more: environment variables.
        """
        self.lines: list[tuple[float, str]] = []
        self.began = time.monotonic()
        self.struck = self.began
        with subprocess.Popen(
            command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**more),
            cwd=ROOT,
        ) as process:
            for line in process.stdout or []:
                self.lines.append((time.monotonic(), line))
                if deed is not None and re.match(rf"round +{STRUCK - 1}/", line):
                    self.struck = time.monotonic()
                    deed(process)
        self.status = process.returncode
        self.ended = time.monotonic()

    def round_ends(self) -> dict[int, float]:
        """Return when each round was complete."""
        found = ((at, re.match(r"round +(\d+)/", line)) for at, line in self.lines)
        return {int(match[1]): at for at, match in found if match}

    def lost(self) -> float:
        """Return what the longest round took beyond the usual one."""
        ends = list(self.round_ends().values())
        gaps = [after - before for before, after in itertools.pairwise(ends)]
        return max(gaps) - statistics.median(gaps)


def report(what: str, seconds: float, note: str, folder: Path | None, quiet: Path) -> None:
    """Print a row."""
    bits = "-" if folder is None else "equal" if bits_of(folder) == bits_of(quiet) else "DIFFER"
    print(f"| {what} | {seconds:.1f} | {note} | {bits} |", flush=True)


def faults(top: Path, quiet: Path) -> None:
    """Strike from inside the method."""
    strikes = {
        "a host, in its phase": [fault("kill", "fit", STRUCK, 4)],
        "hosts, three times in one round": [fault("kill", "fit", STRUCK, c) for c in (4, 5, 7)],
        "the server, aggregating": [fault("kill", "aggregate-fit", STRUCK)],
        "a host hangs (hang_s=5)": [fault("sleep", "fit", STRUCK, 4)],
        "the server hangs (hang_s=5)": [fault("sleep", "aggregate-fit", STRUCK)],
        "a host runs out of memory": [fault("hog", "fit", STRUCK, 3)],
        "a client raises": [fault("raise", "fit", STRUCK, 4)],
        "an update with NaN": [fault("nan", "fit", STRUCK, 4)],
    }
    for number, (what, texts) in enumerate(strikes.items()):
        flags, out = top / f"flags{number}", top / f"run{number}"
        flags.mkdir()
        words = [f"method.faults={texts}", f"method.flags={flags}", f"output.dir={out}", HOSTS]
        words += ["execution.hang_s=5"] if "hang_s" in what else []
        run = Run([*RUN, *words], **(_little_memory() if "memory" in what else {}))
        if run.status:
            at = run.round_ends()[STRUCK]
            report(what, run.ended - at, f"until exit {run.status}, rounds saved", None, quiet)
        else:
            report(what, run.lost(), "beyond a usual round", only_run(out), quiet)


def _little_memory() -> dict[str, str]:
    sizes = dict(re.findall(r"(\w+): +(\d+) kB", Path("/proc/meminfo").read_text()))
    total, available = int(sizes["MemTotal"]), int(sizes["MemAvailable"])
    share = (total - available + 4e6) / total
    return {"RAY_memory_usage_threshold": f"{share:.3f}", "RAY_memory_monitor_refresh_ms": "100"}


def a_node(top: Path, quiet: Path) -> None:
    """Pull a node's plug."""
    nodes = Nodes()
    try:
        nodes.add()
        second, out = nodes.add(), top / "node"
        words = [f"execution.address={nodes.address}", f"output.dir={out}", HOSTS]
        run = Run([*RUN, *words], lambda _: nodes.kill(second), **nodes.token)
        report("a node", run.lost(), "beyond a usual round", only_run(out), quiet)
    finally:
        nodes.close()


def the_driver(top: Path, quiet: Path) -> None:
    """Send signals to the driver, and resume; also from a damaged checkpoint."""
    for sign in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        out = top / sign.name
        words = [f"output.dir={out}", HOSTS]
        run = Run([*RUN, *words], lambda process, sign=sign: process.send_signal(sign))
        note = f"until exit {run.status}"
        report(f"the driver, {sign.name}", run.ended - run.struck, note, None, quiet)
        damaged = sign is signal.SIGINT
        if damaged:
            newest = max((only_run(out) / "checkpoints").glob("round_*")) / "model.safetensors"
            newest.write_bytes(newest.read_bytes()[:-9])
        again = Run(["--resume", str(only_run(out))])
        seconds = min(again.round_ends().values()) - again.began
        what = "its resume" + (", newest checkpoint cut short" if damaged else "")
        report(what, seconds, "from the command to a new round", only_run(out), quiet)


def main() -> None:
    """Run all and print the table."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        done = run_command(*RUN, INPROCESS, f"output.dir={top / 'quiet'}")
        if done.returncode:
            raise SystemExit(done.stderr)
        quiet = only_run(top / "quiet")
        print("| lost | seconds | which | bits |\n|---|---|---|---|")
        faults(top, quiet)
        a_node(top, quiet)
        the_driver(top, quiet)


if __name__ == "__main__":
    main()

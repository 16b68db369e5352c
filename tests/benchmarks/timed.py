"""Runs of the command line in processes of their own, and where their time went."""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tests.toy import command, environment, only_run


@dataclass(frozen=True)
class Timed:
    """A finished run: its `timings.parquet` and its `summary.json`."""

    timings: pd.DataFrame
    summary: dict[str, Any]

    def rounds(self) -> list[float]:
        """Return the seconds of the rounds after the first, evaluation left out."""
        table = self.timings
        rounds = table[table["what"] == "round"].set_index("round")["seconds"]
        tests = table[table["what"] == "evaluate"].set_index("round")["seconds"]
        return [float(second) for second in rounds.sub(tests, fill_value=0.0).iloc[1:]]

    def round_seconds(self) -> float:
        """Return the median of `rounds`."""
        return statistics.median(self.rounds())

    def shares(self) -> dict[str, float]:
        """Return the shares of the hosts' wall time that went where, first round left out.

        `training` is forward, backward and optimiser steps, `steps` what clients' steps do besides,
        `waiting` the rest: for the other hosts, the server and the driver. Evaluation is left out.
        """
        later: Any = self.timings[self.timings["round"] > 1]
        hosts = later.loc[later["what"] == "busy", "host"].nunique()
        wall = hosts * sum(self.rounds())
        fit, busy = (later.loc[later["what"] == what, "seconds"].sum() for what in ("fit", "busy"))
        return {"training": fit / wall, "steps": (busy - fit) / wall, "waiting": 1 - busy / wall}


def timed(*words: str) -> Timed:
    """Run `python -m raysim.run` with some settings."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command(*words, "output.tensorboard=false", f"output.dir={folder}"),
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        run = only_run(Path(folder))
        summary = json.loads((run / "summary.json").read_text())
        return Timed(pd.read_parquet(run / "timings.parquet"), summary)

"""Runs of the command line in processes of their own, and where their time went."""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from tests.toy import command, environment, only_run


def timings(*words: str) -> pd.DataFrame:
    """Run `python -m raysim.run` with some settings; returns its `timings.parquet`."""
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
        return pd.read_parquet(only_run(Path(folder)) / "timings.parquet")


def round_seconds(table: pd.DataFrame) -> float:
    """Return the median seconds of the rounds after the first, evaluation left out."""
    rounds = table[table["what"] == "round"].set_index("round")["seconds"]
    tests = table[table["what"] == "evaluate"].set_index("round")["seconds"]
    return statistics.median(rounds.sub(tests, fill_value=0.0).iloc[1:])


def training_share(table: pd.DataFrame) -> dict[str, float]:
    """Return the shares of the hosts' wall time in rounds that went where, first round left out.

    `training` is forward, backward and optimiser steps, `steps` what clients' steps do besides,
    `waiting` the rest: for the other hosts, the server, the driver and evaluation.
    """
    later: Any = table[table["round"] > 1]
    hosts = later.loc[later["what"] == "busy", "host"].nunique()
    wall = hosts * later.loc[later["what"] == "round", "seconds"].sum()
    fit, busy = (later.loc[later["what"] == what, "seconds"].sum() for what in ("fit", "busy"))
    return {"training": fit / wall, "steps": (busy - fit) / wall, "waiting": 1 - busy / wall}

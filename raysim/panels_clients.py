"""What methods show that weigh clients against each other: consensus weights, attention.

Shape suffixes: K clients of a cohort, M clients, T tensors.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from raysim.chart import Chart
from raysim.charts import heat_map
from raysim.panels_units import thinned
from raysim.record import Record
from raysim.tensors import Array

_MOST_CLIENTS = 100
_MAX_COLUMNS = 120


def client_panels(run: Record) -> list[Chart]:
    """Return the charts of what `raysim.watched.watched_weights` keeps."""
    cohorts = {round_: found[""] for round_, found in run.watched.read("cohort").items()}
    return [*_attention(run, cohorts), *_consensus(run, cohorts)]


def _attention(run: Record, cohorts: Mapping[int, Array]) -> list[Chart]:
    found = run.watched.read("attention")
    shown = _shown_clients(run)
    frames = {}
    for round_ in thinned(list(found)):
        weight_MM = np.full((run.config["data"]["clients"],) * 2, np.nan, np.float32)
        weight_MM[np.ix_(cohorts[round_], cohorts[round_])] = found[round_][""]
        frames[str(round_)] = weight_MM[:shown, :shown]
    if not frames:
        return []
    text = (
        "How much of a client's next personal tensors comes from each client of the cohort: the "
        "mean over tensors; rows sum to 1." + _left_out(run)
    )
    return [
        heat_map(
            "attention",
            "Attention between clients",
            text,
            frames,
            columns=range(shown),
            rows=range(shown),
            x="from client",
            y="client",
            value="weight",
        )
    ]


def _consensus(run: Record, cohorts: Mapping[int, Array]) -> list[Chart]:
    found = run.watched.read("consensus")
    if not found:
        return []
    shown = _shown_clients(run)
    rounds = thinned(list(found), _MAX_COLUMNS)
    means = [_by_client(run, cohorts[r], np.mean(list(found[r].values()), 0)) for r in rounds]
    by_round = heat_map(
        "consensus",
        "Consensus weights by client",
        "Weight of a client's direction in the shared step, the mean over tensors; a gap is a "
        "round without the client." + _left_out(run),
        np.stack(means, 1)[:shown],
        columns=rounds,
        rows=range(shown),
        x="round",
        y="client",
        value="weight",
    )
    last = rounds[-1]
    rows = [_by_client(run, cohorts[last], weight_K) for weight_K in found[last].values()]
    by_tensor = heat_map(
        "consensus-tensors",
        f"Consensus weights by tensor, round {last}",
        "Weight of each client's direction in the step of each shared tensor." + _left_out(run),
        np.stack(rows)[:, :shown],
        columns=range(shown),
        rows=list(found[last]),
        x="client",
        y="tensor",
        value="weight",
        yaxis={"title": {"text": ""}, "tickfont": {"size": 10}},
    )
    return [by_round, by_tensor]


def _by_client(run: Record, cohort: Array, weight_K: Array) -> NDArray[np.float32]:
    weight_M = np.full(run.config["data"]["clients"], np.nan, np.float32)
    weight_M[cohort] = weight_K
    return weight_M


def _shown_clients(run: Record) -> int:
    return min(int(run.config["data"]["clients"]), _MOST_CLIENTS)


def _left_out(run: Record) -> str:
    more = run.config["data"]["clients"] - _shown_clients(run)
    return f" The first {_MOST_CLIENTS} clients; {more} more are in the files." if more else ""

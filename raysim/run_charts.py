"""The charts that every run has, whatever its method."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.chart import Chart
from raysim.charts import Series, bars, heat_map, lines
from raysim.panels_units import thinned
from raysim.record import Record

_MAX_ROUNDS = 120  # columns of a heat map
_MAX_CLASSES = 120  # columns of the map of who holds what
_MEGA = 1e6


def domains(run: Record) -> Chart:
    """Return the global model's accuracy by domain."""
    return _by_domain(run, "accuracy", "accuracy, %", "Accuracy by domain")


def losses(run: Record) -> Chart:
    """Return the training loss, and the global model's test loss by domain."""
    chart = _by_domain(
        run, "loss", "cross-entropy", "Loss", _series("training", run.series("loss"))
    )
    return chart


def average(run: Record) -> Chart:
    """Return AVG: of the global model over domains, of personal models over clients."""
    return _figure(run, "avg", "AVG", "Mean accuracy: of the global model over domains")


def spread(run: Record) -> Chart:
    """Return STD, as `average`."""
    text = "Standard deviation of accuracy: of the global model over domains"
    return _figure(run, "std", "STD", text)


def personal(run: Record) -> Chart | None:
    """Return each client's accuracy with its personal model; None without such models."""
    table = run.metrics
    own = (table["model"] == "personal") & (table["split"] == "test")
    found = table[own & (table["metric"] == "accuracy")]
    if found.empty:
        return None
    weighted = found.assign(hits=found["value"] * found["count"])
    sums = weighted.groupby(["client", "round"])[["hits", "count"]].sum()
    grid = (sums["hits"] / sums["count"]).unstack("round")
    rounds = thinned(sorted(set(found["round"].tolist())), _MAX_ROUNDS)
    return heat_map(
        "personal",
        "Personal accuracy by client",
        "Accuracy of each client's personal model on a test shard of its own mixture of domains.",
        grid[rounds].to_numpy(),
        columns=rounds,
        rows=grid.index.tolist(),
        x="round",
        y="client",
        value="accuracy, %",
    )


def holdings(run: Record) -> Chart | None:
    """Return who holds what: training images by client, domain and class."""
    counts_MDK = run.held
    if not counts_MDK.size:
        return None
    if len(run.domains) * len(run.classes) <= _MAX_CLASSES:
        names = [f"{domain} {label}" for domain in run.domains for label in run.classes]
        values: NDArray[Any] = counts_MDK.reshape(len(counts_MDK), -1)
        what = "class within a domain"
    else:
        names, values, what = run.domains, counts_MDK.sum(2), "domain"
    return heat_map(
        "holdings",
        "Who holds what",
        f"Training images of each client, a column a {what}; a gap is none.",
        np.where(values > 0, values, np.nan),
        columns=names,
        rows=range(len(values)),
        x=what,
        y="client",
        value="images",
        xaxis={"tickfont": {"size": 10}},
    )


def traffic(run: Record) -> Chart:
    """Return the bytes sent so far."""
    sent = {way: run.series(f"bytes_{way}") for way in ("up", "down")}
    series = [
        Series(way, list(by_round), (np.cumsum(list(by_round.values())) / _MEGA).tolist())
        for way, by_round in sent.items()
    ]
    text = "Bytes that all clients together have sent (up) and received (down), as counted."
    return lines("traffic", "Bytes so far", text, series, x="round", y="MB")


def efficiency(runs: Sequence[Record]) -> Chart:
    """Return AVG against the bytes sent until then, a line a run."""
    series = []
    for run, name in zip(runs, names_of(runs), strict=True):
        rounds = list(run.series("bytes_up"))
        sent = np.cumsum(list(run.series("bytes_up").values())) / _MEGA
        average = run.series("accuracy_avg", split="test")
        at = [i for i, round_ in enumerate(rounds) if round_ in average]
        points = [average[rounds[i]] for i in at]
        series.append(Series(name, [round(float(sent[i]), 3) for i in at], points))
    text = "AVG of the global model against all bytes that clients have sent until then."
    title = "Accuracy against bytes"
    return lines("efficiency", title, text, series, x="MB up", y="AVG, %")


def times(run: Record) -> Chart:
    """Return seconds of each round by part."""
    table = run.timings
    whole = table[table["what"] == "round"].groupby("round")["seconds"].sum()
    parts = table[table["what"].isin(["clients", "aggregate", "evaluate", "checkpoint"])]
    named = parts.assign(
        part=[_part(p, w) for p, w in zip(parts["phase"], parts["what"], strict=True)]
    )
    series = []
    for part in dict.fromkeys(named["part"]):
        own = named[named["part"] == part].groupby("round")["seconds"].sum()
        series.append(_series(part, dict(zip(own.index.tolist(), own.tolist(), strict=True))))
    series.insert(
        0, _series("whole round", dict(zip(whole.index.tolist(), whole.tolist(), strict=True)))
    )
    text = "Wall time of each round, and of its parts; a checkpoint comes after its round."
    return lines(
        "times", "Seconds by round", text, series, x="round", y="s", yaxis={"rangemode": "tozero"}
    )


def hosts(run: Record) -> Chart | None:
    """Return each host's seconds at work over the whole run, and those in local training."""
    table = run.timings
    found = table[table["what"].isin(["busy", "fit"])]
    if found.empty:
        return None
    sums = found.groupby(["what", "host"])["seconds"].sum()
    names = {"fit": "local training", "busy": "at work in all"}
    series = [
        Series(name, [f"host {host}" for host in sums[what].index], sums[what].tolist())
        for what, name in names.items()
        if what in sums
    ]
    text = "Seconds that each host spent on its clients' phases, and in their training steps."
    return bars("hosts", "Work by host", text, series, x="host", y="s")


def together(runs: Sequence[Record], figure: str, title: str) -> Chart:
    """Return AVG or STD of the global models, a line a run.

    Args:
        runs: at least one.
        figure: "avg" or "std".
        title: "AVG" or "STD".
    """
    named = zip(names_of(runs), runs, strict=True)
    series = [_series(n, r.series(f"accuracy_{figure}", split="test")) for n, r in named]
    text = f"{title} of the global model over domains, a line a run."
    return lines(f"runs-{figure}", title, text, series, x="round", y=f"{title}, %")


def ends(runs: Sequence[Record]) -> Chart:
    """Return the accuracy by domain after the last evaluation, bars for each run."""
    series = []
    for name, run in zip(names_of(runs), runs, strict=True):
        found = {d: list(_accuracy(run, d).values())[-1:] for d in run.domains}
        series.append(Series(name, list(found), [v[0] if v else None for v in found.values()]))
    text = "Accuracy of the global model on each domain after the last evaluation."
    return bars("runs-domains", "Accuracy by domain", text, series, x="domain", y="accuracy, %")


def names_of(runs: Sequence[Record]) -> list[str]:
    """Return short names that differ: method and seed, and the run's place if these are equal."""
    labels = [run.label for run in runs]
    return [
        label if labels.count(label) == 1 else f"{label} #{place}"
        for place, label in enumerate(labels, 1)
    ]


def _part(phase: str, what: str) -> str:
    return what if phase == what else f"{phase}: {what}"


def _series(name: str, by_round: dict[int, float]) -> Series:
    return Series(name, list(by_round), list(by_round.values()))


def _accuracy(run: Record, domain: str) -> dict[int, float]:
    return run.series("accuracy", domain=domain, split="test")


def _by_domain(run: Record, metric: str, unit: str, title: str, *more: Series) -> Chart:
    unseen = set(run.domains) - set(run.seen)
    series = [
        _series(
            f"{name} (unseen)" if name in unseen else name,
            run.series(metric, domain=name, split="test"),
        )
        for name in run.domains
    ]
    text = "The global model on every domain's full test split, after aggregation."
    if more:
        text += " Training loss: the cohort's mean over local steps."
    chart_name = "domains" if metric == "accuracy" else "losses"
    return lines(chart_name, title, text, [*more, *series], x="round", y=unit)


def _figure(run: Record, figure: str, title: str, text: str) -> Chart:
    found = {
        m: run.series(f"accuracy_{figure}", model=m, split="test") for m in ("global", "personal")
    }
    series = [_series(model, by_round) for model, by_round in found.items() if by_round]
    if len(series) > 1:
        text += ", of personal models over clients"
    return lines(figure, title, f"{text}.", series, x="round", y=f"{title}, %")

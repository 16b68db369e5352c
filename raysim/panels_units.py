"""What methods with channel masks show: kept units, churn, importances, prototypes.

Shape suffixes: C units, D domains, L units of a layer, R rounds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from raysim.chart import Chart, Table
from raysim.charts import Series, heat_map, lines
from raysim.record import Record
from raysim.tensors import Arrays

FRAMES = 24
"""Rounds that a slider moves through; of more, so many evenly spaced ones."""
_MAX_COLUMNS = 120


def unit_panels(run: Record) -> list[Chart]:
    """Return the charts of a method whose server forms masks.

    Args:
        run: shows `mask/...` and perhaps `importance/<domain>`, `prototypes` and `known`.
    """
    masks = {round_: _layers(arrays) for round_, arrays in run.watched.read("mask").items()}
    if not masks:
        return []
    charts = [_mask(masks), _kept(masks), *_churn(run, masks), *_reactivated(run)]
    return [*charts, *_importance(run, masks), *_prototypes(run)]


def thinned(rounds: Sequence[int], most: int = FRAMES) -> list[int]:
    """Return at most so many of the rounds, evenly spaced, the first and the last among them."""
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, most).round().astype(int)]


Layers = Mapping[str, NDArray[np.bool_]]


def _layers(arrays: Arrays) -> Layers:
    """Return masks [L] by layer, in the order of the network."""
    return {name.partition("/")[2]: mask_L for name, mask_L in sorted(arrays.items())}


def _mask(masks: Mapping[int, Layers]) -> Chart:
    rounds = thinned(list(masks), _MAX_COLUMNS)
    kept_CR = np.stack([np.concatenate(list(masks[r].values())) for r in rounds], 1)
    new_CR = np.zeros_like(kept_CR)
    new_CR[:, 1:] = kept_CR[:, 1:] & ~kept_CR[:, :-1]
    layers = next(iter(masks.values()))
    sizes = [len(mask_L) for mask_L in layers.values()]
    edges = np.cumsum([0, *sizes])
    middles = (edges[:-1] + edges[1:] - 1) / 2
    table = Table(
        ("layer", "units", *(f"kept in round {r}" for r in rounds)),
        tuple(
            (layer, size, *(int(masks[r][layer].sum()) for r in rounds))
            for layer, size in zip(layers, sizes, strict=True)
        ),
    )
    named = [
        f"{layer}, {unit}"
        for layer, size in zip(layers, sizes, strict=True)
        for unit in range(size)
    ]
    chart = heat_map(
        "mask",
        "Units of the global mask",
        "A row a channel unit, layer by layer; a column a mask, by the round that formed it. New "
        "is a unit that the mask before had pruned.",
        kept_CR.astype(np.float32) + new_CR,
        columns=rounds,
        rows=named,
        x="round",
        y="unit",
        value="units",
        levels=["pruned", "kept", "new"],
        table=table,
        yaxis={
            "tickmode": "array",
            "tickvals": middles.tolist(),
            "ticktext": list(layers),
            "tickfont": {"size": 10},
            "title": {"text": ""},
        },
    )
    borders = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": edge - 0.5, "y1": edge - 0.5,
         "line": {"width": 1, "color": "gray"}}
        for edge in edges[1:-1].tolist()
    ]  # fmt: skip
    chart.layout["shapes"] = borders
    return chart


def _kept(masks: Mapping[int, Layers]) -> Chart:
    rounds = thinned(list(masks), _MAX_COLUMNS)
    layers = list(next(iter(masks.values())))
    share = [[100.0 * masks[r][layer].mean() for r in rounds] for layer in layers]
    return heat_map(
        "kept",
        "Kept units by layer",
        "Share of a layer's units that the global mask keeps.",
        share,
        columns=rounds,
        rows=layers,
        x="round",
        y="layer",
        value="kept, %",
        limits=(0, 100),
    )


def _churn(run: Record, masks: Mapping[int, Layers]) -> list[Chart]:
    churn = {r: 100 * value for r, value in run.series("churn").items() if r in masks}
    if len(churn) < 2:
        return []
    series = [Series("churn", list(churn), list(churn.values()))]
    text = "Share of a new mask's units that the mask before had pruned."
    return [lines("churn", "Churn of the mask", text, series, x="round", y="new units, %")]


def _reactivated(run: Record) -> list[Chart]:
    table = run.metrics
    found = table[(table["metric"] == "reactivated") & (table["client"] >= 0)]
    if found.empty:
        return []
    grid = found.pivot(index="client", columns="round", values="value")
    rounds = thinned(sorted(set(found["round"].tolist())), _MAX_COLUMNS)
    text = "Pruned units that a client trains for itself; a gap is a round without the client."
    return [
        heat_map(
            "reactivated",
            "Reactivated units by client",
            text,
            grid[rounds].to_numpy(),
            columns=rounds,
            rows=grid.index.tolist(),
            x="round",
            y="client",
            value="units",
        )
    ]


def _importance(run: Record, masks: Mapping[int, Layers]) -> list[Chart]:
    found = run.watched.read("importance")
    if not found:
        return []
    layers = next(iter(masks.values()))
    edges = np.cumsum([0, *(len(mask_L) for mask_L in layers.values())])[:-1]
    frames = {}
    for round_ in thinned(list(found)):
        domain_C = found[round_]
        share = np.full((len(run.domains), len(layers)), np.nan)
        for domain, value_C in domain_C.items():
            total = float(value_C.sum(dtype=np.float64)) or 1.0
            share[int(domain)] = 100 * np.add.reduceat(value_C.astype(np.float64), edges) / total
        frames[str(round_)] = share
    text = (
        "Share of a domain's importance that lies in each layer: the mean over the clients that "
        "hold the domain, weighted by their examples of it."
    )
    by_layer = heat_map(
        "importance",
        "Importance by domain and layer",
        text,
        frames,
        columns=list(layers),
        rows=run.domains,
        x="layer",
        y="domain",
        value="share, %",
    )
    return [by_layer, _unit_importance(run, found, masks)]


def _unit_importance(
    run: Record, found: Mapping[int, Arrays], masks: Mapping[int, Layers]
) -> Chart:
    """Draw the units that domains disagree about most, in the last mask's round."""
    last = max(found)
    layers = masks[last]
    names = [f"{layer} {i}" for layer, mask_L in layers.items() for i in range(len(mask_L))]
    kept_C = np.concatenate(list(layers.values()))
    value_DC = np.full((len(run.domains), len(names)), np.nan)
    for domain, value_C in found[last].items():
        value_DC[int(domain)] = value_C / (float(value_C.mean(dtype=np.float64)) or 1.0)
    seen_DC = value_DC[~np.isnan(value_DC).all(1)]
    chosen = np.sort(np.argsort(-np.ptp(seen_DC, axis=0), kind="stable")[:40])
    return heat_map(
        "importance-units",
        "Units that domains disagree about",
        f"Importance over the domain's mean in round {last}, of the units where it differs most "
        "between domains; * marks units that the mask keeps.",
        value_DC[:, chosen].T,
        columns=run.domains,
        rows=[names[c] + ("*" if kept_C[c] else "") for c in chosen],
        x="domain",
        y="unit",
        value="importance over mean",
        yaxis={"tickfont": {"size": 10}},
    )


def _prototypes(run: Record) -> list[Chart]:
    found, known = run.watched.read("prototypes"), run.watched.read("known")
    frames = {}
    for round_ in thinned(list(found)):
        prototype_DC, known_D = found[round_][""], known[round_][""]
        norm_D = np.linalg.norm(prototype_DC, axis=1)
        unit_DC = prototype_DC / np.where(norm_D > 0, norm_D, 1)[:, None]
        cosine_DD = unit_DC @ unit_DC.T
        cosine_DD[~known_D] = np.nan
        cosine_DD[:, ~known_D] = np.nan
        frames[str(round_)] = cosine_DD
    if not frames:
        return []
    return [
        heat_map(
            "prototypes",
            "Similarity of domain prototypes",
            "Cosine between the domains' prototypes of channel importance.",
            frames,
            columns=run.domains,
            rows=run.domains,
            x="domain",
            y="domain",
            value="cosine",
            square=True,
        )
    ]

"""Kinds of charts: lines, points, bars, heat maps.

A chart is a Plotly figure without colours (the page or notebook that shows it has those), a
sentence that says what it shows, and a table for whoever cannot see it. Lines differ by dash and
marker, bars by pattern, and scales of colour run from light to dark, so that print and colour-blind
readers lose nothing. `raysim.pages.sections` puts charts on pages.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raysim.chart import Chart, JsonDict, Scale, Table, plain, shown

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "circle-open")
_PATTERNS = ("", "/", "x", "-", "|", "+", ".", "\\")
_HEIGHT = 380
_TALLEST = 900
_ROW_PX, _FRAME_PX = 18, 80  # a heat map's row; its axis and margins together
_LEAST_MAP_PX = 150  # a heat map without its columns' names
_LETTER_PX, _LONGEST_NAME = 7, 40
_MAX_MARKERS = 24  # of a line
_LEGEND: JsonDict = {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"}


@dataclass(frozen=True)
class Series:
    """One line, or the bars of one kind.

    Attributes:
        name: in the legend.
        x: positions.
        y: values; None or NaN leaves a gap.
        spread: half the length of error bars, if any.
        labels: what points are called, if they have names.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    spread: Sequence[float] | None = None
    labels: Sequence[str] | None = None


def lines(
    name: str, title: str, text: str, series: Sequence[Series], *, x: str, y: str, **axes: JsonDict
) -> Chart:
    """Return values along a numeric axis, a line a series.

    Args:
        name: see `Chart`.
        title: see `Chart`.
        text: see `Chart`.
        series: the lines, x ascending.
        x: title of the axis; for "round" its ticks are whole numbers.
        y: title of the axis.
        **axes: Plotly settings of `xaxis` and `yaxis`, e.g. `{"type": "log"}`.
    """
    data = [
        _line(one, index) | {"type": "scatter", "mode": "lines+markers"}
        for index, one in enumerate(series)
    ]
    layout = _layout(x, y, axes, legend=len(series) > 1)
    if x == "round":
        layout["xaxis"] |= _whole_ticks([v for one in series for v in one.x])
    table = _series_table(x, y, series)
    return Chart(name=name, title=title, text=text, data=data, layout=layout, table=table)


def points(
    name: str, title: str, text: str, series: Sequence[Series], *, x: str, y: str, **axes: JsonDict
) -> Chart:
    """Return points in a plane, a marker a series; see `lines`. `Series.labels` name points."""
    data = [
        _line(one, index) | {"type": "scatter", "mode": "markers"}
        for index, one in enumerate(series)
    ]
    for trace in data:
        trace["marker"] = {"symbol": trace["marker"]["symbol"], "size": 9}
    labelled = any(one.labels for one in series)
    columns = ("series", *(("name",) if labelled else ()), x, y)
    rows = [
        (one.name, *((one.labels or [""] * len(one.x))[i : i + 1] if labelled else ()), px, py)
        for one in series
        for i, (px, py) in enumerate(zip(one.x, one.y, strict=True))
    ]
    return Chart(
        name=name,
        title=title,
        text=text,
        data=data,
        layout=_layout(x, y, axes, legend=len(series) > 1, hover="closest"),
        table=Table(columns, tuple(rows), _percent([y], y)),
    )


def bars(
    name: str,
    title: str,
    text: str,
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    stacked: bool = False,
    **axes: JsonDict,
) -> Chart:
    """Return bars over named places, side by side or stacked; see `lines`."""
    data = [
        {
            "type": "bar",
            "name": plain(one.name),
            "x": [plain(str(v)) for v in one.x],
            "y": list(one.y),
            "marker": {"pattern": {"shape": _PATTERNS[i % len(_PATTERNS)], "solidity": 0.35}},
            "hovertemplate": "%{y}",
        }
        | _error_bars(one)
        for i, one in enumerate(series)
    ]
    layout = _layout(x, y, axes, legend=len(series) > 1)
    layout |= {"barmode": "stack" if stacked else "group"}
    layout["xaxis"] |= {"type": "category"}
    table = _series_table(x, y, series)
    return Chart(name=name, title=title, text=text, data=data, layout=layout, table=table)


def heat_map(
    name: str,
    title: str,
    text: str,
    values: ArrayLike | Mapping[str, ArrayLike],
    *,
    columns: Sequence[Any],
    rows: Sequence[Any],
    x: str,
    y: str,
    value: str,
    limits: tuple[float, float] | None = None,
    levels: Sequence[str] | None = None,
    square: bool = False,
    table: Table | None = None,
    **axes: JsonDict,
) -> Chart:
    """Return a matrix as shades, the first row on top.

    Args:
        name: see `Chart`.
        title: see `Chart`.
        text: see `Chart`.
        values: [rows, columns], NaN leaves a gap; or several such matrices by label, among which a
            slider chooses.
        columns: names.
        rows: names.
        x: title of the axis.
        y: title of the axis.
        value: what a cell is.
        limits: ends of the scale; None takes those of the values.
        levels: names of the values 0, 1, 2, ... where they are kinds, not amounts.
        square: the matrix compares things with each other.
        table: stands in for the values, where these are too many to read.
        **axes: Plotly settings of `xaxis` and `yaxis`.
    """
    frames = values if isinstance(values, Mapping) else {"": values}
    matrices = {k: np.asarray(v, np.float32) for k, v in frames.items()}
    last = next(reversed(matrices.values()))
    low, high = limits or ((0, len(levels) - 1) if levels else _limits(matrices.values()))
    trace: JsonDict = {
        "type": "heatmap",
        "z": last,
        "x": [plain(str(c)) for c in columns],
        "y": [plain(str(r)) for r in rows],
        "zmin": low,
        "zmax": high,
        "colorbar": _color_bar(value, levels),
        "hovertemplate": f"{plain(y)} %{{y}}, {plain(x)} %{{x}}: %{{z:.4~g}}<extra></extra>",
        "xgap": 1 if last.shape[1] <= 60 else 0,
        "ygap": 1 if last.shape[0] <= 60 else 0,
    }
    several = len(matrices) > 1
    corner = f"{y} \\ {x}" + (f", {list(matrices)[-1]}" if several else "")
    return Chart(
        name=name,
        title=title,
        text=text,
        data=[trace],
        layout=_heat_layout(x, y, axes, _heat_height(columns, last.shape[0], square=square)),
        table=table or _matrix_table(corner, columns, rows, value, last),
        frames=matrices if several else {},
        scale=_scale(value, low, high, levels),
    )


def _color_bar(value: str, levels: Sequence[str] | None) -> JsonDict:
    """Return the scale that notebooks show; pages draw their own."""
    bar: JsonDict = {"title": {"text": plain(value)}}
    if levels:
        bar |= {"tickvals": list(range(len(levels))), "ticktext": [plain(v) for v in levels]}
    return bar


def _heat_height(columns: Sequence[Any], rows: int, *, square: bool) -> int:
    """Return pixels that hold the rows, and the columns' names, which stand in a narrow chart."""
    rows_px = rows * (28 if square else _ROW_PX) + _FRAME_PX
    longest = max((len(str(column)) for column in columns), default=0)
    names_px = _LEAST_MAP_PX + _LETTER_PX * min(longest, _LONGEST_NAME)
    return min(max(rows_px, names_px), _TALLEST)


def _heat_layout(x: str, y: str, axes: Mapping[str, JsonDict], height: int) -> JsonDict:
    layout = _layout(x, y, axes, legend=False, hover="closest")
    rows_down = {"type": "category", "autorange": "reversed", "automargin": True}
    layout["xaxis"] = {"type": "category"} | layout["xaxis"] | {"showgrid": False}
    layout["yaxis"] = rows_down | layout["yaxis"] | {"showgrid": False}
    layout["yaxis"]["title"] = {"standoff": 14} | layout["yaxis"]["title"]
    layout["margin"] |= {"l": 8}
    layout["height"] = height
    return layout


def _line(one: Series, index: int) -> JsonDict:
    trace: JsonDict = {
        "name": plain(one.name),
        "x": list(one.x),
        "y": [None if v is None or math.isnan(v) else v for v in one.y],
        "line": {"dash": _DASHES[index % len(_DASHES)], "width": 2},
        "marker": {
            "symbol": _MARKERS[index % len(_MARKERS)],
            "size": 7,
            "maxdisplayed": _MAX_MARKERS,
        },
        "hovertemplate": "%{y:.5~g}",
    }
    if one.labels is not None:
        trace["text"] = [plain(label) for label in one.labels]
        trace["hovertemplate"] = "%{text}: %{x:.5~g}, %{y:.5~g}"
    return trace | _error_bars(one)


def _error_bars(one: Series) -> JsonDict:
    if one.spread is None:
        return {}
    return {"error_y": {"type": "data", "array": list(one.spread), "thickness": 1, "width": 3}}


def _layout(
    x: str, y: str, axes: Mapping[str, JsonDict], *, legend: bool, hover: str = "x unified"
) -> JsonDict:
    layout: JsonDict = {
        "height": _HEIGHT,
        "margin": {"l": 60, "r": 8, "t": 8, "b": 8},
        "hovermode": hover,
        "showlegend": legend,
        "legend": _LEGEND,
        "xaxis": {
            "title": {"text": plain(x), "standoff": 8},
            "automargin": "height",
            "autotickangles": [0, 90],  # an oblique text would end beyond a narrow chart
        },
        "yaxis": {"title": {"text": plain(y)}},  # a margin that grew would change the legend's rows
    }
    for axis, settings in axes.items():
        layout[axis] |= settings
    return layout


def _whole_ticks(rounds: Iterable[float]) -> JsonDict:
    last = max(rounds, default=0)
    return {"dtick": 1} if last <= 10 else {"tickformat": "d"}


def _scale(title: str, low: float, high: float, levels: Sequence[str] | None) -> Scale:
    if levels:
        marks = tuple((i / max(len(levels) - 1, 1), level) for i, level in enumerate(levels))
        return Scale(title, marks, is_graded=False)
    ends = (shown(int(v) if v == int(v) else v) for v in (low, high))
    return Scale(title, tuple(zip((0.0, 1.0), ends, strict=True)))


def _limits(matrices: Iterable[NDArray[Any]]) -> tuple[float, float]:
    flat = np.concatenate([m.ravel() for m in matrices])
    finite = flat[np.isfinite(flat)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return low, high if high > low else low + 1.0


def _percent(columns: Sequence[str], unit: str) -> frozenset[str]:
    """Return the columns, if their values are percentages."""
    return frozenset(columns if unit.endswith("%") else ())


def _series_table(x: str, y: str, series: Sequence[Series]) -> Table:
    """Return a row for each position, a column a series (and one for its spread)."""
    places = list(dict.fromkeys(v for one in series for v in one.x))
    if all(isinstance(v, int | float) for v in places):
        places.sort()
    columns = [x]
    cells: list[Mapping[Any, float | None]] = []
    for one in series:
        columns.append(one.name)
        cells.append(dict(zip(one.x, one.y, strict=True)))
        if one.spread is not None:
            columns.append(f"{one.name}, spread")
            cells.append(dict(zip(one.x, one.spread, strict=True)))
    rows = [(place, *(column.get(place) for column in cells)) for place in places]
    return Table(tuple(columns), tuple(rows), _percent(columns[1:], y))


def _matrix_table(
    corner: str, columns: Sequence[Any], rows: Sequence[Any], unit: str, values: NDArray[Any]
) -> Table:
    whole = bool((np.isnan(values) | (values == np.rint(values))).all())
    cells = [[int(v) if whole and not math.isnan(v) else v for v in row] for row in values.tolist()]
    named = zip(rows, cells, strict=True)
    titles = [str(column) for column in columns]
    filled = tuple((str(row), *cells) for row, cells in named)
    return Table((corner, *titles), filled, _percent(titles, unit))


__all__ = [
    "Chart",
    "Scale",
    "Series",
    "Table",
    "bars",
    "heat_map",
    "lines",
    "plain",
    "points",
    "shown",
]

"""A chart: values, how they are drawn, what they say, and the same values as a table."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

JsonDict = dict[str, Any]
Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Values in rows.

    Attributes:
        columns: headings.
        rows: cells; None is an empty one.
        percent: which columns are in percent.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    percent: frozenset[str] = frozenset()

    def shown(self) -> list[list[str]]:
        """Return the cells as text."""
        percent = [column in self.percent for column in self.columns]
        return [
            [shown(cell, percent=p) for cell, p in zip(row, percent, strict=True)]
            for row in self.rows
        ]


@dataclass(frozen=True)
class Scale:
    """What shades mean.

    Attributes:
        title: what is shown.
        marks: where on the scale (0 to 1, light to dark on paper), and the value there.
        is_graded: whether there are shades between the marks.
    """

    title: str
    marks: tuple[tuple[float, str], ...]
    is_graded: bool = True


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure and the same in words and numbers.

    Attributes:
        name: its id on the page.
        title: heading.
        text: what it shows, in a sentence or two.
        data: Plotly traces; arrays may be NumPy's.
        layout: Plotly layout, without colours and title.
        table: the values.
        frames: values of the first trace by label, if it changes with a slider; it shows the last.
        frame_title: what the slider moves along.
        scale: what the shades of a heat map mean.
    """

    name: str
    title: str
    text: str
    data: Sequence[JsonDict]
    layout: JsonDict
    table: Table
    frames: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    frame_title: str = "round"
    scale: "Scale | None" = None

    def figure(self) -> "Figure":
        """Return a Plotly figure, which notebooks draw; `write_html` and `write_image` save it."""
        from plotly.graph_objects import Figure

        titled = {"title": {"text": plain(self.title)}, "margin": {}}
        return Figure(data=list(self.data), layout=self.layout | titled)

    def json(self) -> JsonDict:
        """Return what the page's script draws; arrays are packed."""
        packed: JsonDict = _packed({"data": list(self.data), "layout": self.layout})
        frames = [{"label": k, "z": _packed(z)} for k, z in self.frames.items()]
        return packed | {"frames": frames}


def shown(cell: Cell, *, percent: bool = False) -> str:
    """Return a cell as text: whole numbers with commas, others with two decimals or four digits.

    Args:
        cell: None and NaN are empty.
        percent: two decimals always, so that a column of percentages lines up.
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.2f}" if percent or cell == 0 or abs(cell) >= 1 else f"{cell:.4g}"


def plain(text: str) -> str:
    """Return a name as Plotly shows it unchanged: its text may hold markup."""
    return escape(text, quote=False)


def _packed(value: Any) -> Any:
    """Return a tree with arrays as Plotly's packed ones: base64 of little-endian numbers."""
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_packed(item) for item in value]
    if isinstance(value, np.ndarray):
        numbers = np.ascontiguousarray(value, "<f4")
        return {
            "dtype": "f4",
            "bdata": base64.b64encode(numbers.tobytes()).decode(),
            "shape": ",".join(map(str, value.shape)),
        }
    return value

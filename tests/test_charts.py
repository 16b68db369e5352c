import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim import pages
from raysim.charts import Chart, Series, Table, bars, heat_map, lines, points, shown
from raysim.pages.sections import Card, Section, page_of
from tests.browser import browser, opened, overlaps

DOMAINS = ["mnist", "opt<i>digits</i>", "mnist_m", "syn"]


def accuracy(rounds: int = 4) -> Chart:
    return lines(
        "accuracy",
        "Accuracy",
        "By domain.",
        [Series(d, range(1, rounds + 1), [i + 0.5 for i in range(rounds)]) for d in DOMAINS],
        x="round",
        y="accuracy, %",
    )


def similarity() -> Chart:
    grids = {str(r): np.full((4, 4), r / 8) for r in (2, 4, 8)}
    named: dict[str, Any] = {"columns": DOMAINS, "rows": DOMAINS, "x": "domain", "y": "domain"}
    return heat_map("similarity", "Similarity", "Cosine.", grids, **named, value="cosine")


def every_kind() -> list[Chart]:
    steps = [Series(s, ["1", "2"], [3.0, 4.0], spread=[0.1, 0.2]) for s in ("fit", "evaluate")]
    trials = [Series(s, [0.01, 0.1], [80.0, 90.0], labels=["a", "b"]) for s in ("done", "pruned")]
    mask = np.arange(60).reshape(20, 3) % 3
    return [
        accuracy(),
        bars("time", "Time", "Seconds.", steps, x="round", y="s", stacked=True),
        points("trials", "Trials", "One each.", trials, x="lr", y="AVG", xaxis={"type": "log"}),
        similarity(),
        heat_map(
            *("mask", "Mask", "Units."),
            mask,
            columns=[5, 10, 15],
            rows=range(20),
            x="round",
            y="unit",
            value="unit",
            levels=["pruned", "kept", "new"],
        ),
    ]


def write_page(folder: Path) -> Path:
    cards = [Card("AVG", "88.94", "percent")]
    table = Table(("domain", "accuracy"), (("mnist", 95.75),))
    sections = [
        Section(name="first", title="First", text="a\nb", cards=cards, tables={"Table": table}),
        Section(name="second", title="Second", charts=every_kind(), facts={"<i>": "<b>"}),
        Section(name="third", title="Third", listings={"config.yaml": "seed: 0\n" * 300}),
    ]
    path = folder / "page.html"
    path.write_text(page_of("Charts", sections), encoding="utf-8")
    return path


def test_a_chart_has_its_values_as_a_table() -> None:
    table = accuracy().table
    assert table.columns == ("round", *DOMAINS)
    assert table.rows[0] == (1, 0.5, 0.5, 0.5, 0.5)
    assert len(table.rows) == 4


def test_series_of_other_rounds_share_a_table_with_gaps() -> None:
    two = [Series("a", [1, 3], [1.0, 2.0]), Series("b", [2, 3], [5.0, 6.0])]
    rows = lines("n", "t", "s", two, x="round", y="y").table.rows
    assert rows == ((1, 1.0, None), (2, None, 5.0), (3, 2.0, 6.0))


def test_lines_and_bars_differ_without_colours() -> None:
    many = [Series(str(i), [1], [1.0]) for i in range(24)]
    drawn = lines("n", "t", "s", many, x="x", y="y").data
    assert len({(t["line"]["dash"], t["marker"]["symbol"]) for t in drawn}) == 24
    drawn = bars("n", "t", "s", many[:8], x="x", y="y").data
    assert len({t["marker"]["pattern"]["shape"] for t in drawn}) == 8


def test_names_are_shown_and_never_read_as_markup() -> None:
    assert accuracy().data[1]["name"] == "opt&lt;i&gt;digits&lt;/i&gt;"
    assert similarity().data[0]["x"][1] == "opt&lt;i&gt;digits&lt;/i&gt;"


def test_a_chart_with_frames_shows_the_last() -> None:
    chart = similarity()
    assert list(chart.frames) == ["2", "4", "8"]
    assert float(chart.data[0]["z"][0, 0]) == 1.0
    assert [chart.data[0][end] for end in ("zmin", "zmax")] == [0.25, 1.0]


def test_gaps_reach_the_page_as_valid_json() -> None:
    gap = [Series("a", [1, 2], [None, float("nan")])]
    chart = lines("n", "t", "s", gap, x="round", y="y")
    assert json.loads(json.dumps(chart.json(), allow_nan=False))["data"][0]["y"] == [None, None]


@pytest.mark.parametrize(
    ("cell", "text"),
    [(None, ""), (float("nan"), ""), (3, "3"), (90.0, "90.00"), (12345, "12,345"),
     (0.0, "0.00"), (88.9444, "88.94"),     (0.00012345, "0.0001234"), ("a", "a")],
)  # fmt: skip
def test_cells_are_short(cell: Any, text: str) -> None:
    assert shown(cell) == text


def test_notebooks_get_plotly_figures() -> None:
    for chart in every_kind():
        figure = chart.figure()
        assert len(figure.data) == len(chart.data)
        assert figure.layout.title.text == chart.title


def test_percentages_have_two_decimals_everywhere() -> None:
    table = Table(
        ("run", "STD", "p"), (("a", 0.4991, 0.4991), ("b", 12.5, None)), frozenset({"STD"})
    )
    assert table.shown() == [["a", "0.50", "0.4991"], ["b", "12.50", ""]]
    chart = lines("n", "t", "s", [Series("a", [1], [0.4991])], x="round", y="STD, %")
    assert chart.table.shown() == [["1", "0.50"]]
    grid = {"columns": ["u"], "rows": ["v"], "x": "x", "y": "y"}
    assert heat_map("n", "t", "s", [[0.25]], **grid, value="share, %").table.shown() == [  # type: ignore[arg-type]
        ["v", "0.25"]
    ]


def test_narrow_charts_cut_nothing(tmp_path: Path) -> None:
    layers = [f"stages.{i}.0.conv1" for i in range(4)]
    grid: dict[str, Any] = {"columns": layers, "rows": DOMAINS, "x": "layer", "y": "domain"}
    values = np.linspace(0.25, 25.6, 16).reshape(4, 4)
    chart = heat_map(
        "importance", "Importance", "Of.", values, **grid, value="importance over mean"
    )
    path = tmp_path / "page.html"
    path.write_text(page_of("Narrow", [Section(name="a", title="A", charts=[chart])]), "utf-8")
    with browser() as chromium, opened(chromium, path, width=400) as page:
        plot, title = (page.locator(s).bounding_box() for s in (".plot", ".xtitle"))
        for tick in page.locator(".xtick text").all():
            box = tick.bounding_box()
            assert box["x"] + box["width"] <= plot["x"] + plot["width"]
            assert box["y"] + box["height"] <= title["y"] + 2  # a text's box is somewhat large
        tops = {page.locator(".scale bdi").nth(i).bounding_box()["y"] for i in (0, 1)}
        assert len(tops) == 1


def test_a_browser_draws_every_kind(tmp_path: Path) -> None:
    path = write_page(tmp_path)
    with browser() as chromium:
        for width, scheme in ((1280, "light"), (400, "dark")):
            with opened(chromium, path, width=width, scheme=scheme) as page:
                assert page.locator(".plot[data-drawn=yes] .main-svg").count() >= 5
                assert overlaps(page) == []
                assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        with opened(chromium, path) as page:
            _check_keys(page)
            _check_themes(page)


def _check_keys(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.hash") == "#main"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"
    stops = "() => [...document.querySelectorAll('.modebar-btn')].map((b) => b.tabIndex)"
    assert set(page.evaluate(stops)) == {-1}
    page.focus("#accuracy .plot")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        page.wait_for_timeout(100)
    assert page.inner_text("#accuracy output") == "opt<i>digits</i>, round 2: accuracy, % 1.5"
    assert page.locator("#accuracy .hoverlayer text").count() > 0
    page.focus("#mask .plot")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#mask output") == "unit 0, round 5: 0"
    page.focus("#similarity input")
    page.keyboard.press("Home")
    assert page.inner_text("#similarity .frame") == "2"


def _check_themes(page: Any) -> None:
    ink = "() => getComputedStyle(document.querySelector('.xtitle')).fill"
    before = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(300)
    assert page.evaluate(ink) != before


def test_the_scales_of_colour_go_one_way_in_lightness() -> None:
    text = (Path(pages.__file__).parent / "base.html.j2").read_text()
    light, dark = text.split("prefers-color-scheme: dark")
    for part, way in ((light, -1), (dark, 1)):
        steps = dict(re.findall(r"--heat(\d): #([0-9a-f]{6})", part))
        rgb = [[int(steps[str(i)][k : k + 2], 16) / 255 for k in (0, 2, 4)] for i in range(1, 9)]
        luminance = np.array(rgb) ** 2.2 @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(luminance) * way > 0).all()

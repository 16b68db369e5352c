import base64
import io
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from raysim.data.datasets import Dataset, open_dataset
from raysim.data.findings import Findings, resolve_policies
from raysim.data.heat_map import LEVELS, heat_map
from raysim.data.partition import make_partition
from raysim.data.partition_kinds import DomainDirichlet
from raysim.data.report import render, render_refused, write_report
from raysim.data.settings import DataSettings
from raysim.data.shards import Partition, Shard
from raysim.errors import DataError

Counts = NDArray[np.int64]
SIZE = 8


class MemoryFile:
    """A domain in memory: `per_class[k]` images of class k, one in four for tests."""

    size = SIZE

    def __init__(self, domain: int, per_class: list[int]) -> None:
        self.domain = domain
        self.labels = np.repeat(np.arange(len(per_class)), per_class)
        self.splits = np.where(np.arange(len(self.labels)) % 4 == 3, "test", "train")
        self.names = [str(row) for row in range(len(self.labels))]
        self.groups = np.arange(len(self.labels))

    def read_pixels(self, rows: Counts, out: NDArray[np.uint8]) -> None:
        out[:] = 0
        out[:, 0] = self.domain
        out[:, 1] = self.labels[rows, None, None]
        out[:, 2] = rows[:, None, None] % 256


def in_memory(
    counts: list[list[int]],
    domains: tuple[str, ...] = ("clipart", "real"),
    classes: tuple[str, ...] = ("dog", "cat", "owl"),
) -> Dataset:
    files = tuple(MemoryFile(domain, per_class) for domain, per_class in enumerate(counts))
    return Dataset("fake", files, domains, classes, "0" * 64, DataSettings(image_size=SIZE))


def dealt_in_turn(dataset: Dataset, num_clients: int) -> Partition:
    """Give every client each `num_clients`-th image of every domain."""

    def rows(split: str, client: int) -> dict[int, Counts]:
        sizes = [len(dataset.labels(name, split)) for name in dataset.domains]
        return {d: np.arange(client, size, num_clients) for d, size in enumerate(sizes)}

    shards = (
        Shard(train=rows("train", client), val={}, test=rows("test", client))
        for client in range(num_clients)
    )
    return Partition(tuple(shards))


class Page(HTMLParser):
    """A page as a reader of HTML sees it; refuses tags that do not match."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


def page_of(
    dataset: Dataset,
    partition: Partition | None = None,
    findings: Findings | None = None,
    **policies: str,
) -> str:
    known = (findings or Findings()).as_json(resolve_policies(policies))
    return render(dataset, partition, known, title="A title", facts={"source": "/some/where"})


def numbers(row: list[str]) -> list[int]:
    return [int(cell.replace(",", "") or "0") for cell in row]


def heat_cells(page: Page) -> dict[tuple[int, str, str], int]:
    """Read the cells of the heat map from their tooltips."""
    found = {}
    for title in page.attributes("title"):
        match = re.fullmatch(r"client (\d+), (.+), (.+): ([\d,]+)", title)
        if match:
            key = (int(match[1]), match[2], match[3])
            assert key not in found
            found[key] = int(match[4].replace(",", ""))
    return found


# ---- what the page says ----------------------------------------------------------------------


def test_facts_tell_what_the_data_is() -> None:
    words = Page(page_of(in_memory([[8, 4, 0], [1200, 4, 4]]))).words
    assert "A title" in words
    assert "1,220 of 8 x 8 pixels" in words
    assert "2: clipart, real" in words
    assert "train 915, test 305" in words
    assert "0" * 64 in words
    assert "/some/where" in words


def test_counts_are_those_of_each_split() -> None:
    page = Page(page_of(in_memory([[8, 4, 0], [2000, 4, 4]])))
    train, test = page.tables
    assert train[0] == ["class", "clipart", "real", "total"]
    assert [row[0] for row in train[1:]] == ["dog", "cat", "owl", "total"]
    assert [numbers(row[1:]) for row in train[1:]] == [
        [6, 1500, 1506],
        [3, 3, 6],
        [0, 3, 3],
        [9, 1506, 1515],
    ]
    assert [numbers(row[1:]) for row in test[1:]] == [
        [2, 500, 502],
        [1, 1, 2],
        [0, 1, 1],
        [3, 502, 505],
    ]


def test_missing_classes_are_named_and_marked_beyond_colour() -> None:
    page = Page(page_of(in_memory([[8, 4, 0], [8, 4, 4]])))
    assert "clipart lacks 1 of 3: owl" in page.words
    assert "real lacks" not in page.words
    assert page.words.count("no images") == 1
    assert page.attributes("class").count("n none") == 2  # once in train, once in test
    assert "Every domain has images of every class" not in page.words
    whole = Page(page_of(in_memory([[4, 4, 4], [4, 4, 4]])))
    assert "Every domain has images of every class" in whole.words
    assert "hatched" not in whole.words


def test_findings_say_what_happened_and_name_the_first() -> None:
    findings = Findings()
    for number in range(57):
        findings.add("gray", f"dog/{number:02d}.png")
    findings.add("truncated", "cat/7.jpg", "ends after 10 bytes")
    page = Page(page_of(in_memory([[4, 4, 4], [4, 4, 4]]), None, findings, truncated="skip"))
    rows = {row[0].split()[-1]: row for row in page.tables[0][1:]}
    gray = next(row for row in page.tables[0] if "gray images, made RGB gray" in row[0])
    truncated = next(row for row in page.tables[0] if "images that end too early" in row[0])
    assert len(rows) == 2
    assert gray[1:] == ["57", "taken"]
    assert "the first 20 of 57 names" in gray[0]
    assert "dog/19.png" in gray[0]
    assert "dog/20.png" not in gray[0]
    assert truncated[1:] == ["1", "left out"]
    assert "cat/7.jpg (ends after 10 bytes)" in truncated[0]


def test_refused_data_shows_what_stops_it_and_how_to_go_on() -> None:
    findings = Findings()
    findings.add("truncated", "cat/7.jpg")
    findings.add("class_spelling", "Dog")
    findings.add("hidden", ".DS_Store")
    known = findings.as_json(resolve_policies({}))
    page = Page(render_refused(known, title="fake was refused", facts={"source": "/some/where"}))
    assert "This data was refused" in page.words
    assert "--policy truncated=skip leaves them out" in page.words
    assert "truncated=keep" not in page.words  # what cannot be decoded cannot be taken
    assert "--policy class_spelling=keep takes them" in page.words
    assert "class_spelling=skip" not in page.words
    assert "--policy hidden" not in page.words
    (table,) = page.tables
    assert [row[2] for row in table[1:]] == ["would be left out", "stops it", "stops it"]
    assert page.attributes("href") == []  # no contents that lead nowhere


def test_contents_lead_to_sections() -> None:
    dataset = in_memory([[8, 4, 4], [8, 4, 4]])
    for partition in (None, dealt_in_turn(dataset, 2)):
        page = Page(page_of(dataset, partition))
        assert [f"#{name}" for name in page.attributes("id")] == page.attributes("href")
    assert "#clients" in page.attributes("href")


# ---- images ----------------------------------------------------------------------------------


def test_images_stand_in_the_row_of_their_class() -> None:
    """Red is the domain, green the class, blue the row in the file."""
    page = Page(page_of(in_memory([[8, 4, 0], [8, 40, 4]])))
    sources = page.attributes("src")
    assert len(sources) == 2
    for domain, source in enumerate(sources):
        content = base64.b64decode(source.removeprefix("data:image/png;base64,"))
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.asarray(image)
        step = SIZE + 2
        assert pixels.shape == (3 * step, 8 * step, 4)
        corners = pixels[::step, ::step]
        shown = [[0, 1, 2, 4, 5, 6], [8, 9, 10, 12, 13, 14, 16, 17]][domain]
        row = [0, 1][domain]
        assert corners[row, : len(shown), 2].tolist() == shown
        assert (corners[row, : len(shown), 0] == domain).all()
        assert (corners[row, : len(shown), 1] == row).all()
        assert (pixels[step - 2 : step, :, 3] == 0).all()
    assert (corners[2, :3, 3] == 255).all()
    assert (corners[2, 3:, 3] == 0).all()  # three images only
    assert "a row of images for each class: dog, cat, owl" in page.attributes("alt")[0]


def test_many_classes_are_folded_away_but_there() -> None:
    classes = tuple(f"class {number}" for number in range(45))
    page = Page(page_of(in_memory([[4] * 45], ("real",), classes)))
    assert len(page.attributes("src")) == 3  # 20, 20 and 5 classes
    assert [tag for tag, _ in page.tags].count("details") == 2
    assert "class 40 to class 44" in page.words
    assert all(name in page.words for name in classes)


# ---- clients ---------------------------------------------------------------------------------


def test_heat_map_holds_every_count() -> None:
    dataset = open_dataset(DataSettings())
    kind = DomainDirichlet(min_examples=2, label_dirichlet=0.5)
    partition = make_partition(dataset, kind, 500, 0)
    text = page_of(dataset, partition)
    assert len(text.encode()) < 5_000_000
    expected: dict[tuple[int, str, str], int] = {}
    for d, domain in enumerate(dataset.domains):
        labels = dataset.labels(domain, "train")
        for client, shard in enumerate(partition.shards):
            for label in labels[shard.train.get(d, [])].tolist():
                key = (client, domain, dataset.classes[label])
                expected[key] = expected.get(key, 0) + 1
    page = Page(text)
    assert heat_cells(page) == expected
    heat = page.tables[2]
    assert heat[0] == ["", *dataset.domains]
    assert heat[1] == ["client", "total", *dataset.classes * 4]
    assert [row[0] for row in heat[2:]] == [str(client) for client in range(500)]
    assert [int(row[1]) for row in heat[2:]] == [shard.num_train for shard in partition.shards]
    assert len(page.tables) == 3  # too many clients for the table below


def test_clients_table_has_domains_and_splits() -> None:
    dataset = in_memory([[8, 4, 0], [16, 4, 4]])
    partition = dealt_in_turn(dataset, 2)
    table = Page(page_of(dataset, partition)).tables[3]
    assert table == [
        ["client", "clipart", "real", "all train", "all test"],
        ["0", "5", "9", "14", "5"],
        ["1", "4", "9", "13", "4"],
        ["total", "9", "18", "27", "9"],
    ]


def test_too_many_classes_are_taken_together_and_the_page_says_so() -> None:
    classes = tuple(f"class {number}" for number in range(345))
    dataset = in_memory([[4] * 345, [8] * 345], classes=classes)
    page = Page(page_of(dataset, dealt_in_turn(dataset, 20)))
    assert "apart they would make 13,800 cells" in page.words
    heat = page.tables[2]
    assert heat[0] == ["client", "total", "clipart", "real"]
    totals = np.array([numbers(row[1:]) for row in heat[1:]]).sum(axis=0)
    assert totals.tolist() == [345 * 9, 345 * 3, 345 * 6]


def test_domains_without_a_client_are_named() -> None:
    dataset = in_memory([[8, 4, 4], [8, 4, 4]])
    shard = Shard(train={1: np.arange(12)}, val={}, test={})
    page = Page(page_of(dataset, Partition((shard,))))
    assert "No client trains on clipart." in page.words
    assert "No client" not in Page(page_of(dataset, dealt_in_turn(dataset, 2))).words


@pytest.mark.parametrize("largest", [1, 2, 7, 64, 5000])
def test_shades_follow_the_square_root_and_the_legend(largest: int) -> None:
    counts = np.arange(largest + 1).reshape(-1, 1, 1)
    heat = heat_map(counts, ["real"], ["dog"])
    levels = [row.cells[0].level for row in heat.rows]
    assert levels[0] == 0
    assert levels[-1] == LEVELS
    for count, level in enumerate(levels[1:], 1):
        assert (level - 1) ** 2 * largest < count * LEVELS**2
        assert level**2 * largest >= count * LEVELS**2
        (step,) = (step for step in heat.legend if step.low <= count <= step.high)
        assert step.level == level


# ---- safety ----------------------------------------------------------------------------------

EVIL = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}")


def test_names_cannot_become_markup() -> None:
    dataset = in_memory([[8, 4, 0], [8, 4, 4]], (EVIL[0], EVIL[1]), EVIL)
    findings = Findings()
    findings.add("gray", EVIL[1], EVIL[0])
    known = findings.as_json(resolve_policies({}))
    partition = dealt_in_turn(dataset, 2)
    facts = {EVIL[0]: EVIL[1]}
    page = Page(render(dataset, partition, known, title=EVIL[0], facts=facts))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.attributes("onerror") == []
    assert all(name in page.words for name in EVIL)
    assert f"{EVIL[1]} ({EVIL[0]})" in page.words
    assert (0, EVIL[0], EVIL[0]) in heat_cells(page)


def test_pages_load_nothing() -> None:
    dataset = in_memory([[8, 4, 4], [8, 4, 4]])
    text = page_of(dataset, dealt_in_turn(dataset, 2))
    page = Page(text)
    assert not re.search(r"https?:|url\(|@import|<script|<link|<iframe", text)
    assert all(source.startswith("data:image/png;base64,") for source in page.attributes("src"))
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page.attributes(
        "content"
    )


def test_boxes_that_scroll_can_be_reached_by_keyboard() -> None:
    dataset = in_memory([[8, 4, 4], [8, 4, 4]])
    page = Page(page_of(dataset, dealt_in_turn(dataset, 2)))
    boxes = [attrs for _, attrs in page.tags if attrs.get("class") == "scroll"]
    assert len(boxes) == 6  # two tables of counts, two of clients, two sheets
    labels = {box["aria-label"] for box in boxes}
    assert len(labels) == len(boxes)
    assert all((box["tabindex"], box["role"]) == ("0", "region") for box in boxes)


def test_pages_are_the_same_in_every_process() -> None:
    code = (
        "import sys; from raysim.data.datasets import open_dataset; "
        "from raysim.data.settings import DataSettings; from raysim.data.report import render; "
        "page = render(open_dataset(DataSettings()), None, {}, title='A title', "
        "facts={'source': '/some/where'}); sys.stdout.buffer.write(page.encode())"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
    )
    assert there.stdout.decode() == page_of(open_dataset(DataSettings()))


# ---- writing ---------------------------------------------------------------------------------


def test_names_in_any_writing_and_in_none_are_written(tmp_path: Path) -> None:
    """A file name that is no UTF-8 reaches Python with surrogates, which no file can hold."""
    findings = Findings()
    findings.add("non_ascii", "Überblick/数字 ملف.png")
    findings.add("non_ascii", b"caf\xe9.png".decode("utf-8", "surrogateescape"))
    write_report(
        page_of(in_memory([[4], [4]], classes=("é",)), None, findings), tmp_path / "r.html"
    )
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Überblick/数字 ملف.png" in text
    assert r"caf\udce9.png" in text
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def folder_is_missing(tmp_path: Path) -> Path:
    return tmp_path / "missing" / "report.html"


def target_is_a_folder(tmp_path: Path) -> Path:
    (tmp_path / "report.html").mkdir()
    return tmp_path / "report.html"


@pytest.mark.parametrize("target", [folder_is_missing, target_is_a_folder])
def test_a_report_that_cannot_be_written_is_said(
    target: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = target(tmp_path)
    before = list(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=f"cannot write {re.escape(str(path))}: .*--out"):
        write_report("page", path)
    assert list(tmp_path.rglob("*")) == before


def test_a_disk_that_fills_up_leaves_the_old_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report("old", path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DataError, match="cannot write"):
            write_report("new" * 10_000, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

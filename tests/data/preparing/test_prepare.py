import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pytest
from numpy.typing import NDArray
from PIL import Image

from raysim.data import prepared
from raysim.data.datasets import resize
from raysim.data.findings import KINDS, NAMES_SHOWN, Findings, resolve_policies
from raysim.data.listing import ImageFile, Listing, Record
from raysim.data.prepared import (
    Manifest,
    PreparedFile,
    batch_rows,
    check_files,
    read_manifest,
    verify,
)
from raysim.data.preparing import prepare as prepare_module
from raysim.data.preparing import staging
from raysim.data.preparing.assembling import LocalTarget
from raysim.data.preparing.prepare import FaultyData, prepare
from raysim.data.sources import read_source
from raysim.errors import ConfigError, DataError, RunError
from tests.data.preparing import hostile
from tests.data.preparing.hostile import encoded, picture

ROOT = Path(__file__).parents[3]
SIZE = 8


@dataclass(frozen=True)
class Noise:
    """An image without a file, read in whatever process."""

    key: int
    pause_s: float = 0.0
    killer: bool = False

    def read(self) -> NDArray[np.generic]:
        time.sleep(self.pause_s)
        if self.killer:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.asarray(picture(self.key))


@dataclass(frozen=True)
class Lost:
    """An image whose place cannot be read."""

    error: OSError

    def read(self) -> bytes:
        raise self.error


def rows(keys: Sequence[int], classes: Sequence[str] = ("a", "b"), split: str = "") -> list[Record]:
    """Return records of noise, one a key, the classes in turn."""
    return [
        Record(f"{row}.png", classes[row % len(classes)], split, Noise(key))
        for row, key in enumerate(keys)
    ]


def go(listing: Listing, out: Path | str, **changes: Any) -> Manifest:
    """Prepare with settings that tests share; `policy` is what a user would set."""
    policies = resolve_policies(changes.pop("policy", {}))
    settings: dict[str, Any] = {
        "name": "toy",
        "size": SIZE,
        "policies": policies,
        "source": {"reader": "test", "root": "here"},
        "processes": 1,
    }
    return prepare(listing, out=str(out), **settings | changes)


def stored(out: Path | str, manifest: Manifest, domain: str) -> SimpleNamespace:
    """Read a domain back."""
    (entry,) = (entry for entry in manifest.domains if entry.name == domain)
    file = PreparedFile(str(out), entry, manifest.size)
    pixels = np.empty((entry.images, 3, manifest.size, manifest.size), np.uint8)
    file.read_pixels(np.arange(entry.images), pixels)
    return SimpleNamespace(
        pixels=pixels,
        labels=file.labels.tolist(),
        names=list(file.names),
        splits=file.splits.tolist(),
    )


def shrunk(key: int, size: int = SIZE) -> NDArray[np.uint8]:
    return resize(np.asarray(picture(key)).transpose(2, 0, 1), size)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def image_files(folder: Path, number: int, first: int = 0) -> list[Record]:
    """Write images and list them."""
    files = {f"{row}.png": encoded(picture(first + row)) for row in range(number)}
    hostile.write(folder, files)
    return [
        Record(name, "ab"[row % 2], "", ImageFile(folder / name)) for row, name in enumerate(files)
    ]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4 records."""
    monkeypatch.setattr(staging, "_CHUNK_RECORDS", 4)


# ---- what is written -------------------------------------------------------------------------


def test_what_is_read_back_is_what_was_listed(tmp_path: Path) -> None:
    train, test = rows(range(5), split="train"), rows([5, 6], split="test")
    test = [Record(f"t{record.name}", "b", "test", record.image) for record in test]
    listing = Listing({"one": [*train, *test], "two": rows([7, 8, 9])})
    manifest = go(listing, tmp_path / "out")
    one = stored(tmp_path / "out", manifest, "one")
    assert one.names == ["0.png", "1.png", "2.png", "3.png", "4.png", "t0.png", "t1.png"]
    assert one.labels == [0, 1, 0, 1, 0, 1, 1]
    assert one.splits == ["train"] * 5 + ["test"] * 2
    np.testing.assert_array_equal(one.pixels, [shrunk(key) for key in range(7)])
    np.testing.assert_array_equal(
        stored(tmp_path / "out", manifest, "two").pixels, [shrunk(key) for key in (7, 8, 9)]
    )
    assert sorted(contents(tmp_path / "out")) == [
        "manifest.json",
        "one.arrow",
        "report.json",
        "two.arrow",
    ]


def test_the_manifest_counts_and_says_where_it_comes_from(tmp_path: Path) -> None:
    listing = Listing({"one": rows(range(3), split="train"), "two": rows([7], split="test")})
    manifest = go(listing, tmp_path, policy={"gray": "skip"})
    assert read_manifest(str(tmp_path)) == manifest
    one, two = manifest.domains
    assert (one.name, one.images, one.splits, one.classes) == (
        "one",
        3,
        {"train": 3},
        {"a": 2, "b": 1},
    )
    assert two.classes == {"a": 1, "b": 0}
    assert one.num_bytes == (tmp_path / "one.arrow").stat().st_size
    assert manifest.source.pop("fingerprint")
    assert manifest.source == {
        "reader": "test",
        "root": "here",
        "policies": {"gray": "skip"},
        "num_records": 4,
    }
    assert manifest.findings["missing_class"]["names"] == ["b (in two)"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["findings"] == manifest.findings
    assert report["domains"][0] == {
        "name": "one",
        "images": 3,
        "splits": {"train": 3},
        "classes": {"a": 2, "b": 1},
    }
    verify(str(tmp_path))


@pytest.mark.parametrize(
    ("given", "names", "order"),
    [
        ((), ["10", "9", "2"], ("2", "9", "10")),
        ((), ["10", "9", "cat"], ("10", "9", "cat")),
        (("c", "b", "a", "d"), ["a", "b", "c"], ("c", "b", "a", "d")),
    ],
)
def test_classes_have_an_order(
    tmp_path: Path, given: tuple[str, ...], names: list[str], order: tuple[str, ...]
) -> None:
    manifest = go(Listing({"one": rows(range(3), names)}, given), tmp_path)
    assert manifest.classes == order
    found = stored(tmp_path, manifest, "one").labels
    assert [order[label] for label in found] == names


def test_a_class_that_the_source_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"toy: one: 1\.png is of class 'b'.* none of a, c"):
        go(Listing({"one": rows(range(2))}, ("a", "c")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_file_names_are_safe_and_differ(tmp_path: Path) -> None:
    names = ["../up", "art painting", "art_painting", "Art Painting", "\u65e5\u672c", ""]
    listing = Listing({name: rows([key]) for key, name in enumerate(names)})
    manifest = go(listing, tmp_path / "out")
    assert [entry.name for entry in manifest.domains] == names
    assert [entry.file for entry in manifest.domains] == [
        "up.arrow",
        "art_painting.arrow",
        "art_painting-2.arrow",
        "Art_Painting-3.arrow",
        "domain.arrow",
        "domain-2.arrow",
    ]
    for key, name in enumerate(names):
        pixels = stored(tmp_path / "out", manifest, name).pixels
        np.testing.assert_array_equal(pixels[0], shrunk(key))


@pytest.mark.usefixtures("small_chunks")
def test_batches_are_full_whatever_the_chunks_and_gaps(tmp_path: Path) -> None:
    size = 800  # two rows a batch
    assert batch_rows(size) == 2
    records = rows([0, 1, 1, 2, 3, 4, 4, 4, 5, 6, 7])
    manifest = go(
        Listing({"one": records}), tmp_path, size=size, policy=dict.fromkeys(["duplicate"], "skip")
    )
    one = stored(tmp_path, manifest, "one")
    assert one.names == [f"{row}.png" for row in (0, 1, 3, 4, 5, 8, 9, 10)]
    for found, key in zip(one.pixels, (0, 1, 2, 3, 4, 5, 6, 7), strict=True):
        np.testing.assert_array_equal(found, shrunk(key, size))


@pytest.mark.usefixtures("small_chunks")
def test_the_result_does_not_depend_on_processes_or_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = Listing({"one": rows([*range(9), 3, 3]), "two": rows([3, 20, 21])})
    calls: list[tuple[int, int]] = []
    go(listing, tmp_path / "a", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 14), (4, 14), (8, 14), (11, 14), (14, 14)]
    go(listing, tmp_path / "b", processes=3)
    monkeypatch.setattr(staging, "_CHUNK_RECORDS", 5)
    go(listing, tmp_path / "c")
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c")


@pytest.mark.parametrize("size", [0, -3, 5000])
def test_sizes_have_a_range(tmp_path: Path, size: int) -> None:
    with pytest.raises(ConfigError, match=f"size={size}: must be 1 to 4096"):
        go(Listing({"one": rows([0])}), tmp_path, size=size)


# ---- findings and policies -------------------------------------------------------------------


def faulty(tmp_path: Path, names: Sequence[str]) -> Listing:
    """Return good images with some of the faulty files among them."""
    files = hostile.image_files()
    hostile.write(tmp_path / "raw", {name: files[name] for name in names})
    bad = [Record(name, "a", "", ImageFile(tmp_path / "raw" / name)) for name in names]
    return Listing({"one": [*rows(range(3)), *bad], "two": rows([90, 91])})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("empty.jpg", "empty_file"),
        ("packed.jpg", "archive"),
        ("text.jpg", "unreadable"),
        ("cut.png", "truncated"),
        ("bomb.png", "bomb"),
    ],
)
def test_lost_images_stop_everything_or_are_left_out(tmp_path: Path, name: str, kind: str) -> None:
    listing, out = faulty(tmp_path, [name]), tmp_path / "out"
    with pytest.raises(DataError) as caught:
        go(listing, out)
    lines = str(caught.value).splitlines()
    assert lines[0] == "toy cannot be prepared:"
    assert lines[1].startswith(f"  1 {KINDS[kind].meaning}: {name}")
    assert lines[1].endswith(f"--policy {kind}=skip")
    assert lines[2] == f"  all names: {out}/report.json"
    assert list(contents(out)) == ["report.json"]
    assert not (out / ".partial").exists()
    assert json.loads((out / "report.json").read_text())["findings"][kind]["policy"] == "error"

    manifest = go(listing, out, policy={kind: "skip"})
    assert stored(out, manifest, "one").names == ["0.png", "1.png", "2.png"]
    assert manifest.findings[kind]["count"] == 1


def test_converted_images_are_kept_skipped_or_stop_everything(tmp_path: Path) -> None:
    listing = faulty(tmp_path, ["gray.png", "palette.gif"])
    names = ["0.png", "1.png", "2.png"]
    for policy, kept in (("keep", ["gray.png"]), ("skip", [])):
        manifest = go(listing, tmp_path / policy, policy={"gray": policy})
        assert stored(tmp_path / policy, manifest, "one").names == [*names, *kept, "palette.gif"]
    with pytest.raises(DataError, match=r"1 gray images.*--policy gray=skip or gray=keep"):
        go(listing, tmp_path / "error", policy={"gray": "error"})


def test_an_error_names_every_kind_and_three_files(tmp_path: Path) -> None:
    lost = [Record(f"{n}.png", "a", "", Lost(FileNotFoundError())) for n in range(3, 30)]
    broken = Record("deaf.png", "a", "", Lost(OSError(errno.EIO, "Input/output error")))
    listing = Listing({"one": [*rows(range(3)), *lost, broken], "two": []})
    with pytest.raises(DataError) as caught:
        go(listing, tmp_path)
    text = str(caught.value)
    assert "27 files that a list names and that are not there: 3.png, 4.png, 5.png, ...;" in text
    assert "1 images that cannot be decoded: deaf.png (Input/output error);" in text
    assert "1 domains without an image: two; to let it pass: --policy empty_domain=skip" in text
    found = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert found["missing_file"]["count"] == 27
    assert found["missing_file"]["names"] == [f"{n}.png" for n in range(3, 3 + NAMES_SHOWN)]


def test_findings_of_the_listing_count_too(tmp_path: Path) -> None:
    findings = Findings()
    findings.add("outside_root", "one/a/out.png", "leads to /etc/passwd")
    findings.add("hidden", ".DS_Store")
    listing = Listing({"one": rows(range(3))}, findings=findings)
    with pytest.raises(DataError, match=r"1 paths that leave the root: one/a/out\.png \(leads to"):
        go(listing, tmp_path)
    manifest = go(listing, tmp_path, policy={"outside_root": "skip"})
    assert list(manifest.findings) == ["hidden", "outside_root"]


def test_bad_input_leaves_earlier_results_alone(tmp_path: Path) -> None:
    good = go(Listing({"one": rows(range(4))}), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(DataError):
        go(Listing({"one": [*rows(range(4)), Record("x", "a", "", Lost(OSError()))]}), tmp_path)
    after = contents(tmp_path)
    assert after.pop("report.json") != before.pop("report.json")
    assert after == before
    assert read_manifest(str(tmp_path)) == good


def test_a_domain_that_is_left_without_images_is_empty(tmp_path: Path) -> None:
    listing = Listing({"one": rows(range(2)), "two": [Record("x", "a", "", Lost(OSError()))]})
    with pytest.raises(DataError, match="1 domains without an image: two"):
        go(listing, tmp_path, policy={"unreadable": "skip"})
    policy = {"unreadable": "skip", "empty_domain": "skip"}
    manifest = go(listing, tmp_path, policy=policy)
    assert [entry.name for entry in manifest.domains] == ["one"]


@pytest.mark.parametrize("domains", [{}, {"one": []}])
def test_nothing_at_all_is_refused(tmp_path: Path, domains: Mapping[str, list[Record]]) -> None:
    with pytest.raises(DataError, match="toy cannot be prepared:\n  no image is left"):
        go(Listing(domains), tmp_path, policy={"empty_domain": "skip"})
    assert list(contents(tmp_path)) == ["report.json"]


def test_a_class_missing_in_a_domain_may_be_an_error(tmp_path: Path) -> None:
    listing = Listing({"one": rows(range(2)), "two": rows([5], ["b"])})
    with pytest.raises(DataError, match=r"1 classes without an image in a domain: a \(in two\)"):
        go(listing, tmp_path, policy={"missing_class": "error"})


# ---- copies ----------------------------------------------------------------------------------


def copies() -> Listing:
    """Return images where equal keys are equal pixels."""

    def record(name: str, class_name: str, split: str, key: int) -> Record:
        return Record(name, class_name, split, Noise(key))

    one = [
        record("t1", "a", "train", 1),
        record("t2", "a", "train", 2),
        record("v2", "a", "val", 2),  # duplicate of t2
        record("t3", "b", "train", 3),  # in the test split below
        record("e3", "b", "test", 3),
        record("e3again", "b", "test", 3),  # duplicate of e3
        record("t4", "a", "train", 4),
        record("t4b", "b", "train", 4),  # duplicate of t4, of another class
    ]
    two = [
        record("s1", "a", "train", 1),  # as t1, but both train: nothing
        record("s3", "b", "train", 3),  # in the test split of the other domain
        record("s4", "b", "train", 4),  # as t4, of another class
        record("s5", "a", "", 5),
        record("e6", "b", "test", 6),
    ]
    return Listing({"one": one, "two": two})


def test_copies_are_counted_and_named(tmp_path: Path) -> None:
    manifest = go(copies(), tmp_path)
    found = {kind: manifest.findings[kind]["names"] for kind in manifest.findings}
    assert found == {
        "duplicate": ["v2 (as t2)", "e3again (as e3)", "t4b (as t4)"],
        "duplicate_across_splits": ["t3 (as e3)", "s3 (as e3 of one)"],
        "label_conflict": ["t4b (as t4)", "s4 (as t4 of one)"],
    }
    assert [entry.images for entry in manifest.domains] == [8, 5]


@pytest.mark.parametrize(
    ("kind", "dropped"),
    [
        ("duplicate", {"v2", "e3again", "t4b"}),
        ("duplicate_across_splits", {"t3", "s3"}),
        ("label_conflict", {"t4b", "s4"}),
    ],
)
def test_copies_are_left_out_by_kind(tmp_path: Path, kind: str, dropped: set[str]) -> None:
    listing = copies()
    manifest = go(listing, tmp_path, policy={kind: "skip"})
    for domain, records in listing.domains.items():
        names = [record.name for record in records if record.name not in dropped]
        assert stored(tmp_path, manifest, domain).names == names


def test_copies_may_be_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 training images with the pixels of a test image: t3"):
        go(copies(), tmp_path, policy={"duplicate_across_splits": "error"})


# ---- once is enough --------------------------------------------------------------------------


def test_a_second_call_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing({"one": image_files(tmp_path / "raw", 3)})
    first = go(listing, tmp_path / "out")
    before = contents(tmp_path / "out")

    def refuse(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(prepare_module, "decode_chunks", refuse)
    assert go(listing, tmp_path / "out") == first
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda raw, out: os.utime(raw / "1.png", (1, 1)),
        lambda raw, out: (raw / "1.png").write_bytes(encoded(picture(77))),
        lambda raw, out: (out / "one.arrow").unlink(),
        lambda raw, out: (out / "one.arrow").write_bytes(b"short"),
        lambda raw, out: (out / "manifest.json").write_text("{"),
    ],
    ids=["touched", "changed", "lost", "damaged", "no manifest"],
)
def test_changes_are_noticed(tmp_path: Path, change: Callable[[Path, Path], object]) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    listing = Listing({"one": image_files(raw, 3)})
    go(listing, out)
    change(raw, out)
    manifest = go(listing, out)
    verify(str(out))
    pixels = stored(out, manifest, "one").pixels
    np.testing.assert_array_equal(
        pixels[1],
        resize(np.asarray(Image.open(raw / "1.png")).transpose(2, 0, 1), SIZE),
    )


def test_another_request_replaces_the_former_result(tmp_path: Path) -> None:
    hostile.write(tmp_path, {"mine.arrow": b"not a result", "notes.txt": b"mine"})
    go(Listing({"one": rows([1]), "two": rows([2])}), tmp_path)
    go(Listing({"two": rows([2]), "three": rows([3])}), tmp_path, size=4)
    assert sorted(contents(tmp_path)) == [
        "manifest.json",
        "mine.arrow",
        "notes.txt",
        "report.json",
        "three.arrow",
        "two.arrow",
    ]
    verify(str(tmp_path))


def test_a_former_manifest_cannot_have_other_files_removed(tmp_path: Path) -> None:
    (tmp_path / "precious.arrow").write_bytes(b"mine")
    out = tmp_path / "out"
    go(Listing({"one": rows([1])}), out)
    tree = json.loads((out / "manifest.json").read_text())
    tree["domains"][0]["file"] = "../precious.arrow"
    (out / "manifest.json").write_text(json.dumps(tree))
    go(Listing({"two": rows([1])}), out)
    assert (tmp_path / "precious.arrow").read_bytes() == b"mine"


# ---- interruptions ---------------------------------------------------------------------------


class Halt(Exception):
    """Ends a preparation in mid-course."""


def stop_after(images: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= images:
            raise Halt

    return progress


def first_call(listing: Listing, out: Path, **changes: Any) -> int:
    """Prepare, and return how many images were done before."""
    calls: list[int] = []
    go(listing, out, progress=lambda done, total: calls.append(done), **changes)
    return calls[0]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupted_call_is_taken_up(tmp_path: Path, processes: int) -> None:
    listing = Listing({"one": rows(range(12)), "two": rows(range(20, 26))})
    go(listing, tmp_path / "whole")
    with pytest.raises(Halt):
        go(listing, tmp_path / "out", progress=stop_after(8), processes=processes)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert first_call(listing, tmp_path / "out") >= 8
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"", lambda data: None])
def test_damaged_chunks_are_decoded_again(
    tmp_path: Path, damage: Callable[[bytes], bytes | None]
) -> None:
    listing, out = Listing({"one": rows(range(12))}), tmp_path / "out"
    go(listing, tmp_path / "whole")
    with pytest.raises(Halt):
        go(listing, out, progress=stop_after(12))
    first, second, _ = sorted((out / ".partial").glob("chunk-*.arrow"))
    left = damage(second.read_bytes())
    if left is None:  # another chunk's content under its name
        second.write_bytes(first.read_bytes())
    else:
        second.write_bytes(left)
    assert first_call(listing, out) == 8
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_chunks")
def test_chunks_of_another_request_are_thrown_away(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Halt):
        go(Listing({"one": rows(range(12))}), out, progress=stop_after(8))
    assert first_call(Listing({"one": rows(range(11))}), out) == 0
    assert sorted(contents(out)) == ["manifest.json", "one.arrow", "report.json"]


@pytest.mark.usefixtures("small_chunks")
def test_an_end_between_the_renames_is_no_result_and_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = Listing({"one": rows([40]), "old": rows([41])})
    listing = Listing({"one": rows([1]), "two": rows([2])})
    go(listing, tmp_path / "whole")
    go(former, tmp_path / "out")
    put = LocalTarget.put

    def halt(self: LocalTarget, path: Path, name: str) -> None:
        if name == "two.arrow":
            raise Halt
        put(self, path, name)

    with monkeypatch.context() as patch:
        patch.setattr(LocalTarget, "put", halt)
        with pytest.raises(Halt):
            go(listing, tmp_path / "out")
    assert read_manifest(str(tmp_path / "out")) is None
    go(listing, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


SCRIPT = """
import sys
from pathlib import Path
from raysim.data.preparing import staging
from tests.data.preparing.test_prepare import Listing, go, slow_rows
staging._CHUNK_RECORDS = 4
if __name__ == "__main__":
    go(Listing({"one": slow_rows()}), sys.argv[1], processes=int(sys.argv[2]))
"""


def slow_rows() -> list[Record]:
    return [Record(f"{key}.png", "ab"[key % 2], "", Noise(key, 0.02)) for key in range(48)]


def start(tmp_path: Path, out: Path, processes: int) -> subprocess.Popen[bytes]:
    """Start a slow preparation in a process group of its own, and wait for its first chunks."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(out), str(processes)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + 60
    while len(list(out.glob(".partial/chunk-*.arrow"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    return process


def group_is_gone(group: int) -> bool:
    """Wait until no process of a group is left but zombies."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        stats = (path / "stat" for path in Path("/proc").iterdir() if path.name.isdigit())
        alive = []
        for stat in stats:
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            alive += [stat] if int(fields[2]) == group and fields[0] != "Z" else []
        if not alive:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_in_mid_course_it_is_taken_up_with_the_same_bits(
    tmp_path: Path, processes: int
) -> None:
    listing = Listing({"one": [Record(r.name, r.class_name, "", r.image) for r in slow_rows()]})
    process = start(tmp_path, tmp_path / "out", processes)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert first_call(listing, tmp_path / "out") >= 8
    go(listing, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    process = start(tmp_path, tmp_path / "out", 2)
    process.kill()
    process.wait()
    assert group_is_gone(process.pid)


@pytest.mark.slow
def test_interrupted_by_ctrl_c_the_workers_end_in_silence(tmp_path: Path) -> None:
    process = start(tmp_path, tmp_path / "out", 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, text = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert text.count(b"Traceback") == 1, text.decode()
    assert group_is_gone(process.pid)
    assert len(list((tmp_path / "out" / ".partial").glob("chunk-*.arrow"))) >= 2


@pytest.mark.usefixtures("small_chunks")
def test_a_killed_worker_is_told_and_its_work_is_not_lost(tmp_path: Path) -> None:
    deadly = Record("x.png", "a", "", Noise(99, 1.0, killer=True))
    listing = Listing({"one": [*rows(range(12)), deadly]})
    with pytest.raises(RunError, match="was killed, perhaps for want of memory: run the same"):
        go(listing, tmp_path / "out", processes=2)
    assert not (tmp_path / "out" / "manifest.json").exists()
    whole = Listing({"one": [*rows(range(12)), Record("x.png", "a", "", Noise(99))]})
    assert first_call(whole, tmp_path / "out") == 12


# ---- places that cannot be written -----------------------------------------------------------


def test_two_at_once_do_each_other_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / ".partial"
    folder.mkdir()
    listing = Listing({"one": rows(range(3))})
    with (folder / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "chunk-000000.arrow").write_bytes(b"someone's work")
        with pytest.raises(DataError, match=r"another prepare \(process 4711\) is writing there"):
            go(listing, tmp_path)
        assert sorted(contents(tmp_path)) == [".partial/chunk-000000.arrow", ".partial/lock"]
        assert (folder / "chunk-000000.arrow").read_bytes() == b"someone's work"
    go(listing, tmp_path)
    assert not folder.exists()


@pytest.mark.usefixtures("small_chunks")
def test_a_full_disk_is_told_and_what_is_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, out = Listing({"one": rows(range(12))}), tmp_path / "out"
    synced = os.fsync
    room = iter(range(3))  # the fingerprint and two chunks

    def fsync(file: int) -> None:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        synced(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(DataError, match=r"No space left on device.* is kept in .*\.partial"):
            go(listing, out)
    assert not list(out.rglob("*.tmp"))
    assert first_call(listing, out) == 8


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match=r"out: cannot be written: Permission denied"):
        go(Listing({"one": rows([0])}), tmp_path / "out")
    tmp_path.chmod(0o700)


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(DataError, match=r"out: cannot be written: Not a directory"):
        go(Listing({"one": rows([0])}), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "a file"


def test_unknown_uris_are_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="known are paths, file://, s3://"):
        go(Listing({"one": rows([0])}), "nowhere://bucket/out")


# ---- remote results --------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make s3://bucket a file system that is not a local one; returns where its files lie."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    files = pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())

    def filesystem(root: str) -> tuple[pafs.FileSystem, str]:
        assert root.startswith("s3://bucket/")
        return files, root.removeprefix("s3://bucket/")

    monkeypatch.setattr(prepared, "filesystem", filesystem)
    monkeypatch.setattr(prepare_module, "filesystem", filesystem)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_a_file_uri_is_a_local_folder(tmp_path: Path) -> None:
    listing = Listing({"one": rows(range(3))})
    go(listing, tmp_path / "path")
    go(listing, (tmp_path / "uri").as_uri())
    assert contents(tmp_path / "uri") == contents(tmp_path / "path")
    verify((tmp_path / "uri").as_uri())


def test_remote_results_are_the_local_ones(tmp_path: Path, bucket: Path) -> None:
    listing = Listing({"one": rows(range(5)), "two": rows([8, 9])})
    manifest = go(listing, "s3://bucket/toy")
    verify("s3://bucket/toy")
    assert read_manifest("s3://bucket/toy") == manifest
    np.testing.assert_array_equal(
        stored("s3://bucket/toy", manifest, "two").pixels, [shrunk(8), shrunk(9)]
    )
    assert contents(tmp_path / "cache") == {}
    assert go(listing, "s3://bucket/toy") == manifest
    go(Listing({"two": rows([8])}), "s3://bucket/toy")
    assert sorted(contents(bucket)) == ["toy/manifest.json", "toy/report.json", "toy/two.arrow"]


@pytest.mark.usefixtures("small_chunks")
def test_remote_work_is_taken_up_from_the_cache(tmp_path: Path, bucket: Path) -> None:
    listing = Listing({"one": rows(range(12))})
    with pytest.raises(Halt):
        go(listing, "s3://bucket/toy", progress=stop_after(8))
    assert contents(bucket) == {}
    calls: list[int] = []
    go(listing, "s3://bucket/toy", progress=lambda done, total: calls.append(done))
    assert calls[0] == 8
    assert contents(tmp_path / "cache") == {}


def test_a_broken_upload_leaves_no_file_and_is_taken_up(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = Listing({"one": rows(range(3)), "two": rows([8])})

    class Broken:
        def __init__(self, path: Path) -> None:
            self.file = path.open("rb")

        def __enter__(self) -> "Broken":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def read(self, size: int) -> bytes:
            if self.file.tell():
                raise OSError(errno.ECONNRESET, "Connection reset by peer")
            return self.file.read(100)

    opened = Path.open

    def cut(self: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if self.name == "two.arrow" and mode == "rb":
            return Broken(self.with_name("two.arrow").rename(self.with_name("t")))
        return opened(self, mode, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", cut)
        with pytest.raises(DataError, match="s3://bucket/toy: cannot be written: Connection reset"):
            go(listing, "s3://bucket/toy")
    assert sorted(contents(bucket)) == ["toy/one.arrow"]
    go(listing, "s3://bucket/toy")
    verify("s3://bucket/toy")


def test_a_refused_remote_request_leaves_the_report_only(bucket: Path) -> None:
    with pytest.raises(DataError, match=r"all names: s3://bucket/toy/report\.json"):
        go(Listing({"one": rows([1]), "two": []}), "s3://bucket/toy")
    assert sorted(contents(bucket)) == ["toy/report.json"]


# ---- checking --------------------------------------------------------------------------------


def test_verify_sees_one_flipped_bit(tmp_path: Path) -> None:
    go(Listing({"one": rows(range(3)), "two": rows([8])}), tmp_path)
    data = bytearray((tmp_path / "two.arrow").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "two.arrow").write_bytes(data)
    check_files(str(tmp_path), read_manifest(str(tmp_path)) or pytest.fail("no manifest"))
    with pytest.raises(DataError, match=r"two\.arrow: damaged"):
        verify(str(tmp_path))


def test_verify_needs_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not prepared"):
        verify(str(tmp_path))


# ---- everything at once ----------------------------------------------------------------------


def read_hostile(root: Path, policy: Mapping[str, str]) -> Listing:
    return read_source("image_folder", root, None, resolve_policies(policy))


def counts(findings: Mapping[str, Any]) -> dict[str, int]:
    return {kind: found["count"] for kind, found in findings.items()}


def test_every_fault_of_a_hostile_folder_is_found_as_often_as_it_is_there(tmp_path: Path) -> None:
    root, out = tmp_path / "raw", tmp_path / "out"
    hostile.build(root)
    assert set(KINDS) - set(hostile.FOUND) == {"label_range"}  # folders have no numbers
    with pytest.raises(FaultyData) as caught:
        go(read_hostile(root, {}), out)
    found = json.loads((out / "report.json").read_text())["findings"]
    assert caught.value.findings == found
    assert counts(found) == hostile.FOUND
    stopping = [kind for kind in found if KINDS[kind].policy == "error"]
    assert len(str(caught.value).splitlines()) == 2 + len(stopping)

    manifest = go(read_hostile(root, hostile.KEEP_ALL), out, policy=hostile.KEEP_ALL)
    assert counts(manifest.findings) == hostile.FOUND
    assert [entry.name for entry in manifest.domains] == ["clipart", "photo", "sketch"]
    assert manifest.classes == ("Dog", "cat")
    photo = stored(out, manifest, "photo")
    pixels = dict(zip(photo.names, photo.pixels, strict=True))
    for name, key in {
        "cat/really_a_png.jpg": 3,
        "cat/Zo\u00eb 1.png": 9,
        "Dog/inner.png": 20,
    }.items():
        np.testing.assert_array_equal(pixels[f"photo/{name}"], shrunk(key))
    gray = np.asarray(picture(4).convert("L").convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels["photo/cat/gray.png"], resize(gray, SIZE))
    half = np.asarray(picture(6)).astype(int) * 128 / 255
    found_glass = pixels["photo/cat/glass.png"].astype(int)
    wanted_glass = resize(np.rint(half).astype(np.uint8).transpose(2, 0, 1), SIZE).astype(int)
    assert np.abs(found_glass - wanted_glass).max() <= 1
    assert len(photo.names) == len(set(photo.names)) == 11
    sketch = stored(out, manifest, "sketch")
    assert sorted(zip(sketch.splits, sketch.labels, strict=True)) == [
        ("test", 1),
        ("train", 0),
        ("train", 0),
        ("train", 1),
        ("train", 1),
    ]


def test_a_hostile_folder_can_be_cleaned_of_everything(tmp_path: Path) -> None:
    root, out = tmp_path / "raw", tmp_path / "out"
    hostile.build(root)
    policy = {kind: "skip" for kind, known in KINDS.items() if "skip" in known.allowed}
    policy["class_spelling"] = "keep"
    manifest = go(read_hostile(root, policy), out, policy=policy, processes=2)
    names = [name for entry in manifest.domains for name in stored(out, manifest, entry.name).names]
    assert names == [
        "clipart/cat/a.png",
        "clipart/cat/b.png",
        "sketch/test/cat/same.png",
        "sketch/train/cat/own.png",
    ]
    assert [entry.name for entry in manifest.domains] == ["clipart", "sketch"]


PACS = ROOT.parent / "shared" / "data" / "raw_samples" / "pacs"


@pytest.mark.skipif(not PACS.is_dir(), reason="needs ../shared/data")
def test_real_photographs_are_prepared_as_pillow_reads_them(tmp_path: Path) -> None:
    policies = resolve_policies({})
    listing = read_source("pacs", PACS, None, policies)
    manifest = go(listing, tmp_path, size=32, processes=2)
    assert sum(entry.images for entry in manifest.domains) == 140
    for domain, records in listing.domains.items():
        found = stored(tmp_path, manifest, domain)
        assert found.names == [record.name for record in records]
        image = records[0].image
        assert isinstance(image, ImageFile)
        rgb = np.asarray(Image.open(image.path).convert("RGB")).transpose(2, 0, 1)
        np.testing.assert_array_equal(found.pixels[0], resize(rgb, 32))

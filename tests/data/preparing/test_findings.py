"""What is found while a source is prepared, and what policies make of it."""

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.data.findings import KINDS, NAMES_SHOWN, Findings
from raysim.data.listing import ImageFile, Listing, Record
from raysim.data.prepared import read_manifest
from raysim.data.sources import read_source
from raysim.errors import DataError
from tests.data.preparing import hostile
from tests.data.preparing.hostile import encoded, picture
from tests.data.preparing.toy import Lost, Noise, contents, go, names, rows, stored


def faulty(tmp_path: Path, chosen: Sequence[str]) -> Listing:
    """Return good images with some of the faulty files among them."""
    files = hostile.image_files()
    hostile.write(tmp_path / "raw", {name: files[name] for name in chosen})
    bad = [Record(name, "a", "", ImageFile(tmp_path / "raw" / name)) for name in chosen]
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
    assert lines[1].endswith(
        f"; to let it pass: --policy {kind}=skip (data.policy.{kind}=skip for a run)"
    )
    assert lines[2] == f"  all names: {out}/refused.json"
    assert list(contents(out)) == ["refused.json"]
    assert not (out / ".partial").exists()
    assert json.loads((out / "refused.json").read_text())["findings"][kind]["policy"] == "error"

    manifest = go(listing, out, policy={kind: "skip"})
    assert stored(out, manifest, "one").names == ["0.png", "1.png", "2.png"]
    assert manifest.findings[kind]["count"] == 1
    assert names(out) == ["manifest.json", "one.arrow", "report.json", "two.arrow"]


def test_converted_images_are_kept_skipped_or_stop_everything(tmp_path: Path) -> None:
    listing = faulty(tmp_path, ["gray.png", "palette.gif"])
    good = ["0.png", "1.png", "2.png"]
    for policy, kept in (("keep", ["gray.png"]), ("skip", [])):
        manifest = go(listing, tmp_path / policy, policy={"gray": policy})
        assert stored(tmp_path / policy, manifest, "one").names == [*good, *kept, "palette.gif"]
    with pytest.raises(DataError) as caught:
        go(listing, tmp_path / "error", policy={"gray": "error"})
    assert (
        "1 gray images, made RGB: gray.png; to let it pass: "
        "--policy gray=skip (data.policy.gray=skip for a run) or "
        "--policy gray=keep (data.policy.gray=keep for a run)\n"
    ) in str(caught.value)


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
    found = json.loads((tmp_path / "refused.json").read_text())["findings"]
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
    assert b"unreadable" in after.pop("refused.json")
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
    assert list(contents(tmp_path)) == ["refused.json"]


def test_a_class_missing_in_a_domain_may_be_an_error(tmp_path: Path) -> None:
    listing = Listing({"one": rows(range(2)), "two": rows([5], ["b"])})
    with pytest.raises(DataError, match=r"1 classes without an image in a domain: a \(in two\)"):
        go(listing, tmp_path, policy={"missing_class": "error"})


def half_split() -> Listing:
    """Return a domain with an official split that one image is not in, and one without any."""
    named = [
        Record(name, "a", split, Noise(key))
        for key, (name, split) in enumerate({"a": "train", "b": "val", "c": ""}.items())
    ]
    return Listing({"official": named, "free": rows(range(10, 14))})


def test_images_outside_an_official_split_are_counted(tmp_path: Path) -> None:
    manifest = go(half_split(), tmp_path / "keep")
    assert manifest.findings["no_split"]["names"] == ["c"]
    assert manifest.domains[0].splits == {"": 1, "train": 1, "val": 1}
    manifest = go(half_split(), tmp_path / "skip", policy={"no_split": "skip"})
    assert manifest.findings["no_split"]["count"] == 1
    assert stored(tmp_path / "skip", manifest, "official").names == ["a", "b"]
    assert len(stored(tmp_path / "skip", manifest, "free").names) == 4
    with pytest.raises(DataError, match="1 images in no part of their domain's official split"):
        go(half_split(), tmp_path / "error", policy={"no_split": "error"})


def test_a_row_without_an_image_is_told_from_an_empty_file(tmp_path: Path) -> None:
    table = {"image": [encoded(picture(0)), None], "label": [0, 1]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"zero bytes: a\.parquet#1 \(its cell holds no image\)"):
        go(read_source("parquet", tmp_path), tmp_path / "out")


# ---- duplicates ------------------------------------------------------------------------------


def duplicates() -> Listing:
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


def test_duplicates_are_counted_and_named(tmp_path: Path) -> None:
    manifest = go(duplicates(), tmp_path)
    found = {kind: manifest.findings[kind]["names"] for kind in manifest.findings}
    assert found == {
        "duplicate": ["v2 (as t2)", "e3again (as e3)", "t4b (as t4)"],
        "duplicate_across_splits": ["t3 (as e3)", "s3 (as e3 of one)"],
        "label_conflict": ["t4b (as t4)", "s4 (as t4 of one)"],
        "no_split": ["s5"],
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
def test_duplicates_are_left_out_by_kind(tmp_path: Path, kind: str, dropped: set[str]) -> None:
    listing = duplicates()
    manifest = go(listing, tmp_path, policy={kind: "skip"})
    for domain, records in listing.domains.items():
        left = [record.name for record in records if record.name not in dropped]
        assert stored(tmp_path, manifest, domain).names == left


def test_duplicates_may_be_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 training images with the pixels of a test image: t3"):
        go(duplicates(), tmp_path, policy={"duplicate_across_splits": "error"})

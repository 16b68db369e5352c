"""What is written of a source, and where it cannot be."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raysim.data.findings import KINDS, resolve_policies
from raysim.data.images import resize
from raysim.data.listing import ImageFile, Listing, Record
from raysim.data.prepared import batch_rows, check_files, read_manifest, verify
from raysim.data.preparing.prepare import FaultyData
from raysim.data.sources import read_source
from raysim.errors import DataError
from tests.data.preparing import hostile
from tests.data.preparing.hostile import picture
from tests.data.preparing.toy import SIZE, contents, domain_file, go, names, rows, shrunk, stored
from tests.data.sources.layouts import SHARED, needs_shared


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
    expected = ["manifest.json", "one.arrow", "report.json", "two.arrow"]
    assert names(tmp_path / "out") == expected


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
    assert one.num_bytes == (tmp_path / one.file).stat().st_size
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
    ("given", "found", "order"),
    [
        ((), ["10", "9", "2"], ("2", "9", "10")),
        ((), ["10", "9", "cat"], ("10", "9", "cat")),
        (("c", "b", "a", "d"), ["a", "b", "c"], ("c", "b", "a", "d")),
    ],
)
def test_classes_have_an_order(
    tmp_path: Path, given: tuple[str, ...], found: list[str], order: tuple[str, ...]
) -> None:
    manifest = go(Listing({"one": rows(range(3), found)}, given), tmp_path)
    assert manifest.classes == order
    labels = stored(tmp_path, manifest, "one").labels
    assert [order[label] for label in labels] == found


def test_a_class_that_the_source_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"toy: one: 1\.png is of class 'b'.* none of a, c"):
        go(Listing({"one": rows(range(2))}, ("a", "c")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_file_names_are_safe_and_tell_the_content(tmp_path: Path) -> None:
    domains = ["..\\up", "art painting", "art_painting", "Art Painting", "\u65e5\u672c"]
    listing = Listing({name: rows([key]) for key, name in enumerate(domains)})
    manifest = go(listing, tmp_path / "out")
    assert [entry.name for entry in manifest.domains] == domains
    stems = ["up", "art_painting", "art_painting", "art_painting", "domain"]
    for stem, entry in zip(stems, manifest.domains, strict=True):
        assert entry.file == f"{stem}-{entry.sha256[:16]}.arrow"
    for key, name in enumerate(domains):
        pixels = stored(tmp_path / "out", manifest, name).pixels
        np.testing.assert_array_equal(pixels[0], shrunk(key))


def test_domains_of_equal_content_may_share_a_file(tmp_path: Path) -> None:
    manifest = go(Listing({"art": rows([1]), "Art": rows([1])}), tmp_path)
    assert names(tmp_path) == ["art.arrow", "manifest.json", "report.json"]
    verify(str(tmp_path))
    for domain in ("art", "Art"):
        np.testing.assert_array_equal(stored(tmp_path, manifest, domain).pixels, [shrunk(1)])


def test_batches_are_full_whatever_the_chunks_and_gaps(tmp_path: Path) -> None:
    size = 800  # two rows a batch
    assert batch_rows(size) == 2
    records = rows([0, 1, 1, 2, 3, 4, 4, 4, 5, 6, 7])
    listing = Listing({"one": records})
    manifest = go(listing, tmp_path, size=size, policy={"duplicate": "skip"}, chunk_records=4)
    one = stored(tmp_path, manifest, "one")
    assert one.names == [f"{row}.png" for row in (0, 1, 3, 4, 5, 8, 9, 10)]
    for found, key in zip(one.pixels, (0, 1, 2, 3, 4, 5, 6, 7), strict=True):
        np.testing.assert_array_equal(found, shrunk(key, size))


def test_the_result_does_not_depend_on_processes_or_chunks(tmp_path: Path) -> None:
    listing = Listing({"one": rows([*range(9), 3, 3]), "two": rows([3, 20, 21])})
    calls: list[tuple[int, int]] = []
    go(
        listing,
        tmp_path / "a",
        chunk_records=4,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(0, 14), (4, 14), (8, 14), (11, 14), (14, 14)]
    go(listing, tmp_path / "b", chunk_records=4, processes=3)
    go(listing, tmp_path / "c", chunk_records=5)
    go(listing, tmp_path / "d")
    for other in "bcd":
        assert contents(tmp_path / "a") == contents(tmp_path / other)


# ---- places that cannot be written -----------------------------------------------------------


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


# ---- checking --------------------------------------------------------------------------------


def test_verify_sees_one_flipped_bit(tmp_path: Path) -> None:
    go(Listing({"one": rows(range(3)), "two": rows([8])}), tmp_path)
    path = domain_file(tmp_path, "two")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    check_files(str(tmp_path), read_manifest(str(tmp_path)) or pytest.fail("no manifest"))
    with pytest.raises(DataError, match=rf"{path.name}: damaged"):
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
    # Folders have no numbers, and no images beside the folders of their splits.
    assert set(KINDS) - set(hostile.FOUND) == {"label_range", "no_split"}
    with pytest.raises(FaultyData) as caught:
        go(read_hostile(root, {}), out)
    found = json.loads((out / "refused.json").read_text())["findings"]
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
    found = [name for entry in manifest.domains for name in stored(out, manifest, entry.name).names]
    assert found == [
        "clipart/cat/a.png",
        "clipart/cat/b.png",
        "sketch/test/cat/same.png",
        "sketch/train/cat/own.png",
    ]
    assert [entry.name for entry in manifest.domains] == ["clipart", "sketch"]


@needs_shared
def test_real_photographs_are_prepared_as_pillow_reads_them(tmp_path: Path) -> None:
    policies = resolve_policies({})
    listing = read_source("pacs", SHARED / "raw_samples" / "pacs", None, policies)
    manifest = go(listing, tmp_path, size=32, processes=2)
    assert sum(entry.images for entry in manifest.domains) == 140
    for domain, records in listing.domains.items():
        found = stored(tmp_path, manifest, domain)
        assert found.names == [record.name for record in records]
        image = records[0].image
        assert isinstance(image, ImageFile)
        rgb = np.asarray(Image.open(image.path).convert("RGB")).transpose(2, 0, 1)
        np.testing.assert_array_equal(found.pixels[0], resize(rgb, 32))

"""Files that others have where prepared data is to go."""

import json
import os
from pathlib import Path

import pytest

from raysim.data.listing import Listing
from raysim.data.prepared import verify
from raysim.errors import DataError
from tests.data.preparing import hostile
from tests.data.preparing.bucket import make_bucket
from tests.data.preparing.toy import contents, go, names, rows

LISTING = Listing({"one": rows(range(3))})


def refused(out: Path | str, name: str) -> None:
    with pytest.raises(DataError) as caught:
        go(LISTING, out)
    assert f"{name}: not written by raysim, and in the way" in str(caught.value)


def test_a_link_in_place_of_the_staging_folder_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    hostile.write(precious, {"lock": b"", "a.arrow": b"mine"})
    (tmp_path / "out").mkdir()
    os.symlink(precious, tmp_path / "out" / ".partial")
    before = contents(tmp_path)
    refused(tmp_path / "out", ".partial")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"notes.txt": b"mine"}, "notes.txt"),
        ({"manifest.json": b"{}"}, "manifest.json"),
        ({"lock": b"1", "photo.png": b"mine"}, "photo.png"),
        ({"lock": b"1", "fingerprint": b"x", "chunk-0.arrow.bak": b"mine"}, "chunk-0.arrow.bak"),
    ],
)
def test_a_staging_folder_with_files_of_others_is_not_cleared(
    tmp_path: Path, files: dict[str, bytes], named: str
) -> None:
    hostile.write(tmp_path / ".partial", files)
    before = contents(tmp_path)
    refused(tmp_path, f".partial/{named}")
    assert contents(tmp_path) == before


def test_a_folder_or_a_link_in_the_staging_folder_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "mine.arrow").write_bytes(b"mine")
    hostile.write(tmp_path / ".partial", {"lock": b"1"})
    (tmp_path / ".partial" / "deep.arrow").mkdir()
    refused(tmp_path, ".partial/deep.arrow")
    (tmp_path / ".partial" / "deep.arrow").rmdir()
    os.symlink("../mine.arrow", tmp_path / ".partial" / "linked.arrow")
    refused(tmp_path, ".partial/linked.arrow")
    assert sorted(contents(tmp_path)) == [".partial/linked.arrow", ".partial/lock", "mine.arrow"]


def test_the_work_of_another_preparation_is_cleared_away(tmp_path: Path) -> None:
    left = ["chunk-000-00000000-4.arrow", ".manifest.json.17.tmp", "report.json", "domain.arrow"]
    hostile.write(tmp_path / ".partial", dict.fromkeys(["lock", "fingerprint", *left], b"x"))
    go(LISTING, tmp_path)
    assert names(tmp_path) == ["manifest.json", "one.arrow", "report.json"]


@pytest.mark.parametrize("name", ["manifest.json", "report.json", "refused.json"])
@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b'{"name": "app"}', b"[" * 100_000])
def test_files_of_others_are_not_written_over(tmp_path: Path, name: str, content: bytes) -> None:
    hostile.write(tmp_path, {name: content})
    refused(tmp_path, name)
    assert contents(tmp_path) == {name: content}


def test_files_of_others_in_a_bucket_are_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hostile.write(tmp_path / "bucket" / "web", {"manifest.json": b'{"icons": []}'})
    bucket = make_bucket(tmp_path / "bucket", monkeypatch)
    refused("s3://bucket/web", "web/manifest.json")
    assert contents(bucket.folder) == {"web/manifest.json": b'{"icons": []}'}


def test_results_of_other_versions_are_ours(tmp_path: Path) -> None:
    go(Listing({"two": rows([9])}), tmp_path)
    for name in ("manifest.json", "report.json"):
        tree = json.loads((tmp_path / name).read_text()) | {"format": 0, "more": 1}
        (tmp_path / name).write_text(json.dumps(tree))
    go(LISTING, tmp_path)
    verify(str(tmp_path))

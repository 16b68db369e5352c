"""Results that go to a URI."""

from pathlib import Path

import numpy as np
import pytest

from raysim.data.listing import Listing
from raysim.data.prepared import read_manifest, verify
from raysim.errors import DataError
from tests.data.preparing.bucket import Bucket, make_bucket
from tests.data.preparing.toy import (
    Halt,
    contents,
    first_call,
    go,
    names,
    rows,
    shrunk,
    stop_after,
    stored,
)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bucket").mkdir()
    return make_bucket(tmp_path / "bucket", monkeypatch)


def test_a_file_uri_is_a_local_folder(tmp_path: Path) -> None:
    listing = Listing({"one": rows(range(3))})
    go(listing, tmp_path / "path")
    go(listing, (tmp_path / "uri").as_uri())
    assert contents(tmp_path / "uri") == contents(tmp_path / "path")
    verify((tmp_path / "uri").as_uri())


def test_remote_results_are_the_local_ones(tmp_path: Path, bucket: Bucket) -> None:
    listing = Listing({"one": rows(range(5)), "two": rows([8, 9])})
    manifest = go(listing, "s3://bucket/toy")
    verify("s3://bucket/toy")
    assert read_manifest("s3://bucket/toy") == manifest
    np.testing.assert_array_equal(
        stored("s3://bucket/toy", manifest, "two").pixels, [shrunk(8), shrunk(9)]
    )
    assert contents(tmp_path / "cache") == {}
    assert go(listing, "s3://bucket/toy", progress=stop_after(0)) == manifest
    go(Listing({"two": rows([8])}), "s3://bucket/toy")
    assert names(bucket.folder / "toy") == ["manifest.json", "report.json", "two.arrow"]


def test_remote_work_is_taken_up_from_the_cache(tmp_path: Path, bucket: Bucket) -> None:
    listing = Listing({"one": rows(range(12))})
    with pytest.raises(Halt):
        go(listing, "s3://bucket/toy", progress=stop_after(8), chunk_records=4)
    assert contents(bucket.folder) == {}
    assert first_call(listing, "s3://bucket/toy", chunk_records=4) == 8
    assert contents(tmp_path / "cache") == {}


def test_a_broken_upload_leaves_no_short_file_and_is_taken_up(bucket: Bucket) -> None:
    listing = Listing({"one": rows(range(3)), "two": rows([8])})
    bucket.broken = "two-"
    with pytest.raises(DataError, match="s3://bucket/toy: cannot be written: Connection reset"):
        go(listing, "s3://bucket/toy")
    assert names(bucket.folder) == ["toy/one.arrow"]
    bucket.broken = None
    assert first_call(listing, "s3://bucket/toy") == 4
    verify("s3://bucket/toy")
    assert names(bucket.folder / "toy") == [
        "manifest.json",
        "one.arrow",
        "report.json",
        "two.arrow",
    ]


def test_a_broken_upload_leaves_the_former_result_whole(bucket: Bucket) -> None:
    former = go(Listing({"one": rows([40]), "two": rows([41])}), "s3://bucket/toy")
    bucket.broken = "two-"
    with pytest.raises(DataError, match="Connection reset"):
        go(Listing({"one": rows([1]), "two": rows([2, 3])}), "s3://bucket/toy")
    assert read_manifest("s3://bucket/toy") == former
    verify("s3://bucket/toy")


def test_a_refused_remote_request_leaves_the_findings_only(bucket: Bucket) -> None:
    with pytest.raises(DataError, match=r"all names: s3://bucket/toy/refused\.json"):
        go(Listing({"one": rows([1]), "two": []}), "s3://bucket/toy")
    assert names(bucket.folder) == ["toy/refused.json"]

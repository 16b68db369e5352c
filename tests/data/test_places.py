"""Folders by path and by URI."""

import os
from pathlib import Path

import pytest

from raysim.data.listing import Listing
from raysim.data.places import filesystem, local_path
from raysim.data.prepared import verify
from raysim.errors import DataError
from tests.data.preparing.toy import go, rows


@pytest.mark.parametrize("name", ["a#b", "what?", "a b", "50%25", "Zo\u00eb"])
def test_a_file_uri_leads_to_the_folder_that_it_names(tmp_path: Path, name: str) -> None:
    uri = f"file://{tmp_path}/{name}"
    plain = name.replace("%25", "%")
    assert local_path(uri) == tmp_path / plain
    go(Listing({"one": rows([1])}), uri)
    assert [path.name for path in tmp_path.iterdir()] == [plain]
    verify(uri)
    verify(str(tmp_path / plain))


def test_paths_are_made_absolute_and_remote_ones_are_not_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("x") == tmp_path / "x"
    assert local_path("s3://bucket/x") is None


@pytest.mark.parametrize("root", ["/data/\udcff", "file:///data/\udcff"])
def test_names_that_are_no_text_are_refused(root: str) -> None:
    assert os.fsencode(root).endswith(b"\xff")
    with pytest.raises(DataError, match=r"/data/\\udcff': the name is not UTF-8: rename it"):
        filesystem(root)

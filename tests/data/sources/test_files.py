import os
import pickle
from pathlib import Path

import pytest

from raysim.data.findings import resolve_policies
from raysim.data.listing import Listing
from raysim.data.sources import SOURCES, read_source
from raysim.errors import ConfigError, DataError
from tests.data.sources.layouts import summary, write_image, write_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains with a class and an image each, beside a file outside."""
    write_image(tmp_path / "outside" / "secret.png")
    write_tree(tmp_path / "root", ["a/cat/1.png", "b/cat/2.png"])
    return tmp_path / "root"


def names(listing: Listing, domain: str = "a") -> list[str]:
    return [record.name for record in listing.domains[domain]]


def read(root: Path, **policies: str) -> Listing:
    return read_source("image_folder", root, policies=resolve_policies(policies))


def test_hidden_and_system_files_are_left_out_and_counted(root: Path) -> None:
    for name in (".DS_Store", "a/Thumbs.db", "a/cat/desktop.ini", "a/cat/._1.png"):
        (root / name).write_bytes(b"x")
    write_image(root / "__MACOSX" / "a" / "cat" / "1.png")
    listing = read(root)
    assert list(listing.domains) == ["a", "b"]
    assert names(listing) == ["a/cat/1.png"]
    expected = [".DS_Store", "__MACOSX", "a/Thumbs.db", "a/cat/._1.png", "a/cat/desktop.ini"]
    assert sorted(listing.findings.names["hidden"]) == expected


@pytest.mark.parametrize("source", ["pacs", "digits"])
def test_system_folders_beside_known_domains_are_counted(tmp_path: Path, source: str) -> None:
    domains = {"pacs": ["art_painting", "cartoon", "photo", "sketch"], "digits": ["usps"]}
    for domain in domains[source]:
        write_image(tmp_path / domain / ("dog" if source == "pacs" else "3") / "1.png")
    (tmp_path / "__MACOSX").mkdir()
    assert read_source(source, tmp_path).findings.names == {"hidden": ["__MACOSX"]}


def test_files_that_are_no_images_are_counted(root: Path) -> None:
    for name in ("readme.txt", "a/notes.md", "a/cat/1.txt"):
        (root / name).write_bytes(b"x")
    write_image(root / "a" / "stray.png")
    os.mkfifo(root / "a" / "cat" / "pipe.png")
    listing = read(root)
    assert names(listing) == ["a/cat/1.png"]
    assert listing.findings.counts == {"other_file": 5}
    assert (
        "a/stray.png (an image outside the class folders)" in listing.findings.names["other_file"]
    )


def test_extensions_are_compared_without_case(root: Path) -> None:
    write_image(root / "a" / "cat" / "2.JPG")
    assert names(read(root)) == ["a/cat/1.png", "a/cat/2.JPG"]


def test_links_inside_the_root_follow_their_policy(root: Path) -> None:
    (root / "a" / "cat" / "3.png").symlink_to("../../b/cat/2.png")
    (root / "a" / "dog").symlink_to("../b/cat")
    kept = read(root)
    assert names(kept) == ["a/cat/1.png", "a/cat/3.png", "a/dog/2.png"]
    assert kept.domains["a"][1].image.read() == (root / "b/cat/2.png").read_bytes()
    assert kept.findings.names == {"symlink": ["a/dog", "a/cat/3.png"]}
    for policy in ("skip", "error"):
        left = read(root, symlink=policy)
        assert names(left) == ["a/cat/1.png"]
        assert left.findings.counts == {"symlink": 2}


def test_links_out_of_the_root_are_left_out_unless_kept(root: Path) -> None:
    (root / "a" / "cat" / "3.png").symlink_to(root.parent / "outside" / "secret.png")
    (root / "a" / "dog").symlink_to(root.parent / "outside")
    for policy in ("skip", "error"):
        listing = read(root, outside_root=policy)
        assert names(listing) == ["a/cat/1.png"]
        assert listing.findings.counts == {"outside_root": 2}
    kept = read(root, outside_root="keep")
    assert names(kept) == ["a/cat/1.png", "a/cat/3.png", "a/dog/secret.png"]
    assert kept.findings.counts == {"outside_root": 2}


def test_a_root_that_is_a_link_is_no_finding(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    listing = read(link)
    assert names(listing) == ["a/cat/1.png"]
    assert listing.findings.counts == {}


@pytest.mark.parametrize("target", [".", "..", "../..", "../../../root"])
def test_a_link_to_a_folder_above_is_not_followed(root: Path, target: str) -> None:
    (root / "a" / "cat" / "deep").symlink_to(target)
    listing = read(root)
    assert names(listing) == ["a/cat/1.png"]
    assert list(listing.findings.counts) == ["link_loop"]


def test_loops_over_two_links_end(root: Path) -> None:
    (root / "a" / "cat" / "x").symlink_to("../../b/cat")
    (root / "b" / "cat" / "y").symlink_to("../../a/cat")
    listing = read(root)
    assert names(listing) == ["a/cat/1.png", "a/cat/x/2.png"]
    assert names(listing, "b") == ["b/cat/2.png", "b/cat/y/1.png"]
    assert listing.findings.counts == {"symlink": 2, "link_loop": 2}


def test_links_that_lead_nowhere_are_counted(root: Path) -> None:
    (root / "a" / "cat" / "p.png").symlink_to("q.png")
    (root / "a" / "cat" / "q.png").symlink_to("p.png")
    (root / "a" / "cat" / "z.png").symlink_to("gone.png")
    listing = read(root)
    assert names(listing) == ["a/cat/1.png"]
    assert listing.findings.counts == {"link_loop": 2, "missing_file": 1}


def test_names_outside_ascii_and_with_spaces_are_kept_or_left_out(root: Path) -> None:
    write_tree(root, ["a/wine glass/1.png", "a/wine glass/2.png", "a/cat/ä.png"])
    listing = read(root)
    kept = ["a/cat/1.png", "a/cat/ä.png", "a/wine glass/1.png", "a/wine glass/2.png"]
    assert names(listing) == kept
    assert listing.findings.names == {"non_ascii": ["a/wine glass", "a/cat/ä.png"]}
    assert names(read(root, non_ascii="skip")) == ["a/cat/1.png"]


def test_names_that_are_no_utf8_can_be_written_and_read(root: Path) -> None:
    path = os.fsencode(root / "a" / "cat") + b"/\xff.png"
    with open(path, "wb") as file:
        file.write(b"bytes")
    record = read(root).domains["a"][1]
    assert record.name == "a/cat/\\xff.png"
    assert record.image.read() == b"bytes"


def test_folders_in_class_folders_are_walked(root: Path) -> None:
    write_tree(root, ["a/cat/z/1.png", "a/cat/b/c/1.png"])
    assert names(read(root)) == ["a/cat/1.png", "a/cat/b/c/1.png", "a/cat/z/1.png"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list any folder")
def test_a_folder_without_permission_is_named(root: Path) -> None:
    (root / "a" / "cat").chmod(0)
    with pytest.raises(DataError, match=r"cannot list .*a/cat: Permission denied"):
        read(root)
    (root / "a" / "cat").chmod(0o700)


def test_records_travel_to_other_processes(root: Path) -> None:
    records = list(read(root).domains["a"])
    assert pickle.loads(pickle.dumps(records)) == records


def test_an_unknown_source_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"no source 'domain_net'; did you mean 'domainnet'\?"):
        read_source("domain_net", root)


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "hugging_face"])
def test_a_missing_root_names_place_and_origin(tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError) as caught:
        read_source(source, tmp_path / "gone")
    assert str(tmp_path / "gone") in str(caught.value)
    assert SOURCES[source].url in str(caught.value)
    assert SOURCES[source].layout in str(caught.value)


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "hugging_face"])
def test_an_empty_root_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError, match=r"^data\.root: "):
        read_source(source, tmp_path)


def test_classes_are_taken_in_the_order_given(root: Path) -> None:
    write_tree(root, ["a/dog/1.png", "a/emu/1.png", "b/emu/1.png"])
    listing = read_source("image_folder", root, ["emu", "cat"])
    assert listing.classes == ("emu", "cat")
    assert names(listing) == ["a/cat/1.png", "a/emu/1.png"]
    assert summary(listing)["b"] == [("b/cat/2.png", "cat", ""), ("b/emu/1.png", "emu", "")]


@pytest.mark.parametrize(
    ("classes", "error", "message"),
    [
        (["cat", "dogg"], DataError, "no class 'dogg'; did you mean 'dog'?"),
        (["cat", "cat"], ConfigError, "'cat' is there 2 times"),
        ([], ConfigError, "no class"),
        ("fdse10", ConfigError, "image_folder has no subset 'fdse10'"),
    ],
)
def test_wrong_classes_are_refused(
    root: Path, classes: str | list[str], error: type[Exception], message: str
) -> None:
    write_image(root / "a" / "dog" / "1.png")
    with pytest.raises(error) as caught:
        read_source("image_folder", root, classes)
    assert message in str(caught.value)

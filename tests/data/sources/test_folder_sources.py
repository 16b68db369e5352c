"""Folders of classes: image_folder, office_caltech10, pacs and domainnet."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from raysim.data.intake import ready
from raysim.data.settings import DataSettings
from raysim.data.sources import domainnet, pacs, read_source
from raysim.data.sources.office_caltech10 import CLASSES as OFFICE_CLASSES
from raysim.errors import ConfigError, DataError
from tests.data.sources.layouts import (
    SHARED,
    needs_shared,
    summary,
    write_image,
    write_text,
    write_tree,
)

# ---- image_folder ----------------------------------------------------------------------------


def test_folders_are_domains_and_classes(tmp_path: Path) -> None:
    write_tree(tmp_path, ["b/dog/2.png", "b/dog/10.png", "b/cat/1.png", "a/dog/1.png"])
    (tmp_path / "empty").mkdir()
    listing = read_source("image_folder", tmp_path)
    assert summary(listing) == {
        "a": [("a/dog/1.png", "dog", "")],
        "b": [
            ("b/cat/1.png", "cat", ""),
            ("b/dog/10.png", "dog", ""),
            ("b/dog/2.png", "dog", ""),
        ],
        "empty": [],
    }
    assert list(listing.domains) == ["a", "b", "empty"]
    assert listing.findings.counts == {}


def test_split_folders_count_if_all_folders_of_the_domain_are_ones(tmp_path: Path) -> None:
    write_tree(tmp_path, ["a/train/dog/1.png", "a/Validation/dog/2.png", "a/test/cat/3.png"])
    write_tree(tmp_path, ["b/train/1.png", "b/dog/2.png"])
    listing = read_source("image_folder", tmp_path)
    assert summary(listing) == {
        "a": [
            ("a/Validation/dog/2.png", "dog", "val"),
            ("a/test/cat/3.png", "cat", "test"),
            ("a/train/dog/1.png", "dog", "train"),
        ],
        "b": [("b/dog/2.png", "dog", ""), ("b/train/1.png", "train", "")],
    }


def test_spellings_of_a_class_are_merged_under_the_first(tmp_path: Path) -> None:
    write_tree(tmp_path, ["a/dog/1.png", "a/dog /2.png", "b/Dog/1.png", "b/wine_glass/1.png"])
    write_tree(tmp_path, ["a/wine glass/1.png"])
    listing = read_source("image_folder", tmp_path)
    found = {record.name: record.class_name for d in listing.domains.values() for record in d}
    assert found == {
        "a/dog/1.png": "Dog",
        "a/dog /2.png": "Dog",
        "b/Dog/1.png": "Dog",
        "a/wine glass/1.png": "wine glass",
        "b/wine_glass/1.png": "wine_glass",
    }
    expected = ["a/dog (taken as 'Dog')", "a/dog  (taken as 'Dog')"]
    assert listing.findings.names["class_spelling"] == expected


def test_class_folders_without_images_are_told_and_are_no_classes(tmp_path: Path) -> None:
    write_tree(tmp_path, ["a/dog/1.png", "b/cat/1.png"])
    for name in ("a/cat", "a/emu", "b/Emu"):
        (tmp_path / name).mkdir()
    findings = read_source("image_folder", tmp_path).findings
    assert findings.names["empty_class"] == ["a/emu", "b/Emu"]
    assert (
        "empty_class" not in read_source("image_folder", tmp_path, ["Emu", "dog"]).findings.counts
    )


def test_parquet_files_in_place_of_folders_are_named(tmp_path: Path) -> None:
    for name in ("a.parquet", "data/b.pq"):
        write_text(tmp_path / name, ["PAR1"])
        with pytest.raises(DataError) as caught:
            read_source("pacs", tmp_path)
        command = f"raysim data prepare parquet --root {tmp_path} --out FOLDER --name pacs"
        assert f"not found: pacs: any of the folders {', '.join(pacs.DOMAINS)}" in str(caught.value)
        assert f"There are Parquet files: try `{command}`" in str(caught.value)
        (tmp_path / name).unlink()
    with pytest.raises(DataError) as caught:
        read_source("pacs", tmp_path)
    assert "Parquet" not in str(caught.value)


def test_a_folder_behind_one_without_permission_is_told(tmp_path: Path) -> None:
    write_tree(tmp_path, ["shut/raw/a/dog/1.png"])
    shut = tmp_path / "shut"
    settings = DataSettings(name="image_folder", root=str(shut / "raw"))
    shut.chmod(0)
    me = os.geteuid()
    try:
        if me == 0:
            os.seteuid(65534)  # permissions do not bind root
        with pytest.raises(DataError, match=r"cannot read .*shut/raw: Permission denied"):
            read_source("image_folder", shut / "raw")
        with pytest.raises(DataError, match=r"shut/raw: cannot be read: .*Permission denied"):
            ready(settings, str)
    finally:
        os.seteuid(me)
        shut.chmod(0o700)


def test_images_without_class_folders_are_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, ["a/1.png", "b/2.png"])
    with pytest.raises(DataError, match=r"no class folders in .*: images go in <domain>/<class>/"):
        read_source("image_folder", tmp_path)


# ---- office_caltech10 ------------------------------------------------------------------------

OFFICE = ("amazon", "caltech", "dslr", "webcam")


@pytest.mark.parametrize("inside", ["", "office_caltech_10", "Office-Caltech10"])
def test_office_takes_the_ten_classes(tmp_path: Path, inside: str) -> None:
    root = tmp_path / inside
    for domain in ("Amazon", "caltech", "dslr", "webcam"):
        write_tree(root / domain, [f"{name}/1.jpg" for name in (*OFFICE_CLASSES, "stapler")])
    listing = read_source("office_caltech10", tmp_path)
    assert tuple(listing.domains) == OFFICE
    assert listing.classes == OFFICE_CLASSES
    for records in listing.domains.values():
        assert [record.class_name for record in records] == list(OFFICE_CLASSES)


def test_office_takes_other_names_and_the_folders_of_office_31(tmp_path: Path) -> None:
    write_tree(tmp_path, ["amazon/images/back_pack/1.jpg", "dslr/images/laptop_computer/1.jpg"])
    write_tree(tmp_path, ["caltech/224.touring-bike/1.jpg", "caltech/127.laptop-101/1.jpg"])
    write_tree(tmp_path, ["webcam/backpack/1.jpg", "webcam/Headphones/1.jpg"])
    found = read_source("office_caltech10", tmp_path).domains
    classes = {domain: [r.class_name for r in records] for domain, records in found.items()}
    assert classes == {
        "amazon": ["back_pack"],
        "caltech": ["laptop_computer", "bike"],
        "dslr": ["laptop_computer"],
        "webcam": ["headphones", "back_pack"],
    }


def test_office_names_the_domain_that_is_missing(tmp_path: Path) -> None:
    write_tree(tmp_path, [f"{domain}/mug/1.jpg" for domain in OFFICE[:3]])
    with pytest.raises(DataError, match=r"the folder webcam\. Looked in .*get it from http"):
        read_source("office_caltech10", tmp_path)


# ---- pacs ------------------------------------------------------------------------------------


def write_pacs(root: Path) -> None:
    write_tree(
        root,
        [f"{d}/{name}/pic_{n}.jpg" for d in pacs.DOMAINS for name in pacs.CLASSES for n in (1, 2)],
    )


def pacs_lines(domain: str, number: int, first: int = 1) -> Iterable[str]:
    for label, name in enumerate(pacs.CLASSES, start=first):
        yield f"{domain}/{name}/pic_{number}.jpg {label}"


def write_pacs_lists(folder: Path, first: int = 1) -> None:
    for domain in pacs.DOMAINS:
        write_text(folder / f"{domain}_train_kfold.txt", pacs_lines(domain, 1, first))
        write_text(folder / f"{domain}_crossval_kfold.txt", pacs_lines(domain, 2, first))


@pytest.mark.parametrize("inside", ["", "kfold", "PACS", "PACS/kfold", "Raw images/kfold"])
def test_pacs_is_found_where_people_have_it(tmp_path: Path, inside: str) -> None:
    write_pacs(tmp_path / inside)
    listing = read_source("pacs", tmp_path)
    assert tuple(listing.domains) == pacs.DOMAINS
    assert listing.classes == pacs.CLASSES
    first = listing.domains["photo"][0]
    prefix = f"{inside}/" if inside else ""
    assert (first.name, first.class_name, first.split) == (
        f"{prefix}photo/dog/pic_1.jpg",
        "dog",
        "",
    )
    assert {len(records) for records in listing.domains.values()} == {14}


@pytest.mark.parametrize(
    "folder", ["", "splits", "kfold", "Train val splits and h5py files pre-read"]
)
def test_pacs_lists_give_the_splits(tmp_path: Path, folder: str) -> None:
    write_pacs(tmp_path / "kfold")
    write_pacs_lists(tmp_path / folder)
    write_image(tmp_path / "kfold" / "photo" / "dog" / "unlisted.jpg")
    listing = read_source("pacs", tmp_path)
    splits = {record.name: record.split for record in listing.domains["photo"]}
    assert splits.pop("kfold/photo/dog/unlisted.jpg") == ""
    assert splits == {
        f"kfold/photo/{name}/pic_{number}.jpg": split
        for name in pacs.CLASSES
        for number, split in ((1, "train"), (2, "test"))
    }
    assert listing.findings.counts == {"label_range": 8}


def test_pacs_labels_from_zero_are_no_finding(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path, first=0)
    assert read_source("pacs", tmp_path).findings.counts == {}


def test_pacs_labels_that_contradict_the_folders_are_refused(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path)
    lines = ["photo/dog/pic_1.jpg 1", "photo/horse/pic_1.jpg 2"]
    write_text(tmp_path / "photo_train_kfold.txt", lines)
    expected = r"photo_train_kfold.txt line 2: label 2 for 'horse/pic_1.jpg'.*horse is 5"
    with pytest.raises(DataError, match=expected):
        read_source("pacs", tmp_path)


def test_images_that_a_list_names_and_that_are_not_there_are_findings(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path)
    (tmp_path / "photo" / "dog" / "pic_2.jpg").unlink()
    listing = read_source("pacs", tmp_path)
    assert listing.findings.names["missing_file"] == [
        "photo/dog/pic_2.jpg (named by photo_crossval_kfold.txt line 1)"
    ]
    assert len(listing.domains["photo"]) == 13


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("photo/dog/pic_1.jpg", "is not '<path> <label>'"),
        ("photo/dog/pic_1.jpg one", "is not '<path> <label>'"),
        ("sketch/dog/pic_1.jpg 1", "is not photo/<class>/<file>"),
        ("photo/dog/pic_2.jpg 1", "in two splits"),
        ("../../etc/passwd 1", "'../../etc/passwd' leads out of the root: take the line out"),
        ("/etc/passwd 1", "leads out of the root"),
        ("photo/../../x.jpg 1", "leads out of the root"),
    ],
)
def test_lists_that_make_no_sense_are_refused(tmp_path: Path, line: str, message: str) -> None:
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path)
    write_text(tmp_path / "photo_train_kfold.txt", ["", line])
    with pytest.raises(DataError) as caught:
        read_source("pacs", tmp_path)
    assert message in str(caught.value)
    assert "photo_train_kfold.txt line 2" in str(caught.value)


def test_a_list_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path)
    (tmp_path / "photo_train_kfold.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"cannot read the list photo_train_kfold\.txt"):
        read_source("pacs", tmp_path)


def test_a_list_without_its_pair_is_refused(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path)
    (tmp_path / "sketch_crossval_kfold.txt").unlink()
    with pytest.raises(DataError, match=r"the list sketch_crossval_kfold\.txt.*get it from https"):
        read_source("pacs", tmp_path)


def test_windows_line_ends_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path)
    text = "\ufeffphoto\\dog\\pic_1.jpg 1\r\nphoto/elephant/pic_1.jpg\t2\r\n"
    (tmp_path / "photo_train_kfold.txt").write_text(text, encoding="utf-8", newline="")
    splits = Counter(r.split for r in read_source("pacs", tmp_path).domains["photo"])
    assert splits == {"train": 2, "test": 7, "": 5}


def test_pacs_spellings_and_other_folders_are_findings(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    (tmp_path / "photo" / "dog").rename(tmp_path / "photo" / "Dog")
    write_image(tmp_path / "photo" / "zebra" / "1.jpg")
    listing = read_source("pacs", tmp_path)
    assert [record.class_name for record in listing.domains["photo"][:2]] == ["dog", "dog"]
    assert listing.findings.names == {
        "class_spelling": ["photo/Dog (taken as 'dog')"],
        "other_file": ["photo/zebra (not one of the classes)"],
    }


def test_pacs_names_domains_that_are_missing_or_there_twice(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    (tmp_path / "Photo").mkdir()
    with pytest.raises(DataError, match=r"'Photo' and 'photo' in .* are both photo"):
        read_source("pacs", tmp_path)
    (tmp_path / "Photo").rmdir()
    (tmp_path / "sketch").rename(tmp_path / "drawings")
    with pytest.raises(DataError, match=r"the folder sketch\. Looked in"):
        read_source("pacs", tmp_path)


@needs_shared
def test_pacs_reads_the_original_files() -> None:
    listing = read_source("pacs", SHARED / "raw_samples" / "pacs")
    assert tuple(listing.domains) == pacs.DOMAINS
    for domain, records in listing.domains.items():
        assert Counter(r.class_name for r in records) == dict.fromkeys(pacs.CLASSES, 5)
        start = b"\x89PNG" if domain == "sketch" else b"\xff\xd8\xff"
        assert all(record.image.read().startswith(start) for record in records)
    assert listing.findings.counts == {}


# ---- domainnet -------------------------------------------------------------------------------


def test_domainnet_takes_the_domains_that_are_there(tmp_path: Path) -> None:
    write_tree(tmp_path, ["sketch/bird/1.png", "clipart/bird/1.png", "clipart/angel/1.png"])
    listing = read_source("domainnet", tmp_path)
    assert summary(listing) == {
        "clipart": [("clipart/angel/1.png", "angel", ""), ("clipart/bird/1.png", "bird", "")],
        "sketch": [("sketch/bird/1.png", "bird", "")],
    }
    assert list(listing.domains) == ["clipart", "sketch"]


def test_domainnet_orders_classes_as_the_official_lists(tmp_path: Path) -> None:
    """Taken from the official order, where plain sorting would differ."""
    official = (
        "cello",
        "cell_phone",
        "paintbrush",
        "paint_can",
        "tent",
        "The_Eiffel_Tower",
        "tiger",
        "trumpet",
        "t-shirt",
        "umbrella",
    )
    write_tree(tmp_path, [f"real/{name}/1.jpg" for name in reversed(official)])
    assert read_source("domainnet", tmp_path).classes == official


@pytest.mark.parametrize("folder", ["", "splits", "real"])
def test_domainnet_lists_give_splits_and_order(tmp_path: Path, folder: str) -> None:
    write_tree(tmp_path, ["real/zebra/1.jpg", "real/zebra/2.jpg", "real/bird/1.jpg"])
    write_text(tmp_path / folder / "real_train.txt", ["real/zebra/1.jpg 0", "real/bird/1.jpg 4"])
    write_text(tmp_path / folder / "real_test.txt", ["real/zebra/2.jpg 0"])
    listing = read_source("domainnet", tmp_path)
    assert listing.classes == ("zebra", "bird")
    assert [record.split for record in listing.domains["real"]] == ["train", "train", "test"]
    if folder != "real":
        assert listing.findings.counts == {}


def test_the_ten_class_subset_reads_no_other_class(tmp_path: Path) -> None:
    """Official lists beside folders of the ten classes only: the others are not missed."""
    write_tree(tmp_path, [f"real/{name}/1.jpg" for name in domainnet.FDSE10])
    lines = [f"real/{name}/1.jpg {label}" for label, name in enumerate(domainnet.FDSE10)]
    write_text(tmp_path / "real_train.txt", [*lines, "real/angel/1.jpg 10"])
    write_text(tmp_path / "real_test.txt", [])
    listing = read_source("domainnet", tmp_path, "fdse10")
    assert listing.classes == domainnet.FDSE10
    assert [record.class_name for record in listing.domains["real"]] == sorted(domainnet.FDSE10)
    assert listing.findings.counts == {}
    assert read_source("domainnet", tmp_path).findings.counts == {"missing_file": 1}


def test_domainnet_subsets_and_classes_are_checked(tmp_path: Path) -> None:
    write_tree(tmp_path, ["real/bird/1.jpg"])
    with pytest.raises(ConfigError, match=r"no subset 'fdse'; did you mean 'fdse10'\?"):
        read_source("domainnet", tmp_path, "fdse")
    with pytest.raises(DataError, match="no class 'feather'"):
        read_source("domainnet", tmp_path, "fdse10")


@pytest.mark.parametrize("line", ["real/bird/2.jpg 3", "real/zebra/1.jpg 1"])
def test_domainnet_labels_that_contradict_each_other_are_refused(tmp_path: Path, line: str) -> None:
    write_tree(tmp_path, ["real/zebra/1.jpg", "real/bird/1.jpg", "real/bird/2.jpg"])
    write_text(tmp_path / "real_train.txt", ["real/bird/1.jpg 1"])
    write_text(tmp_path / "real_test.txt", [line])
    with pytest.raises(DataError, match=r"real_test\.txt line 1 gives .* label .* one source"):
        read_source("domainnet", tmp_path)


def test_domainnet_names_the_list_that_is_missing(tmp_path: Path) -> None:
    write_tree(tmp_path, ["real/zebra/1.jpg"])
    write_text(tmp_path / "real_train.txt", ["real/zebra/1.jpg 0"])
    with pytest.raises(DataError, match=r"the list real_test\.txt.*https://ai\.bu\.edu/M3SDA"):
        read_source("domainnet", tmp_path)

"""Parquet files and data sets that Hugging Face's `datasets` saved."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raysim.data.sources import read_source
from raysim.errors import DataError
from tests.data.sources.layouts import SHARED, needs_shared, summary


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (3, 3), value).save(file, "PNG")
    return file.getvalue()


def write(file: Path, features: dict[str, Any] | None = None, **columns: Sequence[Any]) -> None:
    """Write a file of two rows a group; images are PNGs of the row's number unless given."""
    rows = len(next(iter(columns.values())))
    table = pa.table({"image": [png(row) for row in range(rows)], **columns})
    if features is not None:
        metadata = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": metadata})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=2)


def test_files_are_domains_and_rows_are_read_from_their_group(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", label=[1, 0, 1], label_name=["dog", "cat", "dog"])
    split = ["train", "validation", "test", None, "valid"]
    write(tmp_path / "a.parquet", label=[0, 1, 0, 1, 0], label_name=["cat", "dog"] * 2 + ["cat"])
    table = pq.read_table(tmp_path / "a.parquet").append_column("split", [split])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    listing = read_source("parquet", tmp_path)
    assert summary(listing) == {
        "a": [
            ("a.parquet#0", "cat", "train"),
            ("a.parquet#1", "dog", "val"),
            ("a.parquet#2", "cat", "test"),
            ("a.parquet#3", "dog", ""),
            ("a.parquet#4", "cat", "val"),
        ],
        "b": [("b.parquet#0", "dog", ""), ("b.parquet#1", "cat", ""), ("b.parquet#2", "dog", "")],
    }
    assert list(listing.domains) == ["a", "b"]
    assert listing.classes == ("cat", "dog")
    assert listing.findings.counts == {}
    for order in (range(5), (4, 0, 3, 1, 2)):
        for row in order:
            assert listing.domains["a"][row].image.read() == png(row)


def test_classes_follow_the_labels_not_the_names(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", label=[0, 1], label_name=["zebra", "ant"])
    assert read_source("parquet", tmp_path).classes == ("zebra", "ant")


def test_labels_without_names_are_numbers_and_may_start_at_one(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", label=[1, 2, 10])
    write(tmp_path / "b.parquet", label=[2, 2])
    listing = read_source("parquet", tmp_path)
    assert listing.classes == ("1", "2", "10")
    assert listing.findings.names == {
        "label_range": ["a.parquet (labels 1 to 10)", "b.parquet (labels 2 to 2)"]
    }
    write(tmp_path / "b.parquet", label=[0, 2])
    assert read_source("parquet", tmp_path).findings.counts == {}


def test_a_column_of_domains_and_hugging_face_metadata_are_read(tmp_path: Path) -> None:
    """As files of a data set on the Hugging Face hub are."""
    features = {
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
        "domain": {"names": ["photo", "art"], "_type": "ClassLabel"},
        "image": {"_type": "Image"},
    }
    images = [{"bytes": png(200 + row), "path": f"{row}.png"} for row in range(3)]
    columns = {"image": images, "label": [1, 0, 1], "domain": [0, 1, 0]}
    write(tmp_path / "data" / "train-00000-of-00002.parquet", features, **columns)
    write(tmp_path / "data" / "test-00000-of-00001.parquet", features, label=[0], domain=[1])
    listing = read_source("parquet", tmp_path)
    assert summary(listing) == {
        "art": [
            ("data/test-00000-of-00001.parquet#0", "cat", "test"),
            ("data/train-00000-of-00002.parquet#1", "cat", "train"),
        ],
        "photo": [
            ("data/train-00000-of-00002.parquet#0", "dog", "train"),
            ("data/train-00000-of-00002.parquet#2", "dog", "train"),
        ],
    }
    assert listing.domains["photo"][1].image.read() == png(202)


def test_the_root_may_be_one_file(tmp_path: Path) -> None:
    write(tmp_path / "photo.parquet", label_name=["b", "a"])
    listing = read_source("parquet", tmp_path / "photo.parquet")
    assert summary(listing) == {
        "photo": [("photo.parquet#0", "b", ""), ("photo.parquet#1", "a", "")]
    }
    assert listing.classes == ()


def test_names_come_from_a_column_if_they_are_unique(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", label=[0, 1], source_path=["x/1.png", "x/2.png"])
    write(tmp_path / "b.parquet", label=[0, 1], source_path=["same", "same"])
    write(tmp_path / "c.parquet", label=[0, 1], source_path=["same", "same"], path=["p", "q"])
    listing = read_source("parquet", tmp_path)
    assert [[r.name for r in records] for records in listing.domains.values()] == [
        ["x/1.png", "x/2.png"],
        ["b.parquet#0", "b.parquet#1"],
        ["p", "q"],
    ]


def test_names_are_unique_over_all_files_of_a_domain(tmp_path: Path) -> None:
    for name in ("1", "2"):
        write(tmp_path / f"{name}.parquet", label=[0], path=["same"], domain=["photo"])
    names = [record.name for record in read_source("parquet", tmp_path).domains["photo"]]
    assert names == ["1.parquet#0", "2.parquet#0"]


def test_spellings_in_files_are_merged(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", label_name=["Dog", "cat"])
    write(tmp_path / "b.parquet", label_name=["dog ", "cat"])
    listing = read_source("parquet", tmp_path)
    assert [record.class_name for record in listing.domains["b"]] == ["Dog", "cat"]
    assert listing.findings.names == {"class_spelling": ["b.parquet: dog  (taken as 'Dog')"]}


def test_an_image_that_is_null_has_no_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", image=[png(0), None], label=[0, 1])
    assert read_source("parquet", tmp_path).domains["a"][1].image.read() == b""


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"name": ["x"]}, "a.parquet: no column 'label' or 'label_name'"),
        ({"label": [-1]}, "a.parquet row 0: label is -1"),
        ({"label": [0, None]}, "a.parquet row 1: label is None"),
        ({"label": [0.5]}, "column 'label' is double: make it text or whole numbers"),
        ({"label_name": ["x", None]}, "a.parquet row 1: no class"),
        ({"label": [0], "domain": [None]}, "column 'domain' is null: make it text"),
        ({"label": [0], "domain": [""]}, "a.parquet row 0: no domain"),
        ({"label": [0], "split": ["dev"]}, "row 0: split 'dev' is none of train, val,"),
        ({"label": [0], "image": ["x.png"]}, "column 'image' is string"),
        ({"label": [0, 0], "label_name": ["x", "y"]}, "label 0 is 'y', but 'x' in a.parquet"),
        ({"label": [0, 1], "label_name": ["x", "x"]}, "label 1 is 'x', but 0 in a.parquet"),
    ],
)
def test_columns_that_make_no_sense_are_refused(
    tmp_path: Path, columns: dict[str, list[Any]], message: str
) -> None:
    write(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataError) as caught:
        read_source("parquet", tmp_path)
    assert message in str(caught.value)


def test_files_that_are_no_parquet_or_have_no_image_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(DataError, match=r"a\.parquet: ArrowInvalid"):
        read_source("parquet", tmp_path)
    pq.write_table(pa.table({"img": [b"x"], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no column 'image'; its columns: img, label"):
        read_source("parquet", tmp_path)
    (tmp_path / "a.parquet").unlink()
    write(tmp_path / "train-00000-of-00001.parquet", label=[0])
    with pytest.raises(DataError, match="no column 'domain', and the file's name is no domain's"):
        read_source("parquet", tmp_path)


@needs_shared
def test_the_shared_files_are_read_whole() -> None:
    pacs = read_source("parquet", SHARED / "pacs")
    counts = {domain: Counter(r.split for r in found) for domain, found in pacs.domains.items()}
    assert counts == {
        "art_painting": {"train": 1840, "test": 208},
        "cartoon": {"train": 2107, "test": 237},
        "photo": {"train": 1499, "test": 171},
        "sketch": {"train": 3531, "test": 398},
    }
    assert pacs.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert pacs.domains["sketch"][-1].name == "PACS/sketch/person/12240.png"
    assert pacs.domains["sketch"][-1].image.read()[:2] == b"\xff\xd8"
    digits = read_source("parquet", SHARED / "digits", ["3", "7"])
    assert digits.classes == ("3", "7")
    assert {domain: len(found) for domain, found in digits.domains.items()}["svhn"] == 345 + 227
    assert digits.findings.counts == pacs.findings.counts == {}


# ---- hugging_face ----------------------------------------------------------------------------


def saved(rows: Sequence[int], domains: Sequence[str] | None = None) -> Any:
    """Return a data set of images of the rows' numbers, labels their remainder by 2."""
    datasets = pytest.importorskip("datasets")
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["zebra", "ant"]),
        **({"domain": datasets.Value("string")} if domains else {}),
    }
    columns = {
        "image": [{"bytes": png(row), "path": None} for row in rows],
        "label": [row % 2 for row in rows],
        **({"domain": domains} if domains else {}),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_a_saved_data_set_is_read_by_its_column_of_domains(tmp_path: Path) -> None:
    saved([4, 5, 6], ["b", "a", "b"]).save_to_disk(str(tmp_path / "set"))
    listing = read_source("hugging_face", tmp_path / "set")
    assert summary(listing) == {
        "a": [("set#1", "ant", "")],
        "b": [("set#0", "zebra", ""), ("set#2", "zebra", "")],
    }
    assert listing.classes == ("zebra", "ant")
    assert [record.image.read() for record in listing.domains["b"]] == [png(4), png(6)]


def test_saved_splits_are_the_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    splits = {"train": saved([1, 2], ["a", "a"]), "validation": saved([3], ["a"])}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path))
    listing = read_source("hugging_face", tmp_path)
    assert summary(listing) == {
        "a": [
            ("train#0", "ant", "train"),
            ("train#1", "zebra", "train"),
            ("validation#0", "ant", "val"),
        ]
    }
    assert listing.domains["a"][2].image.read() == png(3)


def test_folders_of_saved_data_sets_are_domains(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    saved([1]).save_to_disk(str(tmp_path / "photo"))
    both = {"train": saved([2]), "test": saved([3])}
    datasets.DatasetDict(both).save_to_disk(str(tmp_path / "art"))
    assert summary(read_source("hugging_face", tmp_path)) == {
        "art": [("art/train#0", "zebra", "train"), ("art/test#0", "ant", "test")],
        "photo": [("photo#0", "ant", "")],
    }


def test_a_saved_data_set_without_domains_or_broken_is_refused(tmp_path: Path) -> None:
    saved([1]).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match="set: no column 'domain': add it, or save one"):
        read_source("hugging_face", tmp_path / "set")
    (tmp_path / "set").rename(tmp_path / "other")  # what was loaded is kept by its path
    (tmp_path / "other" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match="other: not a saved data set"):
        read_source("hugging_face", tmp_path / "other")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"a saved data set \(state\.json\)\. Looked in"):
        read_source("hugging_face", tmp_path / "empty")


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'raysim\[hf\]'"):
        read_source("hugging_face", tmp_path)

"""Parquet files and data sets that Hugging Face's `datasets` saved."""

import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raysim.data.preparing.staging import stamp
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


def test_other_columns_may_have_metadata_of_any_kind(tmp_path: Path) -> None:
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    others = {"boxes": [{"dtype": "int64"}], "tags": {"names": {"dtype": "string"}}, "label": label}
    write(tmp_path / "a.parquet", others, label=[1, 0])
    assert read_source("parquet", tmp_path).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (b"{", "its metadata huggingface: Invalid JSON"),
        (b"\xff", "its metadata huggingface: Invalid JSON"),
        (b"[1]", "its metadata huggingface: Input should be an object"),
        (b'{"info": {"features": [1]}}', "its metadata huggingface.info.features: Input should be"),
        (
            b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": [1, 2]}}}}',
            "its metadata huggingface.names.0: Input should be a valid string: write it again",
        ),
    ],
)
def test_metadata_that_cannot_be_read_are_refused(
    tmp_path: Path, metadata: bytes, message: str
) -> None:
    table = pa.table({"image": [png(0)], "label": [0]})
    table = table.replace_schema_metadata({"huggingface": metadata})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        read_source("parquet", tmp_path)
    assert f"data.root: a.parquet: {message}" in str(caught.value)


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
        ({"label": [0, 0], "domain": ["a", "b/c"]}, "row 1: domain 'b/c': must not hold a '/'"),
        ({"label_name": [0, 1]}, "column 'label_name' is int64: make it text, or call it 'label'"),
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


@pytest.mark.parametrize("name", ["image", "label", "domain"])
def test_columns_that_are_there_twice_are_refused(tmp_path: Path, name: str) -> None:
    columns = {"image": [png(0)], "label": [0], "domain": ["x"]}
    table = pa.table(columns).append_column(name, [columns[name]])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"a\.parquet: more than one column '{name}': keep one"):
        read_source("parquet", tmp_path)


@pytest.mark.parametrize("column", [{"label": pa.int64()}, {"label_name": pa.string()}])
def test_a_file_without_rows_is_an_empty_domain(
    tmp_path: Path, column: dict[str, pa.DataType]
) -> None:
    write(tmp_path / "a.parquet", label=[0, 1])
    schema = pa.schema({"image": pa.binary(), **column})
    pq.write_table(schema.empty_table(), tmp_path / "b.parquet")
    assert list(map(len, read_source("parquet", tmp_path).domains.values())) == [2, 0]
    pq.write_table(
        schema.append(pa.field("domain", pa.string())).empty_table(), tmp_path / "b.parquet"
    )
    assert list(read_source("parquet", tmp_path).domains) == ["a"]


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


def save_splits(root: Path, **splits: Any) -> None:
    pytest.importorskip("datasets").DatasetDict(splits).save_to_disk(str(root))


def test_saved_splits_of_other_names_are_refused(tmp_path: Path) -> None:
    save_splits(tmp_path, train=saved([1, 2], ["a", "a"]), unsupervised=saved([3], ["a"]))
    with pytest.raises(DataError, match="unsupervised: split 'unsupervised' is none of train, val"):
        read_source("hugging_face", tmp_path)


def test_saved_splits_have_any_name_beside_a_column_of_splits(tmp_path: Path) -> None:
    first, second = (saved([n], ["a"]).add_column("split", [s]) for n, s in ((1, "train"), (2, "")))
    save_splits(tmp_path, part1=first, part2=second)
    listing = read_source("hugging_face", tmp_path)
    assert summary(listing) == {"a": [("part1#0", "ant", "train"), ("part2#0", "zebra", "")]}


def test_saved_splits_that_are_lost_are_named(tmp_path: Path) -> None:
    save_splits(tmp_path, train=saved([1], ["a"]), test=saved([2], ["a"]))
    (tmp_path / "test").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"not found: hugging_face: the split test \(state\.json\)"):
        read_source("hugging_face", tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{")
    with pytest.raises(DataError, match=r"dataset_dict\.json: no list of splits"):
        read_source("hugging_face", tmp_path)


def test_a_data_set_that_is_saved_again_in_its_place_has_another_stamp(tmp_path: Path) -> None:
    saved([1], ["a"]).save_to_disk(str(tmp_path / "set"))
    image = read_source("hugging_face", tmp_path / "set").domains["a"][0].image
    os.utime(tmp_path / "set" / "state.json", (1, 1))
    before, folder = stamp(image, {}), (tmp_path / "set").stat()
    saved([2], ["a"]).save_to_disk(str(tmp_path / "set"))
    os.utime(tmp_path / "set", ns=(folder.st_atime_ns, folder.st_mtime_ns))
    assert stamp(image, {}) != before


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

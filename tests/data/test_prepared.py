"""Prepared data: the file format, reading rows, manifests."""

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

from raysim.data.datasets import Dataset, open_dataset
from raysim.data.images import resize
from raysim.data.places import cache_folder
from raysim.data.prepared import (
    MANIFEST,
    DomainEntry,
    Manifest,
    PreparedFile,
    batch_rows,
    content_hash,
    read_manifest,
    schema,
)
from raysim.data.settings import DataSettings, SplitSettings
from raysim.errors import ConfigError, DataError
from tests.data.preparing.bucket import make_bucket

SIZE, ROWS = 64, 900
CLASSES = ("cat", "dog")


EDITED = r"edited by hand \(its parts do not agree\): prepare it again"


def pixels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (ROWS, 3, SIZE, SIZE), np.uint8)


def write_domain(folder: Path, name: str, images: np.ndarray) -> DomainEntry:
    """Write a file row by row of the format's table, without the code that prepares data."""
    ids = [hashlib.sha256(image.tobytes()).digest()[:16] for image in images]
    labels = np.arange(len(images)) % 2
    path = folder / f"{name}.arrow"
    step = batch_rows(SIZE)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema(SIZE)) as writer:
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            columns = {
                "pixels": [image.tobytes() for image in images[part]],
                "label": labels[part],
                "split": [""] * len(labels[part]),
                "name": [f"{name}/{row}" for row in range(len(images))[part]],
                "pixels_id": ids[part],
            }
            arrays = [pa.array(columns[f.name], f.type) for f in schema(SIZE)]
            writer.write_batch(pa.record_batch(arrays, schema=schema(SIZE)))
    counts = {c: int((labels == k).sum()) for k, c in enumerate(CLASSES)}
    return DomainEntry(
        name=name,
        file=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        num_bytes=path.stat().st_size,
        images=len(images),
        splits={"": len(images)},
        classes=counts,
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prépared data")
    entries = tuple(write_domain(folder, name, pixels()) for name in ("a", "b"))
    manifest = Manifest(
        name="pets",
        size=SIZE,
        classes=CLASSES,
        domains=entries,
        sha256=content_hash("pets", SIZE, CLASSES, entries),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    return folder


def opened(root: str | Path, **more: object) -> Dataset:
    settings = {"name": "pets", "root": str(root), "image_size": SIZE} | more
    return open_dataset(DataSettings.model_validate(settings))


def test_rows_come_back_as_written_in_any_order(prepared: Path) -> None:
    assert 2 * batch_rows(SIZE) < ROWS  # so that rows lie in three batches
    dataset = opened(prepared)
    rows = dataset.rows("b", "train")
    pick = np.array([len(rows) - 1, 0, 5, 400, 5])
    found = dataset.examples("b", "train", pick)
    assert_array_equal(found.images, pixels()[rows[pick]])
    assert_array_equal(found.labels, rows[pick] % 2)
    assert dataset.names("b", "train")[3] == f"b/{rows[3]}"
    assert (dataset.domains, dataset.classes) == (("a", "b"), CLASSES)


def test_a_uri_and_a_path_read_the_same(prepared: Path) -> None:
    by_uri, by_path = opened(f"file://{prepared}"), opened(prepared)
    assert_array_equal(by_uri.examples("a", "test").images, by_path.examples("a", "test").images)


def test_remote_files_are_read_by_the_batch(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = make_bucket(prepared.parent, monkeypatch)
    dataset = opened(f"s3://bucket/{prepared.name}")
    file, batch_bytes = dataset.files[0], batch_rows(SIZE) * 3 * SIZE * SIZE
    whole = (prepared / "a.arrow").stat().st_size
    bucket.bytes_read = 0
    assert_array_equal(file.labels, np.arange(ROWS) % 2)
    assert 8 * ROWS < bucket.bytes_read < batch_bytes / 10
    rows = np.array([ROWS - 1, 3])  # of the last batch, which is shorter, and of the first
    found = np.empty((2, 3, SIZE, SIZE), np.uint8)
    bucket.bytes_read = 0
    file.read_pixels(rows, found)
    assert_array_equal(found, pixels()[rows])
    assert batch_bytes < bucket.bytes_read < whole - 0.9 * batch_bytes
    assert set(bucket.opened) == {f"{prepared.name}/{name}" for name in (MANIFEST, "a.arrow")}


def test_another_size_is_resized(prepared: Path) -> None:
    small = opened(prepared, image_size=16).examples("a", "train", np.arange(300))
    rows = opened(prepared).rows("a", "train")[:300]
    assert_array_equal(small.images[299], resize(pixels()[rows[299]], 16))


def test_random_splits_do_not_need_the_pixels(prepared: Path) -> None:
    split = SplitSettings(kind="holdout", test=0.1, val=0.1)
    dataset = opened(prepared, split=split)
    assert [len(dataset.labels("a", s)) for s in ("train", "val", "test")] == [720, 90, 90]
    assert "pixels" not in dataset.files[0]._open  # type: ignore[attr-defined]


def test_an_open_file_travels_as_its_place(prepared: Path) -> None:
    file = opened(prepared).files[0]
    assert len(file.labels) == ROWS
    again = pickle.loads(pickle.dumps(file))
    assert again == file
    assert_array_equal(again.labels, file.labels)


def test_the_name_and_the_classes_must_be_those_of_the_manifest(prepared: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds pets, not pacs: set data\.name=pets"):
        opened(prepared, name="pacs")
    with pytest.raises(ConfigError, match=r"was prepared with .*cat, dog.*--classes dog"):
        opened(prepared, classes=("dog",))


def test_damage_is_named(prepared: Path, tmp_path: Path) -> None:
    for file in prepared.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / "b.arrow").read_bytes()
    (tmp_path / "b.arrow").write_bytes(whole[:-10])
    with pytest.raises(DataError, match=r"b\.arrow: [\d,]+ bytes, the manifest says"):
        opened(tmp_path)
    (tmp_path / "b.arrow").unlink()
    with pytest.raises(DataError, match=r"b\.arrow: missing"):
        opened(tmp_path)
    (tmp_path / "b.arrow").write_bytes(b"x" * len(whole))
    with pytest.raises(DataError, match=r"b\.arrow: cannot be read"):
        opened(tmp_path).labels("b", "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, this version reads 1"),
        ({"size": "big"}, "size: Input should be a valid integer"),
        ({"extra": 1}, "extra: Extra inputs"),
        ({"size": 0}, "size: Input should be greater than or equal to 1"),
        ({"size": SIZE // 2}, EDITED),
        ({"name": "../pets"}, "name: String should match pattern"),
        ({"name": "cats"}, EDITED),
        ({"classes": []}, "classes: Tuple should have at least 1 item"),
        ({"classes": ["cat", ""]}, r"classes\.1: String should have at least 1 character"),
        ({"classes": ["dog", "cat"]}, EDITED),
        ({"classes": ["cat"]}, EDITED),
        ({"domains": []}, "domains: Tuple should have at least 1 item"),
        ({"source": {"reader": 5}}, r"source\.reader: Input should be a valid string"),
        ({"findings": {"gray": {"count": 1}}}, r"findings\.gray\.policy: Field required"),
        ({"findings": 3}, "findings: Input should be a valid dict"),
    ],
)
def test_a_bad_manifest_is_named(
    prepared: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    tree = json.loads((prepared / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(tree | change))
    with pytest.raises(DataError, match=message):
        opened(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(DataError, match="the manifest cannot be read"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "b"}, EDITED),
        ({"name": "a/b"}, r"domains\.0\.name: String should match pattern"),
        ({"name": ""}, r"domains\.0\.name: String should match pattern"),
        ({"sha256": "0" * 64}, EDITED),
        ({"classes": {"cat": 450}}, EDITED),
    ],
)
def test_a_domain_that_was_edited_is_noticed(
    prepared: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    tree = json.loads((prepared / MANIFEST).read_text())
    tree["domains"][0] |= change
    (tmp_path / MANIFEST).write_text(json.dumps(tree))
    with pytest.raises(DataError, match=message):
        opened(tmp_path)


def test_names_that_are_there_twice_are_noticed_under_the_right_hash(tmp_path: Path) -> None:
    entry = write_domain(tmp_path, "a", pixels()[:3])
    for classes, entries in (((*CLASSES, "cat"), (entry,)), (CLASSES, (entry, entry))):
        manifest = Manifest(
            name="pets",
            size=SIZE,
            classes=classes,
            domains=entries,
            sha256=content_hash("pets", SIZE, classes, entries),
        )
        (tmp_path / MANIFEST).write_text(manifest.model_dump_json())
        with pytest.raises(DataError, match=EDITED):
            opened(tmp_path)


def test_findings_of_a_kind_that_is_not_known_are_left_out(prepared: Path, tmp_path: Path) -> None:
    tree = json.loads((prepared / MANIFEST).read_text())
    found = {"count": 1, "policy": "keep", "meaning": "gray images", "names": ["x"]}
    tree["findings"] = {"of the future": 7, "gray": found}
    (tmp_path / MANIFEST).write_text(json.dumps(tree))
    manifest = read_manifest(str(tmp_path))
    assert manifest is not None
    assert manifest.findings == {"gray": found}


def test_labels_without_a_class_are_refused(prepared: Path) -> None:
    entry = opened(prepared).files[0].entry  # type: ignore[attr-defined]
    fewer = entry.model_copy(update={"classes": {"cat": 450}})
    with pytest.raises(DataError, match=r"a\.arrow: .*label 1, there are 1 classes"):
        _ = PreparedFile(str(prepared), fewer, SIZE).labels


@pytest.mark.parametrize(
    "file",
    ["../a.arrow", "/a.arrow", "x/a.arrow", "x\\a.arrow", ".a.arrow", "a.arrow\n", "a.txt", ""],
)
def test_a_manifest_names_no_file_elsewhere(prepared: Path, tmp_path: Path, file: str) -> None:
    tree = json.loads((prepared / MANIFEST).read_text())
    tree["domains"][0]["file"] = file
    (tmp_path / MANIFEST).write_text(json.dumps(tree))
    with pytest.raises(DataError, match=r"domains\.0\.file: String should match pattern"):
        opened(tmp_path)


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder("data", "x") == Path("/somewhere/raysim/data/x")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/raysim")


def test_what_is_not_prepared_says_how_to_prepare_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="raysim data prepare pacs --root"):
        opened(tmp_path, name="pacs")
    with pytest.raises(DataError, match=r"data\.root: where is pacs"):
        open_dataset(DataSettings(name="pacs"))
    with pytest.raises(DataError, match="cannot be reached"):
        opened("s4://bucket/data")

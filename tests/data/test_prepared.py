"""Prepared data: the file format, reading rows, manifests."""

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

from raysim.data.datasets import Dataset, open_dataset, resize
from raysim.data.prepared import (
    MANIFEST,
    DomainEntry,
    Manifest,
    PreparedFile,
    batch_rows,
    content_hash,
    schema,
)
from raysim.data.settings import DataSettings, SplitSettings
from raysim.errors import ConfigError, DataError

SIZE, ROWS = 64, 900
CLASSES = ("cat", "dog")


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


@pytest.mark.parametrize("scheme", ["file://", ""])
def test_a_uri_and_a_path_read_the_same(prepared: Path, scheme: str) -> None:
    dataset = opened(f"{scheme}{prepared}")
    assert dataset.examples("a", "test").images.sum() == opened(prepared).examples(
        "a", "test"
    ).images.sum(dtype=np.uint64)


def test_remote_files_are_read_batch_by_batch(prepared: Path) -> None:
    """What is no local file system is opened as a stream; it must give the same rows."""
    entry = Manifest.model_validate_json((prepared / MANIFEST).read_text()).domains[0]
    local = PreparedFile(str(prepared), entry, SIZE)
    with pa.OSFile(str(prepared / entry.file)) as stream:
        options = pa.ipc.IpcReadOptions(included_fields=[0])
        remote = PreparedFile("s3://nowhere", entry, SIZE)
        remote._open["pixels"] = pa.ipc.open_file(stream, options=options)
        rows = np.array([ROWS - 1, 3])
        out = np.empty((2, 2, 3, SIZE, SIZE), np.uint8)
        local.read_pixels(rows, out[0])
        remote.read_pixels(rows, out[1])
    assert_array_equal(out[0], out[1])
    assert_array_equal(out[0], pixels()[rows])


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
    with pytest.raises(ConfigError, match="prepared with the classes cat, dog"):
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


def test_what_is_not_prepared_says_how_to_prepare_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="raysim data prepare pacs --root"):
        opened(tmp_path, name="pacs")
    with pytest.raises(DataError, match=r"data\.root: where is pacs"):
        open_dataset(DataSettings(name="pacs"))
    with pytest.raises(DataError, match="cannot be reached"):
        opened("s4://bucket/data")

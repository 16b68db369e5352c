import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raysim.data.datasets import EMBEDDED, Dataset
from raysim.data.datasets import open_dataset as open_settings
from raysim.data.encoded import EncodedFile, class_names
from raysim.data.prepared import MANIFEST, DomainEntry, Manifest, content_hash
from raysim.data.settings import DataSettings
from raysim.data.sources import SOURCES
from raysim.errors import ConfigError, DataError

DOMAINS = ("mnist", "optdigits", "mnist_m", "syn")


def open_dataset(name: str, root: str | None = None, image_size: int = 32) -> Dataset:
    return open_settings(DataSettings(name=name, root=root, image_size=image_size))


def encoded(colour: int, size: int = 8, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (size, size), colour).save(file, "PNG")
    return file.getvalue()


def write_domain(
    folder: Path, domain: str, labels: list[int], names: list[str], image: bytes | None = None
) -> None:
    images = [encoded(value) if image is None else image for value in range(len(labels))]
    splits = ["test" if row % 3 == 0 else "train" for row in range(len(labels))]
    columns = {"image": images, "label": labels, "label_name": names, "split": splits}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{domain}.parquet", row_group_size=2)


def write_all(folder: Path, labels: list[int], names: list[str]) -> None:
    for domain in DOMAINS:
        write_domain(folder, domain, labels, names)


def of_files(folder: Path) -> Dataset:
    files = tuple(EncodedFile(folder / f"{domain}.parquet") for domain in DOMAINS)
    settings = DataSettings(image_size=8)
    return Dataset("toy", files, DOMAINS, class_names(files), "0" * 64, settings)


def test_embedded_data_opens_without_a_root() -> None:
    dataset = open_dataset("digits_mini")
    assert dataset.domains == DOMAINS
    assert dataset.classes == tuple("0123456789")
    assert dataset.mean == dataset.std == (0.5, 0.5, 0.5)
    assert "digits_mini" in EMBEDDED


@pytest.mark.parametrize(("split", "per_class"), [("train", 100), ("test", 40)])
@pytest.mark.parametrize("domain", DOMAINS)
def test_embedded_domains_are_balanced(domain: str, split: str, per_class: int) -> None:
    labels = open_dataset("digits_mini").labels(domain, split)
    assert labels.dtype == np.int64
    assert np.bincount(labels).tolist() == [per_class] * 10


def test_examples_follow_the_order_of_the_indices() -> None:
    dataset = open_dataset("digits_mini")
    everything = dataset.examples("syn", "test")
    some = dataset.examples("syn", "test", np.array([399, 0, 7, 7]))
    np.testing.assert_array_equal(some.images, everything.images[[399, 0, 7, 7]])
    np.testing.assert_array_equal(some.labels, dataset.labels("syn", "test")[[399, 0, 7, 7]])
    assert everything.images.shape == (400, 3, 32, 32)
    assert everything.images.dtype == np.uint8
    assert everything.images.flags.c_contiguous


def test_no_indices_decode_nothing() -> None:
    examples = open_dataset("digits_mini").examples("mnist", "train", np.array([], np.int64))
    assert examples.images.shape == (0, 3, 32, 32)
    assert examples.labels.shape == (0,)


def test_other_sizes_are_resized_bilinearly() -> None:
    rows = np.array([3])
    small = open_dataset("digits_mini").examples("mnist_m", "test", rows).images[0]
    large = open_dataset("digits_mini", image_size=48).examples("mnist_m", "test", rows).images[0]
    expected = Image.fromarray(small.transpose(1, 2, 0).copy())
    expected = expected.resize((48, 48), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(large.transpose(1, 2, 0), np.asarray(expected))


def test_splits_are_positions_among_rows_of_the_split(tmp_path: Path) -> None:
    """Rows 0..6 with values 0..6: test is every third, over row groups of two."""
    write_all(tmp_path, [0, 1, 0, 1, 0, 1, 0], list("abababa"))
    dataset = of_files(tmp_path)
    assert dataset.classes == ("a", "b")
    assert dataset.labels("syn", "test").tolist() == [0, 1, 0]
    images = dataset.examples("syn", "train", np.array([3, 0])).images
    assert images[:, 0, 0, 0].tolist() == [5, 1]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_stored_images_of_any_mode_become_rgb(tmp_path: Path, mode: str) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    write_domain(tmp_path, "syn", [0, 1], ["a", "b"], image=encoded(77, mode=mode))
    image = of_files(tmp_path).examples("syn", "test").images
    with Image.open(io.BytesIO(encoded(77, mode=mode))) as expected:
        np.testing.assert_array_equal(image[0].transpose(1, 2, 0), expected.convert("RGB"))


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'digits_mini'"):
        open_dataset("digit_mini")


def test_a_root_for_what_is_part_of_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"leave data\.root out: digits_mini is part of"):
        open_dataset("digits_mini", str(tmp_path))


def test_a_root_of_raw_files_names_the_command_that_prepares_them(tmp_path: Path) -> None:
    root = tmp_path / "my images"
    root.mkdir()
    settings = DataSettings(name="domainnet", root=str(root), classes="fdse10", image_size=64)
    with pytest.raises(DataError) as caught:
        open_settings(settings)
    words = f"`raysim data prepare domainnet --root '{root}' --out FOLDER --size 64"
    assert f"{words} --classes fdse10`" in str(caught.value)


@pytest.mark.parametrize("name", ["pets", "pacs"])
def test_data_that_has_moved_is_asked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(name, str(tmp_path / "gone"))
    assert f"data.root={tmp_path}/gone: nothing is there; prepared data was" in str(caught.value)
    assert "data.root=FOLDER says where it is now" in str(caught.value)


def test_missing_domain_file_is_named(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    (tmp_path / "syn.parquet").unlink()
    with pytest.raises(DataError, match=r"syn\.parquet"):
        of_files(tmp_path)


def test_domains_must_agree_on_class_names(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    write_domain(tmp_path, "syn", [0, 1], ["b", "a"])
    with pytest.raises(DataError, match="label 0 is 'b' here and 'a' elsewhere"):
        of_files(tmp_path)


def test_labels_must_have_no_gaps(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 2], ["a", "c"])
    with pytest.raises(DataError, match="without gaps"):
        of_files(tmp_path)


def test_missing_column_is_named(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    path = tmp_path / "syn.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["split"]), path)
    with pytest.raises(DataError, match=r"syn\.parquet: no column split"):
        of_files(tmp_path).labels("syn", "train")


def test_broken_image_names_file_and_row(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    write_domain(tmp_path, "syn", [0, 1], ["a", "b"], image=b"no image")
    dataset = of_files(tmp_path)
    with pytest.raises(DataError, match=r"syn\.parquet, row 0: not a readable image"):
        dataset.examples("syn", "train")


@pytest.mark.parametrize("row", [-1, 400])
def test_rows_out_of_range_are_refused(row: int) -> None:
    with pytest.raises(DataError, match="has 400 examples"):
        open_dataset("digits_mini").examples("syn", "test", np.array([row]))


def test_unknown_domain_and_split_are_refused() -> None:
    dataset = open_dataset("digits_mini")
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        dataset.labels("mnits", "train")
    with pytest.raises(DataError, match="did you mean 'train'"):
        dataset.labels("mnist", "trian")


def test_counts_go_by_class_and_domain(tmp_path: Path) -> None:
    """Of seven rows, the first, fourth and seventh test."""
    for domain, labels in zip(DOMAINS, ([0, 1], [0] * 7, [1, 1, 0, 0], [1, 0, 1]), strict=True):
        write_domain(tmp_path, domain, labels, ["ab"[label] for label in labels])
    dataset = of_files(tmp_path)
    assert dataset.counts("train").tolist() == [[0, 4, 1, 1], [1, 0, 1, 1]]
    assert dataset.counts("test").tolist() == [[1, 3, 1, 0], [0, 0, 1, 1]]
    assert dataset.counts("val").tolist() == [[0] * 4] * 2


# ---- data that was prepared for other settings -----------------------------------------------

FDSE10 = SOURCES["domainnet"].subsets["fdse10"]


def prepared(folder: Path, classes: tuple[str, ...], reader: str = "domainnet") -> Path:
    """Write the manifest of a folder with one domain, whose file is empty."""
    counts = dict.fromkeys(classes, 0)
    entry = DomainEntry(
        name="real", images=0, splits={}, classes=counts, file="a.arrow", sha256="0", num_bytes=0
    )
    (folder / "a.arrow").touch()
    manifest = Manifest(
        name="domainnet",
        size=16,
        classes=classes,
        domains=(entry,),
        sha256=content_hash("domainnet", 16, classes, [entry]),
        source={"reader": reader, "root": "/raw images"},
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    return folder


def open_domainnet(root: Path, **more: Any) -> Dataset:
    settings = {"name": "domainnet", "root": str(root), "image_size": 16} | more
    return open_settings(DataSettings.model_validate(settings))


@pytest.mark.parametrize("reader", ["domainnet", "parquet"])
def test_the_name_of_a_subset_stands_for_its_classes(tmp_path: Path, reader: str) -> None:
    root = prepared(tmp_path, FDSE10, reader)
    for classes in ("fdse10", FDSE10, None):
        assert open_domainnet(root, classes=classes).classes == FDSE10


def test_other_classes_than_were_prepared_are_refused(tmp_path: Path) -> None:
    root = prepared(tmp_path, (*FDSE10, "dragon"), "parquet")
    again = "raysim data prepare parquet --root '/raw images' --out FOLDER --size 16"
    for classes, words in (("fdse10", "fdse10"), (["bird", "tiger"], "bird,tiger")):
        with pytest.raises(ConfigError) as caught:
            open_domainnet(root, classes=classes)
        assert "was prepared with 11 classes (" in str(caught.value)
        assert f"`{again} --name domainnet --classes {words}`" in str(caught.value)


def test_classes_in_another_order_are_other_labels(tmp_path: Path) -> None:
    root = prepared(tmp_path, ("a", "b"))
    with pytest.raises(ConfigError, match=r"with 2 classes \(a, b\), not with 2 classes \(b, a\)"):
        open_domainnet(root, classes=["b", "a"])


@pytest.mark.parametrize(("word", "hint"), [("fdse1", "did you mean 'fdse10'"), ("zzz", "known:")])
def test_a_subset_that_is_not_there_is_refused(tmp_path: Path, word: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"domainnet has no subset '{word}'; {hint}"):
        open_domainnet(prepared(tmp_path, FDSE10), classes=word)


def test_prepared_images_are_not_enlarged(tmp_path: Path) -> None:
    root = prepared(tmp_path, FDSE10)
    assert open_domainnet(root, image_size=8).image_size == 8
    with pytest.raises(ConfigError) as caught:
        open_domainnet(root, image_size=17)
    assert f"data.image_size=17: {root} was prepared at 16 px" in str(caught.value)
    assert "--out FOLDER --size 17`" in str(caught.value)

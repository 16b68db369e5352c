import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raysim.data.contact_sheet import draw
from raysim.data.datasets import EMBEDDED, Dataset
from raysim.data.datasets import open_dataset as open_settings
from raysim.data.settings import DataSettings
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


def write_all(root: Path, labels: list[int], names: list[str]) -> None:
    for domain in DOMAINS:
        write_domain(root / "digits_mini", domain, labels, names)


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
    dataset = open_dataset("digits_mini", str(tmp_path), image_size=8)
    assert dataset.classes == ("a", "b")
    assert dataset.labels("syn", "test").tolist() == [0, 1, 0]
    images = dataset.examples("syn", "train", np.array([3, 0])).images
    assert images[:, 0, 0, 0].tolist() == [5, 1]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_stored_images_of_any_mode_become_rgb(tmp_path: Path, mode: str) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    write_domain(tmp_path / "digits_mini", "syn", [0, 1], ["a", "b"], image=encoded(77, mode=mode))
    image = open_dataset("digits_mini", str(tmp_path), image_size=8).examples("syn", "test").images
    with Image.open(io.BytesIO(encoded(77, mode=mode))) as expected:
        np.testing.assert_array_equal(image[0].transpose(1, 2, 0), expected.convert("RGB"))


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'digits_mini'"):
        open_dataset("digit_mini")


def test_root_without_the_data_says_that_it_is_embedded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"leave data\.root out"):
        open_dataset("digits_mini", str(tmp_path))


def test_missing_domain_file_is_named(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    (tmp_path / "digits_mini" / "syn.parquet").unlink()
    with pytest.raises(DataError, match=r"syn\.parquet"):
        open_dataset("digits_mini", str(tmp_path))


def test_domains_must_agree_on_class_names(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    write_domain(tmp_path / "digits_mini", "syn", [0, 1], ["b", "a"])
    with pytest.raises(DataError, match="label 0 is 'b' here and 'a' elsewhere"):
        open_dataset("digits_mini", str(tmp_path))


def test_labels_must_have_no_gaps(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 2], ["a", "c"])
    with pytest.raises(DataError, match="without gaps"):
        open_dataset("digits_mini", str(tmp_path))


def test_missing_column_is_named(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    path = tmp_path / "digits_mini" / "syn.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["split"]), path)
    with pytest.raises(DataError, match=r"syn\.parquet: no column split"):
        open_dataset("digits_mini", str(tmp_path)).labels("syn", "train")


def test_broken_image_names_file_and_row(tmp_path: Path) -> None:
    write_all(tmp_path, [0, 1], ["a", "b"])
    write_domain(tmp_path / "digits_mini", "syn", [0, 1], ["a", "b"], image=b"no image")
    dataset = open_dataset("digits_mini", str(tmp_path))
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


def test_contact_sheet_shows_every_domain(tmp_path: Path) -> None:
    """Each class's colour is found on the sheet, and more examples make it wider."""
    write_all(tmp_path, [0, 1, 0, 1, 0, 1], list("ababab"))
    dataset = open_dataset("digits_mini", str(tmp_path), image_size=8)
    draw(dataset, tmp_path / "one.png", per_class=1)
    draw(dataset, tmp_path / "two.png", per_class=2)
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "two.png") as two:
        assert one.format == "PNG"
        assert two.width == one.width + 2 * 66  # two blocks, a tile of 64 and its gap each
        colours = set(map(tuple, np.asarray(two).reshape(-1, 3).tolist()))
    assert {(1, 0, 0), (2, 0, 0), (4, 0, 0), (5, 0, 0)} <= colours
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits_mini", "one.png", "two.png"]


def test_contact_sheet_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    dataset = open_dataset("digits_mini")
    with pytest.raises(DataError, match="cannot write"):
        draw(dataset, tmp_path / "missing" / "sheet.png", per_class=1)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(DataError, match="cannot write"):
        draw(dataset, tmp_path / "folder.png", per_class=1)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]

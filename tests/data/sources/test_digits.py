import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from numpy.typing import NDArray

from raysim.data.findings import resolve_policies
from raysim.data.sources import read_source
from raysim.errors import DataError
from tests.data.sources.layouts import pixels, summary, write_image, write_text, write_tree

Pixels = NDArray[np.uint8]


def noise(*shape: int) -> Pixels:
    return (np.arange(np.prod(shape)) * 7919 % 251).astype(np.uint8).reshape(shape)


def write_idx(path: Path, array: Pixels, pack: Callable[[bytes], bytes] = bytes) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(header + array.tobytes()))


def write_mnist(folder: Path) -> None:
    write_idx(folder / "train-images-idx3-ubyte", noise(3, 28, 28))
    write_idx(folder / "train-labels-idx1-ubyte", np.array([5, 0, 9], np.uint8))
    write_idx(folder / "t10k-images-idx3-ubyte.gz", noise(2, 28, 28), gzip.compress)
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", np.array([7, 1], np.uint8), gzip.compress)


def write_mat(folder: Path, prefix: str, labels: dict[str, list[int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, column in labels.items():
        images = np.moveaxis(noise(len(column), 32, 32, 3), 0, -1)
        variables = {"X": images, "y": np.array(column, np.uint8)[:, None]}
        name = f"{prefix}{split}_32x32.mat"
        scipy.io.savemat(folder / name, variables, do_compression=True)


def usps_line(label: int, values: NDArray[np.float64]) -> str:
    cells = (f"{column}:{value:g}" for column, value in enumerate(values, start=1))
    return " ".join([str(label), *cells])


def write_usps(folder: Path) -> NDArray[np.float64]:
    values = np.linspace(-1, 1, 256)
    folder.mkdir(parents=True, exist_ok=True)
    text = f"{usps_line(10, values)} \n{usps_line(1, values[::-1])} \n"
    (folder / "usps.bz2").write_bytes(bz2.compress(text.encode()))
    (folder / "usps.t.bz2").write_bytes(bz2.compress(b"4 1:1 256:-1 \n"))
    return values


@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist/MNIST/raw", "mnist", "mnist/raw", ""])
def test_mnist_is_read_from_its_four_files(tmp_path: Path, folder: str) -> None:
    write_mnist(tmp_path / folder)
    listing = read_source("digits", tmp_path)
    prefix = f"{folder}/" if folder else ""
    assert summary(listing) == {
        "mnist": [
            (f"{prefix}train-images-idx3-ubyte#0", "5", "train"),
            (f"{prefix}train-images-idx3-ubyte#1", "0", "train"),
            (f"{prefix}train-images-idx3-ubyte#2", "9", "train"),
            (f"{prefix}t10k-images-idx3-ubyte.gz#0", "7", "test"),
            (f"{prefix}t10k-images-idx3-ubyte.gz#1", "1", "test"),
        ]
    }
    assert listing.classes == tuple("0123456789")
    expected = [*noise(3, 28, 28), *noise(2, 28, 28)]
    np.testing.assert_array_equal(pixels(listing, "mnist"), expected)


def test_usps_is_scaled_and_labelled_as_torchvision_does(tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    write_usps(tmp_path)
    listing = read_source("digits", tmp_path)
    assert summary(listing) == {
        "usps": [
            ("usps.bz2#0", "9", "train"),
            ("usps.bz2#1", "0", "train"),
            ("usps.t.bz2#0", "3", "test"),
        ]
    }
    theirs = datasets.USPS(str(tmp_path), train=True)
    np.testing.assert_array_equal(pixels(listing, "usps")[:2], theirs.data)
    assert [int(r.class_name) for r in listing.domains["usps"][:2]] == theirs.targets
    sparse = pixels(listing, "usps")[2]
    assert (sparse[0, 0], sparse[0, 1], sparse[15, 15]) == (255, 127, 0)


def test_svhn_images_are_rows_and_label_10_is_zero(tmp_path: Path) -> None:
    write_mat(tmp_path / "SVHN", "", {"train": [10, 1, 9], "test": [2, 10]})
    listing = read_source("digits", tmp_path)
    assert summary(listing) == {
        "svhn": [
            ("SVHN/train_32x32.mat#0", "0", "train"),
            ("SVHN/train_32x32.mat#1", "1", "train"),
            ("SVHN/train_32x32.mat#2", "9", "train"),
            ("SVHN/test_32x32.mat#0", "2", "test"),
            ("SVHN/test_32x32.mat#1", "0", "test"),
        ]
    }
    found = pixels(listing, "svhn")
    np.testing.assert_array_equal(found, [*noise(3, 32, 32, 3), *noise(2, 32, 32, 3)])
    assert found[0].dtype == np.uint8


def test_syn_is_read_beside_svhn(tmp_path: Path) -> None:
    write_mat(tmp_path, "", {"train": [1, 2], "test": [3, 4]})
    write_mat(tmp_path, "synth_", {"train": [0, 5], "test": [6, 7]})
    listing = read_source("digits", tmp_path)
    assert {d: [r.class_name for r in records] for d, records in listing.domains.items()} == {
        "svhn": ["1", "2", "3", "4"],
        "syn": ["0", "5", "6", "7"],
    }


def test_mnist_m_is_read_by_its_lists(tmp_path: Path) -> None:
    root = tmp_path / "mnist_m"
    write_tree(root, ["mnist_m_train/00000000.png", "mnist_m_train/00000001.png"])
    write_tree(root, ["mnist_m_train/unlisted.png", "mnist_m_test/00000000.png"])
    lines = ["00000000.png 5", "00000001.png 0", "00000002.png 3"]
    write_text(root / "mnist_m_train_labels.txt", lines)
    write_text(root / "mnist_m_test_labels.txt", ["00000000.png 7"])
    listing = read_source("digits", tmp_path)
    assert summary(listing) == {
        "mnist_m": [
            ("mnist_m/mnist_m_train/00000000.png", "5", "train"),
            ("mnist_m/mnist_m_train/00000001.png", "0", "train"),
            ("mnist_m/mnist_m_test/00000000.png", "7", "test"),
        ]
    }
    assert listing.findings.counts == {"missing_file": 1, "other_file": 1}
    expected = (root / "mnist_m_test" / "00000000.png").read_bytes()
    assert listing.domains["mnist_m"][2].image.read() == expected


@pytest.mark.parametrize("name", ["SYN", "MNIST-M", "usps", "synth_digits"])
def test_digit_folders_are_domains(tmp_path: Path, name: str) -> None:
    write_tree(tmp_path / name, ["train/3/b.png", "train/3/a.png", "test/0/a.png"])
    write_image(tmp_path / "something_else" / "1.png")
    listing = read_source("digits", tmp_path)
    domain = {"SYN": "syn", "MNIST-M": "mnist_m", "synth_digits": "syn"}.get(name, name)
    assert summary(listing) == {
        domain: [
            (f"{name}/test/0/a.png", "0", "test"),
            (f"{name}/train/3/a.png", "3", "train"),
            (f"{name}/train/3/b.png", "3", "train"),
        ]
    }


def test_digit_folders_may_have_no_splits_and_other_folders_are_findings(tmp_path: Path) -> None:
    write_tree(tmp_path, ["mnist/0/a.png", "mnist/9/a.png", "mnist/ten/a.png"])
    listing = read_source("digits", tmp_path)
    classes = [("mnist/0/a.png", "0", ""), ("mnist/9/a.png", "9", "")]
    assert summary(listing) == {"mnist": classes}
    assert listing.findings.names == {"other_file": ["mnist/ten (not one of the classes)"]}


def test_domains_have_the_papers_order_and_classes_can_be_chosen(tmp_path: Path) -> None:
    write_mat(tmp_path, "synth_", {"train": [0, 1], "test": [1, 2]})
    write_usps(tmp_path)
    write_mnist(tmp_path / "MNIST" / "raw")
    listing = read_source("digits", tmp_path, ["1", "0"])
    assert list(listing.domains) == ["mnist", "usps", "syn"]
    assert listing.classes == ("1", "0")
    assert [record.class_name for record in listing.domains["mnist"]] == ["0", "1"]


@pytest.mark.parametrize(
    ("gone", "source"),
    [
        ("MNIST/raw/t10k-labels-idx1-ubyte.gz", "http://yann.lecun.com"),
        ("usps.t.bz2", "https://www.csie.ntu.edu.tw"),
        ("train_32x32.mat", "http://ufldl.stanford.edu"),
        ("synth_test_32x32.mat", "http://yaroslav.ganin.net"),
        ("syn/train", "http://yaroslav.ganin.net"),
    ],
)
def test_a_part_that_is_missing_is_named_with_place_and_origin(
    tmp_path: Path, gone: str, source: str
) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    write_usps(tmp_path)
    for prefix in ("", "synth_"):
        write_mat(tmp_path, prefix, {"train": [1, 2], "test": [3, 4]})
    lost = tmp_path / gone
    if gone == "syn/train":
        for split in ("train", "test"):
            (tmp_path / f"synth_{split}_32x32.mat").unlink()
        write_image(tmp_path / "syn" / "test" / "1" / "1.png")
    else:
        lost.unlink()
    with pytest.raises(DataError) as caught:
        read_source("digits", tmp_path)
    message = str(caught.value)
    assert lost.name.removesuffix(".gz") in message
    assert f"Looked in {lost.parent}. " in message
    assert source in message


def test_a_domain_folder_with_nothing_of_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "MNIST").mkdir()
    with pytest.raises(DataError, match=r"mnist: train-images-idx3-ubyte, or class folders 0 to 9"):
        read_source("digits", tmp_path)


def test_files_that_are_broken_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"<html>not found</html>")
    with pytest.raises(
        DataError, match=r"train-labels-idx1-ubyte: .*not an IDX file.*get the file"
    ):
        read_source("digits", tmp_path)


@pytest.mark.parametrize("name", ["usps.bz2", "train_32x32.mat", "t10k-labels-idx1-ubyte.gz"])
@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", "half"])
def test_containers_cut_short_are_named(tmp_path: Path, name: str, content: bytes | str) -> None:
    write_mnist(tmp_path)
    write_usps(tmp_path)
    write_mat(tmp_path, "", {"train": [1, 2], "test": [3, 4]})
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with pytest.raises(DataError, match=f"{name}: "):
        read_source("digits", tmp_path)


def test_images_cut_short_are_found_when_read(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    whole = (tmp_path / "train-images-idx3-ubyte").read_bytes()
    (tmp_path / "train-images-idx3-ubyte").write_bytes(whole[:-1])
    record = read_source("digits", tmp_path).domains["mnist"][0]
    with pytest.raises(OSError, match="train-images-idx3-ubyte"):
        record.image.read()


def test_counts_and_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.array([5, 0], np.uint8))
    with pytest.raises(DataError, match="not as many images as train-labels-idx1-ubyte has labels"):
        read_source("digits", tmp_path)
    write_mat(tmp_path / "svhn", "", {"train": [1, 11], "test": [3, 4]})
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    for path in tmp_path.glob("t*"):
        path.unlink()
    with pytest.raises(DataError, match=r"svhn/train_32x32\.mat: the label of row 1 is no digit"):
        read_source("digits", tmp_path)


def test_a_container_outside_the_root_is_a_finding(tmp_path: Path) -> None:
    write_mat(tmp_path / "elsewhere", "", {"train": [1, 2], "test": [3, 4]})
    root = tmp_path / "root"
    root.mkdir()
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (root / name).symlink_to(tmp_path / "elsewhere" / name)
    policies = resolve_policies({"outside_root": "keep"})
    listing = read_source("digits", root, policies=policies)
    assert len(listing.domains["svhn"]) == 4
    assert listing.findings.counts == {"outside_root": 2}
    with pytest.raises(DataError, match=r"train_32x32\.mat.*policy.*outside_root=keep"):
        read_source("digits", root)

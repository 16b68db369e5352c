import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from raysim.data.findings import KINDS
from raysim.data.images import resize
from raysim.data.preparing.decoding import Decoded, Refused, decode
from tests.data.preparing.hostile import (
    bomb_by_size,
    bomb_by_text,
    encoded,
    image_files,
    picture,
    png,
    turned,
)

LOST = {
    "empty.jpg": "empty_file",
    "packed.jpg": "archive",
    "page.png": "archive",
    "text.jpg": "unreadable",
    "cut.jpg": "truncated",
    "cut.png": "truncated",
    "bomb.png": "bomb",
    "textbomb.png": "bomb",
}
KEPT = {
    "really_a_png.jpg": {"wrong_extension"},
    "gray.png": {"gray"},
    "palette.gif": {"palette"},
    "glass.png": {"alpha"},
    "print.jpg": {"cmyk"},
    "deep.png": {"gray", "deep"},
    "turned.jpg": {"rotated"},
    "Zo\u00eb 1.png": set(),
}


def decoded(content: bytes | np.ndarray, name: str = "a.png", size: int = 8) -> Decoded:
    result = decode(content, name, size)
    assert isinstance(result, Decoded), result
    return result


def refused(content: bytes, name: str = "a.png") -> Refused:
    result = decode(content, name, 8)
    assert isinstance(result, Refused)
    return result


def full_pixels(content: bytes | np.ndarray, name: str, side: int) -> np.ndarray:
    """Decode a square image at its own size; returns [H, W, 3]."""
    return decoded(content, name, side).pixels.transpose(1, 2, 0)


def test_every_faulty_file_has_its_finding() -> None:
    files = image_files()
    assert {*LOST, *KEPT} == set(files)
    for name, content in files.items():
        result = decode(content, name, 8)
        if isinstance(result, Refused):
            assert result.kind == LOST[name], (name, result)
        else:
            assert set(result.kinds) == KEPT[name], name
            assert result.pixels.shape == (3, 8, 8)
            assert result.pixels.dtype == np.uint8


def test_a_plain_image_is_resized_as_data_sets_resize() -> None:
    image = picture(0, 40, 30)
    pixels = np.asarray(image).transpose(2, 0, 1)
    result = decoded(encoded(image), size=12)
    np.testing.assert_array_equal(result.pixels, resize(pixels, 12))
    assert dict(result.kinds) == {}
    np.testing.assert_array_equal(full_pixels(encoded(picture(0, 9, 9)), "a", 9), picture(0, 9, 9))


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        ("JPEG", "a.JPG", set()),
        ("JPEG", "a.jpeg", set()),
        ("JPEG", "a.jfif", set()),
        ("TIFF", "a.tif", set()),
        ("TIFF", "a.tiff", set()),
        ("PPM", "a.ppm", set()),
        ("PNG", "file.parquet#7", set()),
        ("JPEG", "a.png", {"wrong_extension"}),
        ("WEBP", "a.jpg", {"wrong_extension"}),
        ("BMP", "a.bmp", set()),
    ],
)
def test_extensions_are_compared_with_the_content(kind: str, name: str, found: set[str]) -> None:
    assert set(decoded(encoded(picture(0), kind), name).kinds) == found


def test_gray_of_16_bits_is_scaled_not_clipped() -> None:
    deep = np.array([[0, 255, 256], [0x1234, 0x8000, 0xFFFF], [1, 2, 0xFEFF]], np.uint16)
    expected = np.repeat((deep >> 8)[..., None], 3, axis=2)
    for kind, name in (("PNG", "a.png"), ("TIFF", "a.tif"), ("PPM", "a.pgm")):
        content = encoded(Image.fromarray(deep), kind)
        np.testing.assert_array_equal(full_pixels(content, name, 3), expected, kind)
    np.testing.assert_array_equal(full_pixels(deep, "a", 3), expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 2**23], [2**30, 2**31 - 1]], np.int32), [[0, 1], [128, 255]]),
        (np.array([[-1.0, 0.5], [1.0, np.nan]], np.float32), [[0, 128], [255, 0]]),
    ],
)
def test_gray_of_32_bits_is_scaled_by_its_type(
    values: np.ndarray, expected: list[list[int]]
) -> None:
    pixels = full_pixels(encoded(Image.fromarray(values), "TIFF"), "a.tif", 2)
    assert pixels[..., 0].tolist() == expected


def test_color_of_16_bits_keeps_the_high_bytes_and_is_counted() -> None:
    result = decoded(png(1, 1, 16, 2, b"\x00" + bytes([1, 255, 128, 0, 254, 7])), size=1)
    assert result.pixels.ravel().tolist() == [1, 128, 254]
    assert set(result.kinds) == {"deep"}


def test_transparency_is_laid_on_black() -> None:
    clear = Image.new("RGBA", (2, 2), (200, 100, 50, 0))
    half = Image.new("RGBA", (2, 2), (200, 100, 50, 128))
    solid = Image.new("RGBA", (2, 2), (200, 100, 50, 255))
    found = [full_pixels(encoded(image), "a.png", 2)[0, 0].tolist() for image in (clear, half)]
    assert found == [[0, 0, 0], [100, 50, 25]]
    assert full_pixels(encoded(solid), "a.png", 2)[0, 0].tolist() == [200, 100, 50]


def test_a_transparent_color_of_a_palette_is_black() -> None:
    image = Image.new("P", (2, 2), 1)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((0, 0), 0)
    result = decoded(encoded(image, transparency=1), size=2)
    assert set(result.kinds) == {"palette", "alpha"}
    pixels = result.pixels.transpose(1, 2, 0)
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert pixels[1, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_images_are_turned_upright(orientation: int, kind: str) -> None:
    upright = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20
    # How a camera stores the upright image under each orientation, from the EXIF standard.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored))
    result = decoded(encoded(image, kind, exif=exif), f"a.{kind.lower()}", 2)
    np.testing.assert_array_equal(result.pixels.transpose(1, 2, 0), upright)
    assert ("rotated" in result.kinds) == (orientation != 1)


def test_malformed_exif_does_not_lose_the_image() -> None:
    content = encoded(picture(0), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff" + b"\xff" * 9)
    assert dict(decoded(content, "a.jpg").kinds) == {}


def test_only_the_first_frame_of_an_animation_counts() -> None:
    first, second = (Image.new("RGB", (4, 4), color) for color in ("red", "blue"))
    content = encoded(first, "GIF", save_all=True, append_images=[second])
    assert full_pixels(content, "a.gif", 4)[0, 0].tolist() == [255, 0, 0]


def test_the_id_is_of_the_upright_rgb_pixels() -> None:
    image = picture(0, 16, 16)
    same = [
        decoded(encoded(image)).pixels_id,
        decoded(encoded(image, "BMP"), "a.bmp").pixels_id,
        decoded(encoded(image), size=4).pixels_id,
        decoded(np.asarray(image)).pixels_id,
    ]
    assert len(set(same)) == 1
    assert len(same[0]) == 16
    other = np.asarray(image).copy()
    other[15, 15, 2] ^= 1
    assert decoded(other).pixels_id != same[0]
    flat = np.zeros((4, 9, 3), np.uint8)
    assert decoded(flat).pixels_id != decoded(flat.reshape(9, 4, 3)).pixels_id


def test_arrays_may_be_gray_or_colored() -> None:
    gray = np.arange(9, dtype=np.uint8).reshape(3, 3)
    expected = np.repeat(gray[..., None], 3, axis=2)
    for values in (gray, gray[..., None]):
        np.testing.assert_array_equal(full_pixels(values, "a", 3), expected)
        assert set(decoded(values).kinds) == {"gray"}
    assert set(decoded(expected).kinds) == set()
    assert set(decoded(gray.astype(np.uint16)).kinds) == {"gray", "deep"}


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((2, 2, 4), np.uint8),
        np.zeros((3, 3), np.float32),
        np.zeros((0, 3), np.uint8),
        np.zeros(3, np.uint8),
    ],
)
def test_other_arrays_are_refused(values: np.ndarray) -> None:
    result = decode(values, "a", 8)
    assert isinstance(result, Refused)
    assert result.kind == "unreadable"
    assert str(list(values.shape)) in result.detail


def test_bombs_are_refused_by_their_header() -> None:
    assert refused(bomb_by_size()) == Refused("bomb", "12,000 x 12,000")
    assert refused(png(60_000, 60_000, 8, 2, b"\x00")).kind == "bomb"
    assert refused(bomb_by_text()).kind == "bomb"


def test_a_cut_webp_is_truncated() -> None:
    content = encoded(picture(0, 64, 64), "WEBP")
    assert refused(content[: len(content) // 2], "a.webp").kind == "truncated"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x1f\x8b\x08rest", "gzip"),
        (b"7z\xbc\xaf\x27\x1crest", "7z"),
        (b"Rar!\x1a\x07rest", "rar"),
        (b"%PDF-1.7", "pdf"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "postscript"),
        (b'\xef\xbb\xbf<?xml version="1.0"?><svg/>', "xml"),
        (bytes(257) + b"ustar\x0000", "tar"),
    ],
)
def test_documents_are_told_from_images(content: bytes, what: str) -> None:
    assert refused(content, "a.jpg") == Refused("archive", what)


def _seeds() -> list[bytes]:
    image = picture(0, 12, 12)
    exif = turned(6, image)
    kinds = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
    return [exif, *(encoded(image, kind) for kind in kinds), encoded(image.convert("P"))]


SEEDS = _seeds()


@given(data=st.data())
@settings(max_examples=400)
def test_damaged_files_never_raise(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    result = decode(bytes(content), "a.png", 8)
    if isinstance(result, Refused):
        assert result.kind in KINDS
        assert "skip" in KINDS[result.kind].allowed
        assert "0x" not in result.detail
    else:
        assert result.pixels.shape == (3, 8, 8)
        assert set(result.kinds) <= set(KINDS)
    assert decode(bytes(content), "a.png", 8).__class__ is result.__class__


def test_every_cut_of_a_file_is_refused_or_whole() -> None:
    image = picture(0, 6, 6)
    content = encoded(image)
    for length in range(len(content)):
        result = decode(content[:length], "a.png", 6)
        if isinstance(result, Decoded):  # only what follows the pixels is missing
            np.testing.assert_array_equal(result.pixels.transpose(1, 2, 0), np.asarray(image))
    assert isinstance(decode(content, "a.png", 6), Decoded)


def test_eps_is_never_run() -> None:
    file = io.BytesIO()
    picture(0).save(file, "EPS")
    assert refused(file.getvalue()).kind == "archive"
    hidden = b"\xc5\xd0\xd3\xc6" + bytes(28) + file.getvalue()  # the header that DOS puts before
    assert refused(hidden).kind == "unreadable"

"""Decoding one image to the pixels that are stored; whatever is wrong with it becomes a finding.

Shape suffixes: H height, W width.
"""

import hashlib
import io
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from raysim.data.images import resize
from raysim.data.prepared import ID_BYTES

MAX_PIXELS = 2**26
"""Pixels that are safe to decode: 67 million take 200 MB."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What Pillow may read: rasters only. Others run programs (EPS) or hold no pixels of their own."""
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
_FORMAT_OF = {suffix: name for name, suffixes in _SUFFIXES.items() for suffix in suffixes}
_DOCUMENTS: Mapping[bytes, str] = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x1f\x8b": "gzip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"%PDF-": "pdf",
    b"%!PS": "postscript",
    b"<!doctype": "html",
    b"<html": "html",
    b"<?xml": "xml",
    b"<svg": "svg",
}
_GRAY = frozenset(("1", "L", "LA", "La", "I", "F"))
_ORIENTATION = 0x0112
_Turn = Image.Transpose
_UPRIGHT: Mapping[int, Image.Transpose] = {
    2: _Turn.FLIP_LEFT_RIGHT,
    3: _Turn.ROTATE_180,
    4: _Turn.FLIP_TOP_BOTTOM,
    5: _Turn.TRANSPOSE,
    6: _Turn.ROTATE_270,
    7: _Turn.TRANSVERSE,
    8: _Turn.ROTATE_90,
}
_Pixels = NDArray[np.uint8]
_Kinds = dict[str, str]


@dataclass(frozen=True)
class Decoded:
    """An image that can be stored.

    Attributes:
        pixels: uint8 [3, size, size], RGB.
        pixels_id: `ID_BYTES` bytes, equal for equal upright RGB images before resizing.
        kinds: what was converted or corrected on the way: details by kind of finding.
    """

    pixels: _Pixels
    pixels_id: bytes
    kinds: Mapping[str, str]


@dataclass(frozen=True)
class Refused:
    """An image that cannot be had.

    Attributes:
        kind: one of the kinds of finding that lose the image.
        detail: what was found, in a few words.
    """

    kind: str
    detail: str = ""


def decode(content: bytes | NDArray[np.generic], name: str, size: int) -> Decoded | Refused:
    """Decode one image, turn it upright, make it RGB of 8 bits and bring it to a size.

    Transparent images are laid on black. Deep ones are scaled by the range of their type, not by
    what they hold: whole numbers to their highest value, floating-point numbers to 1. Of an
    animation the first frame counts.

    Args:
        content: an encoded file, or pixels [H, W], [H, W, 1] or [H, W, 3], uint8 or uint16.
        name: the file's name, for its extension.
        size: height and width of the result.
    """
    read = _of_array(content) if isinstance(content, np.ndarray) else _of_file(content, name)
    if isinstance(read, Refused):
        return read
    rgb, kinds = read
    sha = hashlib.sha256(np.array(rgb.shape, "<i8").tobytes())
    sha.update(rgb.data)
    return Decoded(resize(rgb.transpose(2, 0, 1), size), sha.digest()[:ID_BYTES], kinds)


def _of_array(values: NDArray[np.generic]) -> tuple[_Pixels, _Kinds] | Refused:
    """Return pixels [H, W, 3] of an array."""
    shape, dtype = values.shape, values.dtype
    fits = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    if not fits or not values.size or dtype not in (np.uint8, np.uint16):
        return Refused("unreadable", f"an array {dtype} {list(shape)}")
    kinds: _Kinds = {}
    pixels = values.astype(np.uint16)
    if dtype == np.uint16:
        kinds["deep"] = "uint16"
        pixels >>= 8
    if len(shape) == 2 or shape[2] == 1:
        kinds["gray"] = ""
        pixels = np.repeat(pixels.reshape(*shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(pixels, np.uint8), kinds


def _of_file(content: bytes, name: str) -> tuple[_Pixels, _Kinds] | Refused:
    """Return pixels [H, W, 3] of an encoded file."""
    if not content:
        return Refused("empty_file")
    document = _document(content)
    if document:
        return Refused("archive", document)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is a finding
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    return Refused("bomb", f"{image.width:,} x {image.height:,}")
                return _read(image, name)
    except Exception as error:  # damaged files raise almost anything: OSError, struct.error, ...
        return _refusal(error, content)


def _document(content: bytes) -> str:
    """Return what a file is that is no image at all, or ""."""
    start = content[:64].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for magic, what in _DOCUMENTS.items():
        if content.startswith(magic) or (magic[:1] == b"<" and start.startswith(magic)):
            return what
    return "tar" if content[257:262] == b"ustar" else ""


def _refusal(error: Exception, content: bytes) -> Refused:
    """Return the finding that an error of Pillow's is."""
    text = str(error)
    if isinstance(error, UnidentifiedImageError):
        return Refused("unreadable", "no image format that is known here")
    if isinstance(error, Image.DecompressionBombError) or "MAX_TEXT" in text:
        return Refused("bomb", text)
    # WebP's decoder does not say why it fails; the header holds the length after itself.
    is_cut = content[:4] == b"RIFF" and len(content) < 8 + int.from_bytes(content[4:8], "little")
    if is_cut or "truncated" in text.lower():
        return Refused("truncated", text)
    # Reports repeat byte for byte, so an object's address is no detail.
    return Refused("unreadable", type(error).__name__ if "0x" in text or not text else text)


def _read(image: Image.Image, name: str) -> tuple[_Pixels, _Kinds]:
    raw = _raw_mode(image)  # loading forgets it
    orientation = _orientation(image)
    image.load()
    kinds = _kinds(image, raw, name)
    if orientation in _UPRIGHT:
        kinds["rotated"] = f"orientation {orientation}"
        # Pillow turns TIFF itself. `ImageOps.exif_transpose` also rewrites the EXIF data, which
        # fails where a camera left it malformed.
        if image.format != "TIFF":
            image = image.transpose(_UPRIGHT[orientation])
    return np.ascontiguousarray(_to_rgb(image, raw)), kinds


def _raw_mode(image: Image.Image) -> str:
    """Return how the file stores pixels, as Pillow writes it: "RGB;16B" and the like."""
    tiles = getattr(image, "tile", ())
    return " ".join(str(tile[3]) for tile in tiles[:1])


def _orientation(image: Image.Image) -> int:
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # malformed EXIF data say nothing, and the pixels may be fine
        return 1
    return found if isinstance(found, int) else 1


def _kinds(image: Image.Image, raw: str, name: str) -> _Kinds:
    kinds: _Kinds = {}
    found = "JPEG" if image.format == "MPO" else str(image.format)
    if _FORMAT_OF.get(PurePosixPath(name).suffix.lower(), found) != found:
        kinds["wrong_extension"] = found
    deep = _is_deep(image.mode) or re.search(r";16[BLN]", raw) is not None
    present = {
        "gray": image.mode in _GRAY or image.mode.startswith("I;"),
        "palette": image.mode in ("P", "PA"),
        "alpha": _is_transparent(image),
        "cmyk": image.mode == "CMYK",
        "deep": deep,
    }
    return kinds | {kind: "" for kind, holds in present.items() if holds}


def _is_deep(mode: str) -> bool:
    return mode in ("I", "F") or mode.startswith("I;")


def _is_transparent(image: Image.Image) -> bool:
    return image.has_transparency_data and not _is_deep(image.mode)


def _to_rgb(image: Image.Image, raw: str) -> _Pixels:
    """Return pixels [H, W, 3]."""
    if _is_deep(image.mode):
        gray = _eight_bits(np.asarray(image), raw, image.format == "PPM")
        return np.repeat(gray[..., None], 3, axis=2)
    if _is_transparent(image):
        front = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", front.size, (0, 0, 0, 255)), front)
    return np.asarray(image.convert("RGB"), np.uint8)


def _eight_bits(values: NDArray[np.generic], raw: str, is_ppm: bool) -> _Pixels:
    """Scale [H, W] of 16 or 32 bits to 8; `raw` tells the type that Pillow widened."""
    signed = re.search(r"S\b", raw) is not None
    if values.dtype.kind == "f":
        shares: NDArray[np.float64] = np.nan_to_num(values.astype(np.float64))
        levels: _Pixels = np.rint(shares.clip(0.0, 1.0) * 255).astype(np.uint8)
        return levels
    bits = 16 if ";16" in raw or is_ppm or values.dtype.itemsize == 2 else 32
    wide = values.astype(np.int64)
    if signed:
        wide, bits = np.maximum(wide, 0), bits - 1
    elif bits == 32:
        wide &= 2**32 - 1  # Pillow holds them as signed numbers
    levels = np.clip(wide >> (bits - 8), 0, 255).astype(np.uint8)
    return levels

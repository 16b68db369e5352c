"""A folder with one of each fault that image files can show, and what is to be found in it."""

import io
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from raysim.seeds import Stream, generator

FOUND: Mapping[str, int] = {
    "hidden": 3,
    "other_file": 1,
    "symlink": 1,
    "outside_root": 1,
    "link_loop": 1,
    "missing_file": 1,
    "empty_file": 1,
    "archive": 2,
    "unreadable": 1,
    "truncated": 2,
    "bomb": 2,
    "wrong_extension": 1,
    "gray": 2,
    "palette": 1,
    "alpha": 1,
    "cmyk": 1,
    "deep": 1,
    "rotated": 1,
    "non_ascii": 2,  # one is the folder "dog "
    "class_spelling": 1,
    "empty_class": 1,
    "missing_class": 1,
    "empty_domain": 1,
    "duplicate": 3,  # one is the inner link, which shows the picture that it leads to
    "duplicate_across_splits": 1,
    "label_conflict": 3,  # clipart's cat comes first, and photo has it three times as a dog
}
"""Findings by kind in what `build` makes, with the policies `KEEP_ALL`."""
_SKIPPED = (
    "outside_root",
    "link_loop",
    "missing_file",
    "empty_file",
    "archive",
    "unreadable",
    "truncated",
    "bomb",
    "empty_domain",
)
KEEP_ALL: Mapping[str, str] = {**dict.fromkeys(_SKIPPED, "skip"), "class_spelling": "keep"}
"""The policies that let everything pass and keep what can be kept inside the root."""


def picture(key: int, height: int = 24, width: int = 16) -> Image.Image:
    """Return RGB noise: another key, another picture."""
    rng = generator(0, Stream.SPLIT, key)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Return the bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, depth: int, color: int, pixels: bytes, *more: bytes) -> bytes:
    """Return a PNG written by hand: a header, further chunks, and the (raw) pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = zlib.compress(pixels)
    parts = [png_part(b"IHDR", header), *more, png_part(b"IDAT", data), png_part(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def png_part(kind: bytes, content: bytes) -> bytes:
    """Return one chunk of a PNG."""
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def bomb_by_size() -> bytes:
    """Return a tiny PNG whose header claims more pixels than is safe."""
    return png(12_000, 12_000, 8, 2, b"\x00")


def bomb_by_text() -> bytes:
    """Return a tiny PNG with a text of 4 MiB packed into it."""
    text = png_part(b"zTXt", b"comment\x00\x00" + zlib.compress(b"a" * 2**22))
    return png(1, 1, 8, 2, b"\x00\x01\x02\x03", text)


def turned(orientation: int, image: Image.Image) -> bytes:
    """Return a JPEG whose EXIF data say how to turn it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, "JPEG", exif=exif, quality=95)


def image_files() -> dict[str, bytes]:
    """Return faulty images by name: those that lose the image, then those that are kept."""
    photo = encoded(picture(1, 64, 64), "JPEG")
    drawing = encoded(picture(2, 64, 64))
    deep = np.array([[0, 255, 256], [0x8000, 0xFF00, 0xFFFF]], np.uint16)
    glass = picture(6).convert("RGBA")
    glass.putalpha(128)
    return {
        "empty.jpg": b"",
        "packed.jpg": b"PK\x03\x04" + bytes(60),
        "page.png": b"\n<!DOCTYPE html><html><body>404</body></html>",
        "text.jpg": b"this is no image",
        "cut.jpg": photo[: len(photo) // 2],
        "cut.png": drawing[: len(drawing) // 2],
        "bomb.png": bomb_by_size(),
        "textbomb.png": bomb_by_text(),
        "really_a_png.jpg": encoded(picture(3)),
        "gray.png": encoded(picture(4).convert("L")),
        "palette.gif": encoded(picture(5).quantize(16), "GIF"),
        "glass.png": encoded(glass),
        "print.jpg": encoded(picture(7).convert("CMYK"), "JPEG"),
        "deep.png": encoded(Image.fromarray(deep)),
        "turned.jpg": turned(6, picture(8)),
        "Zo\u00eb 1.png": encoded(picture(9)),
    }


def build(root: Path) -> None:
    """Make the folder: `<domain>/<class>/*` and `<domain>/<split>/<class>/*`.

    Args:
        root: made; a file is also put beside it, for a link that leaves it.
    """
    write(root / "photo" / "cat", image_files())
    system = {".DS_Store": b"\x00", "Thumbs.db": b"\x00", "notes.txt": b"which is which"}
    write(root / "photo" / "cat", system)
    write(root / "__MACOSX" / "photo", {"._x.jpg": b"\x00"})
    write(root / "photo" / "Dog", {"a.png": encoded(picture(20)), "copy.png": encoded(picture(20))})
    _link(root)
    sides = {
        "train": {"cat": {"same.png": 30, "own.png": 31}, "dog ": {"b.png": 32, "again.png": 32}},
        "test": {"cat": {"same.png": 30}},
    }
    for split, classes in sides.items():
        for class_name, keys in classes.items():
            files = {name: encoded(picture(key)) for name, key in keys.items()}
            write(root / "sketch" / split / class_name, files)
    # No dog here, and the cat is what the photos call a dog.
    write(root / "clipart" / "cat", {"a.png": encoded(picture(20)), "b.png": encoded(picture(40))})
    (root / "void" / "cat").mkdir(parents=True)
    (root / "void" / "ghost").mkdir()


def _link(root: Path) -> None:
    (root.parent / "elsewhere.png").write_bytes(encoded(picture(50)))
    dog = root / "photo" / "Dog"
    os.symlink("a.png", dog / "inner.png")
    os.symlink(root.parent / "elsewhere.png", dog / "outer.png")
    os.symlink(root / "photo", dog / "loop")
    os.symlink("nowhere.png", dog / "broken.png")


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)

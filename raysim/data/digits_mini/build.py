"""Rebuild digits_mini: `python -m raysim.data.digits_mini.build [--out DIR]`.

Equal versions of the packages (recorded in `versions.json`) give equal files, byte for byte.
Needs the extra `digits`.
"""

import argparse
import io
import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, features

from raysim.data.digits_mini.recipes import RECIPES, Row

_PACKAGES = ("matplotlib", "mlxtend", "numpy", "pillow", "pyarrow", "scikit-image", "scikit-learn")
_CODECS = ("freetype2", "libjpeg_turbo", "zlib", "zlib_ng")
_SCHEMA = pa.schema(
    [
        pa.field("image", pa.binary(), nullable=False),
        pa.field("label", pa.int64(), nullable=False),
        pa.field("label_name", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
    ]
)
_QUALITY = 90


def versions() -> dict[str, str]:
    """Return the versions that decide the bytes: packages, Pillow's codecs and the processor."""
    packages = {name: version(name) for name in _PACKAGES}
    codecs = {name: str(features.version(name)) for name in _CODECS}
    return {**packages, **codecs, "machine": platform.machine()}


def build(folder: Path) -> None:
    """Draw the four domains and write a Parquet file each, with `versions.json`.

    Args:
        folder: where to write; made if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for domain, recipe in RECIPES.items():
        rows = list(recipe())
        # Splits are contiguous and classes mixed within them, as in a shuffled data set.
        order = np.random.Generator(np.random.PCG64(len(rows))).permutation(len(rows))
        mixed = sorted((rows[i] for i in order), key=lambda row: row.split != "train")
        write(mixed, folder / f"{domain}.parquet")
    text = json.dumps(versions(), indent=2, sort_keys=True) + "\n"
    (folder / "versions.json").write_text(text, encoding="ascii")


def write(rows: list[Row], path: Path) -> None:
    """Write the rows of one domain as Parquet."""
    columns = {
        "image": [encode(row.image) for row in rows],
        "label": [row.label for row in rows],
        "label_name": [str(row.label) for row in rows],
        "split": [row.split for row in rows],
        "source": [row.source for row in rows],
    }
    table = pa.table(columns, schema=_SCHEMA)
    dictionary = ["label", "label_name", "split"]
    pq.write_table(
        table, path, compression="zstd", use_dictionary=dictionary, row_group_size=len(rows)
    )


def encode(image: Image.Image) -> bytes:
    """Encode grey images without loss (PNG) and colour images as JPEG with full colour detail.

    JPEG's tables are equal in all images, so that the compression of the file takes them away.
    """
    file = io.BytesIO()
    if image.mode == "L":
        image.save(file, "PNG", optimize=True)
    else:
        image.save(file, "JPEG", quality=_QUALITY, subsampling="4:4:4")
    return file.getvalue()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Rebuild digits_mini from installed packages.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="DIR")
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()

"""What methods show of their rounds: arrays for the report, a safetensors file a round.

Files are small, written whole or not at all, and hold no clock or path: equal runs have equal
files. Rounds that show nothing have none.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from raysim.aggregation import Weighted
from raysim.channels import Groups, Mask, per_group
from raysim.files import write_aside
from raysim.tensors import Array, Arrays


class WatchedFiles:
    """The files of a run, by 1-based round."""

    def __init__(self, folder: Path) -> None:
        """Look at a folder, which need not exist."""
        self._folder = folder

    def write(self, round_: int, arrays: Mapping[str, Array]) -> None:
        """Write a round's arrays, if there are any.

        Raises:
            OSError: the disk is full or read-only.
        """
        if arrays:
            self._folder.mkdir(exist_ok=True)
            content = save({name: np.ascontiguousarray(a) for name, a in sorted(arrays.items())})
            write_aside(self._path(round_), content)

    def discard_after(self, round_: int) -> None:
        """Remove the files of later rounds, which a resumed run writes anew."""
        for later in [r for r in self.rounds() if r > round_]:
            self._path(later).unlink()

    def rounds(self) -> list[int]:
        """Return the rounds that have a file, ascending."""
        found = (path.stem.removeprefix("round_") for path in self._folder.glob("round_*"))
        return sorted(int(number) for number in found if number.isdecimal())

    def read(self, prefix: str) -> dict[int, Arrays]:
        """Return the arrays of a name, or under it, in every round that has any.

        Args:
            prefix: `mask` finds `mask` itself, as "", and `mask/x`, as "x".
        """
        found: dict[int, Arrays] = {}
        for round_ in self.rounds():
            with safe_open(self._path(round_), framework="numpy") as file:
                names = [n for n in file.keys() if n == prefix or n.startswith(f"{prefix}/")]  # noqa: SIM118
                if names:
                    cut = len(prefix) + 1
                    found[round_] = {name[cut:]: file.get_tensor(name) for name in sorted(names)}
        return found

    def _path(self, round_: int) -> Path:
        return self._folder / f"round_{round_:05d}.safetensors"


# What the default `Method.panels` draws ------------------------------------------------------


def watched_mask(groups: Groups, mask_C: Mask) -> Arrays:
    """Return a mask as the report wants it: `mask/<number>/<name>`, bool [L], a layer each."""
    parts = zip(groups, per_group(groups, mask_C), strict=True)
    return {f"mask/{i:03d}/{group.name}": mask_L for i, (group, mask_L) in enumerate(parts)}


def watched_importance(importance_DC: NDArray[np.float64], counts_D: Array) -> dict[str, Weighted]:
    """Return a client's importances as contributions to the means by domain."""
    return {
        f"importance/{domain}": Weighted(
            importance_DC[domain].astype(np.float32), int(counts_D[domain])
        )
        for domain in np.flatnonzero(counts_D)
    }


def watched_weights(weights: Mapping[str, Array]) -> Arrays:
    """Return a round's weights as the report wants them, float32.

    Args:
        weights: `cohort`, ids [K]; `consensus/<tensor>`, [K]; `attention/<tensor>`, [K, K], of
            which the mean over tensors is kept.
    """
    attention = [a for name, a in weights.items() if name.startswith("attention/")]
    steps = {name: a for name, a in weights.items() if name.startswith("consensus/")}
    kept: Arrays = {name: a.astype(np.float32) for name, a in steps.items()}
    if attention:
        kept["attention"] = np.stack(attention).mean(0, dtype=np.float64).astype(np.float32)
    return {"cohort": weights["cohort"], **kept} if kept else {}

"""Sums whose bits do not depend on who added what, in which order or in which groups.

Floating-point addition is not associative, so a sum of client updates would change with the
placement of clients on hosts. Here every contribution is rounded once, to a multiple of 2^-e with e
fixed by that contribution alone, and from then on added as 64-bit integers. Contributions with
different e are kept apart ("bins", usually one or two) and only joined at the very end, in the
order of e. Hosts can therefore pre-reduce their clients, and the server their partial sums. (One e
for all, taken from the broadcast weights, would spare the bins and refuse what outgrows it; and not
everything that is summed is broadcast first.)
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysim.tensors import Array, Arrays

MAX_TOTAL_WEIGHT = 2**24
_VALUE_BITS = 38  # value bits + weight bits = 62, so that a full sum stays inside int64
_BLOCK = 2**15  # elements that are added at a time, so that what lies between stays in the cache
_BIN_STEP = 8  # exponents are multiples of this: few bins, and at least 30 bits below the peak


class Weighted(NamedTuple):
    """One contribution to a sum: `value` counts `weight` times."""

    value: Array
    weight: int


class NonFiniteError(ArithmeticError):
    """A contribution holds NaN or infinity and was refused."""


@dataclass
class ExactSum:
    """The weighted sum of arrays of one shape, exact after each contribution's one rounding.

    Attributes:
        bins: int64 arrays by exponent e; each stands for bin * 2^-e.
        weight: sum of the weights, below `MAX_TOTAL_WEIGHT`.
        shape: the shape that all contributions share.
    """

    shape: tuple[int, ...]
    weight: int = 0
    bins: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def add(self, value: Array, weight: int) -> None:
        """Add `weight` times `value`.

        The rounding error is at most 2^-31 of the contribution's largest magnitude.

        Args:
            value: floats of the sum's shape.
            weight: integer >= 0, e.g. the number of examples behind the value.

        Raises:
            NonFiniteError: the value holds NaN or infinity.
            OverflowError: the total weight reaches `MAX_TOTAL_WEIGHT`.
            ValueError: another shape.
        """
        self._add(value, weight, _peak(value))

    def merge(self, other: "ExactSum") -> None:
        """Add another partial sum."""
        if other.shape != self.shape:
            raise ValueError(f"shape {other.shape} merged into a sum of shape {self.shape}")
        self._count(other.weight)
        for exponent, integers in other.bins.items():
            own = self.bins.get(exponent)
            self.bins[exponent] = integers.copy() if own is None else np.add(own, integers, out=own)

    def total(self) -> NDArray[np.float64]:
        """Return the sum as float64."""
        out = np.zeros(self.shape, np.float64)
        for exponent in sorted(self.bins, reverse=True):  # small magnitudes first
            out += self.bins[exponent] * 2.0**-exponent
        return out

    def mean(self) -> NDArray[np.float64]:
        """Return the sum divided by the total weight.

        Raises:
            ZeroDivisionError: the total weight is 0.
        """
        if self.weight == 0:
            raise ZeroDivisionError("the mean of contributions of total weight 0")
        total = self.total()
        total /= self.weight
        return total

    def _add(self, value: Array, weight: int, peak: float) -> None:
        """Add `weight` times `value`, whose largest magnitude is `peak`."""
        if value.shape != self.shape:
            raise ValueError(f"shape {value.shape} added to a sum of shape {self.shape}")
        self._count(weight)
        if peak == 0.0 or weight == 0:
            return
        exponent = _exponent(peak)
        if exponent not in self.bins:
            self.bins[exponent] = np.zeros(self.shape, np.int64)
        # float32 times a power of two, rounded to whole numbers, is exact, if it has the power.
        exact = value.dtype == np.float32 and exponent < 128
        scale = np.float32(2.0**exponent) if exact else np.float64(2.0**exponent)
        values, out = value.reshape(-1), self.bins[exponent].reshape(-1)
        for start in range(0, value.size, _BLOCK):
            scaled = values[start : start + _BLOCK] * scale
            integers = np.rint(scaled, out=scaled).astype(np.int64)
            integers *= weight
            out[start : start + _BLOCK] += integers

    def _count(self, weight: int) -> None:
        if weight < 0 or self.weight + weight >= MAX_TOTAL_WEIGHT:
            raise OverflowError(
                f"total weight {self.weight} + {weight} is outside [0, {MAX_TOTAL_WEIGHT}): "
                "weigh by fewer units (e.g. batches instead of examples)"
            )
        self.weight += weight


def _peak(value: Array) -> float:
    """Return the largest magnitude of an array, 0 if it is empty.

    Raises:
        NonFiniteError: the array holds NaN or infinity.
    """
    peak = max(float(value.max()), -float(value.min())) if value.size else 0.0
    if not math.isfinite(peak):
        raise NonFiniteError("NaN or infinity")
    return peak


def _peaks(arrays: Arrays) -> dict[str, float]:
    peaks = {}
    for name, array in arrays.items():
        try:
            peaks[name] = _peak(array)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error} in {name!r}") from None
    return peaks


def _exponent(peak: float) -> int:
    """Return the largest multiple of `_BIN_STEP` with peak * 2^e < 2^`_VALUE_BITS`."""
    _, power = math.frexp(peak)  # peak < 2^power
    return (_VALUE_BITS - power) // _BIN_STEP * _BIN_STEP


@dataclass
class Partial:
    """Named exact sums plus what must not be summed: arrays kept client by client.

    Attributes:
        sums: exact sums by name.
        gathered: arrays by client id.
        watched: exact sums for the report alone, by name.
        refused: clients whose update was left out because it was not finite.
    """

    sums: dict[str, ExactSum] = field(default_factory=dict)
    gathered: dict[int, Arrays] = field(default_factory=dict)
    watched: dict[str, ExactSum] = field(default_factory=dict)
    refused: int = 0

    def add(
        self,
        client: int,
        sums: Mapping[str, Weighted],
        gathered: Arrays,
        watched: Mapping[str, Weighted] | None = None,
    ) -> None:
        """Add one client's update, or none of it.

        Raises:
            NonFiniteError: NaN or infinity in an entry, which the message names.
        """
        peaks = _peaks({name: value for name, (value, _) in sums.items()})
        _peaks(gathered)
        _peaks({name: value for name, (value, _) in (watched or {}).items()})
        for name, (value, weight) in sums.items():
            self.sums.setdefault(name, ExactSum(value.shape))._add(value, weight, peaks[name])
        for name, (value, weight) in (watched or {}).items():
            self.watched.setdefault(name, ExactSum(value.shape)).add(value, weight)
        if gathered:
            self.gathered[client] = gathered

    def merge(self, other: "Partial") -> None:
        """Add another partial result."""
        for name, part in other.sums.items():
            self.sums.setdefault(name, ExactSum(part.shape)).merge(part)
        for name, part in other.watched.items():
            self.watched.setdefault(name, ExactSum(part.shape)).merge(part)
        self.gathered |= other.gathered
        self.refused += other.refused

    def num_bytes(self) -> int:
        """Return the bytes of all sums and gathered arrays."""
        bins = (part for total in self.sums.values() for part in total.bins.values())
        gathered = (array for arrays in self.gathered.values() for array in arrays.values())
        return sum(array.nbytes for array in (*bins, *gathered))

    def means(self, names: Iterable[str] | None = None) -> Arrays:
        """Return the weighted means as float64 by name (all names when None)."""
        chosen = self.sums if names is None else names
        return {name: self.sums[name].mean() for name in chosen}

    def in_client_order(self) -> list[tuple[int, Arrays]]:
        """Return what was gathered, in ascending client id."""
        return sorted(self.gathered.items())


def masked_mean(total: Array, support: Array, old: Array) -> Array:
    """Return total / support as float64, and the old value where the support is 0."""
    return np.divide(total, support, out=old.astype(np.float64), where=support > 0)

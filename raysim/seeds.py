"""Randomness as a pure function of (seed, stream, round, client, ...): no generator is ever shared.

A new purpose gets a new stream at the end of `Stream`; drawing twice from one key is a bug.
"""

import enum

import numpy as np


class Stream(enum.IntEnum):
    """What a draw is for. Append only: the numbers are part of every published result."""

    PARTITION = 0
    INIT = 1
    COHORT = 2
    BATCHES = 3
    FISHER_SAMPLES = 4
    MASK = 5
    METHOD = 6
    PRIVATE_STEP = 7
    AUGMENT = 8
    SPLIT = 9
    SLICED = 13
    ADAPT = 16


def _sequence(seed: int, stream: Stream, key: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(int(stream), *key))


def generator(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """Return the NumPy generator of one key.

    Args:
        seed: the run's seed, >= 0.
        stream: the purpose.
        *key: non-negative coordinates such as round, client, epoch.
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, stream, key)))


def torch_seed(seed: int, stream: Stream, *key: int) -> int:
    """Return a 63-bit seed for a torch generator, independent between keys."""
    return int(_sequence(seed, stream, key).generate_state(1, np.uint64)[0] >> 1)

"""Who holds which images: a shard for each client, and the partition they make up."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from raysim.data import dealing
from raysim.data.dealing import Counts

SPLITS = ("train", "val", "test")
HELD_OUT = ("val", "test")
"""The splits that models are tested on."""


class Labelled(Protocol):
    """The part of a `Dataset` that partitions need."""

    @property
    def name(self) -> str:
        """Return the name of the data set."""

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the names of the domains in the order of their ids."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes in the order of the labels."""

    def labels(self, domain: str, split: str) -> Counts:
        """Return the labels of one split, int64 [N]; empty where a domain lacks the split."""

    def names(self, domain: str, split: str) -> Sequence[str]:
        """Return the images' names in the order of `labels`, each unique in its domain."""


@dataclass(frozen=True)
class Shard:
    """What one client holds.

    Attributes:
        train: domain id -> sorted int64 positions in its train split; only domains held.
        test: domain id -> sorted int64 positions in its test split; among the domains of `train`.
        val: the same in the val split; empty where the data has none.
    """

    train: dict[int, Counts]
    test: dict[int, Counts]
    val: dict[int, Counts] = field(default_factory=dict)

    @property
    def by_split(self) -> dict[str, dict[int, Counts]]:
        """Return the positions by split and domain."""
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def num_train(self) -> int:
        """Return the number of training images over all domains."""
        return sum(len(rows) for rows in self.train.values())


@dataclass(frozen=True)
class Partition:
    """Who holds what.

    Attributes:
        shards: one a client; the position is the client id.
        guests: one a domain that no client trains on, with all of its images, in the order of the
            domain ids; their ids follow the clients'.
    """

    shards: tuple[Shard, ...]
    guests: tuple[Shard, ...] = ()

    def holders(self, with_guests: bool) -> tuple[Shard, ...]:
        """Return the clients' shards, and after them the guests' if they are wanted."""
        return self.shards + self.guests if with_guests else self.shards

    def unseen(self, domains: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the domains that no client trains on, in the order of their ids.

        Args:
            domains: names by domain id.
        """
        seen = {domain for shard in self.shards for domain in shard.train}
        return tuple(name for domain, name in enumerate(domains) if domain not in seen)

    def digest(self) -> str:
        """Return the sha256 (hex) of all positions by client, split and domain, in this order."""
        sha = hashlib.sha256(f"partition|{len(self.shards)}|".encode())
        for client, shard in enumerate(self.shards):
            for split, rows_by_domain in shard.by_split.items():
                for domain, rows in sorted(rows_by_domain.items()):
                    sha.update(f"{client}|{split}|{domain}|{len(rows)}|".encode())
                    sha.update(rows.astype("<i8").tobytes())
        return sha.hexdigest()

    def counts(self, dataset: Labelled, split: str = "train") -> Counts:
        """Count images by client, domain and class.

        Args:
            dataset: what the partition was made of.
            split: one of `SPLITS`.

        Returns:
            int64 [M clients, D domains, K classes].
        """
        num_classes = len(dataset.classes)
        counts = np.zeros((len(self.shards), len(dataset.domains), num_classes), np.int64)
        for domain, name in enumerate(dataset.domains):
            labels = dataset.labels(name, split)
            for client, shard in enumerate(self.shards):
                rows = shard.by_split[split].get(domain)
                if rows is not None:
                    counts[client, domain] = np.bincount(labels[rows], minlength=num_classes)
        return counts


def whole_domain(dataset: Labelled, domain: int) -> Shard:
    """Return the shard of a guest: every image of a domain."""
    name = dataset.domains[domain]
    rows = (np.arange(len(dataset.labels(name, split))) for split in ("train", "test", "val"))
    return Shard(*({domain: own} if len(own) else {} for own in rows))


def partition_of(owners: Mapping[str, Mapping[int, Counts]], num_clients: int) -> Partition:
    """Turn owners into shards.

    Args:
        owners: split -> domain id -> client ids, int64 [N], -1 for nobody; all of `SPLITS`.
        num_clients: M.
    """
    rows = {
        split: {d: dealing.rows_by_client(owner, num_clients) for d, owner in by_domain.items()}
        for split, by_domain in owners.items()
    }

    def held(split: str, client: int) -> dict[int, Counts]:
        return {d: parts[client] for d, parts in rows[split].items() if len(parts[client])}

    shards = (
        Shard(held("train", client), held("test", client), held("val", client))
        for client in range(num_clients)
    )
    return Partition(tuple(shards))

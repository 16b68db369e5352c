"""Partitions: disjoint shards of a data set with skewed domains and labels, one a client.

Every image has one owner, so shards are disjoint by construction and together cover each domain
that has a client. A partition is made in four steps (`raysim.data.dealing` has the arithmetic):

1. *Wants*: each client gets a mixture over domains, as the kind says. `domain_dirichlet` draws it
   from Dirichlet(alpha) and hands its parts to the domains with the most images left.
2. *Fit*: proportional fitting turns the wants into expected counts whose domain totals are exactly
   the pools and whose client totals are near N / M.
3. *Deal*: each shuffled pool is cut into the expected counts, rounded up or down.
4. *Repair*: clients below `min_examples` get images from the largest ones.

With label skew each client also draws a mixture over classes, and steps 2 and 3 run within each
domain, where the class totals are the pools and step 2's counts the sizes.
"""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from raysim.data import dealing
from raysim.data.dealing import Counts, Floats
from raysim.errors import ConfigError
from raysim.seeds import Stream, generator
from raysim.settings import Settings, did_you_mean


class _Kind(Settings):
    label_dirichlet: PositiveFloat | None = None
    """Concentration of each client's mixture over classes; null for no label skew."""
    min_examples: PositiveInt = 10
    """Training images that every client gets at least."""


class DomainDirichlet(_Kind):
    """Each client's mixture over domains is a draw from a symmetric Dirichlet distribution."""

    kind: Literal["domain_dirichlet"] = "domain_dirichlet"
    alpha: PositiveFloat = 0.5
    """Concentration: near 0 one domain a client, large the same mixture for all."""


class DomainsPerClient(_Kind):
    """Each client holds about equal parts of a fixed number of domains."""

    kind: Literal["domains_per_client"] = "domains_per_client"
    domains: PositiveInt = 2
    """Domains that each client holds."""


class SingleDomain(_Kind):
    """Each client holds one domain; the clients of a domain have consecutive ids."""

    kind: Literal["single_domain"] = "single_domain"
    counts: dict[str, NonNegativeInt] | None = None
    """Clients of each domain, `data.clients` in all; null spreads them as evenly as possible."""


class Iid(_Kind):
    """Each client holds an equal random part of every domain."""

    kind: Literal["iid"] = "iid"


AnyPartition = DomainDirichlet | DomainsPerClient | SingleDomain | Iid
PartitionSettings = Annotated[AnyPartition, Field(discriminator="kind")]


class Labelled(Protocol):
    """The part of a `Dataset` that dealing needs."""

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
        """Return the labels of one split, int64 [N]."""


@dataclass(frozen=True)
class Shard:
    """What one client holds.

    Attributes:
        train: domain id -> sorted int64 positions in its train split; only domains held.
        test: domain id -> sorted int64 positions in its test split; among the domains of `train`.
    """

    train: dict[int, Counts]
    test: dict[int, Counts]

    @property
    def num_train(self) -> int:
        """Return the number of training images over all domains."""
        return sum(len(rows) for rows in self.train.values())

    @property
    def num_test(self) -> int:
        """Return the number of test images over all domains."""
        return sum(len(rows) for rows in self.test.values())


@dataclass(frozen=True)
class Partition:
    """Who holds what.

    Attributes:
        shards: one a client; the position is the client id.
    """

    shards: tuple[Shard, ...]

    def digest(self) -> str:
        """Return the sha256 (hex) of all positions by client, split and domain, in this order."""
        sha = hashlib.sha256(f"partition|{len(self.shards)}|".encode())
        for client, shard in enumerate(self.shards):
            for split, rows_by_domain in (("train", shard.train), ("test", shard.test)):
                for domain, rows in sorted(rows_by_domain.items()):
                    sha.update(f"{client}|{split}|{domain}|{len(rows)}|".encode())
                    sha.update(rows.astype("<i8").tobytes())
        return sha.hexdigest()

    def counts(self, dataset: Labelled, split: str = "train") -> Counts:
        """Count images by client, domain and class.

        Args:
            dataset: what the partition was made of.
            split: "train" or "test".

        Returns:
            int64 [M clients, D domains, K classes].
        """
        num_classes = len(dataset.classes)
        counts = np.zeros((len(self.shards), len(dataset.domains), num_classes), np.int64)
        for domain, name in enumerate(dataset.domains):
            labels = dataset.labels(name, split)
            for client, shard in enumerate(self.shards):
                rows = (shard.train if split == "train" else shard.test).get(domain)
                if rows is not None:
                    counts[client, domain] = np.bincount(labels[rows], minlength=num_classes)
        return counts


def make_partition(
    dataset: Labelled, settings: AnyPartition, num_clients: int, seed: int
) -> Partition:
    """Deal a data set to clients.

    Training images cover every domain (with `single_domain.counts`: every domain given clients).
    Each domain's test images go to the clients that train on it, in proportion to their training
    images (with label skew class by class), at least one each while there are enough.

    Args:
        dataset: domains, classes and labels.
        settings: the kind of partition.
        num_clients: M >= 1.
        seed: the run's seed, >= 0. Other numbers of clients draw independently of each other.

    Returns:
        M shards, each with at least `settings.min_examples` training images.

    Raises:
        ConfigError: the settings ask for more than the data holds; the message has the numbers.
    """
    labels = [dataset.labels(domain, "train") for domain in dataset.domains]
    test_labels = [dataset.labels(domain, "test") for domain in dataset.domains]
    pools_D = np.array([len(of_domain) for of_domain in labels], np.int64)
    _check_total(dataset.name, int(pools_D.sum()), num_clients, settings.min_examples)
    draws = _Draws(seed, num_clients)
    wants_MD = _domain_wants(dataset.domains, settings, pools_D, num_clients, draws)
    _check_domains(dataset.domains, settings, pools_D, wants_MD)

    skewed = settings.label_dirichlet is not None
    groups, test_groups = (g if skewed else _ungrouped(g) for g in (labels, test_labels))
    tastes_MG = _tastes(settings.label_dirichlet, labels, len(dataset.classes), draws)
    any_domain = isinstance(settings, DomainDirichlet | Iid)
    may_hold_MD = np.ones_like(wants_MD, np.bool_) if any_domain else wants_MD > 0
    pools_D *= may_hold_MD.any(axis=0)
    targets_MD = dealing.fit_margins(wants_MD, pools_D, np.ones(num_clients))
    owners = _deal_train(groups, targets_MD, tastes_MG, draws)
    _repair(owners, may_hold_MD, settings.min_examples, draws)
    test_owners = []
    for d, group_of in enumerate(test_groups):
        held_MG = dealing.count_by_group(owners[d], groups[d], num_clients, tastes_MG.shape[1])
        test_owners.append(dealing.deal_test(group_of, held_MG, draws.generator("test", d)))
    return Partition(_shards(owners, test_owners, num_clients))


_PURPOSES = ("domains", "labels", "train", "test", "repair")


@dataclass(frozen=True)
class _Draws:
    """The generators of one partition."""

    seed: int
    num_clients: int

    def generator(self, purpose: str, domain: int = 0) -> np.random.Generator:
        key = (self.num_clients, _PURPOSES.index(purpose), domain)
        return generator(self.seed, Stream.PARTITION, *key)


def _domain_wants(
    domains: tuple[str, ...],
    settings: AnyPartition,
    pools_D: Counts,
    num_clients: int,
    draws: _Draws,
) -> Floats:
    """Return each client's mixture over domains, [M, D]."""
    rng = draws.generator("domains")
    match settings:
        case DomainDirichlet():
            return dealing.balanced_dirichlet(settings.alpha, pools_D, num_clients, rng)
        case DomainsPerClient():
            if settings.domains > len(domains):
                raise ConfigError(
                    f"data.partition.domains={settings.domains} is more than the "
                    f"{len(domains)} domains there are: lower it"
                )
            return dealing.fixed_number(settings.domains, pools_D, num_clients, rng)
        case SingleDomain():
            clients_D = _clients_of_domains(domains, settings.counts, num_clients)
            return np.repeat(np.eye(len(domains)), clients_D, axis=0)
        case Iid():
            return np.ones((num_clients, len(domains)))


def _clients_of_domains(
    domains: tuple[str, ...], counts: dict[str, int] | None, num_clients: int
) -> list[int]:
    if counts is None:
        share, more = divmod(num_clients, len(domains))
        return [share + (domain < more) for domain in range(len(domains))]
    for name in counts:
        if name not in domains:
            hint = did_you_mean(name, domains)
            raise ConfigError(f"data.partition.counts: no domain {name!r}{hint}")
    if sum(counts.values()) != num_clients:
        raise ConfigError(
            f"data.partition.counts sums to {sum(counts.values())}, data.clients is {num_clients}: "
            "make them equal"
        )
    return [counts.get(domain, 0) for domain in domains]


def _tastes(alpha: float | None, labels: list[Counts], num_classes: int, draws: _Draws) -> Floats:
    """Return each client's mixture over classes, [M, K], or over one group for all, [M, 1]."""
    if alpha is None:
        return np.ones((draws.num_clients, 1))
    totals_K = np.bincount(np.concatenate(labels), minlength=num_classes)
    rng = draws.generator("labels")
    return dealing.balanced_dirichlet(alpha, totals_K, draws.num_clients, rng)


def _deal_train(
    groups: list[Counts], targets_MD: Floats, tastes_MG: Floats, draws: _Draws
) -> list[Counts]:
    """Fit the groups within each domain and deal; return the owners of its training images."""
    owners = []
    for d, group_of in enumerate(groups):
        pools_G = np.bincount(group_of, minlength=tastes_MG.shape[1])
        holds_M1 = targets_MD[:, d : d + 1] > 0
        weights_MG = dealing.fit_margins(tastes_MG * holds_M1, pools_G, targets_MD[:, d])
        owners.append(dealing.deal(group_of, weights_MG, draws.generator("train", d)))
    return owners


def _repair(
    owners: list[Counts], may_hold_MD: NDArray[np.bool_], minimum: int, draws: _Draws
) -> None:
    below = dealing.raise_to_minimum(owners, may_hold_MD, minimum, draws.generator("repair"))
    if below:
        raise ConfigError(
            f"{len(below)} of data.clients={draws.num_clients} (the first is client {below[0]}) "
            f"cannot get data.partition.min_examples={minimum} training images of the domains "
            "they hold: lower one"
        )


def _check_total(name: str, available: int, num_clients: int, minimum: int) -> None:
    if num_clients < 1:
        raise ConfigError(f"data.clients={num_clients} is not a number of clients (1 or more)")
    needed = num_clients * minimum
    if needed > available:
        raise ConfigError(
            f"data.clients={num_clients} x data.partition.min_examples={minimum} needs {needed} "
            f"training examples, {name} has {available}: lower one"
        )


def _check_domains(
    domains: tuple[str, ...], settings: AnyPartition, pools_D: Counts, wants_MD: Floats
) -> None:
    """Refuse what no repair can mend: a domain with no client, or too many for its images."""
    if isinstance(settings, DomainDirichlet | Iid):
        return
    holders_D = np.count_nonzero(wants_MD, axis=0)
    chosen = isinstance(settings, SingleDomain) and settings.counts is not None
    if not chosen and not holders_D.all():
        left_out = [domains[d] for d in np.flatnonzero(holders_D == 0)]
        raise ConfigError(
            f"data.clients={len(wants_MD)} with data.partition.kind={settings.kind} leaves "
            f"{', '.join(left_out)} without a client: raise data.clients"
        )
    for name, pool, holders in zip(domains, pools_D.tolist(), holders_D.tolist(), strict=True):
        needed = holders * settings.min_examples
        if isinstance(settings, SingleDomain) and needed > pool:
            raise ConfigError(
                f"{holders} clients of {name} x data.partition.min_examples="
                f"{settings.min_examples} needs {needed} training examples, {name} has {pool}: "
                "lower one"
            )


def _ungrouped(labels: list[Counts]) -> list[Counts]:
    return [np.zeros_like(of_domain) for of_domain in labels]


def _shards(train: list[Counts], test: list[Counts], num_clients: int) -> tuple[Shard, ...]:
    train_rows = [dealing.rows_by_client(owner, num_clients) for owner in train]
    test_rows = [dealing.rows_by_client(owner, num_clients) for owner in test]
    return tuple(
        Shard(
            {d: rows[client] for d, rows in enumerate(train_rows) if len(rows[client])},
            {d: rows[client] for d, rows in enumerate(test_rows) if len(rows[client])},
        )
        for client in range(num_clients)
    )

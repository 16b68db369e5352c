"""Partitions: disjoint shards of a data set with skewed domains and labels, one a client.

Every image has at most one owner, so shards are disjoint by construction; together they cover each
domain that has a client, but for the kinds that leave images unused (`single_domain` with a
fraction, `file`). Domains that no client trains on, asked for or not, have a guest each. A
partition is made in four steps (`raysim.data.dealing` has the arithmetic):

1. *Wants*: each client gets a mixture over domains, as the kind says. `domain_dirichlet` draws it
   from Dirichlet(alpha) and hands its parts to the domains with the most images left.
2. *Fit*: proportional fitting turns the wants into expected counts whose domain totals are exactly
   the pools and whose client totals are near N / M. (`heterogeneous` has a formula instead.)
3. *Deal*: each shuffled pool is cut into the expected counts, rounded up or down.
4. *Repair*: clients below `min_examples` get images from the largest ones.

With label skew each client also draws a mixture over classes, and steps 2 and 3 run within each
domain, where the class totals are the pools and step 2's counts the sizes. A fraction replaces
steps 2 to 4: its shares have a fixed size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from raysim.data import dealing
from raysim.data.dealing import Counts, Floats
from raysim.data.partition_file import read_partition
from raysim.data.partition_kinds import (
    AnyPartition,
    DealtPartition,
    DomainDirichlet,
    DomainsPerClient,
    FromFile,
    Heterogeneous,
    Iid,
    SingleDomain,
)
from raysim.data.shards import (
    HELD_OUT,
    SPLITS,
    Labelled,
    Partition,
    partition_of,
    whole_domain,
)
from raysim.errors import ConfigError
from raysim.seeds import Stream, generator
from raysim.settings import did_you_mean


def make_partition(
    dataset: Labelled,
    settings: AnyPartition,
    num_clients: int,
    seed: int,
    unseen: Sequence[str] = (),
) -> Partition:
    """Deal a data set to clients.

    Training images cover every domain that is not unseen (with `single_domain.counts`: every
    domain given clients), unless the kind leaves images unused. Each domain's test images go to
    the clients that train on it, in proportion to their training images (with label skew class by
    class), at least one each while there are enough; likewise its val images.

    Args:
        dataset: domains, classes and labels.
        settings: the kind of partition.
        num_clients: M >= 1.
        seed: the run's seed, >= 0. Other numbers of clients draw independently of each other.
        unseen: names of domains that no client holds; ids of the other domains stay the same.

    Returns:
        M shards, each with at least `settings.min_examples` training images, and a guest for each
        domain that none of them trains on.

    Raises:
        ConfigError: the settings ask for more than the data holds; the message has the numbers.
        DataError: a partition file cannot be read or does not fit the data.
    """
    _check_unseen(dataset.domains, unseen)
    if num_clients < 1:
        raise ConfigError(f"data.clients={num_clients} is not a number of clients (1 or more)")
    if isinstance(settings, FromFile):
        found = read_partition(Path(settings.path), dataset, num_clients, unseen)
        return _with_guests(found, dataset)
    ids = [d for d, name in enumerate(dataset.domains) if name not in unseen]
    names = tuple(dataset.domains[d] for d in ids)
    labels = {split: [dataset.labels(name, split) for name in names] for split in SPLITS}
    pools_D = np.array([len(of_domain) for of_domain in labels["train"]], np.int64)
    left_out = f" without {', '.join(unseen)}" if unseen else ""
    _check_total(dataset.name + left_out, int(pools_D.sum()), num_clients, settings.min_examples)
    draws = _Draws(seed, num_clients)
    wants_MD = _domain_wants(names, settings, pools_D, unseen, draws)
    _check_domains(names, settings, pools_D, wants_MD)

    tastes_MG = _tastes(settings.label_dirichlet, labels["train"], len(dataset.classes), draws)
    skewed = settings.label_dirichlet is not None
    groups = labels if skewed else {split: _ungrouped(of) for split, of in labels.items()}
    if isinstance(settings, SingleDomain) and settings.fraction is not None:
        train = _deal_fractions(
            names, settings, settings.fraction, labels["train"], wants_MD, draws
        )
    else:
        train = _deal_train(settings, groups["train"], pools_D, wants_MD, tastes_MG, draws)
    held_DMG = [
        dealing.count_by_group(owner, group_of, num_clients, tastes_MG.shape[1])
        for owner, group_of in zip(train, groups["train"], strict=True)
    ]
    owners = {"train": dict(zip(ids, train, strict=True))}
    for split in HELD_OUT:
        owners[split] = {
            ids[d]: dealing.deal_test(group_of, held_DMG[d], draws.generator(split, d))
            for d, group_of in enumerate(groups[split])
        }
    return _with_guests(partition_of(owners, num_clients), dataset)


def _with_guests(partition: Partition, dataset: Labelled) -> Partition:
    guests = (
        whole_domain(dataset, dataset.domains.index(name))
        for name in partition.unseen(dataset.domains)
    )
    return replace(partition, guests=tuple(guests))


_PURPOSES = ("domains", "labels", "train", "test", "repair", "val", "classes")  # append only


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
    settings: DealtPartition,
    pools_D: Counts,
    unseen: Sequence[str],
    draws: _Draws,
) -> Floats:
    """Return each client's mixture over domains, or expected counts of them, [M, D]."""
    num_clients, rng = draws.num_clients, draws.generator("domains")
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
            clients_D = _clients_of_domains(domains, settings.counts, num_clients, unseen)
            return np.repeat(np.eye(len(domains)), clients_D, axis=0)
        case Iid():
            return np.ones((num_clients, len(domains)))
        case Heterogeneous():
            return dealing.heterogeneous(settings.iid, pools_D, num_clients)


def _clients_of_domains(
    domains: tuple[str, ...],
    counts: dict[str, int] | None,
    num_clients: int,
    unseen: Sequence[str],
) -> list[int]:
    if counts is None:
        share, more = divmod(num_clients, len(domains))
        return [share + (domain < more) for domain in range(len(domains))]
    for name, number in counts.items():
        if name in unseen and number:
            raise ConfigError(
                f"data.partition.counts gives {name} {number} clients, data.unseen keeps it from "
                "every client: take it out of one"
            )
        if name not in domains and name not in unseen:
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
    settings: DealtPartition,
    groups: list[Counts],
    pools_D: Counts,
    wants_MD: Floats,
    tastes_MG: Floats,
    draws: _Draws,
) -> list[Counts]:
    """Fit, deal and repair; return the owners of each domain's training images."""
    may_hold_MD = np.ones_like(wants_MD, np.bool_) if _mixes(settings) else wants_MD > 0
    targets_MD = wants_MD
    if not isinstance(settings, Heterogeneous):
        covered_D = pools_D * may_hold_MD.any(axis=0)
        targets_MD = dealing.fit_margins(wants_MD, covered_D, np.ones(draws.num_clients))
    owners = []
    for d, group_of in enumerate(groups):
        pools_G = np.bincount(group_of, minlength=tastes_MG.shape[1])
        holds_M1 = targets_MD[:, d : d + 1] > 0
        weights_MG = dealing.fit_margins(tastes_MG * holds_M1, pools_G, targets_MD[:, d])
        owners.append(dealing.deal(group_of, weights_MG, draws.generator("train", d)))
    rng = draws.generator("repair")
    below = dealing.raise_to_minimum(owners, may_hold_MD, settings.min_examples, rng)
    if below:
        raise ConfigError(
            f"{len(below)} of data.clients={draws.num_clients} (the first is client {below[0]}) "
            f"cannot get data.partition.min_examples={settings.min_examples} training images of "
            "the domains they hold: lower one"
        )
    return owners


def _deal_fractions(
    domains: tuple[str, ...],
    settings: SingleDomain,
    fraction: float,
    labels: list[Counts],
    wants_MD: Floats,
    draws: _Draws,
) -> list[Counts]:
    """Give each client its fraction of its domain; return the owners of the training images."""
    owners = []
    for d, (name, label_of) in enumerate(zip(domains, labels, strict=True)):
        clients = np.flatnonzero(wants_MD[:, d])
        share = int(fraction * len(label_of))
        if len(clients):
            _check_share(name, settings, share, len(label_of), len(clients))
        rng = draws.generator("train", d)
        owner = dealing.deal_shares(len(label_of), clients, share, rng)
        if settings.all_classes and len(clients):
            _check_classes(name, share, np.bincount(label_of), len(clients))
            dealing.swap_in_classes(owner, label_of, clients, draws.generator("classes", d))
        owners.append(owner)
    return owners


def _check_share(name: str, settings: SingleDomain, share: int, pool: int, clients: int) -> None:
    rule = f"data.partition.fraction={settings.fraction} of the {pool} training examples of {name}"
    if share < settings.min_examples:
        raise ConfigError(
            f"{rule} is {share} a client, data.partition.min_examples is {settings.min_examples}: "
            "lower min_examples or raise fraction"
        )
    if clients * share > pool:
        raise ConfigError(
            f"{rule} is {share} a client, {clients} clients need {clients * share}: "
            "lower fraction or the number of clients"
        )


def _check_classes(name: str, share: int, pools_K: Counts, clients: int) -> None:
    classes = np.count_nonzero(pools_K)
    fewest = int(pools_K[pools_K > 0].min())
    if share < classes or fewest < clients:
        raise ConfigError(
            f"data.partition.all_classes: {clients} clients of {name} with {share} training "
            f"examples each cannot all hold its {classes} classes, of which the smallest has "
            f"{fewest} examples: raise fraction, lower the number of clients or leave it out"
        )


def _check_unseen(domains: tuple[str, ...], unseen: Sequence[str]) -> None:
    for name in unseen:
        if name not in domains:
            raise ConfigError(f"data.unseen: no domain {name!r}{did_you_mean(name, domains)}")
    if set(domains) <= set(unseen):
        raise ConfigError(
            f"data.unseen has all {len(domains)} domains, so that nobody trains: leave one out"
        )


def _check_total(name: str, available: int, num_clients: int, minimum: int) -> None:
    needed = num_clients * minimum
    if needed > available:
        raise ConfigError(
            f"data.clients={num_clients} x data.partition.min_examples={minimum} needs {needed} "
            f"training examples, {name} has {available}: lower one"
        )


def _check_domains(
    domains: tuple[str, ...], settings: DealtPartition, pools_D: Counts, wants_MD: Floats
) -> None:
    """Refuse what no repair can mend: a domain with no client, or too many for its images."""
    if not isinstance(settings, DomainsPerClient | SingleDomain):
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


def _mixes(settings: DealtPartition) -> bool:
    """Say whether a client may hold images of any domain."""
    if isinstance(settings, Heterogeneous):
        return settings.iid > 0
    return isinstance(settings, DomainDirichlet | Iid)


def _ungrouped(labels: list[Counts]) -> list[Counts]:
    return [np.zeros_like(of_domain) for of_domain in labels]

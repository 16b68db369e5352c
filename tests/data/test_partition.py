import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from raysim.data import dealing
from raysim.data.partition import make_partition
from raysim.data.partition_kinds import (
    AnyPartition,
    DomainDirichlet,
    DomainsPerClient,
    FromFile,
    Heterogeneous,
    Iid,
    PartitionSettings,
    SingleDomain,
)
from raysim.data.shards import Partition
from raysim.errors import ConfigError

Counts = NDArray[np.int64]


class FakeDataset:
    """Labels 0..num_classes-1 in turn; a quarter as many test images as train images.

    `has_val` adds half as many val images as train images.
    """

    name = "fake"

    def __init__(self, pools: tuple[int, ...], num_classes: int = 5, has_val: bool = False) -> None:
        self.pools = pools
        self.shares = {"train": 1.0, "val": 0.5 if has_val else 0.0, "test": 0.25}
        self.domains = tuple("abcdefgh"[: len(pools)])
        self.classes = tuple(map(str, range(num_classes)))

    def labels(self, domain: str, split: str) -> Counts:
        pool = self.pools[self.domains.index(domain)]
        return np.arange(int(pool * self.shares[split])) % len(self.classes)

    def names(self, domain: str, split: str) -> list[str]:
        return [f"{split}{position}" for position in range(len(self.labels(domain, split)))]


def check(partition: Partition, dataset: FakeDataset, minimum: int, covered: str) -> None:
    """Disjoint, sorted, within range, covering, big enough; test shards follow train shards."""
    for domain, name in enumerate(dataset.domains):
        for split in ("train", "val", "test"):
            held = [getattr(shard, split).get(domain) for shard in partition.shards]
            parts = [rows for rows in held if rows is not None]
            assert all(len(rows) and rows.dtype == np.int64 for rows in parts)
            assert all((np.diff(rows) > 0).all() for rows in parts)
            rows = np.sort(np.concatenate([*parts, np.empty(0, np.int64)]))
            size = len(dataset.labels(name, split)) if name in covered else 0
            np.testing.assert_array_equal(rows, np.arange(size))
    assert min(shard.num_train for shard in partition.shards) >= minimum
    assert all(set(shard.test) <= set(shard.train) for shard in partition.shards)
    assert all(set(shard.val) <= set(shard.train) for shard in partition.shards)


def mixtures(partition: Partition, dataset: FakeDataset, axis: int) -> NDArray[np.float64]:
    """Return clients' mixtures over domains (axis 2 summed away) or over classes (axis 1)."""
    counts = partition.counts(dataset).sum(axis=axis).astype(np.float64)
    shares: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return shares


def concentration(shares: NDArray[np.float64]) -> float:
    """Return the mean sum of squared shares: 1 / D if all are equal, 1 if there is but one."""
    return float((shares**2).sum(axis=1).mean())


# ---- what holds for every setting ------------------------------------------------------------

alphas = st.sampled_from([1e-300, 1e-6, 0.01, 0.5, 3.0, 1e6, 1e300])
skews = st.none() | alphas
kinds = st.one_of(
    st.builds(DomainDirichlet, alpha=alphas, label_dirichlet=skews, min_examples=st.integers(1, 9)),
    st.builds(Iid, label_dirichlet=skews, min_examples=st.integers(1, 9)),
    st.builds(
        Heterogeneous,
        iid=st.sampled_from([1e-300, 0.01, 0.5, 1.0]),
        label_dirichlet=skews,
        min_examples=st.integers(1, 9),
    ),
)


@settings(max_examples=60)
@given(
    kind=kinds,
    pools=st.lists(st.integers(4, 90), min_size=1, max_size=5),
    num_clients=st.integers(1, 40),
    seed=st.integers(0, 2**40),
    has_val=st.booleans(),
)
def test_every_image_has_one_owner_and_every_client_enough(
    kind: AnyPartition, pools: list[int], num_clients: int, seed: int, has_val: bool
) -> None:
    dataset = FakeDataset(tuple(pools), has_val=has_val)
    if num_clients * kind.min_examples > sum(pools):
        with pytest.raises(ConfigError, match=f"has {sum(pools)}: lower one"):
            make_partition(dataset, kind, num_clients, seed)
        return
    partition = make_partition(dataset, kind, num_clients, seed)
    check(partition, dataset, kind.min_examples, covered="abcdefgh")
    assert partition.digest() == make_partition(dataset, kind, num_clients, seed).digest()


@settings(max_examples=40)
@given(
    number=st.integers(1, 4),
    pools=st.lists(st.integers(60, 200), min_size=4, max_size=4),
    num_clients=st.integers(4, 30),
    skew=skews,
    seed=st.integers(0, 2**40),
)
def test_domains_per_client_holds_exactly_so_many(
    number: int, pools: list[int], num_clients: int, skew: float | None, seed: int
) -> None:
    dataset = FakeDataset(tuple(pools))
    kind = DomainsPerClient(domains=number, label_dirichlet=skew, min_examples=1)
    partition = make_partition(dataset, kind, num_clients, seed)
    check(partition, dataset, 1, covered="abcd")
    held = [len(shard.train) for shard in partition.shards]
    assert max(held) <= number
    if skew is None:
        assert min(held) == number


@settings(max_examples=40)
@given(counts=st.lists(st.integers(0, 6), min_size=4, max_size=4), skew=skews)
def test_single_domain_gives_blocks_of_one_domain(counts: list[int], skew: float | None) -> None:
    if not sum(counts):
        return
    dataset = FakeDataset((80, 90, 100, 110))
    by_name = dict(zip("abcd", counts, strict=True))
    kind = SingleDomain(counts=by_name, label_dirichlet=skew)
    partition = make_partition(dataset, kind, sum(counts), 0)
    covered = "".join(name for name, number in by_name.items() if number)
    check(partition, dataset, 10, covered)
    held = [list(shard.train) for shard in partition.shards]
    assert held == [[domain] for domain in range(4) for _ in range(counts[domain])]


@settings(max_examples=40)
@given(
    pools=st.lists(st.integers(0, 200), min_size=1, max_size=6).filter(lambda p: sum(p) > 0),
    num_clients=st.integers(1, 30),
    skew=skews,
    seed=st.integers(0, 2**40),
)
def test_heterogeneous_separates_domains_at_iid_0(
    pools: list[int], num_clients: int, skew: float | None, seed: int
) -> None:
    """One domain a client, or one client a domain; refused only if a domain is too small."""
    dataset = FakeDataset(tuple(pools))
    kind = Heterogeneous(iid=0, label_dirichlet=skew, min_examples=1)
    filled = np.count_nonzero(pools)
    try:
        partition = make_partition(dataset, kind, num_clients, seed)
    except ConfigError:
        assert num_clients > filled + min(pool for pool in pools if pool) - 1
        return
    check(partition, dataset, 1, covered="abcdef")
    holders = (partition.counts(dataset).sum(axis=2) > 0).sum(axis=0)
    held = [len(shard.train) for shard in partition.shards]
    assert max(held) == 1 if num_clients >= filled else max(holders) == 1


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any),
    fraction=st.floats(0.05, 0.3),
    all_classes=st.booleans(),
    seed=st.integers(0, 2**40),
)
def test_fractions_are_disjoint_and_equal_and_the_rest_is_unused(
    counts: list[int], fraction: float, all_classes: bool, seed: int
) -> None:
    dataset = FakeDataset((120, 160, 200, 240), has_val=True)
    by_name = dict(zip("abcd", counts, strict=True))
    kind = SingleDomain(counts=by_name, fraction=fraction, all_classes=all_classes, min_examples=1)
    partition = make_partition(dataset, kind, sum(counts), seed)
    assert partition.digest() == make_partition(dataset, kind, sum(counts), seed).digest()
    owners = [domain for domain in range(4) for _ in range(counts[domain])]
    assert [list(shard.train) for shard in partition.shards] == [[domain] for domain in owners]
    sizes = [int(fraction * dataset.pools[domain]) for domain in owners]
    assert [shard.num_train for shard in partition.shards] == sizes
    per_class = partition.counts(dataset)
    if all_classes:
        assert ((per_class.sum(axis=1) > 0).sum(axis=1) == 5).all()
    for domain in range(4):
        rows = np.concatenate([s.train.get(domain, np.empty(0)) for s in partition.shards])
        assert len(np.unique(rows)) == len(rows)
        for split in ("val", "test"):
            size = len(dataset.labels("abcd"[domain], split)) if counts[domain] else 0
            assert partition.counts(dataset, split)[:, domain].sum() == size


@pytest.mark.parametrize(
    "kind",
    [
        DomainDirichlet(),
        DomainsPerClient(),
        SingleDomain(),
        SingleDomain(counts={"a": 4, "b": 0, "d": 4}),
        SingleDomain(fraction=0.1),
        Iid(label_dirichlet=0.5),
        Heterogeneous(iid=0.3),
    ],
)
def test_unseen_domains_have_no_owner_and_the_others_keep_their_ids(kind: AnyPartition) -> None:
    dataset = FakeDataset((400, 420, 440, 460), has_val=True)
    partition = make_partition(dataset, kind, 8, 0, unseen=["b"])
    for split in ("train", "val", "test"):
        by_domain = partition.counts(dataset, split).sum(axis=(0, 2))
        assert by_domain[1] == 0
        assert by_domain[0] > 0
        assert by_domain[3] > 0
    if not isinstance(kind, SingleDomain):
        check(partition, dataset, 10, covered="acd")


def test_domains_that_nobody_trains_on_have_guests_with_all_of_their_images() -> None:
    dataset = FakeDataset((400, 420, 440, 460), has_val=True)
    kind = SingleDomain(counts={"a": 1, "b": 0, "d": 2})
    for unseen in ((), ("b",)):
        partition = make_partition(dataset, kind, 3, 0, unseen)
        assert partition.unseen(dataset.domains) == ("b", "c")
        held = [
            {
                split: {d: len(rows) for d, rows in of.items()}
                for split, of in guest.by_split.items()
            }
            for guest in partition.guests
        ]
        assert held == [
            {"train": {1: 420}, "val": {1: 210}, "test": {1: 105}},
            {"train": {2: 440}, "val": {2: 220}, "test": {2: 110}},
        ]
    assert make_partition(dataset, Iid(), 3, 0).guests == ()


# ---- what each kind means --------------------------------------------------------------------


def test_tiny_alpha_gives_single_domains_of_equal_size() -> None:
    dataset = FakeDataset((1000, 1000, 1000, 1000))
    partition = make_partition(dataset, DomainDirichlet(alpha=1e-6), 20, 0)
    assert [len(shard.train) for shard in partition.shards] == [1] * 20
    assert [shard.num_train for shard in partition.shards] == [200] * 20


def test_huge_alpha_gives_every_client_the_pools_mixture() -> None:
    dataset = FakeDataset((300, 600, 900, 1200))
    partition = make_partition(dataset, DomainDirichlet(alpha=1e6), 10, 0)
    expected = np.tile([0.1, 0.2, 0.3, 0.4], (10, 1))
    np.testing.assert_allclose(mixtures(partition, dataset, 2), expected, atol=0.01)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
def test_mixtures_are_as_concentrated_as_dirichlet(alpha: float) -> None:
    """E sum_d q_d^2 = (alpha + 1) / (D alpha + 1) for q ~ Dirichlet(alpha)."""
    dataset = FakeDataset((2000, 2000, 2000, 2000))
    partition = make_partition(dataset, DomainDirichlet(alpha=alpha), 200, 1)
    expected = (alpha + 1) / (4 * alpha + 1)
    assert concentration(mixtures(partition, dataset, 2)) == pytest.approx(expected, abs=0.04)
    sizes = [shard.num_train for shard in partition.shards]
    assert min(sizes) >= 36
    assert max(sizes) <= 44


def test_domains_nobody_wants_are_dealt_evenly() -> None:
    dataset = FakeDataset((400, 400, 400, 400))
    partition = make_partition(dataset, DomainDirichlet(alpha=1e-6), 2, 0)
    assert [shard.num_train for shard in partition.shards] == [800, 800]
    halves = sorted(partition.counts(dataset).sum(axis=2)[0].tolist())
    assert halves == [0, 200, 200, 400]


def test_iid_gives_every_client_an_equal_part_of_every_domain() -> None:
    dataset = FakeDataset((400, 800))
    counts = make_partition(dataset, Iid(), 8, 0).counts(dataset).sum(axis=2)
    np.testing.assert_array_equal(counts, np.tile([50, 100], (8, 1)))


def test_single_domain_spreads_clients_evenly() -> None:
    dataset = FakeDataset((400, 400, 400))
    partition = make_partition(dataset, SingleDomain(), 8, 0)
    assert [next(iter(shard.train)) for shard in partition.shards] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_small_domains_get_a_client_too() -> None:
    dataset = FakeDataset((1000, 1000, 20))
    partition = make_partition(dataset, DomainsPerClient(domains=1), 5, 0)
    holders = sorted(domain for shard in partition.shards for domain in shard.train)
    assert holders == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("iid", "expected"),
    [
        (0.0, [[300, 0, 0], [300, 0, 0], [0, 200, 0], [0, 0, 120]]),
        (0.5, [[225, 25, 15], [225, 25, 15], [75, 125, 15], [75, 25, 75]]),
        (1.0, [[150, 50, 30]] * 4),
    ],
)
def test_heterogeneous_worked_example_with_more_clients(
    iid: float, expected: list[list[int]]
) -> None:
    """Domains of 600, 200, 120; M = 4: the fourth client goes to a, which has 600 a client.

    At iid 0.5, client 0 has 0.5 * 600 / 4 + 0.5 * 600 / 2 = 225 of a and 0.5 * 200 / 4 = 25 of b.
    """
    dataset = FakeDataset((600, 200, 120))
    partition = make_partition(dataset, Heterogeneous(iid=iid), 4, 0)
    np.testing.assert_allclose(partition.counts(dataset).sum(axis=2), expected, atol=1)
    np.testing.assert_allclose(dealing.heterogeneous(iid, np.array(dataset.pools), 4), expected)


@pytest.mark.parametrize(
    ("iid", "expected"),
    [
        (0.0, [[0, 500, 0, 0, 0], [0, 0, 300, 0, 200]]),
        (0.5, [[50, 375, 75, 20, 50], [50, 125, 225, 20, 150]]),
        (1.0, [[50, 250, 150, 20, 100], [50, 250, 150, 20, 100]]),
    ],
)
def test_heterogeneous_worked_example_with_fewer_clients(
    iid: float, expected: list[list[int]]
) -> None:
    """Domains of 100, 500, 300, 40, 200; M = 2, the largest first to whoever has least.

    b (500) to client 0, c (300) to 1, e (200) to 1 (500), a (100) to 0 by the tie (600), d (40)
    to 1 (540).
    """
    expected_MD = np.array(expected, np.float64)
    expected_MD[:, 0] = [50 + 50 * (1 - iid), 50 * iid]
    expected_MD[:, 3] = [20 * iid, 20 + 20 * (1 - iid)]
    dataset = FakeDataset((100, 500, 300, 40, 200))
    counted = make_partition(dataset, Heterogeneous(iid=iid), 2, 0).counts(dataset).sum(axis=2)
    np.testing.assert_allclose(counted, expected_MD, atol=1)


def test_heterogeneous_takes_any_number_of_clients() -> None:
    dataset = FakeDataset((900, 5000, 2100))
    assert make_partition(dataset, Heterogeneous(), 1, 0).shards[0].num_train == 8000
    partition = make_partition(dataset, Heterogeneous(min_examples=1), 1000, 0)
    check(partition, dataset, 1, covered="abc")
    sizes = [shard.num_train for shard in partition.shards]
    assert (min(sizes), max(sizes)) in {(7, 9), (8, 8), (7, 8), (8, 9)}
    assert all(len(shard.train) == 1 for shard in partition.shards)


def test_fractions_are_the_papers_numbers() -> None:
    """FedHEAL's Digits: 1 % of MNIST, USPS and SVHN is 600, 72 and 732 images a client."""
    dataset = FakeDataset((60000, 7291, 73257))
    kind = SingleDomain(counts={"a": 3, "b": 7, "c": 6}, fraction=0.01)
    shards = make_partition(dataset, kind, 16, 0).shards
    assert [shard.num_train for shard in shards] == [600] * 3 + [72] * 7 + [732] * 6
    assert [len(shard.test[0]) for shard in shards[:3]] == [5000] * 3


def test_swapping_brings_missing_classes_from_unused_images_and_from_other_clients() -> None:
    """Client 0 lacks class 2, client 1 lacks 1 and 2; unused are two images of class 2.

    Client 0 gives a 0 for an unused 2; client 1 a 0 for client 0's second 1 and one for the last 2.
    """
    label_of = np.array([0] * 8 + [1] * 2 + [2] * 2)
    owner = np.array([0] * 5 + [1] * 3 + [0] * 2 + [-1] * 2)
    dealing.swap_in_classes(owner, label_of, np.array([0, 1]), np.random.default_rng(0))
    counts = dealing.count_by_group(owner, label_of, 2, 3)
    assert counts.tolist() == [[5, 1, 1], [1, 1, 1]]


def test_val_images_are_dealt_as_test_images_are_and_change_the_digest() -> None:
    plain, with_val = (FakeDataset((400, 400), has_val=has_val) for has_val in (False, True))
    kind = DomainDirichlet(label_dirichlet=0.5)
    a, b = (make_partition(dataset, kind, 8, 0) for dataset in (plain, with_val))
    assert all(not shard.val for shard in a.shards)
    np.testing.assert_array_equal(a.counts(plain, "test"), b.counts(with_val, "test"))
    train, val = b.counts(with_val, "train"), b.counts(with_val, "val")
    assert np.abs(val - train / 2).mean() < 0.6
    assert a.digest() != b.digest()


def test_label_skew_skews_labels_and_leaves_domains_alone() -> None:
    dataset = FakeDataset((1000, 1000, 1000, 1000), num_classes=10)
    even = make_partition(dataset, Iid(), 20, 0)
    skewed = make_partition(dataset, Iid(label_dirichlet=0.1), 20, 0)
    assert concentration(mixtures(even, dataset, 1)) < 0.13
    assert concentration(mixtures(skewed, dataset, 1)) > 0.4  # theory: 1.1 / 2 = 0.55
    assert concentration(mixtures(skewed, dataset, 2)) < 0.27
    sizes = [shard.num_train for shard in skewed.shards]
    assert min(sizes) > 180
    assert max(sizes) < 220


@pytest.mark.parametrize("kind", [DomainDirichlet(), DomainDirichlet(label_dirichlet=0.3)])
def test_test_shards_have_the_mixture_of_train_shards(kind: AnyPartition) -> None:
    """A quarter as many test images: cells are near 1/4, but for those that gave to the empty."""
    dataset = FakeDataset((1000, 1000, 1000, 1000))
    partition = make_partition(dataset, kind, 20, 3)
    axis = () if kind.label_dirichlet else (2,)
    train = partition.counts(dataset, "train").sum(axis=axis)
    test = partition.counts(dataset, "test").sum(axis=axis)
    assert np.abs(test - train / 4).mean() < 0.6
    assert np.abs(test - train / 4).max() < 5
    assert all(set(shard.test) == set(shard.train) for shard in partition.shards)


def test_domains_per_client_are_spread_over_many_pairs() -> None:
    dataset = FakeDataset((1000, 1000, 1000, 1000))
    partition = make_partition(dataset, DomainsPerClient(domains=2), 60, 0)
    assert len({tuple(shard.train) for shard in partition.shards}) == 6


# ---- seeds, digests, time --------------------------------------------------------------------


def test_seed_and_size_change_the_draws() -> None:
    dataset = FakeDataset((400, 400, 400, 400))
    kind = DomainDirichlet()
    base = make_partition(dataset, kind, 20, 0)
    assert base.digest() != make_partition(dataset, kind, 20, 1).digest()
    grown = mixtures(make_partition(dataset, kind, 21, 0), dataset, 2)[:20]
    correlation = np.corrcoef(grown.ravel(), mixtures(base, dataset, 2).ravel())[0, 1]
    assert abs(correlation) < 0.5


def test_digest_is_the_same_on_every_machine_and_sees_every_change() -> None:
    dataset = FakeDataset((100, 100))
    digest = make_partition(dataset, Iid(), 4, 0).digest()
    assert digest == "f85aba353998c3f5269d767036a627ad0ca97cd99d460115d1949ba3edfc7b28"
    shards = make_partition(dataset, Iid(), 4, 0).shards
    assert Partition(shards[::-1]).digest() != digest
    assert Partition(shards[:3]).digest() != digest


@pytest.mark.parametrize("alpha", [1e-6, 0.5, 1e6])
def test_thousands_of_clients_take_bounded_time(alpha: float) -> None:
    dataset = FakeDataset((9000, 3000, 6000, 2000), num_classes=10)
    kind = DomainDirichlet(alpha=alpha, label_dirichlet=0.1, min_examples=10)
    start = time.perf_counter()
    partition = make_partition(dataset, kind, 2000, 0)
    assert time.perf_counter() - start < 10
    assert {shard.num_train for shard in partition.shards} == {10}


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "num_clients", "message"),
    [
        (Iid(), 0, "data.clients=0"),
        (Iid(), 41, r"data.clients=41 x data.partition.min_examples=10 needs 410 .* fake has 400"),
        (DomainsPerClient(domains=5), 8, "data.partition.domains=5 is more than the 4 domains"),
        (DomainsPerClient(domains=1), 3, "leaves [abcd] without a client: raise data.clients"),
        (SingleDomain(), 2, "leaves c, d without a client"),
        (SingleDomain(counts={"a": 11}), 11, "11 clients of a .* needs 110 .* a has 100"),
        (SingleDomain(counts={"a": 1}), 2, "counts sums to 1, data.clients is 2"),
        (SingleDomain(counts={"z": 2}), 2, "no domain 'z'"),
        (SingleDomain(fraction=0.05), 4, "0.05 of the 100 .* of a is 5 a client.*raise fraction"),
        (SingleDomain(fraction=0.4), 12, "is 40 a client, 3 clients need 120: lower fraction"),
        (
            SingleDomain(fraction=0.04, min_examples=1, all_classes=True),
            4,
            "1 clients of a with 4 training examples each cannot all hold its 5 classes",
        ),
        (Heterogeneous(min_examples=30), 13, "cannot get data.partition.min_examples=30"),
        (FromFile(path="none.csv"), 0, "data.clients=0"),
    ],
)
def test_impossible_settings_are_refused_with_numbers(
    kind: AnyPartition, num_clients: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_partition(FakeDataset((100, 100, 100, 100)), kind, num_clients, 0)


@pytest.mark.parametrize(
    ("kind", "unseen", "message"),
    [
        (Iid(), ["sketch"], "data.unseen: no domain 'sketch'; known: a, b, c, d"),
        (Iid(), ["d", "c", "b", "a"], "data.unseen has all 4 domains"),
        (SingleDomain(counts={"a": 1, "d": 3}), ["d"], "gives d 3 clients, data.unseen keeps it"),
        (Iid(min_examples=60), ["a", "b"], "needs 240 .* fake without a, b has 200"),
    ],
)
def test_impossible_unseen_domains_are_refused(
    kind: AnyPartition, unseen: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_partition(FakeDataset((100, 100, 100, 100)), kind, 4, 0, unseen)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fraction": 0.1, "label_dirichlet": 0.5}, "fraction .* label_dirichlet .*leave one out"),
        ({"all_classes": True}, "all_classes needs data.partition.fraction"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Section.model_validate({"partition": {"kind": "single_domain"} | values})


def test_minimum_beyond_the_domains_a_client_holds_is_refused() -> None:
    """Two domains, one a client: b's only client cannot reach 30 of b's 20 images."""
    kind = DomainsPerClient(domains=1, min_examples=30)
    with pytest.raises(ConfigError, match=r"cannot get data\.partition\.min_examples=30"):
        make_partition(FakeDataset((100, 20)), kind, 3, 0)


class Section(BaseModel):
    partition: PartitionSettings


def test_kind_decides_the_settings() -> None:
    section = Section.model_validate({"partition": {"kind": "domains_per_client", "domains": 3}})
    assert section.partition == DomainsPerClient(domains=3)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "iid", "alpha": 0.5},
        {"kind": "domain_dirichlet", "alpha": 0},
        {"kind": "domain_dirichlet", "min_examples": 0},
        {"kind": "single_domain", "counts": {"a": -1}},
        {"kind": "single_domain", "fraction": 0},
        {"kind": "single_domain", "fraction": 1.1},
        {"kind": "heterogeneous", "iid": -0.1},
        {"kind": "heterogeneous", "iid": 1.1},
        {"kind": "file"},
        {"kind": "file", "path": "p.csv", "min_examples": 1},
        {"kind": "magic"},
    ],
)
def test_wrong_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Section.model_validate({"partition": values})


# ---- arithmetic ------------------------------------------------------------------------------


def test_fit_margins_worked_example() -> None:
    """Odds ratio 4 with equal margins of 3: [[2, 1], [1, 2]], as 2 * 2 / (1 * 1) = 4."""
    wants = np.array([[4.0, 1.0], [1.0, 1.0]])
    fitted = dealing.fit_margins(wants, np.array([3, 3]), np.ones(2))
    np.testing.assert_allclose(fitted, [[2, 1], [1, 2]], atol=1e-9)


def test_deal_rounds_up_or_down_without_bias() -> None:
    """Ten images to weights 1:2:4 -> 1.43, 2.86, 5.71 each time rounded, right on average."""
    weights = np.array([[1.0], [2.0], [4.0]])
    dealt = np.array(
        [
            np.bincount(dealing.deal(np.zeros(10, np.int64), weights, np.random.default_rng(seed)))
            for seed in range(400)
        ]
    )
    expected = np.array([10 / 7, 20 / 7, 40 / 7])
    assert (np.abs(dealt - expected) < 1).all()
    np.testing.assert_allclose(dealt.mean(axis=0), expected, atol=0.1)


def test_dirichlet_has_the_right_spread() -> None:
    """Var q_k = (K - 1) / (K^2 (K alpha + 1)), here 2 / (9 * 2.5)."""
    draws = dealing.dirichlet(0.5, (20000, 3), np.random.default_rng(0))
    np.testing.assert_allclose(draws.sum(axis=1), 1)
    np.testing.assert_allclose(draws.mean(axis=0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(draws.var(axis=0), 2 / 22.5, atol=0.003)


def test_classes_nobody_trains_on_are_tested_by_share_of_the_domain() -> None:
    """Clients with 30 and 10 training images of class 0 share 40 test images of class 1."""
    train = np.array([[30, 0], [10, 0]])
    owner = dealing.deal_test(np.ones(40, np.int64), train, np.random.default_rng(0))
    assert dealing.count_by_client(owner, 2).tolist() == [30, 10]


def test_clients_in_need_take_from_domains_they_hold() -> None:
    """Client 1 holds domain 0 only; client 0 could give more of domain 1."""
    owners = [np.array([0] * 8 + [1] * 2), np.zeros(20, np.int64)]
    may_hold = np.ones((2, 2), np.bool_)
    assert dealing.raise_to_minimum(owners, may_hold, 6, np.random.default_rng(0)) == []
    assert [dealing.count_by_client(owner, 2).tolist() for owner in owners] == [[4, 6], [20, 0]]

"""The arithmetic of dealing images to clients; `partition` says what it is for.

No function loops until something random happens, so time is bounded for every argument.

Shape suffixes: M clients, D domains, P pools (domains or classes), G groups (classes, or one group
without label skew), N examples.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

_FIT_STEPS = 50
# A pool wanted less than this by the average client counts as wanted by nobody.
_UNWANTED = 1e-9


def dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Draw rows from a symmetric Dirichlet in the log domain, where no alpha ends in 0/0.

    Args:
        alpha: concentration, > 0.
        shape: rows and parts.
        rng: the generator to draw from.

    Returns:
        Rows that sum to 1.

    Source: Gamma(a) = Gamma(a + 1) * U^(1/a) (Marsaglia and Tsang, 2000).
    """
    alpha = min(max(alpha, 1e-12), 1e12)  # beyond, the limits are reached and floats overflow
    logs = np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha
    parts: Floats = np.exp(logs - logs.max(axis=1, keepdims=True))
    mixtures: Floats = parts / parts.sum(axis=1, keepdims=True)
    return mixtures


def balanced_dirichlet(
    alpha: float, pools_P: Counts, num_clients: int, rng: np.random.Generator
) -> Floats:
    """Draw Dirichlet mixtures whose sum over clients stays near the pools.

    A symmetric Dirichlet is exchangeable: which pool gets a draw's largest part is arbitrary. One
    client after the other gives its largest part to the pool with the most left, its second
    largest to the next, and so on, so that also at alpha -> 0 every pool finds takers.

    Args:
        alpha: concentration, > 0.
        pools_P: images in each pool, not all 0.
        num_clients: M.
        rng: the generator to draw from.

    Returns:
        Mixtures [M, P]; rows sum to 1.
    """
    draws = np.sort(dirichlet(alpha, (num_clients, len(pools_P)), rng), axis=1)[:, ::-1]
    ties = rng.random(draws.shape)
    left = pools_P / pools_P.sum() * num_clients
    wants = np.empty_like(draws)
    for client in range(num_clients):
        # Rounding keeps sums that differ by float noise equal, so that ties are broken at random.
        order = np.lexsort((ties[client], -np.round(left, 9)))
        wants[client, order] = draws[client]
        left -= wants[client]
    return wants


def fixed_number(
    number: int, pools_P: Counts, num_clients: int, rng: np.random.Generator
) -> Floats:
    """Give each client equal parts of `number` pools: those with the most images per holder.

    A pool without a holder comes first, so all have one if num_clients * number >= P.

    Args:
        number: pools of each client, 1..P.
        pools_P: images in each pool.
        num_clients: M.
        rng: breaks ties.

    Returns:
        Mixtures [M, P] of 0 and 1 / number.

    Source: Adams's method of apportionment.
    """
    ties = rng.random((num_clients, len(pools_P)))
    holders = np.zeros(len(pools_P))
    wants = np.zeros((num_clients, len(pools_P)))
    for client in range(num_clients):
        per_holder = np.where(holders > 0, pools_P / np.maximum(holders, 1), np.inf)
        chosen = np.lexsort((ties[client], -per_holder))[:number]
        wants[client, chosen] = 1 / number
        holders[chosen] += 1
    return wants


def fit_margins(wants_MP: Floats, pools_P: Counts, sizes_M: Floats) -> Floats:
    """Turn wants into expected counts: columns sum to the pools, rows nearly to the sizes.

    Rows and columns are scaled in turn, columns last; zeros stay zeros. A pool that nobody wants
    is dealt in proportion to the sizes: covering it comes before the mixtures.

    Args:
        wants_MP: >= 0, a row a client.
        pools_P: images in each pool.
        sizes_M: >= 0, wanted row sums up to a common factor.

    Returns:
        Expected counts [M, P], all 0 if all sizes are.

    Source: iterative proportional fitting (Deming and Stephan, 1940).
    """
    shares_M = ratio(sizes_M, np.broadcast_to(sizes_M.sum(), sizes_M.shape))
    unwanted_P = wants_MP.sum(axis=0) <= _UNWANTED * len(wants_MP)
    fitted = np.where(unwanted_P, 0.0, wants_MP)
    for _ in range(_FIT_STEPS):
        fitted = fitted * ratio(shares_M * pools_P.sum(), fitted.sum(axis=1))[:, None]
        fitted = fitted * ratio(pools_P, fitted.sum(axis=0))
    return np.where(unwanted_P, np.outer(shares_M, pools_P), fitted)


def ratio(numerator: NDArray[np.float64 | np.int64], denominator: Floats) -> Floats:
    """Divide elementwise; 0 where the denominator is not positive."""
    positive = denominator > 0
    return np.where(positive, numerator / np.where(positive, denominator, 1.0), 0.0)


def deal(group_of: Counts, weights_MG: Floats, rng: np.random.Generator) -> Counts:
    """Give each image of one domain an owner, group by group.

    A group is shuffled and cut at the clients' cumulative expected counts plus one uniform offset:
    everyone gets the expected count rounded up or down, without bias.

    Args:
        group_of: int64 [N], the group of each image.
        weights_MG: >= 0; a group goes to the clients in proportion to its column.
        rng: the generator to draw from.

    Returns:
        Client ids, int64 [N]; -1 where the column has no weight.

    Source: systematic sampling (Madow and Madow, 1944).
    """
    owner = np.full(len(group_of), -1, np.int64)
    for group, weights_M in enumerate(weights_MG.T):
        rows = rng.permutation(np.flatnonzero(group_of == group))
        clients = rng.permutation(len(weights_M))
        offset = rng.random()
        takers = clients[weights_M[clients] > 0]
        if len(takers):
            expected = np.cumsum(weights_M[takers]) / weights_M.sum() * len(rows)
            edges = np.floor(expected + offset).astype(np.int64)
            edges[-1] = len(rows)  # the sum may miss it by float noise
            owner[rows] = np.repeat(takers, np.diff(edges, prepend=0))
    return owner


def deal_test(group_of: Counts, train_MG: Counts, rng: np.random.Generator) -> Counts:
    """Deal one domain's test images in proportion to the training images that clients hold of it.

    Args:
        group_of: int64 [N], the group of each test image.
        train_MG: training images by client and group.
        rng: the generator to draw from.

    Returns:
        Client ids, int64 [N]; each client that trains on the domain has at least one image if
        there are enough; -1 everywhere if nobody does.
    """
    held_M = train_MG.sum(axis=1)
    # A class that nobody trains on goes by the clients' share of the domain.
    weights_MG = np.where(train_MG.sum(axis=0) > 0, train_MG, held_M[:, None]).astype(np.float64)
    owner = deal(group_of, weights_MG, rng)
    counts_M = np.bincount(owner[owner >= 0], minlength=len(held_M))
    for client in np.flatnonzero((held_M > 0) & (counts_M == 0)):
        donor = int(counts_M.argmax())
        if counts_M[donor] < 2:
            break
        owner[rng.choice(np.flatnonzero(owner == donor))] = client
        counts_M[donor] -= 1
        counts_M[client] += 1
    return owner


def raise_to_minimum(
    owners: list[Counts],
    may_hold_MD: NDArray[np.bool_],
    minimum: int,
    rng: np.random.Generator,
) -> list[int]:
    """Move images, in place, until every client has the minimum if that can be.

    A client in need takes from whoever can spare most, of domains that it holds already if anyone
    can. A move ends a need or what a donor can spare of a domain: at most M * (D + 1) moves.

    Args:
        owners: for each domain the owners of its images.
        may_hold_MD: whether a client may be given images of a domain.
        minimum: images that each client shall have.
        rng: chooses the images that move.

    Returns:
        Clients that stay below the minimum, ascending.
    """
    counts = np.stack([count_by_client(owner, len(may_hold_MD)) for owner in owners], axis=1)
    below = []
    for client in np.flatnonzero(counts.sum(axis=1) < minimum):
        while (need := minimum - int(counts[client].sum())) > 0:
            spare_M = np.maximum(counts.sum(axis=1) - minimum, 0)
            offers = np.minimum(counts, spare_M[:, None]) * may_hold_MD[client]
            if not offers.any():
                below.append(int(client))
                break
            held = offers * (counts[client] > 0)
            best = int((held if held.any() else offers).argmax())
            donor, domain = divmod(best, len(owners))
            moved = min(need, int(offers[donor, domain]))
            rows = rng.permutation(np.flatnonzero(owners[domain] == donor))[:moved]
            owners[domain][rows] = client
            counts[donor, domain] -= moved
            counts[client, domain] += moved
    return below


def count_by_client(owner: Counts, num_clients: int) -> Counts:
    """Count each client's images, int64 [M]."""
    return count_by_group(owner, np.zeros_like(owner), num_clients, 1)[:, 0]


def count_by_group(owner: Counts, group_of: Counts, num_clients: int, num_groups: int) -> Counts:
    """Count owned images by client and group, int64 [M, G]."""
    owned = owner >= 0
    cells = owner[owned] * num_groups + group_of[owned]
    counts = np.bincount(cells, minlength=num_clients * num_groups)
    return counts.reshape(num_clients, num_groups)


def rows_by_client(owner: Counts, num_clients: int) -> list[Counts]:
    """Return each client's positions, sorted."""
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(num_clients + 1))
    return [order[start:stop] for start, stop in itertools.pairwise(edges)]

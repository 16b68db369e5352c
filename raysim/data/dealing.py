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


def complete_separation(pools_P: Counts, num_clients: int) -> Floats:
    """Choose each client's main pools so that clients share as few as can be.

    With a client for each pool, each client has one: further clients go to the pool with the most
    images per client, and those of a pool are consecutive. With fewer clients, the largest pool
    first, each goes to the client with the fewest images so far. Ties go to the lower id.

    Args:
        pools_P: images in each pool, not all 0; an empty pool is nobody's.
        num_clients: M.

    Returns:
        1 where a client has a pool, else 0, [M, P].
    """
    filled = np.flatnonzero(pools_P)
    if num_clients < len(filled):
        held = np.zeros((num_clients, len(pools_P)))
        sizes = np.zeros(num_clients, np.int64)
        for pool in filled[np.argsort(-pools_P[filled], kind="stable")]:
            client = sizes.argmin()
            held[client, pool] = 1
            sizes[client] += pools_P[pool]
        return held
    clients_P = np.where(pools_P > 0, 1.0, 0.0)
    for _ in range(num_clients - len(filled)):
        clients_P[ratio(pools_P, clients_P).argmax()] += 1
    return np.repeat(np.eye(len(pools_P)), clients_P.astype(np.int64), axis=0)


def heterogeneous(iid: float, pools_P: Counts, num_clients: int) -> Floats:
    """Return expected counts between complete separation and equal parts for everyone.

    Args:
        iid: weight of the equal parts, 0..1.
        pools_P: images in each pool, not all 0.
        num_clients: M.

    Returns:
        Expected counts [M, P]; columns sum to the pools.
    """
    held = complete_separation(pools_P, num_clients)
    apart: Floats = held * ratio(pools_P, held.sum(axis=0))
    expected: Floats = iid * pools_P / num_clients + (1 - iid) * apart
    return expected


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


def deal_shares(num_examples: int, clients: Counts, share: int, rng: np.random.Generator) -> Counts:
    """Give each client the same number of one domain's images, drawn at random.

    Args:
        num_examples: N, at least `share` for each client.
        clients: ids of the takers.
        share: images of each.
        rng: the generator to draw from.

    Returns:
        Client ids, int64 [N]; -1 for images that nobody gets.
    """
    owner = np.full(num_examples, -1, np.int64)
    owner[rng.permutation(num_examples)[: len(clients) * share]] = np.repeat(clients, share)
    return owner


def swap_in_classes(
    owner: Counts, label_of: Counts, clients: Counts, rng: np.random.Generator
) -> None:
    """Swap images of one domain, in place, until each client holds every class of the domain.

    A client gives an image of its most frequent class for one of the class it lacks: an unused
    one, or one of the client that has most of the class.

    Args:
        owner: client ids, int64 [N], -1 for unused images. Every client has at least as many
            images as the domain has classes.
        label_of: int64 [N]; every class that occurs has at least as many images as there are
            clients.
        clients: ids of the clients.
        rng: chooses the images that change hands.
    """
    order = rng.permutation(len(owner))
    # The last row counts the unused images: -1 is an index too.
    counts = np.zeros((int(clients.max()) + 2, int(label_of.max()) + 1), np.int64)
    np.add.at(counts, (owner, label_of), 1)

    def first(holder: int, label: int) -> int:
        return int(order[((owner == holder) & (label_of == label))[order].argmax()])

    occurs = counts.any(axis=0)
    for client in clients.tolist():
        for label in np.flatnonzero(occurs & (counts[client] == 0)).tolist():
            donor = -1 if counts[-1, label] else int(counts[:, label].argmax())
            given = int(counts[client].argmax())
            taken_row, given_row = first(donor, label), first(client, given)
            owner[taken_row], owner[given_row] = client, donor
            counts[client, label] += 1
            counts[donor, label] -= 1
            counts[client, given] -= 1
            counts[donor, given] += 1


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

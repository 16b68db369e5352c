"""FedHEAL: fair federated learning under domain skew (Chen et al., CVPR 2024).

    s_iv = 1[w_iv <= w_v]                                scalar v of client i's trained model fell
    c_iv = share of i's earlier rounds in which v moved as it does now
    m_iv = 1[c_iv > tau]                                 1 in i's first round      (harmonisation)
    d_i  = sum over parameter tensors of || (w_i - w) m_i ||_2
    D_i  <- (1 - beta) D_i + beta d_i / sum_j d_j        p_i <- p_i + D_i          (equalisation)
    w_v  <- sum_i p_i m_iv w_iv / sum_j p_j m_jv         w_v stays where all m_iv are 0

| symbol | field | default | from |
|---|---|---|---|
| tau | threshold | 0.3 | released code; below 0 every scalar is kept |
| beta | equalisation | 0.4 | released code; 0 leaves the weights p uniform |

Phase "fit": the client trains and sends the scalar d_i alone. Phase "share": down integer weights
p, up the masked model and the mask. Private: how often each scalar fell, in which rounds.
tau < 0 and beta = 0 is FedAvg without example counts: for equal shards FedAvg, bit for bit.

Deviates: the paper could not be read; these are the released code's equations. It moves w by the
masked updates, here the same mean is taken over masked models. p is rounded to a millionth of the
cohort's sum, so that sums stay exact. The code counts history by global rounds of full
participation: here it counts the client's own rounds, only the cohort's distances are compared, p
starts at 1 / cohort, and is divided by what it would be at equal distances before clients of
unequal numbers of rounds are compared (a common factor at full participation). BatchNorm's running
statistics are masked and averaged as weights are, unless `buffers` is "local".
"""

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysim.aggregation import Partial, Weighted, masked_mean
from raysim.method import Averaging, ClientView, ServerState, ServerView, Update, as_entry
from raysim.settings import alias
from raysim.tensors import Array, Arrays, prefixed, under

Floats = NDArray[np.float64]
SHARE_UNITS = 2**20


class FedHEAL(Averaging):
    """Drops updates of wavering sign and weighs clients by the distance they move."""

    title: ClassVar[str] = "FedHEAL"
    paper: ClassVar[str] = "Chen et al., CVPR 2024"
    shared: ClassVar[str] = "model, sign masks"
    private: ClassVar[str] = "history of signs"
    phases: ClassVar[tuple[str, ...]] = ("fit", "share")

    name: str = "fedheal"
    threshold: Annotated[float, Field(le=1), alias("threshold", "tau")] = 0.3
    """A scalar's update is kept if its direction's share of earlier rounds exceeds this."""
    equalisation: Annotated[float, Field(ge=0, le=1), alias("equalisation", "beta")] = 0.4
    """Share of this round's distances in a client's step of weight."""

    # Client ----------------------------------------------------------------------------------

    def client_step(self, client: ClientView) -> Update:
        """Train and measure the masked update, or send it at the weight the server gave."""
        return self._fit(client) if client.phase == "fit" else self._share(client)

    def _fit(self, client: ClientView) -> Update:
        update = super().client_step(client)
        shared = {entry: value for entry, (value, _) in update.sums.items()}
        own = update.state or {}
        fell = {e: a <= client.weights[e] for e, a in shared.items()}
        counts, rounds = _history(client)
        masks = {e: consistent(s, counts.get(e), rounds, self.threshold) for e, s in fell.items()}
        counts = {e: s + counts.get(e, np.int32(0)) for e, s in fell.items()}
        parameters = [name for name, _ in client.model.named_parameters()]
        moved = {e: (shared[e] - client.weights[e]) * masks[e] for e in parameters}
        distance = update_distance(moved) if _is_finite(shared | own) else np.nan  # nan: refused
        return Update(
            gathered={"distance": np.array([distance])},
            state=own
            | {"history/rounds": np.array([rounds + 1])}
            | prefixed("fell", counts)
            | prefixed("staged", prefixed("model", shared) | prefixed("mask", masks)),
            metrics={**update.metrics, "kept_fraction": _kept_fraction(masks)},
        )

    def _share(self, client: ClientView) -> Update:
        share = int(client.message["shares"][client.client])
        if share == 0:  # its update was refused in phase "fit"
            return Update()
        staged = under("staged", client.state)
        masks = under("mask", staged)
        masked = {e: array * masks[e] for e, array in under("model", staged).items()}
        sent = prefixed("masked", masked) | prefixed("mask", masks)
        return Update(
            sums={name: Weighted(array, share) for name, array in sent.items()},
            state={n: a for n, a in client.state.items() if not n.startswith("staged/")},
        )

    # Server ----------------------------------------------------------------------------------

    def init_server(self, server: ServerView) -> Arrays:
        """Start without any client's weight."""
        num = server.num_clients
        return {
            "step": np.zeros(num),
            "weight": np.zeros(num),
            "rounds": np.zeros(num, np.int64),
            "shares": np.zeros(num, np.int64),
        }

    def broadcast(self, server: ServerView) -> Arrays:
        """Send the cohort's weights before phase "share"."""
        return {"shares": server.memory["shares"]} if server.phase == "share" else {}

    def aggregate(self, server: ServerView, partial: Partial) -> ServerState:
        """Weigh the cohort by its distances, or average what its masks cover."""
        if server.phase == "fit":
            return ServerState(model=server.weights, memory=self._weigh(server, partial))
        model = dict(server.weights)
        for entry, old in server.weights.items():
            if f"mask/{entry}" in partial.sums:
                total = partial.sums[f"masked/{entry}"].total()
                support = partial.sums[f"mask/{entry}"].total()
                model[entry] = as_entry(masked_mean(total, support, old), old)
        return ServerState(model=model, memory=server.memory)

    def _weigh(self, server: ServerView, partial: Partial) -> Arrays:
        gathered = partial.in_client_order()
        cohort = [client for client, _ in gathered]
        distance_N = np.array([float(arrays["distance"][0]) for _, arrays in gathered])
        memory = {name: array.copy() for name, array in server.memory.items()}
        weight_N = np.where(memory["rounds"][cohort] > 0, memory["weight"][cohort], 1 / len(cohort))
        step_N, weight_N = equalised(
            memory["step"][cohort], weight_N, distance_N, self.equalisation
        )
        memory["step"][cohort], memory["weight"][cohort] = step_N, weight_N
        memory["rounds"][cohort] += 1
        memory["shares"][:] = 0
        expected_N = expected_weight(memory["rounds"][cohort], self.equalisation)
        memory["shares"][cohort] = integer_shares(weight_N / expected_N)
        return memory

    def describe(self, server: ServerView) -> dict[str, float]:
        """Return the largest weight of a client in the cohort's mean."""
        shares = server.memory["shares"]
        return {"largest_weight": float(shares.max() / shares.sum())}


# The equations, in their order ----------------------------------------------------------------
# Suffix: N clients of the cohort.


def consistent(
    fell: NDArray[np.bool_], count: Array | None, rounds: int, threshold: float
) -> NDArray[np.bool_]:
    """Return m = 1[c > tau], where the scalar moved this way in more than tau of earlier rounds.

    Args:
        fell: whether each scalar fell (or stayed) in this round's training.
        count: in how many earlier rounds it did; None before the first.
        rounds: number of those rounds.
        threshold: tau.
    """
    if count is None or rounds == 0:
        return np.ones_like(fell)
    return np.where(fell, count, rounds - count) / rounds > threshold


def update_distance(update: Arrays) -> float:
    """Return d, the sum over tensors of their L2 norms."""
    squares = [np.square(array, dtype=np.float64).sum() for array in update.values()]
    return float(np.sqrt(squares).sum())


def equalised(
    step_N: Floats, weight_N: Floats, distance_N: Floats, beta: float
) -> tuple[Floats, Floats]:
    """Return D <- (1 - beta) D + beta d / sum d, and p <- p + D; no distance at all is uniform."""
    total = distance_N.sum()
    share_N = distance_N / total if total > 0 else np.full_like(distance_N, 1 / len(distance_N))
    step_N = (1 - beta) * step_N + beta * share_N
    return step_N, weight_N + step_N


def expected_weight(rounds_N: Array, beta: float) -> Floats:
    """Return what N p is after some rounds of equal distances: 1 + sum_r (1 - (1 - beta)^r)."""
    steps = 1 - (1 - beta) ** np.arange(rounds_N.max() + 1, dtype=np.float64)
    return np.asarray(1 + np.cumsum(steps)[rounds_N], np.float64)


def integer_shares(weight_N: Floats) -> NDArray[np.int64]:
    """Return small integers >= 1 in the ratio of the weights, to a millionth of their sum."""
    units = np.rint(weight_N / weight_N.sum() * SHARE_UNITS).astype(np.int64)
    units = np.maximum(units, 1)
    return np.asarray(units // np.gcd.reduce(units), np.int64)


def _history(client: ClientView) -> tuple[Arrays, int]:
    """Return how often each scalar fell, by entry, and in how many rounds."""
    rounds = client.state.get("history/rounds")
    return under("fell", client.state), 0 if rounds is None else int(rounds[0])


def _kept_fraction(masks: Arrays) -> float:
    return sum(int(m.sum()) for m in masks.values()) / sum(m.size for m in masks.values())


def _is_finite(arrays: Arrays) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays.values())

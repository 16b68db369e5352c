"""What Ray's own monitoring shows of a run: rounds, examples and bytes, beside Ray's metrics.

Every Ray node serves them for Prometheus, as `ray_raysim_...`; no monitoring has to run.
"""

from ray.util.metrics import Counter, Gauge

from raysim.executor import PhaseReport

_KEYS = ("method", "data", "seed")


class Meter:
    """Counts for one run."""

    def __init__(self, method: str, data: str, seed: int) -> None:
        """Start at zero.

        Args:
            method: a label, like the others.
            data: the data set.
            seed: of the run.
        """
        self._tags = {"method": method, "data": data, "seed": str(seed)}
        self._rounds = Counter("raysim_rounds", "Complete rounds.", _KEYS)
        self._examples = Counter("raysim_examples", "Examples of clients that trained.", _KEYS)
        self._up = Counter("raysim_bytes_up", "Bytes that clients sent, as counted.", _KEYS)
        self._down = Counter("raysim_bytes_down", "Bytes that clients received.", _KEYS)
        self._speed = Gauge("raysim_examples_per_s", "Examples a second in the last phase.", _KEYS)

    def phase(self, report: PhaseReport) -> None:
        """Count a phase that trained."""
        clients = report.clients
        trained = sum(client.num_examples for client in clients if "loss" in client.metrics)
        self._add(self._up, sum(client.bytes_up for client in clients))
        self._add(self._down, report.bytes_down * len(clients))
        self._add(self._examples, trained)
        if trained:
            self._speed.set(trained / max(report.seconds["clients"], 1e-9), self._tags)

    def round(self) -> None:
        """Count a round."""
        self._add(self._rounds, 1)

    def _add(self, counter: Counter, number: int) -> None:
        if number:  # Ray refuses to add nothing
            counter.inc(number, self._tags)

"""What the reports of a round's phases leave in the run's tables."""

import math
from collections.abc import Iterable, Mapping

from raysim.executor import PhaseReport
from raysim.messages import ClientReport, JsonDict
from raysim.results import MetricsTable, TimingsTable


def enter_clients(metrics: MetricsTable, round_: int, clients: Iterable[ClientReport]) -> None:
    """Enter what clients have measured.

    Args:
        metrics: the table.
        round_: 1-based.
        clients: one phase's reports.
    """
    for client in clients:
        who, size = client.client, client.num_examples
        for name, value in client.metrics.items():
            metrics.add(round_, name, value, model="personal", client=who, count=size)


def enter_times(timings: TimingsTable, round_: int, phase: str, report: PhaseReport) -> None:
    """Enter where a phase's seconds and bytes went.

    Args:
        timings: the table.
        round_: 1-based.
        phase: its name.
        report: what the executor says of it.
    """
    for what, seconds in report.seconds.items():
        timings.add(round_, phase, what, seconds)
    for host in report.hosts:
        timings.add(round_, phase, "partial", 0.0, host=host.host, num_bytes=host.partial_bytes)
        for what, seconds in host.seconds.items():
            timings.add(round_, phase, what, seconds, host=host.host)
    for client in report.clients:
        timings.add(
            round_,
            phase,
            "client_step",
            client.seconds,
            host=client.host,
            client=client.client,
            num_bytes=client.bytes_up,
        )


def round_figures(reports: Mapping[str, PhaseReport]) -> JsonDict:
    """Return a round's figures.

    Args:
        reports: by phase.

    Returns:
        `loss`, the clients' example-weighted mean; `skipped_updates`; `bytes_up`, `bytes_down`;
        plain means over the clients of what else they measured; and the method's own figures.
    """
    clients = [client for report in reports.values() for client in report.clients]
    figures: JsonDict = {
        "loss": _weighted_loss(clients),
        "skipped_updates": sum("skipped" in client.metrics for client in clients),
        "bytes_up": sum(client.bytes_up for client in clients),
        "bytes_down": sum(r.bytes_down * len(r.clients) for r in reports.values()),
    }
    measured: dict[str, list[float]] = {}
    for client in clients:
        for name, value in client.metrics.items():
            measured.setdefault(name, []).append(value)
    means = {name: sum(values) / len(values) for name, values in measured.items()}
    own = {name: value for report in reports.values() for name, value in report.metrics.items()}
    more = {name: value for name, value in means.items() if name not in ("loss", "skipped")}
    return figures | more | own


def _weighted_loss(clients: Iterable[ClientReport]) -> float:
    """Return the example-weighted mean of the clients' training losses, in client order."""
    trained = [client for client in clients if "loss" in client.metrics]
    size = sum(c.num_examples for c in trained)
    return sum(c.metrics["loss"] * c.num_examples for c in trained) / size if size else math.nan

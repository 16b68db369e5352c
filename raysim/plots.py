"""A run's charts as Plotly figures, for notebooks."""

from typing import TYPE_CHECKING

from raysim import run_charts
from raysim.chart import Chart
from raysim.errors import RecordError
from raysim.record import Record

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Plots:
    """The charts of the report, one by one."""

    def __init__(self, run: Record) -> None:
        """Draw a run."""
        self._run = run

    def domains(self) -> "Figure":
        """Accuracy of the global model by domain."""
        return run_charts.domains(self._run).figure()

    def losses(self) -> "Figure":
        """Training loss, and test loss by domain."""
        return run_charts.losses(self._run).figure()

    def average(self) -> "Figure":
        """AVG of the global and of personal models."""
        return run_charts.average(self._run).figure()

    def spread(self) -> "Figure":
        """STD of the global and of personal models."""
        return run_charts.spread(self._run).figure()

    def personal(self) -> "Figure":
        """Accuracy of each client's personal model.

        Raises:
            RecordError: the method has no personal models.
        """
        return _there(run_charts.personal(self._run), "personal models").figure()

    def holdings(self) -> "Figure":
        """Training images by client, domain and class."""
        return _there(run_charts.holdings(self._run), "data.json").figure()

    def traffic(self) -> "Figure":
        """Bytes sent so far."""
        return run_charts.traffic(self._run).figure()

    def times(self) -> "Figure":
        """Seconds of each round by part."""
        return run_charts.times(self._run).figure()

    def panels(self) -> "dict[str, Figure]":
        """The method's own charts by name."""
        from raysim.skeleton import method_of

        method = method_of(self._run.settings())
        return {chart.name: chart.figure() for chart in method.panels(self._run)}


def _there(chart: Chart | None, what: str) -> Chart:
    if chart is None:
        raise RecordError(f"the run has no {what}")
    return chart
